"""From a recipe and data to sweeps that are ready to run. Nothing is written here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from acclimate.build.long_tail import build_long_tail
from acclimate.build.pools import open_pool
from acclimate.config import layered, nested
from acclimate.core.errors import ConfigError, unknown
from acclimate.data.manifest import Manifest
from acclimate.data.readers import data_name
from acclimate.paper.ablations.study import AblationRequest, built_place, prepare_ablation
from acclimate.paper.ablations.table import EMBEDDED_LONG_TAIL, Base, find_ablation
from acclimate.paper.recipes.data_sets import find_data, stand_in
from acclimate.paper.recipes.table import RecipePart, find_recipe
from acclimate.sweep.definition import EACH
from acclimate.sweep.driver import SweepPlan
from acclimate.sweep.jobs import define, notes
from acclimate.sweep.settings import SweepConfig


@dataclass(frozen=True, kw_only=True)
class RecipeRequest:
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
class PreparedPart:
    """A part of a recipe with its data; `plan` is None where they are only looked at."""

    part: RecipePart
    folder: Path
    manifests: Mapping[str, Manifest]  # by our name for them
    printed_as: Mapping[str, str]  # our name -> the paper's
    plan: SweepPlan | None = None


def prepare_recipe(request: RecipeRequest) -> list[PreparedPart]:
    """Check that the data are there and that everything can run, and list the runs."""
    recipe = find_recipe(request.name)
    if (request.root is None) != request.small:
        raise ConfigError(
            f"'{request.name}' needs the paper's data or stand-ins for them; give either "
            f"--data ROOT or --small"
        )
    parts = [part.made_small() if request.small else part for part in recipe.parts]
    needed = dict.fromkeys(name for part in parts for name in part.data)
    places = {} if request.root is None else find_data(request.root, needed)
    return [_prepare_part(request, part, places) for part in parts]


def _prepare_part(
    request: RecipeRequest, part: RecipePart, places: Mapping[str, Path]
) -> PreparedPart:
    part = _as_requested(request, part)
    folder = request.out / part.name
    # A pool to sample from may be a folder class/image, as ImageNet comes.
    tail = part.long_tail
    opened = Manifest.open if tail is None else partial(open_pool, allowed=tail.allowed)
    manifests, paths, printed_as = {}, {}, {}
    for name in part.data:
        manifest = opened(places[name]) if name in places else stand_in(name)
        ours = data_name(places[name]) if name in places else manifest.source
        manifests[ours], printed_as[ours] = manifest, name
        paths[ours] = places.get(name) or built_place(folder, ours, manifest)
    plan = None
    if part.ablation:
        plan = _ablation(request, part, folder, manifests, paths)
    elif part.algorithms:
        plan = _sweep(request, part, manifests, paths)
    return PreparedPart(
        part=part, folder=folder, manifests=manifests, printed_as=printed_as, plan=plan
    )


def _as_requested(request: RecipeRequest, part: RecipePart) -> RecipePart:
    for name in request.algorithms:
        if name not in part.algorithms:
            raise unknown(f"'{request.name}' does not run '{name}'", name, part.algorithms)
    return replace(
        part,
        algorithms=request.algorithms or part.algorithms,
        trials=request.trials or part.trials,
        draws=request.draws or part.draws,
    )


def _sweep(
    request: RecipeRequest,
    part: RecipePart,
    manifests: Mapping[str, Manifest],
    paths: Mapping[str, Path],
) -> SweepPlan:
    config = SweepConfig(
        title=f"{find_recipe(request.name).paper}: {part.name}",
        data=tuple(map(str, paths.values())),
        algorithms=part.algorithms,
        test_domains=(EACH,) if part.rule == "leave-one-out" else (),
        rule=part.rule,
        draws=part.draws,
        trials=part.trials,
        seed=request.seed,
        baseline=part.algorithms[0],
        preset=part.preset,
        settings=layered(nested(part.settings), request.settings),
    )
    sweep, remarks = define(config, manifests), notes(config, manifests)
    return SweepPlan(sweep=sweep, manifests=manifests, paths=paths, notes=remarks)


def _ablation(
    request: RecipeRequest,
    part: RecipePart,
    folder: Path,
    manifests: Mapping[str, Manifest],
    paths: Mapping[str, Path],
) -> SweepPlan:
    ((name, manifest),) = manifests.items()
    base = None
    if part.long_tail is not None or request.small:
        base = partial(_base, replace(manifest, source=name), part)
    return prepare_ablation(
        AblationRequest(
            name=part.ablation,
            data=None if base is not None else paths[name],
            base=base,
            out=folder,
            values=part.values,
            algorithms=part.algorithms,
            trials=part.trials,
            seed=request.seed,
            preset=part.preset,
            settings=layered(nested(part.settings), request.settings),
        )
    )


def _base(manifest: Manifest, part: RecipePart, seed: int) -> Base:
    """The data as they are, or long-tailed domains of them where the ablation makes none itself."""
    tail = replace(part.long_tail or EMBEDDED_LONG_TAIL, seed=seed)
    if part.long_tail is not None and not find_ablation(part.ablation).pool:
        manifest = replace(build_long_tail(manifest, tail), source=manifest.source)
    training = tuple(name for name, role in manifest.roles().items() if role == "train")
    return Base(manifest=manifest, training=training or manifest.domains, long_tail=tail, seed=seed)
