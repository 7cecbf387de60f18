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
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from acclimate.config import AlgorithmName
from acclimate.core.text import percent
from acclimate.results.protocol import Sweep, targets
from acclimate.results.runs import ERM, Key, RunView, metric_of, scores_of
from acclimate.results.statistics import Estimate, difference_p, holm, ratio, verdict_of

AVERAGE = "average"
ALL = "all data sets"


@dataclass(frozen=True)
class Observation:
    """What one method scored on one domain, once."""

    dataset: str
    key: Key
    data: str  # digest: seeds may have drawn data of their own under one name
    trial: int
    domain: str
    top1: float
    top5: float | None = None
    images: int = 0
    run: str = ""


Replicate = tuple[str, int]  # data, trial
Scores = Mapping[Replicate, Mapping[str, Observation]]  # -> domain -> what one method scored on it


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
            top1=top1,
            top5=metric_of(score, "top5"),
            images=score.n,
            run=run.name,
        )
        for run in runs
        if run.finished is not None
        for score in scores_of(run, role)
        if (top1 := metric_of(score)) is not None
    ]


def mean_over(cells: Iterable[Observation]) -> float:
    """Mean accuracy: domains count equally within a data set, and so do data sets."""
    by_set: dict[str, list[float]] = defaultdict(list)
    for one in cells:
        by_set[one.dataset].append(one.top1)
    return fmean(map(fmean, by_set.values()))


def by_method(found: Iterable[Observation]) -> dict[Key, Scores]:
    """Scores by method, trial and domain. Runs that differ in their folder alone are averaged, and
    count once."""
    alike: dict[tuple[Key, Replicate, str], list[Observation]] = defaultdict(list)
    for one in found:
        alike[one.key, (one.data, one.trial), one.domain].append(one)
    methods: dict[Key, dict[Replicate, dict[str, Observation]]] = {}
    for (key, replicate, domain), same in alike.items():
        top5 = [one.top5 for one in same if one.top5 is not None]
        mean = replace(
            same[0], top1=fmean(one.top1 for one in same), top5=fmean(top5) if top5 else None
        )
        methods.setdefault(key, {}).setdefault(replicate, {})[domain] = mean
    return dict(methods)


@dataclass(frozen=True)
class Frame:
    """What a table should hold, so that what is missing shows as missing."""

    columns: tuple[str, ...]
    keys: tuple[Key, ...] = ()
    needed: Mapping[str, frozenset[str]] = field(default_factory=dict)  # data -> its own columns

    def domains(self, data: str) -> frozenset[str]:
        return self.needed.get(data, frozenset(self.columns))

    def complete(self, scores: Scores) -> dict[Replicate, list[Observation]]:
        """The trials that have all domains of their data; a mean over fewer would be another
        quantity."""
        return {
            replicate: [found[name] for name in needed]
            for replicate, found in scores.items()
            if (needed := self.domains(replicate[0])) and needed <= set(found)
        }

    def averages(self, scores: Scores) -> dict[Replicate, float]:
        return {replicate: mean_over(cells) for replicate, cells in self.complete(scores).items()}


def frames_of(found: Iterable[Observation]) -> dict[str, Frame]:
    """For runs that nobody planned: what any of them scored is what all should have scored."""
    needed: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for one in found:
        needed[one.dataset][one.data].add(one.domain)
    return {
        dataset: Frame(
            tuple(sorted(set().union(*of_data.values()))),
            needed={data: frozenset(names) for data, names in of_data.items()},
        )
        for dataset, of_data in sorted(needed.items())
    }


def planned_frames(sweep: Sweep, empty: Container[tuple[str, str]]) -> dict[str, Frame]:
    """For a sweep: what its jobs are to score, less the (data set, domain) that are `empty`."""
    frames = {}
    for data in sweep.datasets:
        jobs = [job for job in sweep.jobs if job.dataset == data.name]
        columns = tuple(dict.fromkeys(name for group in targets(jobs) for name in group))
        keys = dict.fromkeys(
            Key(job.algorithm, method, job.variant) for job in jobs for method in job.methods
        )
        needed = frozenset(name for name in columns if (data.name, name) not in empty)
        frames[data.name] = Frame(columns, tuple(keys), {"": needed})
    return frames


def without_rows(runs: Iterable[RunView]) -> set[tuple[str, str]]:
    """(data set, domain) that runs looked at and found nothing to score in."""
    scores = [(run.dataset, s) for run in runs for s in run.final if s.role == "test"]
    scored = {(dataset, score.domain) for dataset, score in scores if metric_of(score) is not None}
    return {(dataset, score.domain) for dataset, score in scores} - scored


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
    tables = []
    for name, frame in frames.items():
        own, trained = ([one for one in some if one.dataset == name] for some in (found, seen))
        tables.append(_compare(name, own, trained, frame, rule, baseline))
    if len(tables) > 1:
        columns = tuple(
            f"{name}: {domain}"
            for name, frame in frames.items()
            for domain in sorted(set().union(*map(frame.domains, frame.needed or {""})))
        )
        keys = dict.fromkeys(key for frame in frames.values() for key in frame.keys)
        pool = Frame(columns, tuple(keys))
        every = _compare(ALL, pooled(found), pooled(seen), pool, rule, baseline)
        averages = {one.dataset: {row.key: row.average for row in one.rows} for one in tables}
        rows = [
            replace(row, cells={name: averages[name].get(row.key) for name in averages})
            for row in every.rows
        ]
        tables.append(_finished(replace(every, columns=tuple(averages), rows=tuple(rows))))
    return tuple(tables)


def pooled(found: Iterable[Observation]) -> list[Observation]:
    """As of one data set: a trial covers all of them, and domains of one name are told apart."""
    return [replace(one, data="", domain=f"{one.dataset}: {one.domain}") for one in found]


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
    runs: dict[Key, set[object]] = defaultdict(set)
    for one in found:
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
    return _finished(Comparison(name, rule, frame.columns, tuple(rows), baseline, {}, controls))


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
        changes=tuple(
            Change(domain, *map(fmean, zip(*pairs, strict=True)))
            for domain, pairs in sorted(changes.items())
        ),
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
