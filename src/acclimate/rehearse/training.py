"""Training with its rehearsal, by heads or by whole retraining without some of the domains.

Each fold is a run of its own in a hidden folder of the run, resumes as any other, and goes when the
run is finished: what it showed is in `rehearsal.json`.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from acclimate.config import RunConfig
from acclimate.core.progress import Watch, unwatched
from acclimate.data.manifest import Manifest
from acclimate.learn.model import Trained
from acclimate.learn.models import Plain, Predictor, over_features
from acclimate.records.folder import RunFolder
from acclimate.rehearse.rehearsal import (
    Retrained,
    Split,
    feature_rows,
    rehearse_run,
    splits,
    stage_of,
)
from acclimate.runs import training as runs
from acclimate.runs.identity import run_identity
from acclimate.runs.plan import Plan, make_plan
from acclimate.runs.session import Session

FOLDER = ".rehearsal"


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
) -> runs.RunResult:
    """Train as `runs.training.train` does, and rehearse where the settings ask for it."""
    folder = RunFolder(out)
    if plan is None:
        plan = make_plan(folder.settled(config), manifest, device=device)
        for line in plan.decided if folder.finished is None else ():
            say(line)
    if folder.finished is None:
        _train_folds(plan, folder, device, watch)
    result = runs.train(
        config,
        manifest,
        out,
        device=device,
        watch=watch,
        say=say,
        embedding=embedding,
        plan=plan,
        after=_rehearse if plan.config.adapt.rehearse else None,
    )
    remove_folds(out)
    return result


def _rehearse(now: Session, predictor: Predictor) -> runs.Rehearsed:
    return rehearse_run(now, predictor, retrained(now))


def _train_folds(plan: Plan, folder: RunFolder, device: str, watch: Watch) -> None:
    """Whole models for the rehearsal, each without some domains."""
    needed = list(folds(plan, folder.path))
    if needed:
        folder.refuse_others(run_identity(plan))  # now, and not after hours
    for number, fold in enumerate(needed, start=1):
        part = f"rehearsal {number} of {len(needed)}, "

        def within(phase: str, done: int, total: int, note: str, part: str = part) -> None:
            watch(part + phase, done, total, note)

        runs.train(fold.config, fold.manifest, fold.folder, device=device, watch=within)


@dataclass(frozen=True)
class Fold:
    """A run without some of the training domains."""

    config: RunConfig
    manifest: Manifest
    folder: Path


def folds(plan: Plan, run: Path) -> Iterator[Fold]:
    """Where whole models are rehearsed: those that are needed."""
    if not (plan.config.adapt.rehearse and plan.config.adapt.depth == "whole"):
        return
    config = replace(
        plan.config,
        test_domains=(),
        adapt=replace(plan.config.adapt, rehearse=False, depth="heads", methods=()),
        # What was decided for the whole run must not stop a part of it.
        data=replace(plan.config.data, min_images=0, unseen_classes="drop"),
    )
    for split in splits(stage_of(plan), plan.config.seed)[1]:
        yield Fold(config, _without(plan, split), _place(run, split))


def remove_folds(run: Path) -> None:
    shutil.rmtree(run / FOLDER, ignore_errors=True)


def retrained(now: Session) -> Retrained | None:
    """The models of the folds, which are finished, as the rehearsal takes them."""
    if now.plan.config.adapt.depth != "whole":
        return None

    def load(split: Split) -> tuple[Tensor, Plain]:
        trained = Trained.load(_place(now.folder.path, split), now.world.device)
        plain = trained.predictor
        assert isinstance(plain, Plain)
        if plain.backbone.extractor is not None:  # the session's source has its features
            plain = Plain.of(plain.backbone.alone(), plain.head)
        rows, _, _ = feature_rows(now, plain)
        return rows.x, (plain if now.plan.on_features else over_features(plain)).eval()

    return load


def _place(run: Path, split: Split) -> Path:
    return run / FOLDER / f"fold-{split.fold + 1}"


def _without(plan: Plan, split: Split) -> Manifest:
    """The rows of the domains that are kept, as far as they show nothing that plays, and those of
    the validation domains, which choose weights as in the run itself."""
    manifest, kept = plan.manifest, [plan.train_domains[d] for d in split.kept]
    own = np.concatenate([manifest.rows(domain=name) for name in kept])
    own = own[split.apart[own] & (manifest.splits[own] != "test")]
    unseen = [manifest.rows(domain=name) for name in plan.val_domains]
    return manifest.select(np.sort(np.concatenate([own, *unseen])))
