"""From a sweep, a folder of runs or a DomainBed sweep to a `Report`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from acclimate.core.errors import RunError, unknown
from acclimate.records.folder import RUN
from acclimate.results.comparison import (
    Frame,
    Observation,
    compare,
    frames_of,
    merged,
    observations,
    planned_frames,
    without_rows,
)
from acclimate.results.domainbed import RESULTS, RULES_BY_NAME, read_domainbed, selected
from acclimate.results.material import Labels, Report
from acclimate.results.protocol import Sweep
from acclimate.results.runs import ERM, Key, RunView, find_runs, name_variants, sweep_runs
from acclimate.results.selection import Choice, applicable, candidates_of, named, select
from acclimate.results.sweep_folder import Failure, SweepFolder, sweeps_below

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
    return replace(report, labels=tuple(_labels(folder)), notes=(*notes, *report.notes))


def report_of_runs(
    runs: Iterable[RunView], folder: Path, title: str, baseline: Key = ERM
) -> Report:
    """Of runs that belong to no sweep. Unfinished and damaged ones are listed, uncounted."""
    views = tuple(name_variants(list(runs)))
    found = observations(views)
    frames = frames_of(found)
    tables = compare(found, frames, baseline=baseline, seen=observations(views, "train"))
    usual = [one for one in found if one.key == Key.usual(one.key.algorithm, one.key.variant)]
    trials = dict.fromkeys((one.dataset, one.key, one.data, one.trial) for one in usual)
    return Report(
        folder=folder,
        title=title,
        runs=views,
        rules=("",),
        chosen={"": views},
        results={"": tables},
        notes=tuple(_missing_domains(found, frames, trials, "seed")),
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
    scored = [job for job in sweep.jobs if job.id in views]
    candidates = [one for job in scored for one in candidates_of(job, views[job.id].records)]
    able = applicable(candidates, expected=sweep.jobs, asked=sweep.rule)
    rules = tuple(dict.fromkeys((sweep.rule, *able)))
    choices = {rule: tuple(select(candidates, rule, expected=sweep.jobs)) for rule in rules}
    chosen = {rule: tuple(_chosen(views, sweep, choices[rule])) for rule in rules}
    empty = without_rows(runs)
    frames = planned_frames(sweep, empty)
    results = {
        rule: compare(
            observations(own), frames, rule=rule, baseline=baseline, seen=observations(own, "train")
        )
        for rule, own in chosen.items()
    }
    if _varies_data(sweep):
        title, datasets = sweep.title, list(frames)
        tables = {rule: found[: len(datasets)] for rule, found in results.items()}
        results = {rule: (merged(found, title),) for rule, found in tables.items()}
    done = {name for name, run in views.items() if run.finished is not None}
    failures = tuple(_failures(here, sweep, done))
    stopped = {failure.job for failure in failures} | done
    stopped |= {name for name, run in views.items() if run.problem is not None}
    order = [data.name for data in sweep.datasets]
    labels = sorted(
        _labels(folder), key=lambda one: order.index(one.name) if one.name in order else len(order)
    )
    unscored = [f"{name}: {domain}" for name, domain in sorted(empty)]
    return Report(
        folder=folder,
        title=sweep.title,
        runs=tuple(runs),
        sweep=sweep,
        rules=rules,
        chosen=chosen,
        results=results,
        choices=choices,
        failures=failures,
        waiting=sum(job.id not in stopped for job in sweep.jobs),
        labels=tuple(labels),
        notes=(
            *(f"{name} has nothing to score, and is in no average." for name in unscored),
            *_missing_choices(choices),
        ),
    )


def _varies_data(sweep: Sweep) -> bool:
    """Whether each variant of an ablation has data of its own: then one table holds them all."""
    datasets: dict[str, set[str]] = defaultdict(set)
    for job in sweep.jobs:
        datasets[job.variant].add(job.dataset)
    several = len({data.name for data in sweep.datasets}) > 1
    return sweep.axis is not None and several and all(len(s) == 1 for s in datasets.values())


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


def _failures(here: SweepFolder, sweep: Sweep, done: set[str]) -> Iterable[Failure]:
    """Of what did not succeed since."""
    made = {one.id for one in sweep.embeddings if here.embedding_state(one.id) == "done"}
    for name in (one.id for part in (sweep.embeddings, sweep.jobs) for one in part):
        failure = here.failure(name)
        if failure is not None and name not in done | made:
            yield failure


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
    results = {}
    for rule, outcome in outcomes.items():
        frames = {}
        for name in sorted({one.dataset for one in outcome}):
            own = [one for one in outcome if one.dataset == name]
            keys = dict.fromkeys(Key.usual(one.algorithm) for one in own)
            frames[name] = Frame(tuple(sorted({one.domain for one in own})), tuple(keys))
        seen = [
            Observation(one.dataset, Key.usual(one.algorithm), "", one.trial, one.domain, one.top1)
            for one in outcome
            if one.top1 is not None
        ]
        results[rule] = compare(seen, frames, rule=rule, baseline=baseline or ERM)
        trials = dict.fromkeys(
            (one.dataset, Key.usual(one.algorithm), "", one.trial) for one in outcome
        )
        lacking = _missing_domains(seen, frames, trials, "trial")
        notes += [f"Under {rule}, {sentence}" for sentence in lacking]
    return Report(
        folder=folder,
        title=title or f"DomainBed sweep in {folder.resolve().name}",
        rules=tuple(outcomes),
        results=results,
        notes=tuple(notes),
    )


def _missing_choices(choices: Mapping[str, Sequence[Choice]]) -> Iterable[str]:
    """For each rule what it could not choose; not what an earlier rule lacks as well."""
    known: set[tuple[object, ...]] = set()
    for rule, found in choices.items():
        missing = {
            one.contest: (
                f"{Key(one.algorithm, one.method, one.variant).label} on {one.dataset} "
                f"{named(one.target)} in trial {one.trial} ({one.reason})"
            )
            for one in found
            if one.run is None
        }
        if not set(missing) <= known:
            yield f"Under {rule}, {_lacking(list(missing.values()), len(found))}"
        known |= set(missing)


def _missing_domains(
    found: Iterable[Observation],
    frames: Mapping[str, Frame],
    trials: Iterable[tuple[str, Key, str, int]],
    called: str,
) -> Iterable[str]:
    """The domains that one of `trials` (data set, method, data, trial) lacks and others have."""
    scored = {(one.dataset, one.key, one.data, one.trial, one.domain) for one in found}
    wanted = [(*one, name) for one in trials for name in sorted(frames[one[0]].domains(one[2]))]
    missing = [
        f"{key.label} on {dataset} {name} in {called} {trial}"
        for dataset, key, data, trial, name in wanted
        if (dataset, key, data, trial, name) not in scored
    ]
    if missing:
        yield _lacking(missing, len(wanted))


def _lacking(missing: Sequence[str], expected: int) -> str:
    """A dash must not pass unnoticed."""
    return (
        f"{len(missing)} of {expected} results are missing (a cell is over the trials that have "
        f"it, or a dash; a trial that lacks one is in no average): {_some(missing, '; ')}."
    )


def _some(names: Sequence[str], between: str = ", ") -> str:
    more = [f"and {len(names) - MOST} more"] if len(names) > MOST else []
    return between.join([*names[:MOST], *more])
