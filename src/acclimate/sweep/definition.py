"""What a sweep is asked to be: a small TOML file, flags, or both."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.config import (
    RunConfig,
    flat,
    from_dict,
    layered,
    merged,
    nested,
    read_toml,
    setting,
)
from acclimate.config.presets import preset
from acclimate.core.errors import ConfigError
from acclimate.core.wording import count
from acclimate.data.manifest import Manifest
from acclimate.data.readers import data_name
from acclimate.data.small_domains import said, without_small

EACH, ROLES, FOLDS = "each", "roles", "folds"
OWN = ("algorithm", "seed", "test_domains", "val_domains")  # a sweep decides these for its runs
FLAGS = "sweep"  # what errors call the command line
BY_LABEL = ("per_algorithm", "variants")


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    title: str = setting("", "heads tables and reports; empty: the data sets' names")
    data: tuple[str, ...] = setting((), "manifests, tables or domain/class/image folders")
    algorithms: tuple[str, ...] = setting(("erm", "da-erm"), "see `acclimate list algorithms`")
    methods: tuple[str, ...] = setting(
        (),
        "test-time methods: each algorithm is also scored by each, in a row of its own; those that "
        "start from an embedding are for adaptive algorithms; see `acclimate list methods`",
    )
    test_domains: tuple[str, ...] = setting(
        (),
        "each: every domain unseen in turn; roles: the data's test domains together; folds: random "
        "groups of domains in turn; or the groups, domains of one joined by commas; empty: roles "
        "where the data have them, each elsewhere",
    )
    val_domains: tuple[str, ...] = setting((), "domains never trained on, used to choose")
    rule: str = setting(
        "",
        "how a run is chosen among draws; empty: validation-domains where there are any, "
        "training-domains elsewhere",
    )
    folds: int = setting(5, "groups of `folds`, and folds of k-fold cross-validation", at_least=2)
    draws: int = setting(1, "settings tried per run; the first are those given", at_least=1)
    trials: int = setting(3, "repetitions, each with a seed of its own", at_least=1)
    seed: int = setting(0, "seed of the first trial, of the draws and of the folds", at_least=0)
    baseline: str = setting("erm", "algorithm that the others are compared with")
    preset: str = setting("", "see `acclimate list presets`")
    settings: dict[str, Any] = field(
        default_factory=dict, metadata={"about": "settings of every run, as `train` takes them"}
    )
    search: dict[str, Any] = field(
        default_factory=dict,
        metadata={"about": 'where settings are drawn, as in "log10(-5, -3.5)", "choice(0, 0.1)"'},
    )
    per_algorithm: dict[str, Any] = field(
        default_factory=dict, metadata={"about": "settings of one algorithm, over the others"}
    )
    variants: dict[str, Any] = field(
        default_factory=dict, metadata={"about": "settings by label, each a line of its own"}
    )


def read_definition(path: Path) -> dict[str, Any]:
    """The values in a TOML file, checked; its relative paths are relative to the file."""
    return _placed(_normal(read_toml(path), where=str(path)), path.parent)


def gather(config_file: Path | None, flags: Mapping[str, Any]) -> SweepConfig:
    """Defaults < file < flags; a flag that is None or empty was not given."""
    values = {} if config_file is None else read_definition(config_file)
    given = {key: value for key, value in flags.items() if value not in (None, (), [], {}, "")}
    asked = _placed(_normal(given, where=FLAGS), Path())
    settings = layered(values.get("settings", {}), asked.get("settings", {}))
    values = {**merged(values, asked), "settings": settings}
    if not values.get("data"):
        raise ConfigError(
            "the sweep names no data; give manifests or folders on the command line, "
            "or as data = [...] in its file"
        )
    return from_dict(SweepConfig, values, where=FLAGS)


def open_data(config: SweepConfig) -> dict[str, Manifest]:
    """The data sets by name."""
    opened: dict[str, Manifest] = {}
    for path in config.data:
        name = data_name(path)
        if name in opened:
            raise ConfigError(
                f"two data sets are called '{name}'; rename the file or folder {path}"
            )
        opened[name] = Manifest.open(path)
    return opened


def large_enough(
    config: SweepConfig, manifests: Mapping[str, Manifest]
) -> tuple[dict[str, Manifest], list[str]]:
    """The data sets without the domains that runs leave out as too small, and what to say of
    those. Runs open the whole data, and leave out the same."""
    asked = layered(preset(config.preset) if config.preset else {}, config.settings)
    least = asked.get("data", {}).get("min_images", 0)
    kept, remarks = {}, []
    for name, manifest in manifests.items():
        kept[name], small = without_small(manifest, least)
        parts = (part.strip() for entry in config.test_domains for part in entry.split(","))
        for domain in (*config.test_domains, *parts, *config.val_domains):
            if domain in small:
                raise ConfigError(
                    f"domain '{domain}' of {manifest.source} has {count(small[domain], 'image')}, "
                    f"and domains with fewer than {least} are left out; name others, or lower "
                    f"data.min_images"
                )
        if small:
            where = f"{name}: " if len(manifests) > 1 else ""
            remarks.append(where + said(small, least))
    return kept, remarks


def _normal(values: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """`values`, checked, with settings nested however they were written."""
    config = from_dict(SweepConfig, values, where=where)
    normal: dict[str, Any] = {key: getattr(config, key) for key in values}
    for name in BY_LABEL:
        if name in normal:
            tables = normal[name].items()
            normal[name] = {
                label: _settings(table, f"{name}.{label}", where) for label, table in tables
            }
    if "settings" in normal:
        normal["settings"] = _settings(normal["settings"], "settings", where)
    if "search" in normal:
        normal["search"] = _search(normal["search"], where)
    return normal


def _settings(values: object, name: str, where: str) -> dict[str, Any]:
    """Settings of a run, nested however they were written; an algorithm's own come later."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: '{name}' must be a table of settings, not {values!r}")
    written = nested(flat(values))
    if name != "settings" and "min_images" in written.get("data", {}):
        raise ConfigError(
            f"{where}: '{name}.data.min_images' would leave out domains in some runs only; set it "
            f"for all of them, under settings"
        )
    for key in OWN:
        if key in written:
            raise ConfigError(
                f"{where}: '{name}.{key}' is for the sweep to set; see the sweep's own settings"
            )
    # On the command line they come from --set, without the table's name.
    from_dict(RunConfig, written, where=where, prefix="" if where == FLAGS else f"{name}.")
    return written


def _search(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    ranges = flat(values)
    for key, text in ranges.items():
        if not isinstance(text, str):
            raise ConfigError(
                f"{where}: 'search.{key}' must be a range in quotes, such as "
                f'"log10(-5, -3.5)", not {text!r}'
            )
    return ranges


def _placed(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Data and weights by paths that hold wherever a job runs: relative ones are in `folder`."""
    placed = dict(values)
    if "data" in placed:
        placed["data"] = tuple(_place(name, folder) for name in placed["data"])
    if "settings" in placed:
        placed["settings"] = _weights_placed(placed["settings"], folder)
    for name in BY_LABEL:
        if name in placed:
            tables = placed[name].items()
            placed[name] = {label: _weights_placed(table, folder) for label, table in tables}
    return placed


def _weights_placed(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    weights = settings.get("model", {}).get("weights")
    if not weights:
        return dict(settings)
    return merged(settings, {"model": {"weights": _place(weights, folder)}})


def _place(name: str, folder: Path) -> str:
    return str((folder / Path(name).expanduser()).absolute())
