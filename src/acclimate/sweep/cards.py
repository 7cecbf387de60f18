"""Model cards of the chosen runs, and what may be deleted of the others."""

import json
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from acclimate.config import AlgorithmName, RunConfig, as_dict, flat
from acclimate.core.errors import RunError, SweepError
from acclimate.core.files import write_text
from acclimate.core.text import markdown, percent
from acclimate.records.folder import CARD, REHEARSAL, RunFolder, is_pruned
from acclimate.records.records import Started
from acclimate.records.rehearsal import Rehearsal, rows, verdict
from acclimate.results.protocol import RULES, Sweep
from acclimate.results.selection import Choice
from acclimate.results.sweep_folder import SweepFolder

SAID_ELSEWHERE = ("algorithm", "test_domains", "val_domains", "model.weights", "model.backbone")


def write_cards(folder: Path, sweep: Sweep, choices: Sequence[Choice], rule: str) -> list[Path]:
    """Write a card into the folder of each chosen run, from what that folder holds, and remove
    those of runs that are chosen no more."""
    here, chosen = SweepFolder(folder), dict[str, list[Choice]]()
    for choice in choices:
        if choice.run is not None:
            chosen.setdefault(choice.run, []).append(choice)
    for job in sweep.jobs:
        if job.id not in chosen:
            (here.run(job.id).path / CARD).unlink(missing_ok=True)
    for id, reasons in chosen.items():
        card, text = here.run(id).path / CARD, _card(here.run(id), sweep, reasons, rule)
        if not card.exists() or card.read_text(encoding="utf-8") != text:
            write_text(card, text)
    return [here.run(id).path / CARD for id in chosen]


def prune(folder: Path, sweep: Sweep, keep: Collection[str]) -> int:
    """Delete the weights of finished runs that are not in `keep`; the bytes that this frees.

    Records and settings stay, so that tables do not change. A Φ that runs share goes once no
    unfinished run needs it; a kept run has its own in its model.
    """
    freed, here = 0, SweepFolder(folder)
    needed = set()
    for job in sweep.jobs:
        if here.job_state(job.id) != "done":
            needed.add(job.needs)
        elif job.id not in keep:
            freed += here.run(job.id).prune()
    for phi in sweep.embeddings:
        if phi.id not in needed:
            freed += here.embedding(phi.id).prune()
    return freed


def _card(run: RunFolder, sweep: Sweep, choices: Sequence[Choice], rule: str) -> str:
    try:
        identity = run.identity()
    except (OSError, RunError):
        raise SweepError(
            f"{run.identity_file} is missing or damaged; restore it, or delete the run's folder "
            f"and repeat the sweep"
        ) from None
    records, stored, config = run.records(), run.rehearsal(), identity["config"]
    starts = [record for record in records.all if isinstance(record, Started)]
    if records.finished is None or not starts:
        raise SweepError(f"{run.path}: the run is not finished; repeat the sweep to resume it")
    rehearsal = None if stored is None else Rehearsal.from_dict(stored, where=REHEARSAL)
    final = (score for score in records.scores if score.moment == "final")
    text: str = _template().render(
        run=identity,
        config=config,
        name=run.path.name,
        first_weights=_first_weights(config["model"]),
        sweep=sweep,
        rule=rule,
        about_rule=RULES[rule],
        choices=choices,
        unseen=[score for score in final if score.role != "train"],
        rehearsal=rehearsal and rows(rehearsal),
        verdict=rehearsal and verdict(rehearsal),
        adapts=AlgorithmName.of(config["algorithm"]).adaptive or rehearsal is not None,
        pruned=is_pruned(run.path),
        settings=_changed_settings(config),
        starts=starts,
        finished=records.finished,
    )
    return text


@cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    here = Environment(
        loader=PackageLoader("acclimate.sweep", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML: `md` escapes both
    )
    here.filters |= {
        "md": markdown,
        "listed": lambda names: ", ".join(map(markdown, names)),
        "percent": percent,
    }
    return here.get_template("card.md")


def _first_weights(model: dict[str, Any]) -> str:
    if model["weights"]:
        return Path(model["weights"]).name
    untrained = not model["pretrained"] or model["backbone"] in ("small-cnn", "mlp")
    return "random" if untrained else "pretrained"


def _changed_settings(config: dict[str, Any]) -> dict[str, str]:
    """Settings that differ from the defaults, as JSON writes them."""
    defaults = flat(as_dict(RunConfig()))
    return {
        key: json.dumps(value)
        for key, value in sorted(flat(config).items())
        if value != defaults.get(key) and key not in SAID_ELSEWHERE
    }
