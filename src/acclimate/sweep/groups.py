"""Which domains are held out together: the groups a sweep scores, and the further ones that
cross-validation holds out beside them."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from acclimate.core.errors import ConfigError, unknown
from acclimate.core.randomness import stream
from acclimate.data.manifest import Manifest
from acclimate.results.protocol import CROSS_VALIDATED, RULES, Group
from acclimate.sweep.definition import EACH, FOLDS, ROLES, SweepConfig


def rule_of(config: SweepConfig, manifests: Mapping[str, Manifest]) -> str:
    """The selection rule as asked; otherwise by validation domains where all data have some."""
    if config.rule and config.rule not in RULES:
        raise unknown(f"there is no selection rule '{config.rule}'", config.rule, RULES)
    without = [name for name, data in manifests.items() if not val_domains(config, data)]
    if config.rule == "validation-domains" and without:
        raise ConfigError(
            f"the rule validation-domains needs validation domains, and {without[0]} has none; "
            f"name them as val_domains, or choose another rule"
        )
    return config.rule or ("training-domains" if without else "validation-domains")


def val_domains(config: SweepConfig, manifest: Manifest) -> tuple[str, ...]:
    for name in config.val_domains:
        if name not in manifest.domains:
            raise unknown(f"{manifest.source} has no domain '{name}'", name, manifest.domains)
    fixed = (name for name, role in manifest.roles().items() if role == "val")
    return config.val_domains or tuple(fixed)


def scored_groups(config: SweepConfig, manifest: Manifest) -> list[Group]:
    """The groups of domains that are unseen in turn."""
    roles = manifest.roles()
    fixed = tuple(sorted(name for name, role in roles.items() if role == "test"))
    asked = config.test_domains or ((ROLES,) if fixed else (EACH,))
    if asked == (ROLES,):
        if not fixed:
            raise ConfigError(
                f"{manifest.source} gives no domain the role 'test'; name the test domains, or "
                f"use each"
            )
        return [fixed]
    open_to_all = open_domains(config, manifest)
    if asked == (EACH,):
        if len(open_to_all) < 2:
            raise ConfigError(
                f"{manifest.source} has fewer than two domains to train on, too few to hold out "
                f"each in turn; add domains, or name the test domains"
            )
        return [(name,) for name in open_to_all]
    if asked == (FOLDS,):
        return _folds(config, manifest, open_to_all, "groups")
    groups = [_named(entry, manifest) for entry in asked]
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
    further: list[tuple[Group, ...]] = []
    if rule in CROSS_VALIDATED:
        pairs = list(combinations(groups, 2))
        shared_out = sorted(name for group in groups for name in group) == sorted(pool)
        by_folds = rule == "k-fold" and len(pairs) > len(groups) * config.folds
        if shared_out and not by_folds:
            further = [*pairs]
        else:
            further = _beside(config, manifest, groups, pool, rule)
    for held in (*((group,) for group in groups), *further):
        if set(pool) <= {name for group in held for name in group}:
            names = ", ".join(name for group in held for name in group)
            raise ConfigError(
                f"{manifest.source} has no training domain left once {names} are held out; "
                f"hold out fewer, or add domains"
            )
    return [*((group,) for group in groups), *further]


def open_domains(config: SweepConfig, manifest: Manifest) -> tuple[str, ...]:
    """Domains that runs may train on: roles and validation domains take theirs away for good."""
    roles, val = manifest.roles(), val_domains(config, manifest)
    return tuple(
        name for name in manifest.domains if name not in val and roles.get(name, "train") == "train"
    )


def _named(entry: str, manifest: Manifest) -> Group:
    """ "art,photo" -> ("art", "photo"); a domain whose name has a comma is found first."""
    parts = [entry] if entry in manifest.domains else entry.split(",")
    names = sorted({part.strip() for part in parts if part.strip()})
    for name in names:
        if name not in manifest.domains:
            raise unknown(f"{manifest.source} has no domain '{name}'", name, manifest.domains)
    if not names:
        raise ConfigError("test_domains has an entry without a name; leave it out")
    return tuple(names)


def _beside(
    config: SweepConfig, manifest: Manifest, groups: Sequence[Group], pool: Sequence[str], rule: str
) -> list[tuple[Group, ...]]:
    """Each group with each fold of its training domains; a pair that comes twice is one run."""
    found: dict[frozenset[Group], tuple[Group, ...]] = {}
    for group in groups:
        training = tuple(name for name in pool if name not in group)
        if rule == "k-fold":
            folds = _folds(config, manifest, training, *group)
        else:
            folds = [(name,) for name in training]
        for fold in folds:
            found.setdefault(frozenset((group, fold)), (group, fold))
    return list(found.values())


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
