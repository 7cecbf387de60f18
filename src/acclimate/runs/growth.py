"""A run that goes on with more data: where it starts from, and what that changed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.config import RunConfig, from_dict, with_settings
from acclimate.core.errors import AcclimateError, RunError
from acclimate.core.progress import Watch, unwatched
from acclimate.records.folder import RUN, WEIGHTS, RunFolder
from acclimate.records.predictions import Predictions
from acclimate.runs.evaluate import evaluate_run, read_seen
from acclimate.runs.plan import Plan

ADAPTED = ("auto", "embedding", "none")  # what a site is compared by: the first that was scored


def config_from(run: Path, changes: Mapping[str, Any], without: Collection[str] = ()) -> RunConfig:
    """The settings of a finished run with `changes` by dotted name, and the backbone that the run
    trained as the start. A run `without` sites that it may have learned from starts from what the
    first run of the line started from. A frozen backbone is the same either way, and its features
    of earlier images are in the cache."""
    folder = RunFolder(run)
    if folder.finished is None:
        raise RunError(f"{run}: there is no finished run to start from; train one first")
    config = from_dict(RunConfig, folder.identity()["config"], where=str(run / RUN))
    learned = config.model.freeze == "none" and config.model.backbone != "mlp"
    start: dict[str, Any] = {}
    if learned:
        start["model.weights"] = line_of(run)[1] if without else str(run / WEIGHTS)
    for name in ("val_domains", "test_domains") if without else ():
        start[name] = [site for site in getattr(config, name) if site not in without]
    return with_settings(config, {**start, **changes})


def line_of(run: Path) -> tuple[list[dict[str, Any]], str]:
    """What a run is, and each run before it whose weights the next one started from; and the
    weights file that the first of them started from."""
    line, weights = [RunFolder(run).identity()], ""
    while weights := line[-1]["config"]["model"].get("weights", ""):
        path = Path(weights)
        if path.name != WEIGHTS or not path.with_name(RUN).exists():
            break
        line.append(RunFolder(path.parent).identity())
    return line, weights


def changed_data(run: Path, plan: Plan) -> dict[str, Any]:
    """Sites and training images that a plan has and the run had not, and the other way round."""
    before, now = RunFolder(run).identity()["train_domains"], plan.train_domains
    old, new = read_seen(run).pictures, plan.training_pictures().pictures
    return {
        "sites_added": [name for name in now if name not in before],
        "sites_gone": [name for name in before if name not in now],
        "images_added": len(np.setdiff1d(new, old)),
        "images_gone": len(np.setdiff1d(old, new)),
    }


@dataclass(frozen=True)
class Difference:
    """Accuracies of two runs on the same held-out images of a site, and how it was adapted to."""

    site: str
    images: int
    before: float
    after: float
    methods: tuple[str, str]


def compare_runs(
    before: Path, after: Path, plan: Plan, *, device: str = "auto", watch: Watch = unwatched
) -> tuple[list[Difference], str]:
    """By site on images that neither run has learned from, and why there is nothing to compare."""
    later = RunFolder(after).predictions()
    try:
        earlier = evaluate_run(before, plan.manifest, device=device, watch=watch).predictions
    except AcclimateError as error:
        return [], f"accuracy before is not known: {error}"
    if later is None:
        return [], f"{after} has no predictions to compare"
    found = []
    for site in plan.manifest.domains:
        one, two = (_adapted(rows, site) for rows in (earlier, later))
        common = np.intersect1d(one.row, two.row)
        if len(common):
            shares = [_right(rows, common) for rows in (one, two)]
            methods = str(one.method[0]), str(two.method[0])
            found.append(Difference(site, len(common), shares[0], shares[1], methods))
    return found, "" if found else "no image was held out of both runs; accuracies are not compared"


def _adapted(rows: Predictions, site: str) -> Predictions:
    """The rows of a site by the first method that it was scored by."""
    own = rows.where(rows.domain == site)
    scored = [name for name in ADAPTED if name in own.method]
    return own.where(own.method == scored[0]) if scored else own.where(own.method == "")


def _right(rows: Predictions, wanted: np.ndarray) -> float:
    """The share of these rows of the manifest that are predicted rightly."""
    return float((rows.predicted == rows.label)[np.isin(rows.row, wanted)].mean())
