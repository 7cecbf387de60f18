"""The one comparison: `Observation`s in; means, errors, paired differences and corrected p out.

Every table, sentence and figure reads a `Comparison`, of one data set or of all of them together.
A domain counts as much as any other of its data set, and a data set as much as any other. Whatever
is said of a difference goes by one test: Student's t over the trials' mean differences, corrected
by Holm for the number of methods that a table compares.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from acclimate.config import AlgorithmName
from acclimate.core.text import percent
from acclimate.results.observations import (
    Frame,
    Observation,
    Pairs,
    Scores,
    by_method,
    mean_over,
    paired,
    pooled,
    pooled_frame,
)
from acclimate.results.runs import ERM, Key
from acclimate.results.statistics import Estimate, difference_p, holm, ratio, verdict_of

AVERAGE = "average"
ALL = "all data sets"


@dataclass(frozen=True)
class Change:
    """A domain's mean over the paired trials, before and after."""

    domain: str
    before: float
    after: float


@dataclass(frozen=True)
class Difference:
    """A method less another, in pairs with equal data and trial, over the domains both scored."""

    line: Key
    against: Key
    gain: Estimate | None = None  # over trials; `None` where nothing can be paired
    before: float | None = None
    after: float | None = None
    pairs: int = 0  # (domain, trial)
    improved: int = 0
    changes: tuple[Change, ...] = ()
    remark: str = ""  # why there is no pair, or what is unequal about the pairs
    p: float | None = None
    p_holm: float | None = None  # of the methods of a table; controls and ceilings are no claims

    @property
    def verdict(self) -> str:
        """What may be said of it, by the p that is shown beside it."""
        if self.gain is None:
            return "unpaired"
        return verdict_of(self.gain, self.p if self.p_holm is None else self.p_holm)


@dataclass(frozen=True)
class Row:
    """One method on unseen domains, or one that a paper has published."""

    key: Key
    cells: Mapping[str, Estimate | None]  # by column
    average: Estimate | None = None  # over the trials that have every domain
    difference: Difference | None = None  # to its baseline; `None` for the baseline itself
    worst: Estimate | None = None
    top5: Estimate | None = None
    seen: Estimate | None = None  # on training domains
    gap_closed: Estimate | None = None  # share of the way from its baseline to the highest ceiling
    runs: int = 0
    trials: int = 0
    domains: int = 0
    published: bool = False
    note: str = ""

    @property
    def badge(self) -> str:
        """What sets it off from our methods: "control", "ceiling", "published", or nothing."""
        return "published" if self.published else self.key.badge

    @property
    def gain(self) -> Estimate | None:
        return None if self.difference is None else self.difference.gain


@dataclass(frozen=True)
class Comparison:
    """One data set under one rule: a column per test domain; or `ALL`: a column per data set."""

    dataset: str
    rule: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    baseline: Key
    best: Mapping[str, frozenset[Key]]  # column, and AVERAGE -> the best of our own methods
    controls: tuple[Difference, ...] = ()  # each control less the method it belongs to

    @property
    def lines(self) -> list[Row]:
        """The rows of our own that have been scored."""
        return [row for row in self.rows if row.trials and not row.published]

    @property
    def contenders(self) -> list[Row]:
        """What is compared with the baseline: its adaptive version first, then by name. Not by
        score: the best of many on the test domains would look better than it is."""
        first = AlgorithmName.of(self.baseline.algorithm).adaptive_version
        others = [
            row
            for row in self.lines
            if row.key.kind == "method"
            and replace(row.key, variant=self.baseline.variant) != self.baseline
        ]
        return sorted(others, key=lambda row: (row.key.algorithm != first, row.key.place))

    @property
    def tested(self) -> bool:
        """Whether any method has a rival; a ceiling's own test would be a test of nothing."""
        return any(row.key.kind == "method" and row.gain is not None for row in self.rows)

    def row(self, key: Key) -> Row | None:
        return next((row for row in self.lines if row.key == key), None)

    def is_best(self, row: Row, column: str) -> bool:
        return not row.published and row.key in self.best.get(column, ())


def against(key: Key, baseline: Key, keys: Iterable[Key]) -> Key:
    """What `key` is compared with: the baseline of the same variant if it is among `keys`."""
    same = replace(baseline, variant=key.variant)
    return same if same != key and same in set(keys) else baseline


def compare(
    found: Sequence[Observation],
    frames: Mapping[str, Frame],
    *,
    rule: str = "",
    baseline: Key = ERM,
    seen: Sequence[Observation] = (),
) -> tuple[Comparison, ...]:
    """One comparison per data set, and last one over all of them where there are several.

    `found` is what was scored on unseen domains, `seen` on training domains.
    """
    if not frames:
        return (Comparison("", rule, (), (), baseline, {}),)
    tables = [
        _compare(
            name,
            [one for one in found if one.dataset == name],
            [one for one in seen if one.dataset == name],
            frame,
            rule,
            baseline,
        )
        for name, frame in frames.items()
    ]
    if len(tables) > 1:
        frame = pooled_frame(frames)
        every = _compare(ALL, pooled(found), pooled(seen), frame, rule, baseline)
        averages = {one.dataset: {row.key: row.average for row in one.rows} for one in tables}
        rows = [
            replace(row, cells={name: averages[name].get(row.key) for name in averages})
            for row in every.rows
        ]
        tables.append(_finished(replace(every, columns=tuple(averages), rows=tuple(rows))))
    return tuple(tables)


def _compare(
    name: str,
    found: Sequence[Observation],
    seen: Sequence[Observation],
    frame: Frame,
    rule: str,
    baseline: Key,
) -> Comparison:
    scores: dict[Key, Scores] = {key: {} for key in frame.keys} | by_method(found)
    trained = by_method(seen)
    # Methods, controls, ceilings; the baseline first among its kind.
    keys = sorted(scores, key=lambda key: (key.place[0], key != baseline, key.place))
    rows = []
    for key in keys:
        other = against(key, baseline, keys)
        row = _row(key, scores[key], trained.get(key, {}), frame)
        row = replace(row, runs=len({one.run_id for one in found if one.key == key}))
        if key != other and row.trials:
            gained = _difference(key, other, scores[key], scores.get(other, {}))
            row = replace(row, difference=gained)
        rows.append(row)
    means = {row.key: row.average.mean for row in rows if row.average is not None}
    for place, row in enumerate(rows):
        if row.key.kind == "method" and row.difference is not None:
            closed = _gap_closed(row.difference, scores, means)
            rows[place] = replace(row, gap_closed=closed)
    controls = tuple(
        _difference(key, own, scores[key], scores.get(own, {}))
        for key in keys
        if key.kind == "control" and scores[key]
        for own in [replace(key, method="embedding")]
    )
    return _finished(Comparison(name, rule, frame.columns, tuple(rows), baseline, {}, controls))


def _row(key: Key, scores: Scores, seen: Scores, frame: Frame) -> Row:
    whole = frame.complete(scores).values()
    top5 = [[one for one in cells if one.top5 is not None] for cells in whole]
    return Row(
        key=key,
        cells={
            column: Estimate.of(cells[column].top1 for cells in scores.values() if column in cells)
            for column in frame.columns
        },
        average=Estimate.of(map(mean_over, whole)),
        worst=Estimate.of(min(one.top1 for one in cells) for cells in whole),
        top5=Estimate.of(fmean(one.top5 or 0.0 for one in cells) for cells in top5 if cells),
        seen=Estimate.of(mean_over(cells.values()) for cells in seen.values()),
        trials=len(scores),
        domains=len({domain for cells in scores.values() for domain in cells}),
    )


def _difference(key: Key, other: Key, mine: Scores, theirs: Scores) -> Difference:
    pairs = paired(mine, theirs)
    if not pairs:
        return Difference(key, other, remark=_why_unpaired(key, other, mine, theirs))
    after = [mean_over(one for one, _ in found) for found in pairs.values()]
    before = [mean_over(rival for _, rival in found) for found in pairs.values()]
    flat = [pair for found in pairs.values() for pair in found]
    gain = Estimate.of(a - b for a, b in zip(after, before, strict=True))
    return Difference(
        line=key,
        against=other,
        gain=gain,
        before=fmean(before),
        after=fmean(after),
        pairs=len(flat),
        improved=sum(one.top1 > rival.top1 for one, rival in flat),
        changes=_changes(flat),
        remark=_inequality(key, other, pairs, mine, theirs),
        p=None if gain is None else difference_p(gain),
    )


def _changes(pairs: Iterable[tuple[Observation, Observation]]) -> tuple[Change, ...]:
    by_domain: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for after, before in pairs:
        by_domain[after.domain].append((before.top1, after.top1))
    return tuple(
        Change(domain, *map(fmean, zip(*found, strict=True)))
        for domain, found in sorted(by_domain.items())
    )


def _why_unpaired(key: Key, other: Key, mine: Scores, theirs: Scores) -> str:
    if not theirs:
        return f"there is no finished run of {other.label}"
    both = f"{key.label} and {other.label}"
    if not {data for data, _ in mine} & {data for data, _ in theirs}:
        return f"{both} ran on different data"
    shared = set(mine) & set(theirs)
    return f"{both} have no {'test domain' if shared else 'seed'} in common"


def _inequality(key: Key, other: Key, pairs: Pairs, mine: Scores, theirs: Scores) -> str:
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
    if any(one.images != rival.images for found in pairs.values() for one, rival in found):
        remarks.append("they were scored on different numbers of images")
    return f"{key.label} and {other.label}: {'; '.join(remarks)}" if remarks else ""


def _gap_closed(
    difference: Difference, scores: Mapping[Key, Scores], means: Mapping[Key, float]
) -> Estimate | None:
    """Over the trials and domains that the method, its baseline and the highest ceiling of that
    baseline all scored; `None` where there is no gap beyond noise."""
    base = difference.against
    ceilings = [
        key for key in means if key.kind == "ceiling" and replace(key, method=base.method) == base
    ]
    if base not in scores or not ceilings:
        return None
    mine, low = scores[difference.line], scores[base]
    high = scores[max(ceilings, key=means.__getitem__)]
    gains, gaps = [], []
    for replicate in mine.keys() & low.keys() & high.keys():
        of = [found[replicate] for found in (mine, low, high)]
        domains = of[0].keys() & of[1].keys() & of[2].keys()
        if domains:
            own, bottom, top = (mean_over(cells[name] for name in domains) for cells in of)
            gains.append(own - bottom)
            gaps.append(top - bottom)
    return ratio(gains, gaps)


def _finished(found: Comparison) -> Comparison:
    """With Holm's correction over the methods of the table, and the best of each column."""
    family = {
        row.key: row.difference.p
        for row in found.rows
        if row.key.kind == "method" and row.difference is not None and row.difference.p is not None
    }
    fixed = dict(zip(family, holm(list(family.values())), strict=True))
    rows = tuple(
        replace(row, difference=replace(row.difference, p_holm=fixed[row.key]))
        if row.difference is not None and row.key in fixed
        else row
        for row in found.rows
    )
    best = {name: _best({r.key: r.cells.get(name) for r in rows}) for name in found.columns}
    best[AVERAGE] = _best({row.key: row.average for row in rows})
    return replace(found, rows=rows, best=best)


def _best(values: Mapping[Key, Estimate | None]) -> frozenset[Key]:
    """The best of the methods, with those that print the same; of one alone there is no best."""
    means = {
        key: float(percent(value.mean))
        for key, value in values.items()
        if key.kind == "method" and value is not None
    }
    top = max(means.values(), default=0.0)
    return frozenset(key for key, mean in means.items() if mean == top and len(means) > 1)


def merged(found: Sequence[Comparison], title: str) -> Comparison:
    """One table instead of one each, for variants that have data of their own."""
    columns = tuple(dict.fromkeys(column for one in found for column in one.columns))
    rows = [
        replace(row, cells={name: row.cells.get(name) for name in columns})
        for one in found
        for row in one.rows
    ]
    rows.sort(key=lambda row: row.key.place)
    controls = tuple(control for one in found for control in one.controls)
    whole = replace(found[0], dataset=title, columns=columns, rows=tuple(rows), controls=controls)
    # Variants have test data of their own, so that no cell is the best of its column.
    return replace(_finished(whole), best={})
