"""From a sweep, a folder of runs or a DomainBed sweep to a `Report`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from acclimate.config import metric_of
from acclimate.core.errors import RunError, require_known
from acclimate.records.folder import RUN
from acclimate.records.metrics import TOP_1, find_metric
from acclimate.results.comparison import (
    Expected,
    Observation,
    compare,
    expected_of_runs,
    expected_of_sweep,
    observations,
    without_rows,
)
from acclimate.results.domainbed import RESULTS, RULES_BY_NAME, read_domainbed, selected
from acclimate.results.material import Report
from acclimate.results.merge import Parts, merge_sweeps
from acclimate.results.protocol import Sweep
from acclimate.results.runs import ERM, Key, RunView, find_runs, name_variants, sweep_runs
from acclimate.results.selection import Choice, candidates_of, choices_by_rule
from acclimate.results.sweep_folder import Failure, SweepFolder, sweeps_below

MOST = 4  # things that a note names


def load_report(
    folder: Path, *, title: str | None = None, baseline: Key | None = None, metric: str = ""
) -> Report:
    """Everything that a page, a table or a figure about `folder` is drawn from.

    `baseline` is the sweep's own, or ERM, unless given; `metric` is that by which its runs chose
    their weights.
    """
    load = _of_sweep if SweepFolder(folder).exists else _of_runs
    report = load(folder, baseline, metric)
    return replace(report, title=title or report.title)


def load_merged(
    folders: Sequence[Path],
    *,
    title: str | None = None,
    baseline: Key | None = None,
    metric: str = "",
) -> Report:
    """One report on the runs of several sweeps, as if they were of one."""
    report = _of_parts(merge_sweeps(folders), folders[0], baseline, metric)
    return replace(report, title=title or report.title)


def _of_runs(folder: Path, baseline: Key | None, metric: str) -> Report:
    runs, sweeps = find_runs(folder), sweeps_below(folder)
    left_out = ", ".join(sweep.relative_to(folder).as_posix() for sweep in sweeps)
    if not runs and sweeps:
        raise RunError(f"{folder}: no run in it, but sweeps: {left_out}; report on one of them")
    if not runs and any(folder.glob(f"*/{RESULTS}")):
        raise RunError(f"{folder}: no run in it, but results of DomainBed; add --from-domainbed")
    if not runs:
        raise RunError(
            f"{folder}: no run in it (no {RUN}); give the --out of `acclimate sweep`, or the "
            "folder that holds the --out of `acclimate train`"
        )
    _check_baseline(folder, baseline, (run.algorithm for run in runs if run.problem is None))
    title = f"Runs in {folder.resolve().name}"
    report = report_of_runs(runs, folder, title, baseline or ERM, metric)
    notes = [f"Sweeps below this folder are left out: {left_out}."] if sweeps else []
    return replace(report, notes=(*notes, *report.notes))


def report_of_runs(
    runs: Iterable[RunView], folder: Path, title: str, baseline: Key = ERM, metric: str = ""
) -> Report:
    """A report of runs that belong to no sweep. Unfinished and damaged ones are only listed."""
    views = tuple(name_variants(runs))
    own = {metric_of(run.config) for run in views if run.finished is not None}
    metric = metric or (own.pop() if len(own) == 1 else TOP_1)
    _check_metric(folder, metric, views)
    scored, seen = (observations(views, role, metric) for role in ("test", "train"))
    expected = expected_of_runs(scored)
    return Report(
        folder=folder,
        title=title,
        runs=views,
        rules=("",),
        chosen={"": views},
        results={"": compare(scored, expected, seen, baseline=baseline, metric=metric)},
        notes=tuple(_missing(expected, {"": scored}, "seed")),
    )


def _of_sweep(folder: Path, baseline: Key | None, metric: str) -> Report:
    sweep = SweepFolder(folder).read()
    return _of_parts(Parts((folder,), sweep, sweep_runs(folder, sweep)), folder, baseline, metric)


def _of_parts(parts: Parts, folder: Path, baseline: Key | None, metric: str) -> Report:
    sweep, runs = parts.sweep, parts.runs
    metric = metric or sweep.metric
    _check_baseline(folder, baseline, (job.algorithm for job in sweep.jobs))
    baseline = baseline or Key.usual(sweep.baseline)
    # An ablation of embeddings has its plain models under `none` alone: all compare with them.
    variants = {job.variant for job in sweep.jobs if job.algorithm == baseline.algorithm}
    if len(variants) == 1:
        baseline = replace(baseline, variant=variants.pop())
    _check_metric(folder, metric, runs)
    # What cannot be read is listed as a problem, and chosen by no rule.
    records = {run.folder.name: run.records for run in runs}
    jobs = [job for job in sweep.jobs if job.id in records]
    candidates = [one for job in jobs for one in candidates_of(job, records[job.id], metric)]
    choices = choices_by_rule(candidates, sweep.rule, sweep.jobs)
    chosen = {rule: tuple(_select(runs, sweep, choices[rule])) for rule in choices}
    expected = expected_of_sweep(sweep, runs, metric)
    scored = {rule: observations(chosen[rule], metric=metric) for rule in chosen}
    table = sweep.title if _varies_data(sweep) else ""
    results = {}
    for rule, views in chosen.items():
        seen = observations(views, "train", metric)
        options = {"rule": rule, "together": table, "metric": metric}
        results[rule] = compare(scored[rule], expected, seen, baseline=baseline, **options)
    notes = [f"{line}." for line in sweep.left_out]
    notes += [
        f"{name}: {domain} has nothing to score, and is in no average."
        for name, domain in sorted(without_rows(runs, metric))
    ]
    # With one draw there is nothing to choose: tables are those of the first rule.
    bare = {rule: [replace(one, rule="") for one in tables] for rule, tables in results.items()}
    first, *others = bare
    alike = [rule for rule in others if bare[rule] == bare[first]]
    if alike:
        notes.append(f"Selection by {' or '.join(alike)} chooses the same runs.")
    order = {data.name: place for place, data in enumerate(sweep.datasets)}
    failures, waiting = _list_unfinished(parts)
    labels = {one.name: one for here in parts.folders for one in SweepFolder(here).labels()}
    return Report(
        folder=folder,
        title=sweep.title,
        runs=tuple(runs),
        sweep=sweep,
        rules=tuple(rule for rule in results if rule not in alike),
        chosen=chosen,
        results=results,
        choices=choices,
        failures=failures,
        waiting=waiting,
        labels=tuple(sorted(labels.values(), key=lambda one: order.get(one.name, len(order)))),
        notes=(*notes, *_missing(expected, scored, "trial")),
    )


def _select(runs: Iterable[RunView], sweep: Sweep, choices: Iterable[Choice]) -> Iterable[RunView]:
    """The chosen runs, each with the methods that it was chosen for. Controls and ceilings, which
    nobody chooses by, are those of the run that is used as its algorithm is meant."""
    methods: dict[str | None, set[str]] = defaultdict(set)
    for choice in choices:
        methods[choice.run].add(choice.method)
    scored_by = {job.id: job.methods for job in sweep.jobs}
    for run in runs:
        usual, *further = scored_by[run.folder.name]
        rows = methods[run.folder.name]
        if usual in rows:
            rows = rows | {score.method for score in run.final}.difference([usual, *further])
        if rows:
            yield replace(run, rows=frozenset(rows))


def _list_unfinished(parts: Parts) -> tuple[tuple[Failure, ...], int]:
    """What failed and did not succeed since, and how many jobs are still to run."""
    sweep, places = parts.sweep, [SweepFolder(folder) for folder in parts.folders]
    done = {run.folder.name for run in parts.runs if run.finished is not None}
    phis = ((here, one.id) for here in places for one in sweep.embeddings)
    done |= {id for here, id in phis if here.embedding_state(id) == "done"}
    left = [one.id for jobs in (sweep.embeddings, sweep.jobs) for one in jobs if one.id not in done]
    found = ((id, here.failure(id)) for id in left for here in places)
    failures = {id: failure for id, failure in found if failure is not None}
    stopped = done.union(failures)
    stopped |= {run.folder.name for run in parts.runs if run.problem is not None}
    return tuple(failures.values()), sum(job.id not in stopped for job in sweep.jobs)


def _varies_data(sweep: Sweep) -> bool:
    """Whether each variant of an ablation has data of its own: then one table holds them all."""
    datasets: dict[str, set[str]] = defaultdict(set)
    for job in sweep.jobs:
        datasets[job.variant].add(job.dataset)
    several = len({data.name for data in sweep.datasets}) > 1
    return sweep.axis is not None and several and all(len(s) == 1 for s in datasets.values())


def _check_baseline(folder: Path, baseline: Key | None, algorithms: Iterable[str]) -> None:
    if baseline is not None:
        name = baseline.algorithm
        message = f"{folder} has no runs of '{name}' to be the baseline"
        require_known(name, set(algorithms), message)


def _check_metric(folder: Path, metric: str, runs: Iterable[RunView]) -> None:
    """Refuse one that no table knows, or that none of the scored runs has."""
    find_metric(metric)
    scores = [score for run in runs for score in run.final if score.top1 is not None]
    if scores and all(score.value(metric) is None for score in scores):
        raise RunError(
            f"{folder}: no score in it has a '{metric}': the runs are older than it, or it has no "
            "value with their classes; choose another of `acclimate list metrics`"
        )


def load_domainbed(
    folder: Path, *, title: str | None = None, baseline: Key | None = None
) -> Report:
    """A sweep of DomainBed under those of its selection rules that can choose something."""
    history = read_domainbed(folder)
    every = {rule: selected(history, rule) for rule in RULES_BY_NAME}
    scored = {
        rule: [
            Observation(**vars(place), value=top1)
            for place, top1 in outcomes.items()
            if top1 is not None
        ]
        for rule, outcomes in every.items()
    }
    scored = {rule: known for rule, known in scored.items() if known} or scored
    expected = expected_of_runs([place for outcomes in every.values() for place in outcomes])
    _check_baseline(folder, baseline, (one.key.algorithm for one in expected))
    notes = ['Accuracies are those that DomainBed\'s own collector selects, on its "in" splits.']
    if history.empty:
        notes.append(f"Without results, and left out: {_some(history.empty)}.")
    if history.torn:
        notes.append(f"The last line is cut off, and left out: {_some(history.torn)}.")
    return Report(
        folder=folder,
        title=title or f"DomainBed sweep in {folder.resolve().name}",
        rules=tuple(scored),
        results={
            rule: compare(known, expected, rule=rule, baseline=baseline or ERM)
            for rule, known in scored.items()
        },
        notes=(*notes, *_missing(expected, scored, "trial")),
    )


def _missing(
    expected: Sequence[Expected], scored: Mapping[str, Iterable[Observation]], trial: str
) -> Iterable[str]:
    """For each rule what it lacks and no earlier one does: a dash must not pass unnoticed."""
    known: set[object] = set()
    for rule, there in scored.items():
        places = {one.place for one in there}
        missing = [one for one in expected if one.place not in places]
        names = [f"{o.key.label} on {o.dataset} {o.domain} in {trial} {o.trial}" for o in missing]
        if not known.issuperset(missing):
            yield (
                f"{f'Under {rule}, ' if rule else ''}{len(missing)} of {len(expected)} results are "
                "missing (a cell is over the trials that have it, or a dash; a trial that lacks "
                f"one is in no average): {_some(names, '; ')}."
            )
        known.update(missing)


def _some(names: Sequence[str], between: str = ", ") -> str:
    more = [f"and {len(names) - MOST} more"] if len(names) > MOST else []
    return between.join([*names[:MOST], *more])
