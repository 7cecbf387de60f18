"""What a set of runs shows, method by method, over all their unseen domains."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from acclimate.config import AlgorithmName
from acclimate.results.observations import (
    Observation,
    Pairs,
    Scores,
    by_method,
    observations,
    paired,
    pooled,
)
from acclimate.results.runs import ERM, Key, RunView, told_apart
from acclimate.results.statistics import Estimate, ratio


@dataclass(frozen=True)
class Line:
    """One (algorithm, method) on unseen test domains, and on the training domains as `seen`."""

    key: Key
    unseen: Estimate | None
    worst: Estimate | None
    top5: Estimate | None
    seen: Estimate | None
    runs: int
    seeds: int
    domains: int


@dataclass(frozen=True)
class Change:
    """A domain's mean over the paired seeds, before and after."""

    domain: str
    before: float
    after: float


@dataclass(frozen=True)
class Difference:
    """A line less another, in pairs with equal data and seed, over the domains both scored."""

    line: Key
    against: Key
    gain: Estimate | None  # of the per-seed differences; `None` where nothing can be paired
    before: float | None
    after: float | None
    pairs: int  # (domain, seed)
    improved: int
    changes: tuple[Change, ...]
    remark: str = ""  # why there is no pair, or what is unequal about the pairs

    @property
    def verdict(self) -> str:
        return "unpaired" if self.gain is None else self.gain.verdict


@dataclass(frozen=True)
class DomainRow:
    """A test domain: for each line its mean over seeds, `None` where it was not scored."""

    domain: str
    top1: Mapping[Key, float | None]


@dataclass(frozen=True)
class Summary:
    runs: tuple[RunView, ...]
    baseline: Key
    lines: tuple[Line, ...]
    differences: tuple[Difference, ...]  # each line to the baseline; controls to their method too
    domains: tuple[DomainRow, ...]
    # Of a method: how much of the way from its baseline to the highest ceiling it goes; only where
    # there is a way beyond noise.
    gap_closed: Mapping[Key, Estimate] = field(default_factory=dict)

    @property
    def finished(self) -> list[RunView]:
        return [run for run in self.runs if run.finished is not None]

    @property
    def contenders(self) -> list[Key]:
        """What is compared with the baseline: its adaptive version first, then by name. Not by
        score: the best of many on the test domains would look better than it is."""
        keys = [line.key for line in self.lines if line.key.kind == "method"]
        first = AlgorithmName.of(self.baseline.algorithm).adaptive_version
        others = [k for k in keys if replace(k, variant=self.baseline.variant) != self.baseline]
        return sorted(others, key=lambda key: (key.algorithm != first, key.place))

    def line(self, key: Key) -> Line | None:
        return next((line for line in self.lines if line.key == key), None)

    def difference(self, line: Key, against: Key) -> Difference | None:
        pairs = {(found.line, found.against): found for found in self.differences}
        return pairs.get((line, against))

    def versus(self, line: Key) -> Difference | None:
        """To the baseline that is `line`'s own: of the same variant, or else without variant."""
        return self.difference(line, against(line, self.baseline, (one.key for one in self.lines)))


def against(key: Key, baseline: Key, keys: Iterable[Key]) -> Key:
    """What `key` is compared with: the baseline of the same variant if it is among `keys`."""
    same = replace(baseline, variant=key.variant)
    return same if same != key and same in set(keys) else baseline


def in_order(keys: Iterable[Key], baseline: Key) -> list[Key]:
    """Methods, controls, ceilings; the baseline first among its kind."""
    return sorted(keys, key=lambda key: (key.place[0], key != baseline, key.place))


Domains = Mapping[tuple[str, str], int]  # (algorithm, variant) -> test domains of a whole trial


def summarise(
    runs: Sequence[RunView], baseline: Key = ERM, expected: Domains | None = None
) -> Summary:
    """Finished runs in numbers. Unfinished and damaged ones stay in `runs`, uncounted."""
    runs = told_apart(runs)
    made = Counter(
        Key(run.algorithm, method, run.variant)
        for run in runs
        if run.finished is not None
        for method in {score.method for score in run.final}
    )
    found = summary_of(
        observations(runs), made, baseline, expected, seen=observations(runs, "train")
    )
    return replace(found, runs=tuple(runs))


def summary_of(
    found: Sequence[Observation],
    runs: Mapping[Key, int],
    baseline: Key,
    expected: Domains | None = None,
    *,
    seen: Sequence[Observation] = (),
) -> Summary:
    """`found` on unseen domains and `seen` on training domains, by how many `runs` of each method.

    Only trials with as many domains as `expected` are in a line's means, which would be over other
    domains otherwise.
    """
    unseen, trained = by_method(pooled(found)), by_method(pooled(seen))
    keys = in_order(unseen, baseline)
    lines = tuple(
        _line(key, unseen[key], trained.get(key, {}), runs[key], _domains(expected, key))
        for key in keys
    )
    pairs = [(key, against(key, baseline, keys)) for key in keys if key != baseline]
    pairs += [(k, replace(k, method="embedding")) for k in keys if k.kind == "control"]
    differences = tuple(
        _difference(key, other, unseen[key], unseen.get(other, {})) for key, other in pairs
    )
    names = sorted({name for key in keys for cells in unseen[key].values() for name in cells})
    domains = tuple(
        DomainRow(name, {key: _over_seeds(unseen[key], name) for key in keys}) for name in names
    )
    return Summary((), baseline, lines, differences, domains, _gaps_closed(unseen, lines, baseline))


def _gaps_closed(
    unseen: Mapping[Key, Scores], lines: Iterable[Line], baseline: Key
) -> dict[Key, Estimate]:
    height = {line.key: line.unseen.mean for line in lines if line.unseen is not None}
    closed = {}
    for key in unseen:
        base = against(key, baseline, unseen)
        ceilings = [
            other
            for other in height
            if other.kind == "ceiling" and replace(other, method=base.method) == base
        ]
        if key.kind != "method" or key == base or base not in unseen or not ceilings:
            continue
        highest = max(ceilings, key=height.__getitem__)
        share = _gap_closed(unseen[key], unseen[base], unseen[highest])
        if share is not None:
            closed[key] = share
    return closed


def _gap_closed(mine: Scores, base: Scores, ceiling: Scores) -> Estimate | None:
    """Over the seeds and domains that all three scored."""
    gains, gaps = [], []
    for replicate, found in mine.items():
        low, high = base.get(replicate, {}), ceiling.get(replicate, {})
        domains = sorted(found.keys() & low.keys() & high.keys())
        if domains:
            gains.append(fmean(found[name].top1 - low[name].top1 for name in domains))
            gaps.append(fmean(high[name].top1 - low[name].top1 for name in domains))
    return ratio(gains, gaps)


def _domains(expected: Domains | None, key: Key) -> int:
    return (expected or {}).get((key.algorithm, key.variant), 0)


def _line(key: Key, unseen: Scores, seen: Scores, runs: int, expected: int) -> Line:
    whole = [list(cells.values()) for cells in unseen.values() if len(cells) >= expected]
    tops = [[one.top5 for one in cells if one.top5 is not None] for cells in whole]
    return Line(
        key=key,
        unseen=Estimate.of(fmean(one.top1 for one in cells) for cells in whole),
        worst=Estimate.of(min(one.top1 for one in cells) for cells in whole),
        top5=Estimate.of(fmean(top) for top in tops if top),
        seen=Estimate.of(fmean(one.top1 for one in cells.values()) for cells in seen.values()),
        runs=runs,
        seeds=len(unseen),
        domains=len({domain for cells in unseen.values() for domain in cells}),
    )


def _over_seeds(trials: Scores, domain: str) -> float | None:
    known = [cells[domain].top1 for cells in trials.values() if domain in cells]
    return fmean(known) if known else None


def _difference(key: Key, against: Key, mine: Scores, theirs: Scores) -> Difference:
    pairs = paired(mine, theirs)
    if not pairs:
        remark = _no_pair(key, against, mine, theirs)
        return Difference(key, against, None, None, None, 0, 0, (), remark)
    after = [fmean(one.top1 for one, _ in found) for found in pairs.values()]
    before = [fmean(other.top1 for _, other in found) for found in pairs.values()]
    flat = [pair for found in pairs.values() for pair in found]
    return Difference(
        line=key,
        against=against,
        gain=Estimate.of(a - b for a, b in zip(after, before, strict=True)),
        before=fmean(before),
        after=fmean(after),
        pairs=len(flat),
        improved=sum(one.top1 > other.top1 for one, other in flat),
        changes=_changes(flat),
        remark=_inequality(key, against, pairs, mine, theirs),
    )


def _changes(pairs: Iterable[tuple[Observation, Observation]]) -> tuple[Change, ...]:
    by_domain: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for after, before in pairs:
        by_domain[after.domain].append((before.top1, after.top1))
    return tuple(
        Change(domain, *map(fmean, zip(*found, strict=True)))
        for domain, found in sorted(by_domain.items())
    )


def _no_pair(key: Key, against: Key, mine: Scores, theirs: Scores) -> str:
    if not theirs:
        return f"there is no finished run of {against.label}"
    if not {data for data, _ in mine} & {data for data, _ in theirs}:
        return f"{key.label} and {against.label} ran on different data"
    if not set(mine) & set(theirs):
        return f"{key.label} and {against.label} have no seed in common"
    return f"{key.label} and {against.label} have no test domain in common"


def _inequality(key: Key, against: Key, pairs: Pairs, mine: Scores, theirs: Scores) -> str:
    remarks = []
    every = len(set(mine) | set(theirs))
    if len(pairs) < every:
        remarks.append(f"only {len(pairs)} of {every} seeds could be paired")
    shared = {replicate: {one.domain for one, _ in found} for replicate, found in pairs.items()}
    if any(names != {*mine[r], *theirs[r]} for r, names in shared.items()):
        remarks.append("only the test domains that both scored are compared")
    compared: dict[str, set[frozenset[str]]] = defaultdict(set)
    for (data, _), names in shared.items():
        compared[data].add(frozenset(names))
    if any(len(sets) > 1 for sets in compared.values()):
        remarks.append("not every seed has the same test domains to compare")
    if any(one.images != other.images for found in pairs.values() for one, other in found):
        remarks.append("they were scored on different numbers of images")
    return f"{key.label} and {against.label}: {'; '.join(remarks)}" if remarks else ""
