"""Scoring a finished run on data of its own or other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.adapt.methods import Chain, find_chain, nothing_to_embed
from acclimate.config import RunConfig, with_settings
from acclimate.core.distributed import World, joined
from acclimate.core.errors import ConfigError, DamagedFile, ManifestError, WriteError, unknown
from acclimate.core.progress import Watch, unwatched
from acclimate.core.tensors import read_tensors
from acclimate.data.manifest import Manifest, without_small
from acclimate.data.pictures import Seen
from acclimate.data.source import FeatureSource, Quarantine, open_source
from acclimate.learn.frozen import Extraction
from acclimate.learn.model import Trained
from acclimate.learn.models import takes_features
from acclimate.records.folder import PICTURES
from acclimate.records.predictions import Predictions
from acclimate.records.records import Score
from acclimate.runs.plan import Plan, check_components
from acclimate.runs.scoring import Subject, final_scores


@dataclass(frozen=True)
class Evaluation:
    scores: list[Score]
    predictions: Predictions  # the rows that they are made from
    unreadable: list[str]
    manifest: Manifest  # what was scored, whose rows the predictions name
    same_data: bool  # as the run's; otherwise training domains may be scored on images trained on


def evaluate_run(
    run: Path,
    data: Path | Manifest,
    changes: Mapping[str, Any] | None = None,
    *,
    methods: Sequence[str] = (),
    device: str = "auto",
    watch: Watch = unwatched,
) -> Evaluation:
    """Final scores of `run` on `data`; on the run's own data, those that it ended with.

    Domains that the run was trained on use their stored μ and validation or test split; all
    others are adapted to, and scored with each further adaptation method in `methods` too.
    `changes` are settings by dotted name, such as adapt.source.
    """
    asked = [find_chain(method) for method in methods if method != "auto"]
    with joined(device) as world:
        trained = Trained.load(run, world.device)
        if not trained.adaptive and any(chain.embedding for chain in asked):
            raise nothing_to_embed(trained.config.algorithm)
        config = with_settings(trained.config, changes or {})
        manifest = data if isinstance(data, Manifest) else Manifest.open(data, watch=watch)
        manifest, _ = without_small(manifest, config.data.min_images)
        manifest.check()
        _check_kind(manifest, trained)
        manifest = _in_classes(manifest, trained, drop=config.data.unseen_classes == "drop")
        same_data = manifest.digest() == trained.data
        plan = _plan(config, trained, manifest, None if same_data else read_seen(run))
        quarantine = Quarantine(None, total=len(manifest), max_share=config.data.max_unreadable)
        own = [find_chain(name, config.adapt) for name in config.adapt.methods if name != "auto"]
        chains = asked + own
        source = _features(run, trained, plan, quarantine, world, watch, chains) or open_source(
            manifest, trained.size, config.data, quarantine, world.device
        )
        subject, scores, rows = Subject.of(trained, plan, source, world), [], []
        for score, predicted in final_scores(subject, methods):
            scores.append(replace(score, moment="evaluate"))
            rows.append(predicted)
            watch("scoring", len({s.domain for s in scores}), len(manifest.domains), score.domain)
        unreadable = sorted(name for name, _ in quarantine.entries)
        return Evaluation(scores, Predictions.joined(rows), unreadable, manifest, same_data)


def _features(
    run: Path,
    trained: Trained,
    plan: Plan,
    quarantine: Quarantine,
    world: World,
    watch: Watch,
    chains: Sequence[Chain],
) -> FeatureSource | None:
    """What a backbone that stays as it is makes of the images to score, from the cache as far as it
    has them. None where images have to pass: the backbone learned, a method changes it, or there is
    no room for its features in memory or on disk."""
    config = plan.config
    if not plan.frozen or world.size > 1 or not all(chain.head_only for chain in chains):
        return None
    extraction = Extraction(trained.predictor.backbone, config.model.backbone, trained.size)
    rows = np.setdiff1d(plan.rows, np.concatenate([plan.rows[:0], *plan.train_rows]))
    try:
        return extraction.extract(
            plan.manifest, rows, config.data, quarantine, beside=run, world=world, watch=watch
        )
    except (ConfigError, WriteError, OSError):  # of its memory and cache: scoring needs neither
        return None


def _plan(config: RunConfig, trained: Trained, manifest: Manifest, seen: Seen | None) -> Plan:
    """The run's domains in their roles. Others are test domains, unless the run had them before it
    and left them out. `seen` is what was trained on where these are other data."""
    train = tuple(name for name in manifest.domains if name in trained.train_domains)
    val = tuple(name for name in manifest.domains if name in trained.val_domains)
    test = tuple(name for name in manifest.domains if name not in {*train, *val})
    if seen is None:
        test = trained.test_domains
    return Plan(config, check_components(config), manifest, train, val, test, seen=seen)


def read_seen(run: Path) -> Seen:
    """The pictures that a run was trained on."""
    keys = read_tensors(run / PICTURES)[0]
    try:
        return Seen(keys["pictures"].numpy(), keys["groups"].numpy())
    except KeyError:
        raise DamagedFile(run / PICTURES) from None


def _check_kind(manifest: Manifest, trained: Trained) -> None:
    wanted = trained.size if takes_features(trained.predictor) else None
    offered = manifest.features().shape[1] if manifest.has_features else None
    if wanted != offered:
        names = [f"rows of {n} features" if n else "images" for n in (wanted, offered)]
        raise ManifestError(f"the model takes {names[0]}, and {manifest.source} holds {names[1]}")


def _in_classes(manifest: Manifest, trained: Trained, *, drop: bool) -> Manifest:
    """The manifest in the model's class order. Rows of a class that no training domain had are
    dropped where training dropped them, and an error otherwise."""
    learned = {
        name for name, share in zip(trained.classes, trained.label_prior, strict=True) if share
    }
    is_learned = np.isin(
        manifest.label_index,
        [place for place, name in enumerate(manifest.classes) if name in learned],
    )
    if not is_learned.all() and not drop:
        name = manifest.classes[manifest.label_index[int(np.argmin(is_learned))]]
        raise unknown(f"the model has no class '{name}' of {manifest.source}", name, learned)
    if not is_learned.any():
        raise ManifestError(f"{manifest.source} has no rows to score; choose other data")
    left = manifest if is_learned.all() else manifest.select(np.flatnonzero(is_learned))
    return replace(left, classes=trained.classes)
