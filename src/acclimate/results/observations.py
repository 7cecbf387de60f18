"""What runs scored, one row for each method and domain: the table that all statistics start from.

Replicates are seeds (trials, in a sweep): the runs of one algorithm on the same data with the same
seed form a *trial*, so that leave-one-domain-out runs count once per seed, with all their test
domains together. Variants of an algorithm are methods of their own.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from acclimate.results.protocol import Sweep, targets
from acclimate.results.runs import Key, RunView, scores_of


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

    @property
    def run_id(self) -> tuple[str, str, int, str]:
        return self.dataset, self.data, self.trial, self.run


Replicate = tuple[str, int]  # data, trial
Scores = Mapping[Replicate, Mapping[str, Observation]]  # -> domain -> what one method scored on it
Pairs = dict[Replicate, list[tuple[Observation, Observation]]]  # -> (mine, theirs) per domain


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


def paired(mine: Scores, theirs: Scores) -> Pairs:
    """What both scored, with equal data and seed."""
    found = {
        replicate: [
            (one, theirs[replicate][domain])
            for domain, one in scores.items()
            if domain in theirs[replicate]
        ]
        for replicate, scores in mine.items()
        if replicate in theirs
    }
    return {replicate: pairs for replicate, pairs in found.items() if pairs}


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
    scored = {(dataset, score.domain) for dataset, score in scores if score.top1 is not None}
    return {(dataset, score.domain) for dataset, score in scores} - scored


def pooled(found: Iterable[Observation]) -> list[Observation]:
    """As of one data set: a trial covers all of them, and domains of one name are told apart."""
    return [replace(one, data="", domain=f"{one.dataset}: {one.domain}") for one in found]


def pooled_frame(frames: Mapping[str, Frame]) -> Frame:
    """What a trial over all data sets should hold."""
    columns = [
        f"{dataset}: {name}"
        for dataset, frame in frames.items()
        for name in sorted(set().union(*map(frame.domains, frame.needed or {""})))
    ]
    keys = dict.fromkeys(key for frame in frames.values() for key in frame.keys)
    return Frame(tuple(columns), tuple(keys))
