"""From a sweep, a folder of runs or a DomainBed sweep to a `Report`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from acclimate.core.errors import RunError, unknown
from acclimate.records.folder import RUN
from acclimate.results import missing
from acclimate.results.comparison import compare, merged
from acclimate.results.domainbed import (
    RESULTS,
    RULES_BY_NAME,
    History,
    Outcome,
    read_domainbed,
    selected,
)
from acclimate.results.material import Labels, Report
from acclimate.results.observations import (
    Frame,
    Observation,
    frames_of,
    observations,
    planned_frames,
    without_rows,
)
from acclimate.results.protocol import Sweep
from acclimate.results.runs import ERM, Key, RunView, find_runs, sweep_runs, told_apart
from acclimate.results.selection import Candidate, Choice, applicable, candidates_of, select
from acclimate.results.sweep_folder import Failure, SweepFolder, sweeps_below


def load_report(
    folder: Path,
    *,
    title: str | None = None,
    baseline: Key | None = None,
) -> Report:
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
    return replace(report, labels=tuple(_labels(folder)), notes=(*notes, *report.notes))


def report_of_runs(
    runs: Iterable[RunView], folder: Path, title: str, baseline: Key = ERM
) -> Report:
    """Of runs that belong to no sweep. Unfinished and damaged ones are listed, uncounted."""
    views = tuple(told_apart(list(runs)))
    found = observations(views)
    frames = frames_of(found)
    tables = compare(found, frames, baseline=baseline, seen=observations(views, "train"))
    return Report(
        folder=folder,
        title=title,
        runs=views,
        rules=("",),
        chosen={"": views},
        results={"": tables},
        notes=tuple(missing.of_scores(found, frames)),
    )


def _of_sweep(folder: Path, baseline: Key | None) -> Report:
    sweep = SweepFolder(folder).read()
    _check_baseline(folder, baseline, (job.algorithm for job in sweep.jobs))
    baseline = _of_its_variant(baseline or Key.usual(sweep.baseline), sweep)
    runs = sweep_runs(folder, sweep)
    views = {run.folder.name: run for run in runs}
    known = _candidates(sweep, views)
    able = applicable(known, expected=sweep.jobs, asked=sweep.rule)
    rules = tuple(dict.fromkeys((sweep.rule, *able)))
    choices = {rule: tuple(select(known, rule, expected=sweep.jobs)) for rule in rules}
    empty = without_rows(runs)
    frames = planned_frames(sweep, empty)
    chosen = {rule: tuple(_chosen(views, sweep, choices[rule])) for rule in rules}
    results = {}
    for rule, own in chosen.items():
        seen = observations(own, "train")
        results[rule] = compare(observations(own), frames, rule=rule, baseline=baseline, seen=seen)
    failures = tuple(_failures(folder, sweep, views))
    stopped = {failure.job for failure in failures}
    order = {data.name: place for place, data in enumerate(sweep.datasets)}
    labels = sorted(_labels(folder), key=lambda one: order.get(one.name, len(order)))
    report = Report(
        folder=folder,
        title=sweep.title,
        runs=tuple(runs),
        sweep=sweep,
        rules=rules,
        chosen=chosen,
        results=results,
        choices=choices,
        failures=failures,
        waiting=sum(_open(views.get(job.id)) and job.id not in stopped for job in sweep.jobs),
        labels=tuple(labels),
        notes=(
            *(
                f"{name}: {domain} has nothing to score, and is in no average."
                for name, domain in sorted(empty)
            ),
            *missing.of_choices(choices),
        ),
    )
    return _one_table(report, sweep)


def _one_table(report: Report, sweep: Sweep) -> Report:
    """Where each variant of an ablation has data of its own: one table, not one for each."""
    variants: dict[str, set[str]] = defaultdict(set)
    for job in sweep.jobs:
        variants[job.variant].add(job.dataset)
    names = {data.name for data in sweep.datasets}
    if sweep.axis is None or len(names) < 2 or any(len(sets) > 1 for sets in variants.values()):
        return report
    results = {
        rule: (merged([one for one in found if one.dataset in names], report.title),)
        for rule, found in report.results.items()
    }
    return replace(report, results=results)


def _check_baseline(folder: Path, baseline: Key | None, algorithms: Iterable[str]) -> None:
    known = set(algorithms)
    if baseline is not None and baseline.algorithm not in known:
        name = baseline.algorithm
        raise unknown(f"{folder} has no runs of '{name}' to be the baseline", name, known)


def _of_its_variant(baseline: Key, sweep: Sweep) -> Key:
    """An ablation of embeddings has its plain models under `none` alone: all compare with them."""
    variants = {job.variant for job in sweep.jobs if job.algorithm == baseline.algorithm}
    return replace(baseline, variant=variants.pop()) if len(variants) == 1 else baseline


def _candidates(sweep: Sweep, views: Mapping[str, RunView]) -> list[Candidate]:
    """The finished runs; what cannot be read is listed as a problem, and chosen by no rule."""
    known = (job for job in sweep.jobs if job.id in views)
    return [one for job in known for one in candidates_of(job, views[job.id].records)]


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


def _failures(folder: Path, sweep: Sweep, views: Mapping[str, RunView]) -> Iterable[Failure]:
    here = SweepFolder(folder)
    for embedding in sweep.embeddings:
        failure = here.failure(embedding.id)
        if failure is not None and here.embedding_state(embedding.id) != "done":
            yield failure
    for job in sweep.jobs:
        failure = here.failure(job.id)
        run = views.get(job.id)
        if failure is not None and (run is None or run.finished is None):
            yield failure


def _open(run: RunView | None) -> bool:
    return run is None or (run.problem is None and run.finished is None)


def _labels(folder: Path) -> Iterable[Labels]:
    for stored in SweepFolder(folder).labels():
        try:
            domains = {
                name: Labels.Domain(
                    str(found["role"] or ""),
                    tuple(map(int, found["counts"])),
                    str(found.get("group") or ""),
                )
                for name, found in stored["domains"].items()
            }
            yield Labels(str(stored["name"]), tuple(map(str, stored["classes"])), domains)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a plot less; nothing else rests on it


def load_domainbed(
    folder: Path,
    *,
    title: str | None = None,
    baseline: Key | None = None,
) -> Report:
    """A sweep of DomainBed under those of its selection rules that can choose something."""
    history = read_domainbed(folder)
    every = {rule: selected(history, rule) for rule in RULES_BY_NAME}
    able = {
        rule: found for rule, found in every.items() if any(one.top1 is not None for one in found)
    }
    outcomes = able or every
    known = (one.algorithm for found in outcomes.values() for one in found)
    _check_baseline(folder, baseline, known)
    baseline = baseline or ERM
    results, notes = {}, list(_history_notes(history))
    for rule, outcome in outcomes.items():
        seen, frames = _seen(outcome), _outcome_frames(outcome)
        results[rule] = compare(seen, frames, rule=rule, baseline=baseline)
        trials = dict.fromkeys(
            (one.dataset, Key.usual(one.algorithm), "", one.trial) for one in outcome
        )
        lacking = missing.of_scores(seen, frames, expected=trials, trial="trial")
        notes += [f"Under {rule}, {sentence}" for sentence in lacking]
    return Report(
        folder=folder,
        title=title or f"DomainBed sweep in {folder.resolve().name}",
        rules=tuple(outcomes),
        results=results,
        notes=tuple(notes),
    )


def _seen(outcomes: Iterable[Outcome]) -> list[Observation]:
    return [
        Observation(one.dataset, Key.usual(one.algorithm), "", one.trial, one.domain, one.top1)
        for one in outcomes
        if one.top1 is not None
    ]


def _outcome_frames(outcomes: Iterable[Outcome]) -> dict[str, Frame]:
    columns: dict[str, dict[str, None]] = defaultdict(dict)
    keys: dict[str, dict[Key, None]] = defaultdict(dict)
    for one in sorted(outcomes, key=lambda one: (one.dataset, one.domain)):
        columns[one.dataset][one.domain] = None
        keys[one.dataset][Key.usual(one.algorithm)] = None
    return {name: Frame(tuple(columns[name]), tuple(keys[name])) for name in columns}


def _history_notes(history: History) -> Iterable[str]:
    yield 'Accuracies are those that DomainBed\'s own collector selects, on its "in" splits.'
    if history.empty:
        yield f"Without results, and left out: {missing.named(history.empty)}."
    if history.torn:
        yield f"The last line is cut off, and left out: {missing.named(history.torn)}."
