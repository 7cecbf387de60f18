"""Which run counts: each selection rule is a pure function of what the runs wrote down.

For one data set, algorithm, variant, method, trial and target there is one scored run per draw of
the settings. A rule gives each draw the value it compares by. The best wins: the largest, or of a
metric such as nll the smallest; the smaller draw (0: the default settings) where two are equal.
What a rule cannot know is left out, never taken as 0. One run serves all its methods, and each
method chooses by its own scores; training domains alone are only scored as the algorithm is meant,
so that by them all methods choose the same run.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from statistics import fmean

from acclimate.config import metric_of
from acclimate.core.errors import require_known
from acclimate.records.metrics import METRICS, TOP_1
from acclimate.records.records import Records, Score
from acclimate.results.protocol import CROSS_VALIDATED, RULES, Group, Job, Sweep, targets
from acclimate.results.sweep_folder import SweepFolder

_Line = tuple[str, str, str, str, int]  # data set, algorithm, variant, method, trial
ONE_SETTING = "one-setting"
_MOST_NAMED = 3  # domains in a sentence


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What selection may know of a job that is done, its model being used by one method."""

    job: Job
    method: str
    training: float | None  # mean over the training domains' validation splits, kept weights
    validation: float | None  # mean over the validation domains, kept weights
    unseen: Mapping[str, float | None]  # held-out domain -> score by the method
    metric: str = TOP_1  # of all these


@dataclass(frozen=True, kw_only=True)
class Choice:
    dataset: str
    algorithm: str
    variant: str
    method: str
    trial: int
    target: Group
    run: str | None  # the run that is scored on `target`; None where the rule cannot choose
    draw: int | None
    score: float | None  # the value that was compared; None where there was nothing to compare
    candidates: int  # how many draws it chose from
    reason: str = ""  # why there is none


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The runs that compete for one target: per draw, its scored run and those that help it."""

    target: Group
    by_target: Mapping[Group, Mapping[int, Candidate]]  # scored on each target, one run per draw
    folds: Mapping[Group, Mapping[int, Candidate]]  # held out beside the target, one run per draw

    @property
    def scored(self) -> Mapping[int, Candidate]:
        return self.by_target[self.target]


Rule = Callable[[Contest], dict[int, float]]  # draws without a value are left out


def by_training_domains(contest: Contest) -> dict[int, float]:
    return _finite({draw: run.training for draw, run in contest.scored.items()})


def by_one_setting(contest: Contest) -> dict[int, float]:
    """The mean over all targets of what `by_training_domains` compares, so that one draw is chosen
    for all of them. A draw takes part only if its run for each target is scored."""
    means = []
    for target, runs in contest.by_target.items():
        usable = _means(runs, target)
        means.append(_finite({draw: runs[draw].training for draw in usable}))
    return _mean_of_complete(means)


def by_validation_domains(contest: Contest) -> dict[int, float]:
    return _finite({draw: run.validation for draw, run in contest.scored.items()})


def by_cross_validation(contest: Contest) -> dict[int, float]:
    """The mean over folds of the accuracy on a fold by the run that held out target and fold.

    A draw takes part only if it has every fold: a mean over fewer is no fair comparison.
    """
    return _mean_of_complete([_means(runs, fold) for fold, runs in contest.folds.items()])


def by_oracle(contest: Contest) -> dict[int, float]:
    return _means(contest.scored, contest.target)


RULES_BY_NAME: Mapping[str, Rule] = {
    "training-domains": by_training_domains,
    ONE_SETTING: by_one_setting,
    "validation-domains": by_validation_domains,
    "leave-one-out": by_cross_validation,
    "k-fold": by_cross_validation,
    "oracle": by_oracle,
}


def candidates_of(job: Job, records: Records, metric: str = "") -> list[Candidate]:
    """What `records` say of a job, for each of its methods; nothing before it is finished. By its
    own metric, unless another one is named."""
    if records.finished is None:
        return []
    metric = metric or metric_of(job.config)
    scores = [score for score in records.scores if score.step == records.finished.kept_step]
    by_method = {name: [s for s in scores if s.method == name] for name in job.methods}
    usual = by_method[job.methods[0]]
    on_splits = [s for s in usual if s.role == "train" and s.split == "val"]
    training = _while_training(on_splits, metric)
    return [
        Candidate(
            job=job,
            method=method,
            training=training,
            validation=_while_training([s for s in rows if s.role == "val"], metric),
            unseen={
                s.domain: s.value(metric)
                for s in rows
                if s.moment == "final" and s.domain in job.held_out
            },
            metric=metric,
        )
        for method, rows in by_method.items()
    ]


def candidates(folder: Path, sweep: Sweep) -> list[Candidate]:
    """The finished runs of the sweep in `folder`, in the order of its jobs."""
    runs = SweepFolder(folder)
    records = ((job, runs.run(job.id).records()) for job in sweep.jobs)
    return [one for job, own in records for one in candidates_of(job, own, sweep.metric)]


def select(
    candidates: Sequence[Candidate], rule: str, *, expected: Sequence[Job] = ()
) -> list[Choice]:
    """One choice per data set, algorithm, variant, method, trial and target, in that order.

    `expected` are the jobs of the sweep: with them a target without any finished run is named
    too, and a fold that no draw has finished is known to be missing.
    """
    require_known(rule, RULES_BY_NAME, f"there is no selection rule '{rule}'")
    runs: dict[_Line, list[Candidate]] = defaultdict(list)
    known: dict[_Line, list[Job]] = defaultdict(list)
    for one in candidates:
        runs[_line(one.job, one.method)].append(one)
        known[_line(one.job, one.method)].append(one.job)
    for job in expected:
        for method in job.methods:
            known[_line(job, method)].append(job)
    choices = []
    for line, jobs in sorted(known.items()):
        draws = {job.draw for job in jobs}
        without: dict[frozenset[Group], dict[int, Candidate]] = defaultdict(dict)
        for run in runs[line]:
            without[frozenset(run.job.groups)][run.job.draw] = run
        by_target = {target: without[frozenset({target})] for target in sorted(targets(jobs))}
        for target in by_target:
            folds = {fold: without[frozenset({target, fold})] for fold in _folds(target, jobs)}
            contest = Contest(target=target, by_target=by_target, folds=folds)
            choices.append(_choose(line, contest, rule, only_draw=len(draws) == 1))
    return choices


def choices_by_rule(
    candidates: Sequence[Candidate], sweep_rule: str, jobs: Sequence[Job]
) -> dict[str, tuple[Choice, ...]]:
    """By the rule of a sweep, then by each other that can choose something; another's
    cross-validation is none of them, as a sweep has runs for its own alone, nor is one setting for
    all targets where there is one setting or one target."""
    one = len(targets(jobs)) < 2 or len({job.draw for job in jobs}) < 2
    left_out = {sweep_rule, *CROSS_VALIDATED, *([ONE_SETTING] if one else [])}
    others = [rule for rule in RULES if rule not in left_out]
    choices = {
        rule: tuple(select(candidates, rule, expected=jobs)) for rule in (sweep_rule, *others)
    }
    return {
        rule: chosen
        for rule, chosen in choices.items()
        if rule == sweep_rule or any(choice.run for choice in chosen)
    }


def _choose(line: _Line, contest: Contest, rule: str, *, only_draw: bool) -> Choice:
    dataset, algorithm, variant, method, trial = line
    usable = _means(contest.scored, contest.target)
    values = RULES_BY_NAME[rule](contest)
    fit = {draw: value for draw, value in values.items() if draw in usable}
    # With one draw nothing is compared, and no runs are made to compare by.
    alone = rule == ONE_SETTING or (rule in CROSS_VALIDATED and not contest.folds)
    unopposed = alone and only_draw
    draws = sorted(usable if unopposed else fit)
    # Rounded, so that draws with the same scores tie whatever their sums' last bit.
    sign = {draw: METRICS[run.metric].sign for draw, run in contest.scored.items()}
    ranks = {one: (sign[one] * round(fit.get(one, 0.0), 12), -one) for one in draws}
    draw = max(draws, key=ranks.__getitem__, default=None)
    return Choice(
        dataset=dataset,
        algorithm=algorithm,
        variant=variant,
        method=method,
        trial=trial,
        target=contest.target,
        run=None if draw is None else contest.scored[draw].job.id,
        draw=draw,
        score=None if draw is None else fit.get(draw),
        candidates=len(draws),
        reason="" if draw is not None else _reason(contest, rule, usable),
    )


def _reason(contest: Contest, rule: str, usable: Mapping[int, float]) -> str:
    if not usable:
        return f"no finished run has an accuracy on {named(contest.target)}"
    if rule in CROSS_VALIDATED and not contest.folds:
        return f"no run holds out a further domain beside {named(contest.target)}"
    if rule in CROSS_VALIDATED:
        return f"no draw has an accuracy for each of the {len(contest.folds)} further folds"
    if rule == ONE_SETTING and len(contest.by_target) > 1:
        return f"no draw has a finished run for each of the {len(contest.by_target)} unseen groups"
    return f"no finished run has an accuracy on the {RULES[rule]}"


def named(group: Group) -> str:
    """`a and b`; of many domains the first, for a sentence."""
    few = len(group) <= _MOST_NAMED
    return " and ".join(group) if few else f"{group[0]} and {len(group) - 1} more"


def _folds(target: Group, known: Iterable[Job]) -> list[Group]:
    """What is held out beside `target`, over all draws.

    A pair {T, F} serves T and F alike. With folds of several domains, F's own folds may cover T
    already; then the pair was made for T alone.
    """
    pairs = [one.groups for one in known if len(one.groups) == 2]
    own = {second for first, second in pairs if first == target}
    covered = {name for fold in own for name in fold}
    shared = {first for first, second in pairs if second == target and covered.isdisjoint(first)}
    return sorted(own | shared)


def _line(job: Job, method: str) -> _Line:
    return (job.dataset, job.algorithm, job.variant, method, job.trial)


def _means(runs: Mapping[int, Candidate], domains: Group) -> dict[int, float]:
    """Mean accuracy on `domains` per draw.

    A domain with nothing to score is None in every run, and is left out. A draw that lacks what
    another has, or has NaN, gets no mean: it would be over other domains.
    """
    known = [d for d in domains if any(run.unseen.get(d) is not None for run in runs.values())]
    if not known:
        return {}
    scores = {draw: [run.unseen.get(d) for d in known] for draw, run in runs.items()}
    # What is missing is not a number, and neither is a mean with it.
    means = {
        draw: fmean(nan if value is None else value for value in values)
        for draw, values in scores.items()
    }
    return _finite(means)


def _mean_of_complete(means: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean of each draw that all of `means` have; none of nothing."""
    complete = set.intersection(*map(set, means)) if means else ()
    return {draw: fmean(mean[draw] for mean in means) for draw in complete}


def _finite(values: Mapping[int, float | None]) -> dict[int, float]:
    return {draw: v for draw, v in values.items() if v is not None and isfinite(v)}


def _while_training(scores: Iterable[Score], metric: str) -> float | None:
    """The mean of what validation looked at, on the kept weights where those are an average of
    several; of the final scores where it looked elsewhere."""
    by_moment: dict[str, list[float]] = defaultdict(list)
    for score in scores:
        value = score.value(metric)
        if value is not None:
            by_moment[score.moment].append(value)
    moments = [name for name in ("averaged", "validation", "final") if name in by_moment]
    return fmean(by_moment[moments[0]]) if moments else None
