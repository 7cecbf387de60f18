"""What a sweep is asked to be, by a TOML file and flags, and which domains it then holds out."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.config import RunConfig, flat, from_dict, layered, merged, nested, read_toml
from acclimate.config.settings import preset
from acclimate.core.errors import ConfigError, require_known
from acclimate.core.randomness import stream
from acclimate.core.text import count
from acclimate.data.manifest import Manifest, left_out_sentence, without_small
from acclimate.data.readers import data_name
from acclimate.results.protocol import CROSS_VALIDATED, RULES, Group
from acclimate.sweep.settings import ON_FEATURES, SweepConfig

EACH, ROLES, FOLDS = "each", "roles", "folds"
OWN = ("algorithm", "seed", "test_domains", "val_domains")  # a sweep decides these for its runs
FOR_ALL = {"data.min_images": "leave out domains", "train.metric": "choose by another metric"}
FLAGS = "sweep"  # what errors call the command line


def read_definition(path: Path) -> dict[str, Any]:
    """The values in a TOML file, checked; its relative paths are relative to the file."""
    return _check(read_toml(path), where=str(path), folder=path.parent)


def gather(config_file: Path | None, flags: Mapping[str, Any]) -> SweepConfig:
    """Defaults < file < flags; a flag that is None or empty was not given."""
    values = {} if config_file is None else read_definition(config_file)
    flags = {key: value for key, value in flags.items() if value not in (None, (), [], {}, "")}
    flags = _check(flags, where=FLAGS, folder=Path())
    settings = layered(values.get("settings", {}), flags.get("settings", {}))
    values = {**merged(values, flags), "settings": settings}
    if not values.get("data"):
        raise ConfigError(
            "the sweep names no data; give manifests or folders on the command line, "
            "or as data = [...] in its file"
        )
    return from_dict(SweepConfig, values, where=FLAGS)


def open_data(config: SweepConfig) -> dict[str, Manifest]:
    """The data sets by name."""
    manifests: dict[str, Manifest] = {}
    for path in config.data:
        name = data_name(path)
        if name in manifests:
            raise ConfigError(
                f"two data sets are called '{name}'; rename the file or folder {path}"
            )
        manifests[name] = Manifest.open(path)
    return manifests


def own_settings(config: SweepConfig) -> dict[str, Any]:
    """What the sweep fixes for every run that has such a setting."""
    return layered(ON_FEATURES if config.features else {}, config.settings)


def base_settings(config: SweepConfig) -> dict[str, Any]:
    """What holds in every run unless an algorithm or a variant has settings of its own."""
    return layered(preset(config.preset) if config.preset else {}, own_settings(config))


def large_enough(
    config: SweepConfig, manifests: Mapping[str, Manifest]
) -> tuple[dict[str, Manifest], list[str]]:
    """The data sets without the domains that runs leave out as too small, and what to say of
    those. Runs open the whole data, and leave out the same."""
    least = base_settings(config).get("data", {}).get("min_images", 0)
    named = {*config.test_domains, *config.val_domains}
    named |= {part.strip() for entry in config.test_domains for part in entry.split(",")}
    large, remarks = {}, []
    for name, manifest in manifests.items():
        large[name], small = without_small(manifest, least)
        for domain in sorted(named & small.keys()):
            raise ConfigError(
                f"domain '{domain}' of {manifest.source} has {count(small[domain], 'image')}, "
                f"and domains with fewer than {least} are left out; name others, or lower "
                f"data.min_images"
            )
        if small:
            where = f"{name}: " if len(manifests) > 1 else ""
            remarks.append(where + left_out_sentence(small, least))
    return large, remarks


def _check(values: Mapping[str, Any], *, where: str, folder: Path) -> dict[str, Any]:
    """`values` with their types checked and settings nested however they were written. Data and
    weights get paths that hold wherever a job runs: relative ones are relative to `folder`."""
    config = from_dict(SweepConfig, values, where=where)
    checked: dict[str, Any] = {key: getattr(config, key) for key in values}
    if "data" in checked:
        checked["data"] = tuple(_absolute(name, folder) for name in checked["data"])
    if "settings" in checked:
        checked["settings"] = _settings(checked["settings"], "settings", where, folder)
    for name in ("per_algorithm", "variants"):
        if name in checked:
            checked[name] = {
                label: _settings(table, f"{name}.{label}", where, folder)
                for label, table in checked[name].items()
            }
    if "search" in checked:
        checked["search"] = flat(checked["search"])
    return checked


def _settings(values: object, name: str, where: str, folder: Path) -> dict[str, Any]:
    """Settings of a run, nested; an algorithm's own are checked once the algorithm is known."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: '{name}' must be a table of settings, not {values!r}")
    settings = nested(flat(values))
    for path, harm in FOR_ALL.items():
        if name != "settings" and path in flat(settings):
            raise ConfigError(
                f"{where}: '{name}.{path}' would {harm} in some runs only; set it for all of them, "
                f"under settings"
            )
    for key in OWN:
        if key in settings:
            raise ConfigError(
                f"{where}: '{name}.{key}' is for the sweep to set; see the sweep's own settings"
            )
    # On the command line they come from --set, without the table's name.
    from_dict(RunConfig, settings, where=where, prefix="" if where == FLAGS else f"{name}.")
    weights = settings.get("model", {}).get("weights")
    if weights:
        settings["model"]["weights"] = _absolute(weights, folder)
    return settings


def _absolute(name: str, folder: Path) -> str:
    return str((folder / Path(name).expanduser()).absolute())


def rule_of(config: SweepConfig, manifests: Mapping[str, Manifest]) -> str:
    """The selection rule as asked; otherwise by validation domains where all data have some."""
    if config.rule:
        require_known(config.rule, RULES, f"there is no selection rule '{config.rule}'")
    without = [name for name, data in manifests.items() if not val_domains(config, data)]
    if config.rule == "validation-domains" and without:
        raise ConfigError(
            f"the rule validation-domains needs validation domains, and {without[0]} has none; "
            f"name them as val_domains, or choose another rule"
        )
    return config.rule or ("training-domains" if without else "validation-domains")


def val_domains(config: SweepConfig, manifest: Manifest) -> tuple[str, ...]:
    manifest.require_domains(*config.val_domains)
    fixed = (name for name, role in manifest.roles().items() if role == "val")
    return config.val_domains or tuple(fixed)


def scored_groups(config: SweepConfig, manifest: Manifest) -> list[Group]:
    """The groups of domains that are unseen in turn."""
    roles = manifest.roles()
    fixed = tuple(sorted(name for name, role in roles.items() if role == "test"))
    entries = config.test_domains or ((ROLES,) if fixed else (EACH,))
    if entries == (ROLES,):
        if not fixed:
            raise ConfigError(
                f"{manifest.source} gives no domain the role 'test'; name the test domains, or "
                f"use each"
            )
        return [fixed]
    open_to_all = open_domains(config, manifest)
    if entries == (EACH,):
        if len(open_to_all) < 2:
            raise ConfigError(
                f"{manifest.source} has fewer than two domains to train on, too few to hold out "
                f"each in turn; add domains, or name the test domains"
            )
        return [(name,) for name in open_to_all]
    if entries == (FOLDS,):
        return _folds(config, manifest, open_to_all, "groups")
    groups = [_parse_group(entry, manifest) for entry in entries]
    for group in groups:
        if groups.count(group) > 1:
            raise ConfigError(f"test_domains names '{','.join(group)}' twice; name it once")
    return groups


def held_out(config: SweepConfig, manifest: Manifest, rule: str) -> list[tuple[Group, ...]]:
    """What runs hold out: each group that is scored, then, for cross-validation, pairs of groups.

    A pair of two scored groups serves both of them. Where the groups share out all domains there
    is a run per pair; otherwise, and where k-fold takes fewer runs that way, a run per group and
    fold of its training domains.
    """
    groups = scored_groups(config, manifest)
    pool = open_domains(config, manifest)
    further: Sequence[tuple[Group, ...]] = ()
    if rule in CROSS_VALIDATED:
        pairs = list(combinations(groups, 2))
        shared_out = sorted(name for group in groups for name in group) == sorted(pool)
        by_folds = rule == "k-fold" and len(pairs) > len(groups) * config.folds
        alone = shared_out and not by_folds
        further = pairs if alone else _beside(config, manifest, groups, pool, rule)
    every = [*((group,) for group in groups), *further]
    for held in every:
        if set(pool) <= {name for group in held for name in group}:
            names = ", ".join(name for group in held for name in group)
            raise ConfigError(
                f"{manifest.source} has no training domain left once {names} are held out; "
                f"hold out fewer, or add domains"
            )
    return every


def open_domains(config: SweepConfig, manifest: Manifest) -> tuple[str, ...]:
    """Domains that runs may train on: roles and validation domains take theirs away for good."""
    roles, val = manifest.roles(), val_domains(config, manifest)
    return tuple(
        name for name in manifest.domains if name not in val and roles.get(name, "train") == "train"
    )


def _parse_group(entry: str, manifest: Manifest) -> Group:
    """ "art,photo" -> ("art", "photo"); a domain whose name has a comma is found first."""
    parts = [entry] if entry in manifest.domains else entry.split(",")
    names = sorted({part.strip() for part in parts if part.strip()})
    manifest.require_domains(*names)
    if not names:
        raise ConfigError("test_domains has an entry without a name; leave it out")
    return tuple(names)


def _beside(
    config: SweepConfig, manifest: Manifest, groups: Sequence[Group], pool: Sequence[str], rule: str
) -> list[tuple[Group, ...]]:
    """Each group with each fold of its training domains; a pair that comes twice is one run."""
    pairs: dict[frozenset[Group], tuple[Group, ...]] = {}
    for group in groups:
        training = tuple(name for name in pool if name not in group)
        if rule == "k-fold":
            folds = _folds(config, manifest, training, *group)
        else:
            folds = [(name,) for name in training]
        for fold in folds:
            pairs.setdefault(frozenset((group, fold)), (group, fold))
    return list(pairs.values())


def _folds(
    config: SweepConfig, manifest: Manifest, domains: Sequence[str], *name: str
) -> list[Group]:
    """`domains` at random in groups whose sizes differ by one at most."""
    if config.folds > len(domains):
        raise ConfigError(
            f"{manifest.source} has {len(domains)} domains for {config.folds} folds; lower folds"
        )
    shuffled = stream(config.seed, "folds", *name).permutation(np.array(domains, dtype=object))
    return sorted(tuple(sorted(part)) for part in np.array_split(shuffled, config.folds))
