"""Ray and submitit do the same jobs with the same results as local processes. For real."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from acclimate.config import RunConfig
from acclimate.core.errors import ConfigError, SweepError
from acclimate.core.ray_cluster import gpu_share
from acclimate.data.manifest import Manifest
from acclimate.results.protocol import Sweep
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep.driver import Event, Queue, run_sweep
from acclimate.sweep.launchers import chosen_launcher
from acclimate.sweep.launchers.slurm import parameters_of
from acclimate.sweep.settings import LaunchOptions
from acclimate.sweep.worker import Task
from fixtures.errors import refused
from fixtures.sweeps import LOCAL, embedding_job, job, scores, start_driver, sweep_of

Tiny = Callable[..., RunConfig]
SUBMITIT = LaunchOptions(
    launcher="slurm", slurm_cluster="local", max_parallel=2, device="cpu", slurm={"partition": "a"}
)


def small(tiny: Tiny, data: Path) -> Sweep:
    shared = tiny("da-erm", test_domains=["site-1"])
    jobs = [
        job("erm-0", tiny("erm", test_domains=["site-0"])),
        job("da_erm-1", shared, needs="phi"),
    ]
    return sweep_of(jobs, [embedding_job("phi", shared)], Manifest.open(data).digest())


def assert_as_local(folder: Path, sweep: Sweep, data: Path) -> None:
    """What the jobs in `folder` were scored is what local processes give."""
    local = folder.with_name("local")
    run_sweep(local, sweep, {"sites": data}, launch=LOCAL)
    for one in sweep.jobs:
        assert scores(folder, one.id) == scores(local, one.id)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO.*:FutureWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves its log files open
def test_ray_gives_what_local_processes_give(tiny: Tiny, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: acclimate[ray]")
    sweep = small(tiny, data)
    ray = chosen_launcher(LaunchOptions(launcher="ray", max_parallel=2, device="cpu"))
    killed: list[int] = []

    def kill_one(queue: Queue, event: Event | None) -> None:
        """The first worker that has written anything, once."""
        if killed or event is not None:
            return
        killed.extend(pids_of_workers()[:1])
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    tally = run_sweep(tmp_path / "ray", sweep, {"sites": data}, launch=ray, listener=kill_one)
    assert (len(killed), tally.done, tally.failures, tally.blocked) == (1, 2, (), ())
    assert_as_local(tmp_path / "ray", sweep, data)


def pids_of_workers() -> list[int]:
    """Ray's processes that are at `perform`, among those that this test has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and descends(int(entry.name), os.getpid()):
            try:
                name = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if name.startswith(b"ray::perform"):
                found.append(int(entry.name))
    return found


def descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return False
        if pid == ancestor:
            return True
    return False


@pytest.mark.slow
def test_submitit_gives_what_local_processes_give(tiny: Tiny, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: acclimate[slurm]")
    sweep = small(tiny, data)
    launch = chosen_launcher(SUBMITIT)
    tally = run_sweep(tmp_path / "slurm", sweep, {"sites": data}, launch=launch)
    assert (tally.done, tally.failures, tally.blocked) == (2, (), ())
    assert_as_local(tmp_path / "slurm", sweep, data)


@pytest.mark.slow
def test_what_a_killed_driver_left_running_is_waited_for(
    tiny: Tiny, data: Path, tmp_path: Path
) -> None:
    """submitit's processes outlive the driver, as a cluster's do."""
    pytest.importorskip("submitit", reason="submitit is not installed: acclimate[slurm]")
    folder = tmp_path / "s"
    settings = {"train.steps": 2500, "train.evaluate_every": 500, "train.checkpoint_every": 500}
    run = job("erm-0", tiny("erm", test_domains=["site-0"], **settings))
    sweep = sweep_of([run], digest=Manifest.open(data).digest())
    SweepFolder(folder).write(sweep)
    options = LaunchOptions(launcher="slurm", slurm_cluster="local", device="cpu")
    driver = start_driver(folder, data, options)
    records_file = SweepFolder(folder).run("erm-0").path / "records.jsonl"
    while not records_file.exists() and driver.poll() is None:
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    assert SweepFolder(folder).job_state("erm-0") == "started"
    events: list[str] = []

    def listener(queue: Queue, event: Event | None) -> None:
        if event is not None:
            events.append(event.kind)

    tally = run_sweep(folder, sweep, {"sites": data}, launch=LOCAL, listener=listener)
    assert (tally.done, tally.failures) == (1, ())
    assert "busy" in events
    lines = records_file.read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines].count("started") == 1  # the orphan's


@pytest.mark.parametrize("launcher", ["ray", "slurm"])
def test_a_launcher_that_is_not_installed(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(ConfigError, f"--launcher {launcher}", f"acclimate[{launcher}]"):
        chosen_launcher(LaunchOptions(launcher=launcher))


def test_slurm_without_slurm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: acclimate[slurm]")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with refused(ConfigError, "--launcher slurm", "srun", "--launcher local"):
        chosen_launcher(LaunchOptions(launcher="slurm"))


def test_slurm_parameters_get_the_prefix_that_submitit_wants() -> None:
    given = {"partition": "gpu", "mem_gb": 32, "slurm_qos": "low", "time": 60}
    assert parameters_of(given) == {
        "slurm_partition": "gpu",
        "mem_gb": 32,
        "slurm_qos": "low",
        "slurm_time": 60,
    }


def test_a_wrong_slurm_parameter_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: acclimate[slurm]")
    launch = chosen_launcher(
        LaunchOptions(launcher="slurm", slurm_cluster="local", slurm={"particion": "gpu"})
    )
    with refused(ConfigError, "--slurm", "'particion'"):
        launch(tmp_path)


def test_a_job_that_slurm_refuses_is_said_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: acclimate[slurm]")
    for name in ("srun", "sbatch"):
        (tmp_path / name).write_text(
            "#!/bin/sh\necho 'sbatch: error: invalid partition' >&2; exit 1\n"
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    launcher = chosen_launcher(LaunchOptions(launcher="slurm", device="cpu"))(tmp_path / "s")
    task = Task(sweep=str(tmp_path / "s"), kind="run", id="one", data="", digest="", config={})
    with refused(SweepError, "sbatch: error: invalid partition", "--slurm", "--max-parallel"):
        launcher.start(task)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO.*:FutureWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves its log files open
def test_a_gpu_that_ray_does_not_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than trained without."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: acclimate[ray]")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    launch = chosen_launcher(LaunchOptions(launcher="ray", max_parallel=1, device="cuda"))
    with refused(ConfigError, "--device cuda", "Ray", "cpu"):
        launch(tmp_path)
    assert not ray.is_initialized()


def test_a_gpu_is_shared_out_so_that_all_tasks_fit() -> None:
    found = [gpu_share(gpus, slots) for gpus, slots in ((1, 8), (2, 3), (2, 2), (4, 2), (0, 5))]
    assert found == [0.125, 0.5, 1.0, 1.0, 0.0]
