"""What a sweep compares: each algorithm under each variant, with its settings and ranges."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acclimate.config import RunConfig, Search, as_dict, flat, from_dict, layered, merged
from acclimate.config.presets import preset
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, unknown
from acclimate.learn.algorithms import choose, names
from acclimate.runs.optimisation import check_batches
from acclimate.runs.plan import check_components
from acclimate.sweep.definition import SweepConfig
from acclimate.sweep.draws import draw, has_setting, parse_search, ranges


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
    found = []
    for label, changes in (variants or {"": {}}).items():
        for algorithm in config.algorithms:
            own = layered(
                _owned(config.settings, algorithm),
                config.per_algorithm.get(algorithm, {}),
                _owned(changes, algorithm),
            )
            searched = ranges(algorithm, preset=config.preset, fixed=flat(own), asked=asked)
            settings = layered(_owned(base, algorithm), own)
            draws = config.draws if searched else 1
            found.append(Contender(algorithm, label, settings, searched, draws))
    if config.draws > 1 and all(one.draws == 1 for one in found):
        raise ConfigError(
            f"draws = {config.draws}, but every setting that could be drawn is fixed; name ranges "
            f"under search, or use draws = 1"
        )
    return found


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
        if not any(has_setting(name, key) for name in algorithms):
            own = {f"hparams.{name}" for a in algorithms for name in as_dict(choose(a).settings)}
            raise unknown(f"{where}: no algorithm here has a setting '{key}'", key, own)


def _owned(settings: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """`settings` without the hparams of other algorithms."""
    if "hparams" not in settings:
        return dict(settings)
    own = {
        name: value
        for name, value in settings["hparams"].items()
        if has_setting(algorithm, f"hparams.{name}")
    }
    return {**settings, "hparams": own}
