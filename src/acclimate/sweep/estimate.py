"""How long a sweep will take: from its finished runs, or from a few steps timed on the device."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch

from acclimate.config import AlgorithmName, RunConfig, from_dict
from acclimate.core.distributed import pick_device
from acclimate.core.errors import WeightsError
from acclimate.core.graphs import give_back
from acclimate.data.manifest import Manifest
from acclimate.results.protocol import EmbeddingJob, Job, Sweep
from acclimate.results.sweep_folder import SweepFolder
from acclimate.runs.forecast import to_extract
from acclimate.runs.plan import Plan, make_plan
from acclimate.runs.timing import Timing, seconds_a, seconds_b, time_plan
from acclimate.sweep.checks import without_images
from acclimate.sweep.launchers import LaunchOptions, expected_workers
from acclimate.sweep.queue import Queue

STAND_FOR_OTHERS = 4  # jobs of a line that are planned; draws differ in their batches
FROM_RUNS = "from the runs finished so far"
FROM_STEPS = "from a few steps timed here; reading images and starting up come on top"


@dataclass(frozen=True, kw_only=True)
class TimeLeft:
    """Seconds of computation, and `wall`: how long that takes with jobs side by side, which is no
    less than the longest of them with the Φ it waits for."""

    total: float
    left: float
    wall: float
    how: str


def estimate(
    sweep: Sweep,
    manifests: Mapping[str, Manifest],
    *,
    device: str = "auto",
    max_parallel: int = 1,
    full_speed: int | None = None,
    done: Mapping[str, float] | None = None,
) -> TimeLeft:
    """`done` are the seconds of finished jobs by id, and of finished EmbeddingJobs where known.

    `full_speed` of the `max_parallel` jobs do not slow each other down. Steps are timed alone;
    what finished runs took has the slowing in it.
    """
    known = dict(done or {})
    if any(job.id in known for job in sweep.jobs):
        seconds, how, parallel = _from_runs(sweep, known), FROM_RUNS, max_parallel
    else:
        seconds, how = _from_steps(sweep, manifests, pick_device(device)), FROM_STEPS
        parallel = full_speed or max_parallel
    finished = {*known, *(job.needs for job in sweep.jobs if job.id in known)}
    ahead = {name: value for name, value in seconds.items() if name not in finished}
    left, total = sum(ahead.values()), sum(known.get(name, seconds[name]) for name in seconds)
    chains = (
        ahead[job.id] + ahead.get(job.needs or "", 0.0) for job in sweep.jobs if job.id in ahead
    )
    wall = max(left / max(parallel, 1), max(chains, default=0.0))
    return TimeLeft(total=total, left=left, wall=wall, how=how)


def expected_time(
    folder: Path,
    sweep: Sweep,
    manifests: Mapping[str, Manifest],
    launch: LaunchOptions,
    queue: Queue,
) -> TimeLeft | str:
    """How long it takes, or why that is not known. Jobs that failed and rest are not counted."""
    seconds = {}
    for job in sweep.jobs:
        if queue.states[job.id] == "done":
            finished = SweepFolder(folder).run(job.id).finished
            if finished is not None:
                seconds[job.id] = finished.seconds
    on_gpus = launch.device != "cpu"
    if not seconds and launch.elsewhere and on_gpus and not torch.cuda.is_available():
        return "jobs run elsewhere, and there is no GPU here to time steps on"
    (workers, full_speed), threads = expected_workers(launch), torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # as a job on the CPU has; on a GPU it makes no difference
        return estimate(
            without_failed(sweep, queue),
            manifests,
            device=launch.device,
            max_parallel=workers,
            full_speed=full_speed,
            done=seconds,
        )
    except WeightsError:
        if not launch.elsewhere:
            raise  # no job could start
        return "the weights that features are extracted with are not here"
    except RuntimeError as error:  # no room on a GPU, as a rule: no reason not to start
        return f"steps cannot be timed: {str(error).partition(chr(10))[0]}"
    finally:
        torch.set_num_threads(threads)


def without_failed(sweep: Sweep, queue: Queue) -> Sweep:
    jobs = [job for job in sweep.jobs if queue.states[job.id] not in ("failed", "blocked")]
    needed = {job.needs for job in jobs}
    phis = [phi for phi in sweep.embeddings if phi.id in needed]
    return replace(sweep, jobs=tuple(jobs), embeddings=tuple(phis))


def _from_runs(sweep: Sweep, known: Mapping[str, float]) -> dict[str, float]:
    """Each job takes what finished ones of its algorithm took, or else what the others did."""
    by_algorithm: dict[str, list[float]] = defaultdict(list)
    for job in sweep.jobs:
        if job.id in known:
            by_algorithm[job.algorithm].append(known[job.id])
    means = {name: fmean(values) for name, values in by_algorithm.items()}
    typical = fmean(means.values())
    jobs = {job.id: means.get(job.algorithm, typical) for job in sweep.jobs}
    learned = [known[phi.id] for phi in sweep.embeddings if phi.id in known]
    adaptive = [value for name, value in means.items() if AlgorithmName.of(name).adaptive]
    # Step A is of the order of Step B where its time is not known.
    per_phi = fmean(learned or adaptive or [typical])
    return jobs | {phi.id: per_phi for phi in sweep.embeddings}


def _from_steps(
    sweep: Sweep, manifests: Mapping[str, Manifest], device: torch.device
) -> dict[str, float]:
    every: list[Job | EmbeddingJob] = [*sweep.jobs, *sweep.embeddings]
    bare = {name: without_images(manifests[name]) for name in {job.data for job in every}}
    timings = _timings(sweep, manifests, device)
    lines: dict[tuple[str, str, str], list[Job]] = defaultdict(list)
    for job in sweep.jobs:
        lines[job.dataset, job.algorithm, job.variant].append(job)
    seconds: dict[str, float] = {}
    for jobs in lines.values():
        timing = timings[jobs[0].dataset, _adaptive(jobs[0])]
        some = [_plan(job, bare[job.data]) for job in _spread(jobs)]
        typical = fmean(seconds_b(plan, timing) for plan in some)
        seconds |= {job.id: typical for job in jobs}
    for phi in sweep.embeddings:
        plan, timing = _plan(phi, bare[phi.data]), timings[phi.dataset, True]
        if phi.needs is not None:  # a run is trained for it anyway
            timing = replace(timing, step_a=0.0)
        seconds[phi.id] = seconds_a(plan, timing)
    firsts = {job.data: job for job in reversed(sweep.jobs)}
    for name, job in firsts.items():  # which extracts frozen features for all
        plan = _plan(job, manifests[name])
        if plan.frozen:
            seconds[job.id] += to_extract(plan, device, beside=Path(job.id)).seconds
    return seconds


def _timings(
    sweep: Sweep, manifests: Mapping[str, Manifest], device: torch.device
) -> dict[tuple[str, bool], Timing]:
    """For a plain and an adaptive job of each data set; data sets of one kind are timed once."""
    found: dict[tuple[str, bool], Timing] = {}
    alike: dict[tuple[object, ...], Timing] = {}
    for job in sweep.jobs:
        place = (job.dataset, _adaptive(job))
        if place in found:
            continue
        plan = _plan(job, manifests[job.data])
        size = plan.manifest.features().shape[1] if plan.manifest.has_features else 0
        kind = (place[1], size, plan.config.model, plan.config.data.image_size)
        if kind not in alike:
            alike[kind] = time_plan(plan, device)
        found[place] = alike[kind]
    give_back()  # this process outlives the timing, and the jobs need the room
    return found


def _plan(job: Job | EmbeddingJob, manifest: Manifest) -> Plan:
    config = from_dict(RunConfig, job.config, where=job.id)
    return make_plan(config, manifest, check_files=False)


def _adaptive(job: Job) -> bool:
    return AlgorithmName.of(job.algorithm).adaptive


def _spread(jobs: Sequence[Job]) -> list[Job]:
    """A few of the jobs, from the first to the last."""
    count = min(len(jobs), STAND_FOR_OTHERS)
    places = {round(i * (len(jobs) - 1) / max(count - 1, 1)) for i in range(count)}
    return [jobs[place] for place in sorted(places)]
