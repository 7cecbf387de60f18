"""From an ablation and data to a sweep that is ready to run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acclimate.build.digits import build_digits
from acclimate.build.long_tail import LongTailSettings
from acclimate.config import AlgorithmName, flat, layered, nested
from acclimate.core.errors import ConfigError
from acclimate.data.manifest import Manifest
from acclimate.data.readers import data_name
from acclimate.paper.ablations.table import (
    BATCH,
    EMBEDDED_BATCH,
    EMBEDDED_LONG_TAIL,
    EMBEDDED_SETTINGS,
    NONE,
    SETTINGS,
    Ablation,
    Base,
    Value,
    find_ablation,
)
from acclimate.results.protocol import Axis, Sweep
from acclimate.sweep.definition import ROLES
from acclimate.sweep.driver import SweepPlan
from acclimate.sweep.jobs import define
from acclimate.sweep.settings import SweepConfig


@dataclass(frozen=True, kw_only=True)
class AblationRequest:
    """An ablation as it was asked for; what is empty is decided by the ablation and the data."""

    name: str
    data: Path | None = None  # None: the base, or else the embedded digits
    base: Callable[[int], Base] | None = None  # by the seed of the draw
    out: Path
    values: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    test_domains: tuple[str, ...] = ()  # held out together
    val_domains: tuple[str, ...] = ()
    trials: int = 3
    seed: int = 0
    one_draw: bool = False  # of the data, for all trials
    preset: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)  # nested


def prepare_ablation(request: AblationRequest) -> SweepPlan:
    """Check everything, build the data in memory, and list the runs; nothing is written."""
    ablation = find_ablation(request.name)
    _refuse_own(request, ablation)
    base = _base(request, ablation)
    labels = {_label(value): value for value in _values(request, ablation, base)}
    sets = _data_sets(request, ablation, base, labels)
    if not request.one_draw:
        later = [_later(request, ablation, base, trial) for trial in range(1, request.trials)]
        sets = _drawn_anew(request, ablation, later, labels, sets)
    if ablation.data is not None:
        labels = {label: labels[label] for label in sets.of_variant}
    algorithms = request.algorithms or ablation.algorithms
    config = SweepConfig(
        title=f"Ablation: {ablation.about}",
        data=tuple(str(path) for path in sets.places.values()),
        algorithms=algorithms,
        test_domains=_groups(request, ablation, base),
        val_domains=() if ablation.pool else request.val_domains,
        trials=request.trials,
        seed=request.seed,
        baseline="erm" if "erm" in algorithms else algorithms[0],
        preset=request.preset,
        settings=layered(nested(_defaults(request)), request.settings),
        variants={label: _variant(request, ablation, value) for label, value in labels.items()},
    )
    places = {
        label: None if isinstance(value, str) else float(value) for label, value in labels.items()
    }
    axis = Axis(label=ablation.label, places=places)
    sweep = _defined(config, sets, axis)
    return SweepPlan(sweep=sweep, manifests=sets.manifests, paths=sets.places, notes=sets.notes)


def _defaults(request: AblationRequest) -> dict[str, Any]:
    """A preset or --set has the last word."""
    return {
        **SETTINGS,
        **(EMBEDDED_SETTINGS if request.data is None and not request.preset else {}),
    }


def _variant(request: AblationRequest, ablation: Ablation, value: Value) -> dict[str, Any]:
    batch = EMBEDDED_BATCH if request.data is None else BATCH
    along = ablation.along(value, batch)
    if request.preset or set(along) & set(flat(request.settings)):
        along = {}
    return nested({**along, **ablation.settings(value)})


def _refuse_own(request: AblationRequest, ablation: Ablation) -> None:
    for key in ablation.settings(ablation.embedded[-1]):
        if key in flat(request.settings):
            raise ConfigError(
                f"--set {key}: the ablation '{request.name}' varies this itself; use --values"
            )


def _defined(config: SweepConfig, sets: "_DataSets", axis: Axis) -> Sweep:
    """With a variant `none`, plain algorithms run under it and adaptive ones under the others."""
    manifests, drawn = sets.manifests, sets.drawn
    if axis.places and axis.ordered:
        return define(config, manifests, data_of_variant=sets.of_variant, drawn=drawn, axis=axis)
    plain = tuple(name for name in config.algorithms if not AlgorithmName.of(name).over_mu)
    adaptive = tuple(name for name in config.algorithms if AlgorithmName.of(name).over_mu)
    without = {label: values for label, values in config.variants.items() if label == NONE}
    adapted = {label: values for label, values in config.variants.items() if label != NONE}
    parts = [
        define(
            replace(config, algorithms=names, variants=variants), manifests, drawn=drawn, axis=axis
        )
        for names, variants in ((plain, without), (adaptive, adapted))
        if names and variants
    ]
    if not parts:
        raise ConfigError(
            "nothing to run: 'none' is for plain algorithms and every embedding for adaptive "
            "ones; add the other kind to --algorithms or --values"
        )
    jobs = sorted((job for part in parts for job in part.jobs), key=lambda job: job.trial)
    embeddings = tuple(found for part in parts for found in part.embeddings)
    return replace(parts[-1], jobs=tuple(jobs), embeddings=embeddings)


def _base(request: AblationRequest, ablation: Ablation) -> Base:
    if request.base is not None:
        return request.base(request.seed)
    if request.data is None:
        manifest = build_digits(replace(ablation.digits, seed=request.seed))
        long_tail = replace(EMBEDDED_LONG_TAIL, seed=request.seed)
        if ablation.pool:
            manifest = digit_pool(manifest)
    else:
        manifest = Manifest.open(request.data)
        manifest.check()
        long_tail = _scaled(manifest, request.seed)
    unseen = {name for name, role in manifest.roles().items() if role != "train"}
    unseen |= {*request.test_domains, *request.val_domains}
    training = tuple(name for name in manifest.domains if name not in unseen)
    return Base(manifest=manifest, training=training, long_tail=long_tail, seed=request.seed)


def _later(request: AblationRequest, ablation: Ablation, first: Base, trial: int) -> Base:
    """What a later trial starts from: what is drawn follows its seed, data of one's own stay."""
    seed = request.seed + trial
    if request.base is not None:
        return request.base(seed)
    if request.data is not None:
        return replace(first, seed=seed, long_tail=replace(first.long_tail, seed=seed))
    drawn = _base(replace(request, seed=seed), ablation)
    # Named as those of the first trial, with which they are averaged domain by domain.
    return replace(
        drawn,
        manifest=_renamed(drawn.manifest, f"-{seed}-", f"-{request.seed}-"),
        training=tuple(name.replace(f"-{seed}-", f"-{request.seed}-") for name in drawn.training),
    )


def _renamed(manifest: Manifest, old: str, new: str) -> Manifest:
    column = manifest.table["domain"]
    names = pa.array([str(name).replace(old, new) for name in manifest.domain_names])
    place = manifest.table.column_names.index("domain")
    return replace(
        manifest, table=manifest.table.set_column(place, "domain", names.cast(column.type))
    )


def digit_pool(manifest: Manifest) -> Manifest:
    """The digits as a pool: images of unseen sensors, which show other digits, are for test."""
    unseen = np.array([name.startswith("test") for name in manifest.domain_names])
    splits = pa.array(np.where(unseen, "test", manifest.splits), pa.string())
    table = manifest.table.drop_columns(["role"])
    return replace(
        manifest, table=table.set_column(table.column_names.index("split"), "split", splits)
    )


def _scaled(manifest: Manifest, seed: int) -> LongTailSettings:
    """The paper's proportions for other data: a fifth of the classes are heads, which get half of
    the images that a class of median size has for training."""
    sizes = np.bincount(manifest.label_index, minlength=len(manifest.classes))
    per_class = max(2, round(0.35 * float(np.median(sizes))))
    return LongTailSettings(
        heads=max(1, len(manifest.classes) // 5),
        per_class=per_class,
        val_per_class=max(1, round(per_class / 7)),
        test_per_class=max(2, round(per_class * 6 / 7)),
        seed=seed,
    )


def _values(request: AblationRequest, ablation: Ablation, base: Base) -> list[Value]:
    if not request.values:
        values = list(ablation.embedded if request.data is None else ablation.values(base))
    else:
        values = [_parsed(text, request.name, ablation) for text in request.values]
    low, high = ablation.limit(base) if ablation.limit else (0.0, float("inf"))
    for value in values:
        if not isinstance(value, str) and not low <= value <= high:
            allowed = f"from {low:g} to {high:g}" if np.isfinite(high) else f"at least {low:g}"
            raise ConfigError(
                f"--values: {value:g} for '{request.name}' is out of reach for "
                f"{base.manifest.source}; choose {allowed}"
            )
    distinct = list(dict.fromkeys(values))
    if len(distinct) < 2:
        raise ConfigError(
            f"{base.manifest.source} leaves fewer than two values to compare for '{request.name}'; "
            f"give --values"
        )
    return distinct if isinstance(distinct[0], str) else sorted(distinct, key=float)


def _parsed(text: str, name: str, ablation: Ablation) -> Value:
    if isinstance(ablation.embedded[0], str):
        return text
    try:
        number = float(text)
        if ablation.whole and not number.is_integer():
            raise ValueError
    except (ValueError, OverflowError):
        kind = "whole numbers" if ablation.whole else "numbers"
        raise ConfigError(f"--values: '{name}' takes {kind}, not '{text}'") from None
    return int(number) if ablation.whole else number


def _label(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:g}" if value < 1e6 else str(value)


def _groups(request: AblationRequest, ablation: Ablation, base: Base) -> tuple[str, ...]:
    """The unseen domains: as asked, else by role, else each in turn where training may change."""
    if ablation.pool:
        return (ROLES,)
    if request.test_domains:
        return (",".join(request.test_domains),)
    if "test" in base.manifest.roles().values():
        return (ROLES,)
    if ablation.data is not None:
        raise ConfigError(
            f"'{request.name}' takes training domains away and needs others to test on, and "
            f"{base.manifest.source} gives none the role 'test'; name some with --test-domains"
        )
    return ()


@dataclass(frozen=True, kw_only=True)
class _DataSets:
    manifests: Mapping[str, Manifest]
    places: Mapping[str, Path]
    of_variant: Mapping[str, str]
    drawn: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of each trial, by name
    notes: tuple[str, ...] = ()


def _data_sets(
    request: AblationRequest, ablation: Ablation, base: Base, labels: Mapping[str, Value]
) -> _DataSets:
    if ablation.data is None:
        name = base.manifest.source if request.data is None else data_name(request.data)
        place = request.data
        if place is None:
            place = built_place(request.out, name, base.manifest)
        return _DataSets(manifests={name: base.manifest}, places={name: place}, of_variant={})
    manifests: dict[str, Manifest] = {}
    places: dict[str, Path] = {}
    of_variant: dict[str, str] = {}
    notes: list[str] = []
    for label, value in labels.items():
        name = f"{request.name}-{label}"
        built = ablation.data(base, value, list(labels.values()))
        same = next((one for one, m in manifests.items() if m.digest() == built.digest()), None)
        if same is not None:
            notes.append(f"{label} is left out: the data are those of {same}")
            continue
        places[name] = built_place(request.out, name, built)
        manifests[name], of_variant[label] = built, name
    return _DataSets(manifests=manifests, places=places, of_variant=of_variant, notes=tuple(notes))


def _drawn_anew(
    request: AblationRequest,
    ablation: Ablation,
    later: Sequence[Base],
    labels: Mapping[str, Value],
    first: _DataSets,
) -> _DataSets:
    """With draws of their own for the trials after the first, so that errors include the draw.
    Where a trial's draw is that of an earlier one, as of data of one's own, they share it."""
    manifests, places = dict(first.manifests), dict(first.places)
    drawn = {name: [name] for name in manifests}
    for trial, base in enumerate(later, start=1):
        if ablation.data is None:
            draws = dict.fromkeys(drawn, base.manifest)
        else:
            draws = {
                first.of_variant[label]: ablation.data(base, value, list(labels.values()))
                for label, value in labels.items()
                if label in first.of_variant
            }
        for name, manifest in draws.items():
            known = next(
                (one for one in drawn[name] if manifests[one].digest() == manifest.digest()), None
            )
            drawn[name].append(known or f"{name}-t{trial}")
            if known is None:
                manifests[drawn[name][-1]] = manifest
                places[drawn[name][-1]] = built_place(request.out, drawn[name][-1], manifest)
    changing = {name: names for name, names in drawn.items() if set(names) != {name}}
    return replace(first, manifests=manifests, places=places, drawn=changing)


def built_place(out: Path, name: str, manifest: Manifest) -> Path:
    """Where built data lie: by their digest, so that other data are never overwritten."""
    return out / "data" / manifest.digest()[:8] / f"{name}.parquet"


def write_data(study: SweepPlan, out: Path) -> None:
    """The data that were built for the study, below `out`; what is there already stays."""
    for name, path in study.paths.items():
        if path.is_relative_to(out / "data") and not _holds(path, study.manifests[name]):
            study.manifests[name].write(path)


def _holds(path: Path, manifest: Manifest) -> bool:
    """Whether the file is there and finds the same images: its folder may have moved."""
    if not path.exists():
        return False
    images = "image" in manifest.table.column_names
    return not images or Manifest.read(path).root == manifest.root
