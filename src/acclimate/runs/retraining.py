"""Rehearsal by whole retraining: what the run would have been without some of its domains.

Each fold is a run of its own in a hidden folder of the run, resumes as any other, and goes when the
run is finished: what it showed is in `rehearsal.json`.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from acclimate.config import RunConfig
from acclimate.data.manifest import Manifest
from acclimate.learn.model import Trained
from acclimate.learn.models import Plain, over_features
from acclimate.runs.plan import Plan
from acclimate.runs.rehearsal import Retrained, Split, feature_rows, splits, stage_of
from acclimate.runs.session import Session

FOLDER = ".rehearsal"


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
