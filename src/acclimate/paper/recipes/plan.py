"""From a recipe and data to sweeps that are ready to run. Nothing is written here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from acclimate.build.long_tail import build_long_tail
from acclimate.config import layered, nested
from acclimate.core.errors import ConfigError, unknown
from acclimate.data.manifest import Manifest
from acclimate.data.readers import data_name
from acclimate.paper.ablations.study import Asked, built_place, prepare
from acclimate.paper.ablations.table import EMBEDDED_LONG_TAIL, Base, find_ablation
from acclimate.paper.recipes.data_sets import find, stand_in
from acclimate.paper.recipes.table import Part, find_recipe
from acclimate.sweep.definition import EACH
from acclimate.sweep.driver import SweepPlan
from acclimate.sweep.jobs import define, notes
from acclimate.sweep.settings import SweepConfig


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A recipe as it was asked for; what is None is the recipe's own."""

    name: str
    out: Path
    root: Path | None = None
    small: bool = False
    algorithms: tuple[str, ...] = ()  # of the recipe's; none: all of them
    trials: int | None = None
    draws: int | None = None
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # nested


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A part of a recipe with its data; `plan` is None where they are only looked at."""

    part: Part
    folder: Path
    manifests: Mapping[str, Manifest]  # by our name for them
    printed_as: Mapping[str, str]  # our name -> the paper's
    plan: SweepPlan | None = None


def ready(wanted: Wanted) -> list[Ready]:
    """Check that the data are there and that everything can run, and list the runs."""
    recipe = find_recipe(wanted.name)
    if (wanted.root is None) != wanted.small:
        raise ConfigError(
            f"'{wanted.name}' needs the paper's data or stand-ins for them; give either "
            f"--data ROOT or --small"
        )
    parts = [part.made_small() if wanted.small else part for part in recipe.parts]
    needed = dict.fromkeys(name for part in parts for name in part.data)
    places = {} if wanted.root is None else find(wanted.root, needed)
    return [_ready(wanted, part, places) for part in parts]


def _ready(wanted: Wanted, part: Part, places: Mapping[str, Path]) -> Ready:
    part = _as_wanted(wanted, part)
    folder = wanted.out / part.name
    manifests, paths, printed_as = {}, {}, {}
    for name in part.data:
        made = Manifest.open(places[name]) if name in places else stand_in(name)
        ours = data_name(places[name]) if name in places else made.source
        manifests[ours], printed_as[ours] = made, name
        paths[ours] = places.get(name) or built_place(folder, ours, made)
    found = Ready(part=part, folder=folder, manifests=manifests, printed_as=printed_as)
    if not part.algorithms:
        return found
    make = _ablation if part.ablation else _sweep
    return replace(found, plan=make(wanted, found, paths))


def _as_wanted(wanted: Wanted, part: Part) -> Part:
    for name in wanted.algorithms:
        if name not in part.algorithms:
            raise unknown(f"'{wanted.name}' does not run '{name}'", name, part.algorithms)
    return replace(
        part,
        algorithms=wanted.algorithms or part.algorithms,
        trials=wanted.trials or part.trials,
        draws=wanted.draws or part.draws,
    )


def _sweep(wanted: Wanted, found: Ready, paths: Mapping[str, Path]) -> SweepPlan:
    part = found.part
    config = SweepConfig(
        title=f"{find_recipe(wanted.name).paper}: {part.name}",
        data=tuple(map(str, paths.values())),
        algorithms=part.algorithms,
        test_domains=(EACH,) if part.rule == "leave-one-out" else (),
        rule=part.rule,
        draws=part.draws,
        trials=part.trials,
        seed=wanted.seed,
        baseline=part.algorithms[0],
        preset=part.preset,
        settings=layered(nested(part.settings), wanted.settings),
    )
    return SweepPlan(
        sweep=define(config, found.manifests),
        manifests=found.manifests,
        paths=paths,
        notes=notes(config, found.manifests),
    )


def _ablation(wanted: Wanted, found: Ready, paths: Mapping[str, Path]) -> SweepPlan:
    part = found.part
    ((name, manifest),) = found.manifests.items()
    base = None
    if part.long_tail is not None or wanted.small:
        base = partial(_base, replace(manifest, source=name), part)
    return prepare(
        Asked(
            name=part.ablation,
            data=None if base is not None else paths[name],
            base=base,
            out=found.folder,
            values=part.values,
            algorithms=part.algorithms,
            trials=part.trials,
            seed=wanted.seed,
            preset=part.preset,
            settings=layered(nested(part.settings), wanted.settings),
        )
    )


def _base(manifest: Manifest, part: Part, seed: int) -> Base:
    """The data as they are, or long-tailed domains of them where the ablation makes none itself."""
    tail = replace(part.long_tail or EMBEDDED_LONG_TAIL, seed=seed)
    if part.long_tail is not None and not find_ablation(part.ablation).pool:
        manifest = replace(build_long_tail(manifest, tail), source=manifest.source)
    training = tuple(name for name, role in manifest.roles().items() if role == "train")
    return Base(manifest=manifest, training=training or manifest.domains, long_tail=tail, seed=seed)
