"""What a sweep compares: each algorithm under each variant, with its settings and where they are
drawn.

Random settings go by name: draw `h` of trial `t` depends on the algorithm, the setting, `h` and
`t`, never on the domains that are held out, as cross-validation compares one draw over several of
them. A further setting does not shift the others, and `da-coral` gets what `coral` gets.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from acclimate.adapt.methods import Chain, find_chain
from acclimate.config import (
    AlgorithmName,
    EmbeddingConfig,
    RunConfig,
    Search,
    flat,
    from_dict,
    layered,
    merged,
    nested,
    settings_of,
)
from acclimate.config.settings import PRESETS, preset
from acclimate.config.values import parse_range
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, require_known, unknown
from acclimate.core.randomness import stream
from acclimate.core.text import count
from acclimate.data.manifest import Manifest
from acclimate.learn.algorithms import choose, names
from acclimate.learn.embeddings import embedding_settings
from acclimate.runs.plan import check_batches, check_components, fine_tunes
from acclimate.sweep.definition import (
    FLAGS,
    OWN,
    base_settings,
    held_out,
    large_enough,
    open_domains,
    own_settings,
    rule_of,
)
from acclimate.sweep.settings import SweepConfig

ALL = "all"  # among the algorithms: every one that has a meaning
HPARAMS = "hparams."
# Drawn only where a preset's grid or the user asks for it, so that all draws share one Φ elsewhere.
SHARED = "embedding."


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


def with_all(
    config: SweepConfig, manifests: Mapping[str, Manifest], device: str | None
) -> tuple[SweepConfig, list[str]]:
    """The sweep with every algorithm that has a meaning for its data and settings in the place of
    `all`, beside those named with it, and lines that say why others are left out.

    `device` is what its jobs will run on."""
    if ALL not in config.algorithms:
        return config, []
    settings = {key: own for key, own in base_settings(config).items() if key != "hparams"}
    run = from_dict(RunConfig, settings, where=FLAGS)
    manifests, _ = large_enough(config, manifests)
    rule, reasons = rule_of(config, manifests), dict[str, str]()
    for name, manifest in manifests.items():
        tuned, pool = fine_tunes(run, manifest, device), len(open_domains(config, manifest))
        fewest = pool - max(sum(map(len, held)) for held in held_out(config, manifest, rule))
        for algorithm in names():
            chosen = choose(algorithm)
            least = max(chosen.build.least_domains, 2 if chosen.adaptive else 1)
            if chosen.build.fine_tunes and not tuned:
                reasons[algorithm] = f"it tunes a pretrained backbone, and none learns on {name}"
            elif fewest < least:
                left = count(fewest, "training domain")
                reasons[algorithm] = f"it needs {least} training domains, and {name} leaves {left}"
    named = [one for one in config.algorithms if one != ALL]
    every = dict.fromkeys([*(one for one in names() if one not in reasons), *named])
    lines = [f"{one} is left out: {why}" for one, why in reasons.items() if one not in every]
    return replace(config, algorithms=tuple(every)), lines


def contenders(config: SweepConfig, labels: Mapping[str, str]) -> list[Contender]:
    """All of the sweep; `labels` are variants that differ in their data alone."""
    _check_algorithms(config)
    variants: dict[str, Mapping[str, Any]] = {label: {} for label in labels}
    variants |= config.variants
    for name, settings in {"settings": config.settings, **variants}.items():
        _check_hparams(name, settings, config.algorithms)
    searches = parse_search(config.search, config.algorithms)
    chains = _chains(config)
    named = preset(config.preset) if config.preset else {}
    competing = []
    for label, changes in (variants or {"": {}}).items():
        for algorithm in config.algorithms:
            settings = layered(
                _applicable(own_settings(config), algorithm),
                config.per_algorithm.get(algorithm, {}),
                _applicable(changes, algorithm),
            )
            searched = ranges(
                algorithm, preset=config.preset, fixed=flat(settings), searches=searches
            )
            methods = _methods_setting(chains, algorithm)
            settings = layered(_applicable(named, algorithm), settings, methods)
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
        if not any(_supports(name, chain) for name in config.algorithms):
            adaptive = AlgorithmName.of(config.algorithms[0]).adaptive_version
            raise ConfigError(
                f"methods: '{chain.name}' starts from an embedding, and none of the algorithms has "
                f"one; add {adaptive}, or leave the method out"
            )
    return chains


def _supports(algorithm: str, chain: Chain) -> bool:
    return AlgorithmName.of(algorithm).adaptive or not chain.embedding


def _methods_setting(chains: Iterable[Chain], algorithm: str) -> dict[str, Any]:
    """The setting that scores `algorithm` by the chains that it can be used with, beside the usual
    one."""
    usual = AlgorithmName.of(algorithm).usual_method
    names = [one.name for one in chains if _supports(algorithm, one) and one.name != usual]
    return {"adapt": {"methods": names}} if names else {}


def _check_algorithms(config: SweepConfig) -> None:
    if not config.algorithms:
        raise ConfigError("the sweep names no algorithm; see `acclimate list algorithms`")
    for name in config.algorithms:
        choose(name)
        if config.algorithms.count(name) > 1:
            raise ConfigError(f"algorithms names '{name}' twice; name it once")
    choose(config.baseline)
    for name in config.per_algorithm:
        message = f"per_algorithm: '{name}' is not among the algorithms"
        require_known(name, config.algorithms, message)


def _check_hparams(where: str, settings: Mapping[str, Any], algorithms: tuple[str, ...]) -> None:
    """What one algorithm has, the others may lack; what none has is a mistake."""
    for key in flat({"hparams": settings.get("hparams", {})}):
        if not any(key in _fields(name) for name in algorithms):
            known = {one for a in algorithms for one in _fields(a) if one.startswith(HPARAMS)}
            raise unknown(f"{where}: no algorithm here has a setting '{key}'", key, known)


def _applicable(settings: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """`settings` without the hparams of other algorithms."""
    if "hparams" not in settings:
        return dict(settings)
    hparams = {
        name: value
        for name, value in settings["hparams"].items()
        if HPARAMS + name in _fields(algorithm)
    }
    return {**settings, "hparams": hparams}


def parse_search(search: Mapping[str, str], algorithms: Iterable[str]) -> dict[str, Search]:
    """The user's ranges; each must be of a setting that some run has. What is drawn from them is
    checked with the settings of each run."""
    known = {name for algorithm in algorithms for name in _fields(algorithm)}
    for key in search:
        if key in OWN:
            raise ConfigError(f"search: '{key}' is for the sweep to set and cannot be drawn")
        if key not in known:
            raise unknown(f"search: there is no setting '{key}'", key, known - {*OWN})
    return {key: parse_range(text, key) for key, text in search.items()}


def ranges(
    algorithm: str,
    *,
    preset: str = "",
    fixed: Collection[str] = (),
    searches: Mapping[str, Search] | None = None,
) -> dict[str, Search]:
    """Where each setting of an algorithm is drawn: as declared beside it, by the preset's grids,
    or by `searches`, the later before the earlier. What the user fixed is drawn only by the last.
    """
    fields = _fields(algorithm)
    drawn = {
        key: search
        for key, (_, search) in fields.items()
        if search is not None and not key.startswith(SHARED)
    }
    if preset:
        grids = PRESETS[preset].grids
        # A preset that was searched says where; what else it sets is how the search ended.
        ended = {*(PRESETS[preset].settings if grids else ())}
        ended |= {*PRESETS[preset].fixed.get(algorithm, ())}
        drawn = {key: search for key, search in drawn.items() if key not in ended} | dict(grids)
    # Whoever fixes the steps has fixed the length of a run.
    fixed = {*fixed, "train.epochs"} if "train.steps" in fixed else fixed
    drawn = {key: search for key, search in drawn.items() if key not in fixed}
    drawn |= searches or {}
    return {key: search for key, search in sorted(drawn.items()) if key in fields}


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
            continue
        value = float(rng.uniform(search.low, search.high))
        scale = {"log10": 10.0, "log2": 2.0}.get(search.scale)
        value = value if scale is None else scale**value
        values[key] = int(value) if _fields(algorithm)[key][0] is int else value
    return nested(values)


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
