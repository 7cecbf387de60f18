"""From a sweep, a folder of runs or a DomainBed sweep to a `Report`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from acclimate.core.errors import RunError, unknown
from acclimate.records.folder import RUN
from acclimate.results.comparison import (
    E,
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
from acclimate.results.protocol import Sweep
from acclimate.results.runs import ERM, Key, RunView, find_runs, name_variants, sweep_runs
from acclimate.results.selection import Choice, applicable, candidates_of, select
from acclimate.results.sweep_folder import SweepFolder, sweeps_below

MOST = 4  # things that a note names


def load_report(folder: Path, *, title: str | None = None, baseline: Key | None = None) -> Report:
    """Everything that a page, a table or a figure about `folder` is drawn from.

    `baseline` is the sweep's own, or ERM, unless given.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; give the folder that holds the runs")
    load = _of_sweep if SweepFolder(folder).exists else _of_runs
    report = load(folder, baseline)
    return replace(report, title=title or report.title)


def _of_runs(folder: Path, baseline: Key | None) -> Report:
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
    report = report_of_runs(runs, folder, f"Runs in {folder.resolve().name}", baseline or ERM)
    notes = [f"Sweeps below this folder are left out: {left_out}."] if sweeps else []
    return replace(
        report, labels=tuple(SweepFolder(folder).labels()), notes=(*notes, *report.notes)
    )


def report_of_runs(
    runs: Iterable[RunView], folder: Path, title: str, baseline: Key = ERM
) -> Report:
    """Of runs that belong to no sweep. Unfinished and damaged ones are listed, uncounted."""
    views = tuple(name_variants(runs))
    scored = observations(views)
    expected = expected_of_runs(scored)
    return Report(
        folder=folder,
        title=title,
        runs=views,
        rules=("",),
        chosen={"": views},
        results={
            "": compare(scored, expected, baseline=baseline, seen=observations(views, "train"))
        },
        notes=tuple(_missing(expected, {"": scored}, "seed")),
    )


def _of_sweep(folder: Path, baseline: Key | None) -> Report:
    here = SweepFolder(folder)
    sweep = here.read()
    _check_baseline(folder, baseline, (job.algorithm for job in sweep.jobs))
    baseline = baseline or Key.usual(sweep.baseline)
    # An ablation of embeddings has its plain models under `none` alone: all compare with them.
    variants = {job.variant for job in sweep.jobs if job.algorithm == baseline.algorithm}
    if len(variants) == 1:
        baseline = replace(baseline, variant=variants.pop())
    runs = sweep_runs(folder, sweep)
    views = {run.folder.name: run for run in runs}
    # What cannot be read is listed as a problem, and chosen by no rule.
    candidates = [
        one
        for job in sweep.jobs
        if job.id in views
        for one in candidates_of(job, views[job.id].records)
    ]
    able = applicable(candidates, expected=sweep.jobs, asked=sweep.rule)
    rules = tuple(dict.fromkeys((sweep.rule, *able)))
    choices = {rule: tuple(select(candidates, rule, expected=sweep.jobs)) for rule in rules}
    chosen = {rule: tuple(_chosen(views, sweep, choices[rule])) for rule in rules}
    expected = expected_of_sweep(sweep, runs)
    scored = {rule: observations(chosen[rule]) for rule in rules}
    seen = {rule: observations(chosen[rule], "train") for rule in rules}
    unscored = [
        f"{name}: {domain} has nothing to score, and is in no average."
        for name, domain in sorted(without_rows(runs))
    ]
    missing = _missing(expected, scored, "trial")
    one_table = _varies_data(sweep)
    if one_table:
        expected = _as_one(expected, sweep.title)
        scored = {rule: _as_one(scored[rule], sweep.title) for rule in rules}
        seen = {rule: _as_one(seen[rule], sweep.title) for rule in rules}
    results = {
        rule: compare(scored[rule], expected, rule=rule, baseline=baseline, seen=seen[rule])
        for rule in rules
    }
    if one_table:  # variants have test data of their own: no cell is the best of its column
        results = {rule: (replace(found, best={}),) for rule, (found,) in results.items()}
    done = {name for name, run in views.items() if run.finished is not None}
    done |= {one.id for one in sweep.embeddings if here.embedding_state(one.id) == "done"}
    ids = [one.id for jobs in (sweep.embeddings, sweep.jobs) for one in jobs]
    failures = [failure for id in ids if id not in done and (failure := here.failure(id))]
    stopped = done.union(failure.job for failure in failures)
    stopped |= {name for name, run in views.items() if run.problem is not None}
    order = {data.name: place for place, data in enumerate(sweep.datasets)}
    return Report(
        folder=folder,
        title=sweep.title,
        runs=tuple(runs),
        sweep=sweep,
        rules=rules,
        chosen=chosen,
        results=results,
        choices=choices,
        failures=tuple(failures),
        waiting=sum(job.id not in stopped for job in sweep.jobs),
        labels=tuple(sorted(here.labels(), key=lambda one: order.get(one.name, len(order)))),
        notes=(*unscored, *missing),
    )


def _varies_data(sweep: Sweep) -> bool:
    """Whether each variant of an ablation has data of its own: then one table holds them all."""
    datasets: dict[str, set[str]] = defaultdict(set)
    for job in sweep.jobs:
        datasets[job.variant].add(job.dataset)
    several = len({data.name for data in sweep.datasets}) > 1
    return sweep.axis is not None and several and all(len(s) == 1 for s in datasets.values())


def _as_one(places: Iterable[E], title: str) -> list[E]:
    """As of one data set, of which each variant has data of its own."""
    return [replace(one, dataset=title, data=one.dataset) for one in places]


def _check_baseline(folder: Path, baseline: Key | None, algorithms: Iterable[str]) -> None:
    known = set(algorithms)
    if baseline is not None and baseline.algorithm not in known:
        name = baseline.algorithm
        raise unknown(f"{folder} has no runs of '{name}' to be the baseline", name, known)


def _chosen(views: Mapping[str, RunView], sweep: Sweep, choices: Iterable[Choice]) -> list[RunView]:
    """The chosen runs, each with the methods that it was chosen for. Controls and ceilings, which
    nobody chooses by, are those of the run that is used as its algorithm is meant."""
    rows: dict[str, set[str]] = defaultdict(set)
    for choice in choices:
        if choice.run is not None:
            rows[choice.run].add(choice.method)
    own = {job.id: job.methods for job in sweep.jobs}
    found = []
    for name, methods in rows.items():
        if own[name][0] in methods:
            others = {score.method for score in views[name].final}
            methods |= others.difference(own[name])
        found.append(replace(views[name], rows=frozenset(methods)))
    return found


def load_domainbed(
    folder: Path, *, title: str | None = None, baseline: Key | None = None
) -> Report:
    """A sweep of DomainBed under those of its selection rules that can choose something."""
    history = read_domainbed(folder)
    every = {rule: selected(history, rule) for rule in RULES_BY_NAME}
    able = [rule for rule, found in every.items() if any(one.top1 is not None for one in found)]
    outcomes = {rule: every[rule] for rule in able or every}
    _check_baseline(folder, baseline, (one.algorithm for found in every.values() for one in found))
    notes = ['Accuracies are those that DomainBed\'s own collector selects, on its "in" splits.']
    if history.empty:
        notes.append(f"Without results, and left out: {_some(history.empty)}.")
    if history.torn:
        notes.append(f"The last line is cut off, and left out: {_some(history.torn)}.")
    expected = expected_of_runs(
        [
            Expected(one.dataset, Key.usual(one.algorithm), "", one.trial, one.domain)
            for one in next(iter(outcomes.values()))
        ]
    )
    scored = {
        rule: [
            Observation(one.dataset, Key.usual(one.algorithm), "", one.trial, one.domain, one.top1)
            for one in outcome
            if one.top1 is not None
        ]
        for rule, outcome in outcomes.items()
    }
    results = {
        rule: compare(scored[rule], expected, rule=rule, baseline=baseline or ERM)
        for rule in outcomes
    }
    notes += _missing(expected, scored, "trial")
    return Report(
        folder=folder,
        title=title or f"DomainBed sweep in {folder.resolve().name}",
        rules=tuple(outcomes),
        results=results,
        notes=tuple(notes),
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
