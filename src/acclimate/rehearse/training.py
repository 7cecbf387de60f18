"""Training with its rehearsal, on heads or on whole models that are trained without some domains.

Each fold of whole models is a run of its own in a hidden folder of the run, which resumes as any
other run. The folder also keeps the heads and trials of a rehearsal that is not finished. It goes
when the run is finished: what it showed is in `rehearsal.json`.
"""

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from acclimate.config import RunConfig, with_settings
from acclimate.core.distributed import pick_device
from acclimate.core.progress import Watch, prefixed, unwatched
from acclimate.data.manifest import Manifest
from acclimate.learn.model import Trained
from acclimate.learn.models import Head, Predictor
from acclimate.records.folder import RunFolder
from acclimate.records.records import Record
from acclimate.rehearse.folds import Fold, extract_features, make_folds, rehearsal_data
from acclimate.rehearse.rehearsal import rehearse_run
from acclimate.runs import training as runs
from acclimate.runs.identity import run_identity
from acclimate.runs.plan import Plan, make_plan
from acclimate.runs.session import Session

FOLDER = ".rehearsal"
TIMED = 8  # images whose features are timed, three times


def train(
    config: RunConfig,
    manifest: Manifest,
    out: Path,
    *,
    device: str = "auto",
    watch: Watch = unwatched,
    say: Callable[[str], None] = lambda line: None,
    embedding: Path | None = None,
    plan: Plan | None = None,
    listen: Callable[[Record], None] | None = None,
) -> runs.RunResult:
    """Train in folder `out`, and rehearse where the settings ask for it; see `runs.training.train`.

    `plan` is what the settings come to, where somebody has made it already and said what it
    decides. `say` is told in a line what was decided for the user, and why.
    """
    folder = RunFolder(out)
    if plan is None:
        plan = make_plan(folder.settled(config), manifest, device=device)
        for line in plan.decided if folder.finished is None else ():
            say(line)
    adapt = plan.config.adapt
    if folder.finished is None and adapt.rehearse and adapt.depth == "whole":
        _train_folds(plan, folder, device, watch)
    result = runs.train(
        plan,
        out,
        device=device,
        watch=watch,
        say=say,
        embedding=embedding,
        after=_rehearse if adapt.rehearse else None,
        listen=listen,
    )
    shutil.rmtree(out / FOLDER, ignore_errors=True)
    return result


class BackboneScore(NamedTuple):
    """A backbone by the rehearsal of a run that used it, and what it costs."""

    backbone: str
    folder: Path
    plain: float | None  # accuracy where a site was held out; None without a rehearsal
    adapted: float | None  # by the chain that `adapt` uses there
    milliseconds: float  # for the features of an image
    parameters: float  # in millions


def score_backbone(run: Path, device: str = "auto") -> BackboneScore:
    """The accuracies are those with the most images that were rehearsed."""
    trained = Trained.load(run, pick_device(device))
    rehearsal, backbone = trained.rehearsal, trained.predictor.backbone.eval()
    plain = adapted = None
    if rehearsal is not None:
        most = max(rehearsal.chosen)
        plain = rehearsal.promise("none", most).accuracy
        adapted = rehearsal.promise(rehearsal.chosen[most], most).accuracy
    shape = (3, trained.size, trained.size) if backbone.size else (trained.size,)
    images, seconds = torch.zeros(TIMED, *shape, device=backbone.mean.device), []
    with torch.inference_mode():
        for _ in range(3):
            start = time.perf_counter()
            backbone(images).sum().item()  # a GPU has finished once the number is here
            seconds.append(time.perf_counter() - start)
    parameters = sum(part.numel() for part in backbone.parameters()) / 1e6
    name = trained.config.model.backbone
    return BackboneScore(name, run, plain, adapted, 1000 * min(seconds) / TIMED, parameters)


def _train_folds(plan: Plan, folder: RunFolder, device: str, watch: Watch) -> None:
    """Whole models for the rehearsal, each without the domains of a fold."""
    config = with_settings(
        plan.config,
        {
            "test_domains": [],
            "adapt.rehearse": False,
            "adapt.depth": "heads",
            "adapt.methods": [],
            # What was decided for the whole run must not stop a part of it.
            "data.min_images": 0,
            "data.unseen_classes": "drop",
        },
    )
    folds = make_folds(rehearsal_data(plan), plan.config.seed)[1]
    if folds:
        folder.refuse_others(run_identity(plan))  # now, and not after hours
    for number, fold in enumerate(folds, start=1):
        part = prefixed(watch, f"rehearsal {number} of {len(folds)}, ")
        place = fold_folder(folder.path, fold)
        part_plan = make_plan(RunFolder(place).settled(config), _without(plan, fold), device=device)
        runs.train(part_plan, place, device=device, watch=part)


def _rehearse(now: Session, predictor: Predictor) -> runs.Rehearsed:
    whole = now.plan.config.adapt.depth == "whole"
    retrained = partial(_load_fold, now) if whole else None
    return rehearse_run(now, predictor, retrained, now.folder.path / FOLDER)


def _load_fold(now: Session, fold: Fold) -> tuple[Tensor, Head]:
    """The finished model of a fold, as the rehearsal takes it."""
    predictor = Trained.load(fold_folder(now.folder.path, fold), now.world.device).predictor
    features, _ = extract_features(now, predictor)
    return features.x, predictor.head


def fold_folder(run: Path, fold: Fold) -> Path:
    return run / FOLDER / f"fold-{fold.number + 1}"


def _without(plan: Plan, fold: Fold) -> Manifest:
    """Rows of the other domains, as far as they show nothing of the held-out ones, and
    those of the validation domains, which choose weights as in the run itself."""
    manifest, others = plan.manifest, [plan.train_domains[d] for d in fold.others]
    own = np.concatenate([manifest.rows(domain=name) for name in others])
    own = own[fold.apart[own] & (manifest.splits[own] != "test")]
    unseen = [manifest.rows(domain=name) for name in plan.val_domains]
    return manifest.select(np.sort(np.concatenate([own, *unseen])))
