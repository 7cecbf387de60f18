"""What a table lacks, said in a sentence: a dash must not pass unnoticed."""

from collections.abc import Iterable, Mapping, Sequence

from acclimate.results.observations import Frame, Observation
from acclimate.results.runs import Key
from acclimate.results.selection import Choice
from acclimate.results.selection import named as group_named

MOST = 4  # things that a sentence names


def of_choices(choices: Mapping[str, Sequence[Choice]]) -> Iterable[str]:
    """For each rule what it could not choose; not what an earlier rule lacks as well."""
    told: set[tuple[object, ...]] = set()
    for rule, found in choices.items():
        missing = {
            (one.dataset, one.algorithm, one.variant, one.method, one.trial, one.target): (
                f"{Key(one.algorithm, one.method, one.variant).label} on {one.dataset} "
                f"{group_named(one.target)} in trial {one.trial} ({one.reason})"
            )
            for one in found
            if one.run is None
        }
        if missing and not set(missing) <= told:
            yield f"Under {rule}, {_sentence(list(missing.values()), len(found))}"
        told |= set(missing)


Replicate = tuple[str, Key, str, int]  # data set, method, data, trial


def of_scores(
    found: Iterable[Observation],
    frames: Mapping[str, Frame],
    *,
    expected: Iterable[Replicate] = (),
    trial: str = "seed",
) -> Iterable[str]:
    """The domains that a trial lacks and others of the same data have."""
    scored: dict[Replicate, set[str]] = {replicate: set() for replicate in expected}
    for one in found:
        if one.key == Key.usual(one.key.algorithm, one.key.variant):
            scored.setdefault((one.dataset, one.key, one.data, one.trial), set()).add(one.domain)
    missing, wanted = [], 0
    for (dataset, key, data, number), domains in scored.items():
        needed = frames[dataset].domains(data)
        wanted += len(needed)
        missing += [
            f"{key.label} on {dataset} {name} in {trial} {number}"
            for name in sorted(needed - domains)
        ]
    if missing:
        yield _sentence(missing, wanted)


def named(names: Sequence[str], between: str = ", ") -> str:
    shown = list(names[:MOST])
    if len(names) > MOST:
        shown.append(f"and {len(names) - MOST} more")
    return between.join(shown)


def _sentence(missing: Sequence[str], expected: int) -> str:
    return (
        f"{len(missing)} of {expected} results are missing (a cell is over the trials that have "
        f"it, or a dash; a trial that lacks one is in no average): {named(missing, '; ')}."
    )
