"""The folder of a sweep: which sweep it holds, and that one driver runs it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from acclimate.config import flat
from acclimate.core.errors import SweepError
from acclimate.core.sealed import write_sealed
from acclimate.data.manifest import Manifest
from acclimate.results.material import Labels
from acclimate.results.protocol import Job, Sweep
from acclimate.results.sweep_folder import SweepFolder
from acclimate.runs.folder import holds_something

ELSEWHERE = "choose another --out, or repeat the command that made it"


@contextmanager
def opened(folder: Path, sweep: Sweep, *, extend: bool = False) -> Iterator[None]:
    """Make `folder` the sweep's, or refuse it as it is; keep other drivers out meanwhile."""
    check_folder(folder, sweep, extend=extend)  # first without leaving a trace
    here = SweepFolder(folder)
    with here.locked():
        check_folder(folder, sweep, extend=extend)
        here.clear_temporary()
        if not here.exists or _plain(here.read()) != _plain(sweep):
            here.write(sweep)
        yield


def check_folder(folder: Path, sweep: Sweep, *, extend: bool = False) -> None:
    """Refuse a folder of something else, or of another sweep. Where data and weights lie may have
    changed; with `extend`, jobs may have been added."""
    if not SweepFolder(folder).exists:
        if holds_something(folder):
            raise SweepError(f"{folder} is not empty and not a sweep; choose another --out")
        return
    stored = SweepFolder(folder).read()
    difference = _difference(stored, sweep, extend=extend)
    if difference:
        raise SweepError(f"{folder} holds another sweep ({difference}); {ELSEWHERE}")
    added = len(sweep.jobs) - len(stored.jobs)
    if added and not extend:
        raise SweepError(
            f"{folder} holds {len(stored.jobs)} of these {len(sweep.jobs)} jobs; "
            f"add the other {added} with --extend, or choose another --out"
        )


def _difference(stored: Sweep, wanted: Sweep, *, extend: bool) -> str:
    there = (*stored.datasets, *stored.draws)
    names = {data.digest: data.name for data in there}
    for data in (*wanted.datasets, *wanted.draws):
        known = next((found for found in there if found.name == data.name), None)
        if known is not None and known.digest != data.digest:
            return f"its data '{data.name}' differ"
        if known is None and data.digest in names:
            return f"it calls the data '{names[data.digest]}', not '{data.name}'"
    asked = {job.id for job in wanted.jobs}
    lost = [job for job in stored.jobs if job.id not in asked]
    if lost:
        return _changed(lost, wanted) or (
            f"{len(lost)} of its {len(stored.jobs)} jobs are not asked for, e.g. {lost[0].id}; "
            f"to add jobs, ask for these too and give --extend"
        )
    if not extend:
        for part in ("title", "rule", "baseline"):
            old, new = getattr(stored, part), getattr(wanted, part)
            if old != new:
                return f"its {part} is '{old}', not '{new}'"
    return ""


def _changed(lost: Iterable[Job], wanted: Sweep) -> str:
    """The setting that makes another job of a stored one, if that is all that differs."""
    twins = {_place(job): job for job in wanted.jobs}
    for job in lost:
        if _place(job) in twins:
            old, new = flat(job.config), flat(twins[_place(job)].config)
            for key in sorted({*old, *new} - {"model.weights"}):
                if old.get(key) != new.get(key):
                    return f"its {key} is {old.get(key)!r}, not {new.get(key)!r}"
            return "its weights are others"
    return ""


def _place(job: Job) -> tuple[object, ...]:
    return (job.dataset, job.algorithm, job.variant, job.groups, job.draw, job.trial)


def _plain(sweep: Sweep) -> object:
    return json.loads(json.dumps(asdict(sweep)))


def write_labels(folder: Path, sweep: Sweep, manifests: Mapping[str, Manifest]) -> None:
    """Rows of each class in each domain, so that a report needs no data."""
    for data in sweep.datasets:
        path = SweepFolder(folder).labels_file(data.digest)
        if not path.exists():
            write_sealed(path, asdict(Labels.of(data.name, manifests[data.name])))
