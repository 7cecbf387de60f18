"""The one comparison: `Observation`s in; means, errors, paired differences and corrected p out.

Every table, sentence and figure reads a `Comparison`, of one data set or of all of them together.
A domain counts as much as any other of its data set, and a data set as much as any other. Whatever
is said of a difference goes by one test: Student's t over the trials' mean differences, corrected
by Holm for the number of methods that a table compares.

Replicates are seeds (trials, in a sweep): the runs of one algorithm on the same data with the same
seed form a *trial*, so that leave-one-domain-out runs count once per seed, with all their test
domains together. Variants of an algorithm are methods of their own.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from statistics import fmean
from typing import TypeVar

from acclimate.config import AlgorithmName
from acclimate.core.text import percent
from acclimate.results.protocol import Sweep
from acclimate.results.runs import ERM, Key, RunView, scores_of
from acclimate.results.statistics import Estimate, difference_p, holm, ratio, verdict_of

AVERAGE = "average"
ALL = "all data sets"


@dataclass(frozen=True)
class Expected:
    """A score that a table should hold: of a method on a domain in a trial."""

    dataset: str
    key: Key
    data: str  # digest: seeds may have drawn data of their own under one name
    trial: int
    domain: str

    @property
    def place(self) -> tuple[object, ...]:
        return self.dataset, self.key, self.data, self.trial, self.domain


@dataclass(frozen=True)
class Observation(Expected):
    """What one method scored on one domain, once."""

    top1: float
    top5: float | None = None
    images: int = 0
    run: str = ""


Replicate = tuple[str, int]  # data, trial
Scores = Mapping[Replicate, Mapping[str, Observation]]  # -> domain -> what one method scored on it
E = TypeVar("E", bound=Expected)


def observations(runs: Iterable[RunView], role: str = "test") -> list[Observation]:
    """What finished runs scored on their domains of a role."""
    return [
        Observation(
            dataset=run.dataset,
            key=Key(run.algorithm, score.method, run.variant),
            # The trials of a sweep share its data, whatever the digest is made from.
            data=run.data if run.trial is None else "",
            trial=run.replicate,
            domain=score.domain,
            top1=score.top1,
            top5=score.top5,
            images=score.n,
            run=run.name,
        )
        for run in runs
        if run.finished is not None
        for score in scores_of(run, role)
        if score.top1 is not None
    ]


def expected_of_runs(scored: Sequence[Expected]) -> list[Expected]:
    """For runs that nobody planned: what any of them scored is what all should have scored."""
    domains = {(one.dataset, one.data, one.domain) for one in scored}
    trials = {
        (one.dataset, one.key, one.data, one.trial)
        for one in scored
        if one.key == Key.usual(one.key.algorithm, one.key.variant)
    }
    return [
        Expected(dataset, key, data, trial, domain)
        for dataset, at, domain in sorted(domains, key=itemgetter(0, 2, 1))
        for _, key, data, trial in sorted(
            one for one in trials if (one[0], one[2]) == (dataset, at)
        )
    ]


def expected_of_sweep(sweep: Sweep, runs: Iterable[RunView]) -> list[Expected]:
    """What the jobs of a sweep are to score, less the domains that have nothing to score."""
    empty = without_rows(runs)
    planned = {
        Expected(job.dataset, Key(job.algorithm, method, job.variant), "", job.trial, domain): None
        for job in sweep.jobs
        if len(job.groups) == 1
        for domain in job.groups[0]
        for method in job.methods
        if (job.dataset, domain) not in empty
    }
    return list(planned)


def without_rows(runs: Iterable[RunView]) -> set[tuple[str, str]]:
    """(data set, domain) that runs looked at and found nothing to score in."""
    scores = [(run.dataset, s) for run in runs for s in run.final if s.role == "test"]
    scored = {(dataset, score.domain) for dataset, score in scores if score.top1 is not None}
    return {(dataset, score.domain) for dataset, score in scores} - scored


def mean_over(cells: Iterable[Observation]) -> float:
    """Mean accuracy: domains count equally within a data set, and so do data sets."""
    by_set: dict[str, list[float]] = defaultdict(list)
    for one in cells:
        by_set[one.dataset].append(one.top1)
    return fmean(map(fmean, by_set.values()))


def by_method(scored: Iterable[Observation]) -> dict[Key, Scores]:
    """Scores by method, trial and domain. Runs that differ in their folder alone are averaged, and
    count once."""
    alike: dict[tuple[object, ...], list[Observation]] = defaultdict(list)
    for one in scored:
        alike[one.place].append(one)
    methods: dict[Key, dict[Replicate, dict[str, Observation]]] = {}
    for same in alike.values():
        first, top5 = same[0], [one.top5 for one in same if one.top5 is not None]
        top1 = fmean(one.top1 for one in same)
        mean = replace(first, top1=top1, top5=fmean(top5) if top5 else None)
        trials = methods.setdefault(first.key, {})
        trials.setdefault((first.data, first.trial), {})[first.domain] = mean
    return dict(methods)


@dataclass(frozen=True)
class Frame:
    """What one table should hold, so that what is missing shows as missing."""

    columns: tuple[str, ...]
    keys: tuple[Key, ...]
    needed: Mapping[str, frozenset[str]]  # data -> its own columns

    @classmethod
    def of(cls, expected: Sequence[Expected]) -> "Frame":
        needed: dict[str, set[str]] = defaultdict(set)
        for one in expected:
            needed[one.data].add(one.domain)
        return cls(
            columns=tuple(dict.fromkeys(one.domain for one in expected)),
            keys=tuple(dict.fromkeys(one.key for one in expected)),
            needed={data: frozenset(domains) for data, domains in needed.items()},
        )

    def complete(self, scores: Scores) -> dict[Replicate, list[Observation]]:
        """The trials that have all domains of their data; a mean over fewer would be another
        quantity."""
        return {
            replicate: [cells[name] for name in needed]
            for replicate, cells in scores.items()
            if (needed := self.needed.get(replicate[0])) and needed <= set(cells)
        }


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
    changes: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # domain -> means
    remark: str = ""  # why there is no pair, or what is unequal about the pairs
    p: float | None = None
    p_holm: float | None = None  # of the methods of a table

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
        kind = "" if self.key.kind == "method" else self.key.kind
        return "published" if self.published else kind

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
    controls: tuple[Difference, ...] = ()  # each control less the method it belongs to
    comparable: bool = True  # rows are of the same test data, so that a column has a best one

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

    @cached_property
    def best(self) -> Mapping[str, frozenset[Key]]:
        """The best of our own methods in each column and on average."""
        methods = [row for row in self.rows if row.key.kind == "method" and not row.published]
        values = {name: {row.key: row.cells.get(name) for row in methods} for name in self.columns}
        values[AVERAGE] = {row.key: row.average for row in methods}
        return {name: _best(column) for name, column in values.items() if self.comparable}

    def is_best(self, row: Row, column: str) -> bool:
        return not row.published and row.key in self.best.get(column, ())


def against(key: Key, baseline: Key, keys: Iterable[Key]) -> Key:
    """What `key` is compared with: the baseline of the same variant if it is among `keys`."""
    same = replace(baseline, variant=key.variant)
    return same if same != key and same in set(keys) else baseline


def compare(
    scored: Sequence[Observation],
    expected: Sequence[Expected],
    seen: Sequence[Observation] = (),
    *,
    rule: str = "",
    baseline: Key = ERM,
    together: str = "",
) -> tuple[Comparison, ...]:
    """One comparison per data set, and last one over all of them where there are several.

    `scored` is what was scored on unseen domains, `seen` on training domains. `together` is the
    name of one table for variants that have a data set each.
    """
    if together:
        scored, seen = _as_one(scored, together), _as_one(seen, together)
        expected = _as_one(expected, together)
    names = list(dict.fromkeys(one.dataset for one in expected))
    if not names:
        return (Comparison("", rule, (), (), baseline),)
    tables = []
    for name in names:
        mine = [one for one in scored if one.dataset == name]
        trained = [one for one in seen if one.dataset == name]
        frame = Frame.of([one for one in expected if one.dataset == name])
        tables.append(_compare(name, mine, trained, frame, rule, baseline))
    if len(tables) > 1:
        frame = Frame.of(pooled(expected))
        every = _compare(ALL, pooled(scored), pooled(seen), frame, rule, baseline)
        averages = {one.dataset: {row.key: row.average for row in one.rows} for one in tables}
        rows = tuple(
            replace(row, cells={name: averages[name].get(row.key) for name in averages})
            for row in every.rows
        )
        tables.append(replace(every, columns=tuple(averages), rows=rows))
    return tuple(replace(table, comparable=not together) for table in tables)


def _as_one(places: Iterable[E], dataset: str) -> list[E]:
    """As of one data set, of which each trial has a draw of its own: the data set that it was."""
    return [replace(one, dataset=dataset, data=one.dataset) for one in places]


def pooled(places: Iterable[E]) -> list[E]:
    """As of one data set: a trial covers all of them, and domains of one name are told apart."""
    return [replace(one, data="", domain=f"{one.dataset}: {one.domain}") for one in places]


def _compare(
    name: str,
    scored: Sequence[Observation],
    seen: Sequence[Observation],
    frame: Frame,
    rule: str,
    baseline: Key,
) -> Comparison:
    scores: dict[Key, Scores] = {key: {} for key in frame.keys} | by_method(scored)
    trained = by_method(seen)
    runs: dict[Key, set[object]] = defaultdict(set)
    for one in scored:
        runs[one.key].add((one.dataset, one.data, one.trial, one.run))
    # Methods, controls, ceilings; the baseline first among its kind.
    keys = sorted(scores, key=lambda key: (key.place[0], key != baseline, key.place))
    rows = []
    for key in keys:
        other = against(key, baseline, keys)
        row = _row(key, scores[key], trained.get(key, {}), frame, len(runs[key]))
        if key != other and row.trials:
            row = replace(row, difference=_difference(key, other, scores))
        rows.append(row)
    means = {row.key: row.average.mean for row in rows if row.average is not None}
    rows = [replace(row, gap_closed=_gap_closed(row.difference, scores, means)) for row in rows]
    controls = tuple(
        _difference(key, replace(key, method="embedding"), scores)
        for key in keys
        if key.kind == "control" and scores[key]
    )
    return Comparison(name, rule, frame.columns, _corrected(rows), baseline, controls)


def _row(key: Key, scores: Scores, seen: Scores, frame: Frame, runs: int) -> Row:
    whole = frame.complete(scores).values()
    top5 = [[one.top5 for one in cells if one.top5 is not None] for cells in whole]
    return Row(
        key=key,
        cells={
            column: Estimate.of(cells[column].top1 for cells in scores.values() if column in cells)
            for column in frame.columns
        },
        average=Estimate.of(map(mean_over, whole)),
        worst=Estimate.of(min(one.top1 for one in cells) for cells in whole),
        top5=Estimate.of(fmean(values) for values in top5 if values),
        seen=Estimate.of(mean_over(cells.values()) for cells in seen.values()),
        runs=runs,
        trials=len(scores),
        domains=len({domain for cells in scores.values() for domain in cells}),
    )


def _difference(key: Key, other: Key, scores: Mapping[Key, Scores]) -> Difference:
    """`key` less `other` on what both scored, with equal data and trial."""
    mine, theirs = scores[key], scores.get(other, {})
    trials = [
        [(own, theirs[trial][domain]) for domain, own in cells.items() if domain in theirs[trial]]
        for trial, cells in mine.items()
        if trial in theirs
    ]
    trials = [pairs for pairs in trials if pairs]
    both = f"{key.label} and {other.label}"
    if not trials:
        lacking = f"{both} have no data, seed and test domain in common"
        return Difference(
            key, other, remark=lacking if theirs else f"there is no finished run of {other.label}"
        )
    after = [mean_over(own for own, _ in pairs) for pairs in trials]
    before = [mean_over(rival for _, rival in pairs) for pairs in trials]
    flat = [pair for pairs in trials for pair in pairs]
    changes: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for own, rival in flat:
        changes[own.domain].append((rival.top1, own.top1))
    unequal = []
    if len(trials) < (every := len(set(mine) | set(theirs))):
        unequal.append(f"only {len(trials)} of {every} seeds could be paired")
    if any({*mine[trial]} != {*theirs[trial]} for trial in mine.keys() & theirs.keys()):
        unequal.append("only the test domains that both scored are compared")
    if any(own.images != rival.images for own, rival in flat):
        unequal.append("they were scored on different numbers of images")
    gain = Estimate.of(a - b for a, b in zip(after, before, strict=True))
    assert gain is not None  # there is a trial
    return Difference(
        line=key,
        against=other,
        gain=gain,
        before=fmean(before),
        after=fmean(after),
        pairs=len(flat),
        improved=sum(own.top1 > rival.top1 for own, rival in flat),
        changes={
            domain: (fmean(before for before, _ in pairs), fmean(after for _, after in pairs))
            for domain, pairs in sorted(changes.items())
        },
        remark=f"{both}: {'; '.join(unequal)}" if unequal else "",
        p=difference_p(gain),
    )


def _gap_closed(
    difference: Difference | None, scores: Mapping[Key, Scores], means: Mapping[Key, float]
) -> Estimate | None:
    """Over the trials and domains that a method, its baseline and the highest ceiling of that
    baseline all scored; `None` where there is no gap beyond noise."""
    if difference is None or difference.line.kind != "method":
        return None
    base = difference.against
    ceilings = [
        key for key in means if key.kind == "ceiling" and replace(key, method=base.method) == base
    ]
    if base not in scores or not ceilings:
        return None
    ceiling = max(ceilings, key=means.__getitem__)
    three = [scores[key] for key in (difference.line, base, ceiling)]
    gains, gaps = [], []
    for trial in sorted(set.intersection(*({*one} for one in three))):
        domains = sorted(set.intersection(*({*one[trial]} for one in three)))
        if domains:
            own, low, high = (mean_over(one[trial][name] for name in domains) for one in three)
            gains.append(own - low)
            gaps.append(high - low)
    return ratio(gains, gaps)


def _corrected(rows: Sequence[Row]) -> tuple[Row, ...]:
    """With Holm's correction over the methods of a table; controls and ceilings are no claims."""
    ps = {
        row.key: row.difference.p
        for row in rows
        if row.key.kind == "method" and row.difference is not None and row.difference.p is not None
    }
    fixed = dict(zip(ps, holm(list(ps.values())), strict=True))
    return tuple(
        replace(row, difference=replace(row.difference, p_holm=fixed[row.key]))
        if row.difference is not None and row.key in fixed
        else row
        for row in rows
    )


def _best(column: Mapping[Key, Estimate | None]) -> frozenset[Key]:
    """The best of a column, with those that print the same; of one alone there is no best."""
    means = {key: float(percent(value.mean)) for key, value in column.items() if value is not None}
    top = max(means.values(), default=0.0)
    return frozenset(key for key, mean in means.items() if mean == top and len(means) > 1)
