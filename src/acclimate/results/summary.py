"""What a set of runs shows, as data. Tables, plots and pages are views of a `Summary`.

Replicates are seeds (trials, in a sweep): the runs of one algorithm on the same data with the same
seed form a *trial*, so that leave-one-domain-out runs count once per seed, with all their test
domains together. Variants of an algorithm are lines of their own.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from acclimate.config import AlgorithmName
from acclimate.results.runs import ERM, Key, RunView, find_runs, scores_of, told_apart
from acclimate.runs.records import Score

__all__ = [
    "ERM",
    "Change",
    "Difference",
    "DomainRow",
    "Estimate",
    "Key",
    "Line",
    "RunView",
    "Summary",
    "against",
    "find_runs",
    "summarise",
]
# Two-sided 95 % points of Student's t for 1..30 degrees of freedom; beyond, the last is cautious.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


ENOUGH_SEEDS = 3  # two may agree by chance, and their interval is then next to nothing


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds; `se` is sample standard deviation / √n, `None` for one seed."""

    mean: float
    se: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Estimate | None":
        known = [value for value in values if value is not None]
        if not known:
            return None
        se = float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None
        return cls(float(np.mean(known)), se, len(known))


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
        """ "better" or "worse" where Student's 95 % interval over seeds leaves out 0, else "noise";
        "one seed", "few seeds" or "unpaired" where there is no interval to go by."""
        if self.gain is None:
            return "unpaired"
        if self.gain.se is None:
            return "one seed"
        if self.gain.n < ENOUGH_SEEDS:
            return "few seeds"
        margin = _T95[min(self.gain.n - 1, len(_T95)) - 1] * self.gain.se
        if abs(self.gain.mean) <= max(margin, 1e-9):
            return "noise"
        return "better" if self.gain.mean > 0 else "worse"


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

    @property
    def finished(self) -> list[RunView]:
        return [run for run in self.runs if run.finished is not None]

    @property
    def contenders(self) -> list[Key]:
        """What is compared with the baseline: its adaptive version first, then by name. Not by
        score: the best of many on the test domains would look better than it is."""
        keys = [line.key for line in self.lines if line.key.kind == "method"]
        first = AlgorithmName.of(self.baseline.algorithm).adaptive_version
        others = [key for key in keys if not _same(key, self.baseline)]
        return sorted(others, key=lambda key: (key.algorithm != first, key.place))

    def line(self, key: Key) -> Line | None:
        return next((line for line in self.lines if line.key == key), None)

    def difference(self, line: Key, against: Key) -> Difference | None:
        pairs = {(found.line, found.against): found for found in self.differences}
        return pairs.get((line, against))

    def versus(self, line: Key) -> Difference | None:
        """To the baseline that is `line`'s own: of the same variant, or else without variant."""
        return self.difference(line, against(line, self.baseline, (one.key for one in self.lines)))


@dataclass(frozen=True)
class _Cell:
    top1: float
    top5: float | None
    n: int


def against(key: Key, baseline: Key, keys: Iterable[Key]) -> Key:
    """What `key` is compared with: the baseline of the same variant if it is among `keys`."""
    same = replace(baseline, variant=key.variant)
    return same if same != key and same in set(keys) else baseline


def _same(key: Key, other: Key) -> bool:
    return replace(key, variant=other.variant) == other


_Replicate = tuple[str, int]  # data digest, seed
_Trials = dict[_Replicate, dict[str, _Cell]]  # -> domain -> score


def summarise(
    runs: Sequence[RunView],
    baseline: Key = ERM,
    expected: Mapping[tuple[str, str], int] | None = None,
) -> Summary:
    """Finished runs in numbers. Unfinished and damaged ones stay in `runs`, uncounted.

    `expected` is how many test domains a trial of an (algorithm, variant) has once it is complete:
    only complete trials are in a line's means, which would be over other domains otherwise.
    """
    complete = expected or {}
    runs = told_apart(runs)
    finished = [run for run in runs if run.finished is not None]
    unseen, seen = _trials(finished, "test"), _trials(finished, "train")
    keys = sorted(unseen, key=lambda key: (key.place[0], key != baseline, key.place))
    lines = tuple(
        _line(
            key,
            unseen[key],
            seen.get(key, {}),
            finished,
            complete.get((key.algorithm, key.variant), 0),
        )
        for key in keys
    )
    pairs = [(key, against(key, baseline, keys)) for key in keys if key != baseline]
    pairs += [(k, replace(k, method="embedding")) for k in keys if k.kind == "control"]
    differences = tuple(
        _difference(key, other, unseen[key], unseen.get(other, {})) for key, other in pairs
    )
    names = sorted(
        {name for trials in unseen.values() for cells in trials.values() for name in cells}
    )
    domains = tuple(
        DomainRow(name, {key: _over_seeds(unseen[key], name) for key in keys}) for name in names
    )
    return Summary(tuple(runs), baseline, lines, differences, domains)


def _trials(runs: Sequence[RunView], role: str) -> dict[Key, _Trials]:
    # Data sets may have domains of one name, and a trial covers all of them together.
    several = len({run.dataset for run in runs}) > 1
    scores: dict[Key, dict[_Replicate, dict[str, list[Score]]]] = {}
    for run in runs:
        replicate = ("" if several else run.data, run.replicate)
        for score in scores_of(run, role):
            trials = scores.setdefault(Key(run.algorithm, score.method, run.variant), {})
            cells = trials.setdefault(replicate, defaultdict(list))
            cells[f"{run.dataset}: {score.domain}" if several else score.domain].append(score)
    return {
        key: {
            replicate: {domain: _cell(found) for domain, found in cells.items()}
            for replicate, cells in trials.items()
        }
        for key, trials in scores.items()
    }


def _cell(scores: Sequence[Score]) -> _Cell:
    top1 = [score.top1 for score in scores if score.top1 is not None]
    top5 = [score.top5 for score in scores if score.top5 is not None]
    return _Cell(float(np.mean(top1)), float(np.mean(top5)) if top5 else None, scores[0].n)


def _line(key: Key, unseen: _Trials, seen: _Trials, runs: Iterable[RunView], expected: int) -> Line:
    whole = [cells for cells in unseen.values() if len(cells) >= expected]
    tops = [[c.top5 for c in cells.values() if c.top5 is not None] for cells in whole]
    return Line(
        key=key,
        unseen=Estimate.of(_mean(cells) for cells in whole),
        worst=Estimate.of(min(cell.top1 for cell in cells.values()) for cells in whole),
        top5=Estimate.of(float(np.mean(top)) for top in tops if top),
        seen=Estimate.of(_mean(cells) for cells in seen.values()),
        runs=sum(
            (run.algorithm, run.variant) == (key.algorithm, key.variant)
            and any(s.method == key.method for s in run.final)
            for run in runs
        ),
        seeds=len(unseen),
        domains=len({domain for cells in unseen.values() for domain in cells}),
    )


def _mean(cells: Mapping[str, _Cell]) -> float:
    return float(np.mean([cell.top1 for cell in cells.values()]))


def _over_seeds(trials: _Trials, domain: str) -> float | None:
    known = [cells[domain].top1 for cells in trials.values() if domain in cells]
    return float(np.mean(known)) if known else None


def _difference(key: Key, against: Key, mine: _Trials, theirs: _Trials) -> Difference:
    pairs = {
        replicate: [
            (d, theirs[replicate][d], cell) for d, cell in cells.items() if d in theirs[replicate]
        ]
        for replicate, cells in mine.items()
        if replicate in theirs
    }
    pairs = {replicate: found for replicate, found in pairs.items() if found}
    if not pairs:
        remark = _no_pair(key, against, mine, theirs)
        return Difference(key, against, None, None, None, 0, 0, (), remark)
    before = [float(np.mean([b.top1 for _, b, _ in found])) for found in pairs.values()]
    after = [float(np.mean([a.top1 for _, _, a in found])) for found in pairs.values()]
    flat = [pair for found in pairs.values() for pair in found]
    return Difference(
        line=key,
        against=against,
        gain=Estimate.of(a - b for a, b in zip(after, before, strict=True)),
        before=float(np.mean(before)),
        after=float(np.mean(after)),
        pairs=len(flat),
        improved=sum(a.top1 > b.top1 for _, b, a in flat),
        changes=_changes(flat),
        remark=_inequality(key, against, pairs, mine, theirs),
    )


def _changes(pairs: Iterable[tuple[str, _Cell, _Cell]]) -> tuple[Change, ...]:
    by_domain: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for domain, before, after in pairs:
        by_domain[domain].append((before.top1, after.top1))
    means = {domain: np.mean(found, axis=0) for domain, found in sorted(by_domain.items())}
    return tuple(Change(domain, float(b), float(a)) for domain, (b, a) in means.items())


def _no_pair(key: Key, against: Key, mine: _Trials, theirs: _Trials) -> str:
    if not theirs:
        return f"there is no finished run of {against.label}"
    if not {data for data, _ in mine} & {data for data, _ in theirs}:
        return f"{key.label} and {against.label} ran on different data"
    if not set(mine) & set(theirs):
        return f"{key.label} and {against.label} have no seed in common"
    return f"{key.label} and {against.label} have no test domain in common"


def _inequality(
    key: Key,
    against: Key,
    pairs: Mapping[_Replicate, Sequence[tuple[str, _Cell, _Cell]]],
    mine: _Trials,
    theirs: _Trials,
) -> str:
    remarks = []
    every = len(set(mine) | set(theirs))
    if len(pairs) < every:
        remarks.append(f"only {len(pairs)} of {every} seeds could be paired")
    if any({d for d, _, _ in found} != {*mine[r], *theirs[r]} for r, found in pairs.items()):
        remarks.append("only the test domains that both scored are compared")
    compared: dict[str, set[frozenset[str]]] = defaultdict(set)
    for (data, _), found in pairs.items():
        compared[data].add(frozenset(d for d, _, _ in found))
    if any(len(sets) > 1 for sets in compared.values()):
        remarks.append("not every seed has the same test domains to compare")
    if any(before.n != after.n for found in pairs.values() for _, before, after in found):
        remarks.append("they were scored on different numbers of images")
    return f"{key.label} and {against.label}: {'; '.join(remarks)}" if remarks else ""
