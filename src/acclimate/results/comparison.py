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
from functools import cached_property
from statistics import fmean
from typing import TypeVar

from acclimate.config import AlgorithmName
from acclimate.core.grid import Cell, Grid
from acclimate.records.metrics import METRICS, TOP_1, measured
from acclimate.results.protocol import Sweep
from acclimate.results.runs import ERM, Key, RunView, scores_of
from acclimate.results.statistics import (
    Estimate,
    accuracy,
    bootstrap,
    difference,
    difference_p,
    holm,
    ratio,
    verdict_of,
)

AVERAGE, TOP_5 = "average", "top-5"
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

    value: float  # by the metric that the comparison is of
    others: Mapping[str, float | None] = field(default_factory=dict, hash=False)  # by metric
    images: int = 0
    run: str = ""
    seconds: float | None = None  # that the run took


Trial = tuple[str, int]  # data, trial
Scores = Mapping[tuple[Trial, str], Observation]  # what one method scored, by trial and domain
E = TypeVar("E", bound=Expected)


def observations(
    runs: Iterable[RunView], role: str = "test", metric: str = TOP_1
) -> list[Observation]:
    """What finished runs scored on their domains of a role, where they have the metric."""
    return [
        Observation(
            dataset=run.dataset,
            key=Key(run.algorithm, score.method, run.variant),
            # The trials of a sweep share its data, whatever the digest is made from.
            data=run.data if run.trial is None else "",
            trial=run.replicate,
            domain=score.domain,
            value=value,
            others={TOP_1: score.top1, TOP_5: score.top5, **score.metrics, metric: value},
            images=score.n,
            run=run.name,
            seconds=run.finished.seconds,
        )
        for run in runs
        if run.finished is not None
        for score in scores_of(run, role, metric)
        if (value := score.value(metric)) is not None
    ]


def expected_of_runs(scored: Sequence[Expected]) -> list[Expected]:
    """For runs that nobody planned: what any of them scored is what all should have scored."""
    domains = {(one.dataset, one.domain, one.data) for one in scored}
    trials = {
        (one.dataset, one.key, one.data, one.trial)
        for one in scored
        if one.key == Key.usual(one.key.algorithm, one.key.variant)
    }
    return [
        Expected(dataset, key, data, trial, domain)
        for dataset, domain, at in sorted(domains)
        for _, key, data, trial in sorted(
            one for one in trials if (one[0], one[2]) == (dataset, at)
        )
    ]


def expected_of_sweep(sweep: Sweep, runs: Iterable[RunView], metric: str = TOP_1) -> list[Expected]:
    """What the jobs of a sweep are to score, less the domains that have nothing to score."""
    empty = without_rows(runs, metric)
    planned = {
        Expected(job.dataset, Key(job.algorithm, method, job.variant), "", job.trial, domain): None
        for job in sweep.jobs
        if len(job.groups) == 1
        for domain in job.groups[0]
        for method in job.methods
        if (job.dataset, domain) not in empty
    }
    return list(planned)


def without_rows(runs: Iterable[RunView], metric: str = TOP_1) -> set[tuple[str, str]]:
    """(data set, domain) that runs looked at and found nothing to score in by the metric."""
    scores = [(run.dataset, s) for run in runs for s in run.final if s.role == "test"]
    scored = {(dataset, s.domain) for dataset, s in scores if s.value(metric) is not None}
    return {(dataset, score.domain) for dataset, score in scores} - scored


def mean_over(cells: Iterable[Observation]) -> float:
    """Mean score: domains count equally within a data set, and so do data sets."""
    by_set: dict[str, list[float]] = defaultdict(list)
    for one in cells:
        by_set[one.dataset].append(one.value)
    return fmean(map(fmean, by_set.values()))


def by_method(scored: Iterable[Observation]) -> dict[Key, Scores]:
    """Scores by method. Runs that differ in their folder alone are averaged, and count once."""
    alike: dict[Key, dict[tuple[Trial, str], list[Observation]]] = defaultdict(dict)
    for one in scored:
        alike[one.key].setdefault(((one.data, one.trial), one.domain), []).append(one)

    def mean(same: Sequence[Observation]) -> Observation:
        names = dict.fromkeys(name for one in same for name in one.others)
        means = {name: Estimate.of(one.others.get(name) for one in same) for name in names}
        others = {name: None if one is None else one.mean for name, one in means.items()}
        return replace(same[0], value=fmean(one.value for one in same), others=others)

    return {
        key: {place: mean(same) for place, same in places.items()} for key, places in alike.items()
    }


def by_trial(scores: Scores) -> dict[Trial, list[Observation]]:
    trials: dict[Trial, list[Observation]] = defaultdict(list)
    for trial, domain in sorted(scores):
        trials[trial].append(scores[trial, domain])
    return dict(trials)


def complete_trials(scores: Scores, expected: Iterable[Expected]) -> dict[Trial, list[Observation]]:
    """The trials that have all expected domains of their data; a mean over fewer would be another
    quantity."""
    needed: dict[str, set[str]] = defaultdict(set)
    for one in expected:
        needed[one.data].add(one.domain)
    wanted = {place: one for place, one in scores.items() if one.domain in needed[one.data]}
    return {
        (data, trial): cells
        for (data, trial), cells in by_trial(wanted).items()
        if len(cells) == len(needed[data])
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
    metric: str = TOP_1
    bootstrap: tuple[float, float] | None = None  # interval of the gain, over domains
    remark: str = ""  # why there is no pair, or what is unequal about the pairs
    p: float | None = None
    p_holm: float | None = None  # of the methods of a table

    @property
    def verdict(self) -> str:
        """What may be said of it, by the p that is shown beside it."""
        if self.gain is None:
            return "unpaired"
        gain = replace(self.gain, mean=METRICS[self.metric].sign * self.gain.mean)
        return verdict_of(gain, self.p if self.p_holm is None else self.p_holm)


@dataclass(frozen=True)
class Row:
    """One method on unseen domains, or one that a paper has published."""

    key: Key
    cells: Mapping[str, Estimate | None]  # by column
    average: Estimate | None = None  # over the trials that have every domain
    difference: Difference | None = None  # to its baseline; `None` for the baseline itself
    worst: Estimate | None = None
    metrics: Mapping[str, Estimate | None] = field(default_factory=dict)  # as `average`, by name
    seen: Estimate | None = None  # on training domains
    gap_closed: Estimate | None = None  # share of the way from its baseline to the highest ceiling
    seconds: float | None = None  # of a run on average, without a Φ that runs share
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
    metric: str = TOP_1  # of all its numbers, but for the others of a row

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

    def _repr_html_(self) -> str:
        base, metric = self.baseline.label, METRICS[self.metric]
        rows = tuple(
            (
                Cell(row.key.label, badge=row.badge),
                accuracy(row.average, metric=metric),
                accuracy(row.worst, metric=metric),
                difference(row.gain, metric),
            )
            for row in self.lines
        )
        header = ("method", "unseen domains", "worst unseen domain", f"difference to {base}")
        return Grid(header, rows).to_html(f"{self.dataset or ALL}: {measured(self.metric)}")

    def row(self, key: Key) -> Row | None:
        return next((row for row in self.lines if row.key == key), None)

    @cached_property
    def best(self) -> Mapping[str, frozenset[Key]]:
        """The best of our own methods in each column and on average."""
        if not self.comparable:
            return {}
        methods = [row for row in self.rows if row.key.kind == "method" and not row.published]
        values = {name: {row.key: row.cells.get(name) for row in methods} for name in self.columns}
        values[AVERAGE] = {row.key: row.average for row in methods}
        return {name: _best(column, self.metric) for name, column in values.items()}

    @cached_property
    def best_by(self) -> Mapping[str, frozenset[Key]]:
        """The best of our own methods on average, by each metric that any has."""
        rows = [row for row in self.lines if row.key.kind == "method" and self.comparable]
        names = [name for name in METRICS if any(row.metrics.get(name) for row in self.lines)]
        return {name: _best({r.key: r.metrics.get(name) for r in rows}, name) for name in names}

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
    metric: str = TOP_1,
) -> tuple[Comparison, ...]:
    """One comparison per data set, and last one over all of them where there are several.

    `scored` is what was scored on unseen domains, `seen` on training domains. `together` is the
    name of one table for variants that have a data set each. `metric` is what all values are of.
    """
    if together:
        scored, seen = _as_one(scored, together), _as_one(seen, together)
        expected = _as_one(expected, together)
    names = list(dict.fromkeys(one.dataset for one in expected))
    if not names:
        return (Comparison("", rule, (), (), baseline, metric=metric),)
    tables = []
    for name in names:
        mine = [one for one in scored if one.dataset == name]
        trained = [one for one in seen if one.dataset == name]
        planned = [one for one in expected if one.dataset == name]
        tables.append(_compare(name, mine, trained, planned, rule, baseline, metric))
    if len(tables) > 1:
        places = pooled(scored), pooled(seen), pooled(expected)
        every = _compare(ALL, *places, rule, baseline, metric)
        averages = {one.dataset: {row.key: row.average for row in one.rows} for one in tables}
        rows = tuple(
            replace(row, cells={name: averages[name].get(row.key) for name in averages})
            for row in every.rows
        )
        tables.append(replace(every, columns=tuple(averages), rows=rows))
    return tuple(replace(table, comparable=not together) for table in tables)


def _as_one(places: Iterable[E], dataset: str) -> list[E]:
    """Observations as of one data set in which each trial has its own draw."""
    return [replace(one, dataset=dataset, data=one.dataset) for one in places]


def pooled(places: Iterable[E]) -> list[E]:
    """Observations as of one data set: a trial covers all of them. Domains get unique names."""
    return [replace(one, data="", domain=f"{one.dataset}: {one.domain}") for one in places]


def _compare(
    name: str,
    scored: Sequence[Observation],
    seen: Sequence[Observation],
    expected: Sequence[Expected],
    rule: str,
    baseline: Key,
    metric: str,
) -> Comparison:
    columns = tuple(dict.fromkeys(one.domain for one in expected))
    scores: dict[Key, Scores] = {one.key: {} for one in expected} | by_method(scored)
    trained = by_method(seen)
    runs: dict[Key, dict[object, float | None]] = defaultdict(dict)  # seconds of each
    known: dict[str, set[str]] = defaultdict(set)  # metric -> domains where it has any value
    for one in scored:
        runs[one.key][one.dataset, one.data, one.trial, one.run] = one.seconds
        for measure in (name for name, value in one.others.items() if value is not None):
            known[measure].add(one.domain)
    # Methods, controls, ceilings; the baseline first among its kind.
    keys = sorted(scores, key=lambda key: (key.place[0], key != baseline, key.place))
    rows = []
    for key in keys:
        whole, other = complete_trials(scores[key], expected), against(key, baseline, keys)
        took = Estimate.of(runs[key].values())
        row = replace(
            _row(key, columns, scores[key], list(whole.values()), metric),
            metrics={one: _by_metric(whole.values(), one, known[one]) for one in known},
            seen=Estimate.of(map(mean_over, by_trial(trained.get(key, {})).values())),
            seconds=None if took is None else took.mean,
            runs=len(runs[key]),
        )
        if key != other and row.trials:
            row = replace(row, difference=_difference(key, other, scores, metric))
        rows.append(row)
    means = {row.key: row.average.mean for row in rows if row.average is not None}
    rows = [replace(row, gap_closed=_gap_closed(row.difference, scores, means)) for row in rows]
    controls = tuple(
        _difference(key, replace(key, method="embedding"), scores, metric)
        for key in keys
        if key.kind == "control" and key.method != "lame" and scores[key]
    )
    return Comparison(name, rule, columns, _correct(rows), baseline, controls, metric=metric)


def _row(
    key: Key,
    columns: Iterable[str],
    scores: Scores,
    whole: Sequence[Sequence[Observation]],
    metric: str,
) -> Row:
    """What a method scored; `whole` are its trials that have every domain."""
    by_domain: dict[str, list[float]] = defaultdict(list)
    for (_, domain), one in scores.items():
        by_domain[domain].append(one.value)
    worst = min if METRICS[metric].sign > 0 else max
    return Row(
        key=key,
        cells={column: Estimate.of(by_domain[column]) for column in columns},
        average=Estimate.of(map(mean_over, whole)),
        worst=Estimate.of(worst(one.value for one in cells) for cells in whole),
        trials=len({trial for trial, _ in scores}),
        domains=len({domain for _, domain in scores}),
    )


def _by_metric(
    whole: Iterable[Sequence[Observation]], metric: str, domains: Container[str]
) -> Estimate | None:
    """Means by another metric than that of the comparison, over the trials that have it on all the
    `domains` where any method has it."""
    means = []
    for cells in whole:
        asked = [one for one in cells if one.domain in domains]
        values = {one: one.others.get(metric) for one in asked}
        known = [replace(one, value=value) for one, value in values.items() if value is not None]
        if known and len(known) == len(asked):
            means.append(mean_over(known))
    return Estimate.of(means)


def _pair(scores: Mapping[Key, Scores], keys: Sequence[Key]) -> list[dict[Trial, float]]:
    """The means by trial of several methods over the trials and domains that all of them scored."""
    common = set.intersection(*({*scores[key]} for key in keys))
    paired = [{place: scores[key][place] for place in common} for key in keys if common]
    return [{trial: mean_over(cells) for trial, cells in by_trial(mine).items()} for mine in paired]


def _difference(key: Key, other: Key, scores: Mapping[Key, Scores], metric: str) -> Difference:
    """`key` less `other` on what both scored, with equal data and trial."""
    mine, theirs = scores[key], scores.get(other, {})
    pairs = {place: (theirs[place], mine[place]) for place in sorted(mine) if place in theirs}
    both = f"{key.label} and {other.label}"
    if not pairs:
        lacking = f"{both} have no data, seed and test domain in common"
        return Difference(
            key, other, remark=lacking if theirs else f"there is no finished run of {other.label}"
        )
    after, before = _pair(scores, (key, other))
    trials, rivals = ({trial for trial, _ in places} for places in (mine, theirs))
    unequal = []
    if len(after) < (every := len(trials | rivals)):
        unequal.append(f"only {len(after)} of {every} seeds could be paired")
    if {trial for trial, _ in mine.keys() ^ theirs.keys()} & trials & rivals:
        unequal.append("only the test domains that both scored are compared")
    if any(base.images != new.images for base, new in pairs.values()):
        unequal.append("they were scored on different numbers of images")
    gain = Estimate.of(after[trial] - before[trial] for trial in after)
    assert gain is not None  # there is a trial
    gains: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    changes: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (_, domain), (base, new) in pairs.items():
        changes[domain].append((base.value, new.value))
        gains[new.dataset][domain].append(new.value - base.value)
    sign = METRICS[metric].sign
    return Difference(
        line=key,
        against=other,
        gain=gain,
        before=fmean(before.values()),
        after=fmean(after.values()),
        pairs=len(pairs),
        improved=sum(sign * (new.value - base.value) > 0 for base, new in pairs.values()),
        changes={
            domain: (fmean(first for first, _ in values), fmean(last for _, last in values))
            for domain, values in sorted(changes.items())
        },
        remark=f"{both}: {'; '.join(unequal)}" if unequal else "",
        p=difference_p(gain),
        metric=metric,
        bootstrap=bootstrap([[fmean(own) for own in one.values()] for one in gains.values()]),
    )


def _gap_closed(
    difference: Difference | None, scores: Mapping[Key, Scores], means: Mapping[Key, float]
) -> Estimate | None:
    """Over the trials and domains that a method, its baseline and the highest ceiling of that
    baseline all scored; `None` where there is no gap beyond noise."""
    if difference is None or difference.gain is None or difference.line.kind != "method":
        return None
    base, sign = difference.against, METRICS[difference.metric].sign
    ceilings = [
        key for key in means if key.kind == "ceiling" and replace(key, method=base.method) == base
    ]
    if not ceilings:
        return None
    keys = (difference.line, base, max(ceilings, key=lambda key: sign * means[key]))
    new, low, high = _pair(scores, keys) or ({}, {}, {})
    return ratio([sign * (new[t] - low[t]) for t in new], [sign * (high[t] - low[t]) for t in new])


def _correct(rows: Sequence[Row]) -> tuple[Row, ...]:
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


def _best(column: Mapping[Key, Estimate | None], name: str) -> frozenset[Key]:
    """The best of a column by the metric of this name, with those that print the same; of one alone
    there is no best."""
    metric, known = METRICS[name], {key: value for key, value in column.items() if value}
    means = {key: metric.sign * float(metric.write(one.mean)) for key, one in known.items()}
    if len(means) < 2:
        return frozenset()
    top = max(means.values())
    return frozenset(key for key, mean in means.items() if mean == top)
