"""What a sweep compares: each algorithm under each variant, with its settings and where they are
drawn.

Random settings go by name: draw `h` of trial `t` depends on the algorithm, the setting, `h` and
`t`, never on the domains that are held out, as cross-validation compares one draw over several of
them. A further setting does not shift the others, and `da-coral` gets what `coral` gets.
"""

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from acclimate.adapt.methods import Chain, find_chain
from acclimate.config import (
    AlgorithmName,
    EmbeddingConfig,
    RunConfig,
    Search,
    as_dict,
    flat,
    from_dict,
    layered,
    merged,
    nested,
    settings_of,
)
from acclimate.config.presets import PRESETS, preset
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, unknown
from acclimate.core.randomness import stream
from acclimate.learn.algorithms import choose, names
from acclimate.learn.embeddings import embedding_settings
from acclimate.runs.plan import check_batches, check_components
from acclimate.sweep.definition import OWN
from acclimate.sweep.settings import SweepConfig

HPARAMS = "hparams."
# Drawn only where a preset's grid or the user asks for it, so that all draws share one Φ elsewhere.
SHARED = "embedding."
_RANGE = re.compile(r"\s*(log10|log2|uniform|choice)\s*\((.*)\)\s*", re.DOTALL)


@dataclass(frozen=True)
class Contender:
    """One algorithm under one variant. `draws` is 1 where nothing of it can be drawn."""

    algorithm: str
    variant: str
    settings: Mapping[str, Any]
    searched: Mapping[str, Search]
    draws: int

    def run(self, config: SweepConfig, *, draw_number: int, trial: int) -> RunConfig:
        """The settings of a draw and trial, checked; the test domains are still to come."""
        drawn = draw(self.searched, self.algorithm, seed=config.seed, draw=draw_number, trial=trial)
        own = {
            "algorithm": self.algorithm,
            "seed": config.seed + trial,
            "val_domains": sorted(config.val_domains),
        }
        run = from_dict(RunConfig, merged(layered(self.settings, drawn), own), where="sweep")
        check_batches(run, check_components(run), World())
        return run


def contenders(config: SweepConfig, labels: Mapping[str, str]) -> list[Contender]:
    """All of the sweep; `labels` are variants that differ in their data alone."""
    _check_algorithms(config)
    base = preset(config.preset) if config.preset else {}
    variants: dict[str, Mapping[str, Any]] = {label: {} for label in labels}
    variants |= config.variants
    for name, settings in {"settings": config.settings, **variants}.items():
        _check_hparams(name, settings, config.algorithms)
    asked = parse_search(config.search, config.algorithms)
    chains = _chains(config)
    competing = []
    for label, changes in (variants or {"": {}}).items():
        for algorithm in config.algorithms:
            own = layered(
                _owned(config.settings, algorithm),
                config.per_algorithm.get(algorithm, {}),
                _owned(changes, algorithm),
            )
            searched = ranges(algorithm, preset=config.preset, fixed=flat(own), asked=asked)
            settings = layered(_owned(base, algorithm), own, _scored_by(chains, algorithm))
            draws = config.draws if searched else 1
            competing.append(Contender(algorithm, label, settings, searched, draws))
    if config.draws > 1 and all(one.draws == 1 for one in competing):
        raise ConfigError(
            f"draws = {config.draws}, but every setting that could be drawn is fixed; name ranges "
            f"under search, or use draws = 1"
        )
    return competing


def _chains(config: SweepConfig) -> list[Chain]:
    """The test-time methods, by what each is called in records."""
    chains = [find_chain(name) for name in config.methods]
    names = [chain.name for chain in chains]
    for chain in chains:
        if names.count(chain.name) > 1:
            raise ConfigError(f"methods names '{chain.name}' twice; name it once")
        if not any(_can(name, chain) for name in config.algorithms):
            adaptive = AlgorithmName.of(config.algorithms[0]).adaptive_version
            raise ConfigError(
                f"methods: '{chain.name}' starts from an embedding, and none of the algorithms has "
                f"one; add {adaptive}, or leave the method out"
            )
    return chains


def _can(algorithm: str, chain: Chain) -> bool:
    return AlgorithmName.of(algorithm).adaptive or not chain.embedding


def _scored_by(chains: Iterable[Chain], algorithm: str) -> dict[str, Any]:
    """The setting that scores `algorithm` by those that it can be used by, beside the usual one."""
    usual = AlgorithmName.of(algorithm).usual_method
    names = [one.name for one in chains if _can(algorithm, one) and one.name != usual]
    return {"adapt": {"methods": names}} if names else {}


def _check_algorithms(config: SweepConfig) -> None:
    if not config.algorithms:
        raise ConfigError("the sweep names no algorithm; see `acclimate list algorithms`")
    for name in config.algorithms:
        choose(name)
        if config.algorithms.count(name) > 1:
            raise ConfigError(f"algorithms names '{name}' twice; name it once")
    if config.baseline not in names():
        raise unknown(f"there is no algorithm '{config.baseline}'", config.baseline, names())
    for name in config.per_algorithm:
        if name not in config.algorithms:
            raise unknown(
                f"per_algorithm: '{name}' is not among the algorithms", name, config.algorithms
            )


def _check_hparams(where: str, settings: Mapping[str, Any], algorithms: tuple[str, ...]) -> None:
    """What one algorithm has, the others may lack; what none has is a mistake."""
    for key in flat({"hparams": settings.get("hparams", {})}):
        if not any(key in _fields(name) for name in algorithms):
            own = {f"hparams.{name}" for a in algorithms for name in as_dict(choose(a).settings)}
            raise unknown(f"{where}: no algorithm here has a setting '{key}'", key, own)


def _owned(settings: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """`settings` without the hparams of other algorithms."""
    if "hparams" not in settings:
        return dict(settings)
    own = {
        name: value
        for name, value in settings["hparams"].items()
        if f"hparams.{name}" in _fields(algorithm)
    }
    return {**settings, "hparams": own}


def parse_search(search: Mapping[str, str], algorithms: Iterable[str]) -> dict[str, Search]:
    """The user's ranges; each must be of a setting that some run has, and within its limits."""
    parsed = {}
    for key, text in search.items():
        owners = _owners(key, list(algorithms))
        parsed[key] = one = parse_range(text, key)
        whole = _fields(owners[0])[key][0] is int
        ends = [_scaled(one, end, whole=whole) for end in (one.low, one.high)]
        for value in one.options if one.scale == "choice" else ends:
            for owner in owners:
                _check(key, value, owner)
    return parsed


def parse_range(text: str, key: str) -> Search:
    """ "log10(-5, -3.5)", "log2(3, 5.5)", "uniform(0, 5)" or "choice(0.0, 0.1, 0.5)" """
    matched = _RANGE.fullmatch(text)
    try:
        values = tuple(tomllib.loads(f"values = [{matched[2]}]")["values"]) if matched else ()
    except (ValueError, RecursionError):
        values = ()
    if matched and values and matched[1] == "choice":
        return Search("choice", options=values)
    numbers = [value for value in values if type(value) in (int, float)]
    if matched and len(values) == len(numbers) == 2 and numbers[0] <= numbers[1]:
        scale = cast(Any, matched[1])
        return Search(scale, float(numbers[0]), float(numbers[1]))
    raise ConfigError(
        f"search: '{key}' cannot be drawn from {text!r}; write log10(low, high), log2(low, high), "
        f"uniform(low, high) or choice(one, another)"
    )


def ranges(
    algorithm: str,
    *,
    preset: str = "",
    fixed: Collection[str] = (),
    asked: Mapping[str, Search] | None = None,
) -> dict[str, Search]:
    """Where each setting of an algorithm is drawn: as declared beside it, by the preset's grids,
    as asked, the later before the earlier. What the user fixed is drawn only where asked."""
    found = {
        key: search
        for key, (_, search) in _fields(algorithm).items()
        if search is not None and not key.startswith(SHARED)
    }
    if preset:
        grids = PRESETS[preset].grids
        # A preset that was searched says where; what else it sets is how the search ended.
        ended = {*(PRESETS[preset].settings if grids else ())}
        ended |= {*PRESETS[preset].fixed.get(algorithm, ())}
        found = {key: search for key, search in found.items() if key not in ended} | dict(grids)
    # Whoever fixes the steps has fixed the length of a run.
    settled = {*fixed, "train.epochs"} if "train.steps" in fixed else fixed
    found = {key: search for key, search in found.items() if key not in settled}
    found |= asked or {}
    return {key: search for key, search in sorted(found.items()) if key in _fields(algorithm)}


def draw(
    searched: Mapping[str, Search], algorithm: str, *, seed: int, draw: int, trial: int
) -> dict[str, Any]:
    """The settings that draw `draw` lays over the given ones, nested; draw 0 lays none."""
    if draw == 0:
        return {}
    base, values = AlgorithmName.of(algorithm).base, dict[str, Any]()
    for key, search in searched.items():
        rng = stream(seed, "draw", base, key, draw, trial)
        if search.scale == "choice":
            values[key] = search.options[int(rng.integers(len(search.options)))]
        else:
            value = float(rng.uniform(search.low, search.high))
            values[key] = _scaled(search, value, whole=_fields(algorithm)[key][0] is int)
    return nested(values)


def _scaled(search: Search, value: float, *, whole: bool) -> float | int:
    base = {"log10": 10.0, "log2": 2.0}.get(search.scale)
    scaled = value if base is None else base**value
    return int(scaled) if whole else scaled


def _owners(key: str, algorithms: list[str]) -> list[str]:
    """The algorithms that have the setting; a name that none has, or that is not to be drawn, is
    refused."""
    if key in OWN:
        raise ConfigError(f"search: '{key}' is for the sweep to set and cannot be drawn")
    owners = [name for name in algorithms if key in _fields(name)]
    if not owners:
        known = {name for algorithm in algorithms for name in _fields(algorithm)}
        raise unknown(f"search: there is no setting '{key}'", key, known - {*OWN})
    return owners


def _check(key: str, value: Any, algorithm: str) -> None:
    if key.startswith(HPARAMS):
        settings = {key.removeprefix(HPARAMS): value}
        from_dict(choose(algorithm).build.Config, settings, where="search", prefix=HPARAMS)
    else:
        run = from_dict(RunConfig, nested({key: value}), where="search")
        embedding_settings(run.embedding)


@cache
def _fields(algorithm: str) -> dict[str, tuple[Any, Search | None]]:
    """Type and search range of every setting of an algorithm's runs, by its whole name. It has its
    own hparams, and settings of Φ only if it is adaptive."""
    own = choose(algorithm).build.Config()
    settings = [*settings_of(RunConfig()), *settings_of(own, HPARAMS)]
    for name, component in embedding_settings(EmbeddingConfig()).items():
        settings += settings_of(component, f"{SHARED}{name}.")
    adaptive = AlgorithmName.of(algorithm).adaptive
    return {
        one.name: (one.kind, one.facts.get("search"))
        for one in settings
        if one.name != "hparams" and (adaptive or not one.name.startswith(SHARED))
    }
