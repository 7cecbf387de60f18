"""Several sweeps as one: what ran once counts once, and what differs is a line of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from acclimate.core.errors import SweepError
from acclimate.results.protocol import DataSet, Job, Sweep
from acclimate.results.runs import RunView, sweep_runs
from acclimate.results.sweep_folder import SweepFolder


@dataclass(frozen=True)
class Parts:
    """The folders of sweeps, the sweep that they are together, and its runs as far as they go."""

    folders: tuple[Path, ...]
    sweep: Sweep
    runs: Sequence[RunView]


def merge_sweeps(folders: Sequence[Path]) -> Parts:
    """The sweeps in `folders` as one. They must agree on the data, the rule and the metric.

    A job of several is one job. Where an algorithm has other settings in another folder, its rows
    there are a variant with that folder's name.
    """
    first, *others = (SweepFolder(folder).read() for folder in folders)
    runs = {run.folder.name: run for run in sweep_runs(folders[0], first)}
    for folder, sweep in zip(folders[1:], others, strict=True):
        _check(first, sweep, folder)
        known = {job.id for job in first.jobs}
        own = _apart(first, sweep, folder.resolve().name)
        jobs = [job for job in own.jobs if job.id not in known]
        variants = {job.id: job.variant for job in jobs}
        for run in sweep_runs(folder, own):
            name = run.folder.name
            if name not in runs or runs[name].finished is None:
                variant = variants.get(name, run.variant)
                runs[name] = replace(run, variant=variant, name=f"{folder.name}/{run.name}")
        first = replace(
            first,
            title=f"{first.title}; {sweep.title}" if sweep.title != first.title else first.title,
            datasets=tuple({one.name: one for one in (*sweep.datasets, *first.datasets)}.values()),
            draws=tuple({one.name: one for one in (*sweep.draws, *first.draws)}.values()),
            embeddings=tuple({e.id: e for e in (*sweep.embeddings, *first.embeddings)}.values()),
            jobs=(*first.jobs, *jobs),
            command="\n".join(filter(None, (first.command, sweep.command))),
            left_out=tuple(dict.fromkeys((*first.left_out, *sweep.left_out))),
        )
    return Parts(tuple(folders), first, list(runs.values()))


def _check(first: Sweep, other: Sweep, folder: Path) -> None:
    """Refuse sweeps whose runs cannot stand in one table."""
    digests: Mapping[str, str] = {data.name: data.digest for data in _data(first)}
    for data in _data(other):
        if digests.get(data.name, data.digest) != data.digest:
            raise SweepError(
                f"{folder}: its '{data.name}' holds other data than that of the first sweep; "
                f"leave one of them out, or rename the data"
            )
    for what in ("rule", "metric"):
        one, two = getattr(first, what), getattr(other, what)
        if one != two:
            raise SweepError(
                f"{folder}: its {what} is {two}, and that of the first sweep is {one}; report on "
                f"each alone"
            )


def _data(sweep: Sweep) -> tuple[DataSet, ...]:
    return (*sweep.datasets, *sweep.draws)


def _apart(first: Sweep, other: Sweep, name: str) -> Sweep:
    """`other` with the lines renamed that have runs for the same places as `first`, but others."""

    def line(job: Job) -> tuple[object, ...]:
        return job.dataset, job.algorithm, job.variant, job.groups, job.draw, job.trial

    ids = {line(job): job.id for job in first.jobs}
    differing = {
        (job.algorithm, job.variant) for job in other.jobs if ids.get(line(job), job.id) != job.id
    }
    jobs = tuple(
        replace(job, variant=f"{job.variant}, {name}" if job.variant else name)
        if (job.algorithm, job.variant) in differing
        else job
        for job in other.jobs
    )
    return replace(other, jobs=jobs)
