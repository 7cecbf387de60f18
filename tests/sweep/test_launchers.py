"""Ray and submitit do the same jobs with the same results as local processes. For real."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acclimate.config import RunConfig, as_dict
from acclimate.core.errors import ConfigError, SweepError, UnknownName
from acclimate.data.manifest import Manifest
from acclimate.records import records
from acclimate.results.protocol import DataSet, EmbeddingJob, Job, Sweep
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep.driver import Event, Queue, run_sweep
from acclimate.sweep.launchers import chosen_launcher
from acclimate.sweep.launchers.ray_cluster import gpu_share
from acclimate.sweep.launchers.slurm import parameters_of
from acclimate.sweep.settings import LaunchOptions
from acclimate.sweep.worker import Task

Tiny = Callable[..., RunConfig]
LOCAL = chosen_launcher(LaunchOptions(max_parallel=2, device="cpu"))
SUBMITIT = LaunchOptions(
    launcher="slurm", slurm_cluster="local", max_parallel=2, device="cpu", slurm={"partition": "a"}
)


@pytest.fixture
def data(features: Manifest, tmp_path: Path) -> Path:
    path = tmp_path / "features.parquet"
    features.write(path)
    return path


def sweep_on(data: Path, *configs: RunConfig) -> Sweep:
    """One job per config; those of `da-erm` share an embedding."""
    phi = [EmbeddingJob(id="phi", dataset="s", config=as_dict(c)) for c in configs if adaptive(c)]
    jobs = [
        Job(
            id=f"{config.algorithm}-{number}",
            dataset="s",
            algorithm=config.algorithm,
            groups=(config.test_domains,),
            draw=0,
            trial=number,
            config=as_dict(config),
            needs="phi" if adaptive(config) else None,
        )
        for number, config in enumerate(configs)
    ]
    digest = Manifest.open(data).digest()
    datasets = (DataSet(name="s", digest=digest, source=str(data), domains=()),)
    return Sweep(
        title="",
        rule="oracle",
        baseline="erm",
        datasets=datasets,
        embeddings=tuple(phi[:1]),
        jobs=tuple(jobs),
    )


def adaptive(config: RunConfig) -> bool:
    return config.algorithm.startswith("da-")


def scores(folder: Path, sweep: Sweep) -> dict[str, list[records.Score]]:
    found = {job.id: SweepFolder(folder).run(job.id).records() for job in sweep.jobs}
    assert all(one.finished for one in found.values())
    return {id: sorted(one.scores, key=str) for id, one in found.items()}


def small(tiny: Tiny, data: Path) -> Sweep:
    return sweep_on(
        data, tiny("erm", test_domains=["site-0"]), tiny("da-erm", test_domains=["site-1"])
    )


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

    tally = run_sweep(tmp_path / "ray", sweep, {"s": data}, launch=ray, listener=kill_one)
    assert (len(killed), tally.done, tally.failures, tally.blocked) == (1, 2, (), ())
    run_sweep(tmp_path / "local", sweep, {"s": data}, launch=LOCAL)
    assert scores(tmp_path / "ray", sweep) == scores(tmp_path / "local", sweep)


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
    tally = run_sweep(tmp_path / "slurm", sweep, {"s": data}, launch=launch)
    assert (tally.done, tally.failures, tally.blocked) == (2, (), ())
    run_sweep(tmp_path / "local", sweep, {"s": data}, launch=LOCAL)
    assert scores(tmp_path / "slurm", sweep) == scores(tmp_path / "local", sweep)


@pytest.mark.slow
def test_what_a_killed_driver_left_running_is_waited_for(
    tiny: Tiny, data: Path, tmp_path: Path
) -> None:
    """submitit's processes outlive the driver, as a cluster's do."""
    pytest.importorskip("submitit", reason="submitit is not installed: acclimate[slurm]")
    folder = tmp_path / "s"
    settings = {"train.steps": 2500, "train.evaluate_every": 500, "train.checkpoint_every": 500}
    sweep = sweep_on(data, tiny("erm", test_domains=["site-0"], **settings))
    SweepFolder(folder).write(sweep)
    code = (
        "import sys; from pathlib import Path\n"
        "from acclimate.results.sweep_folder import SweepFolder\n"
        "from acclimate.sweep.driver import run_sweep\n"
        "from acclimate.sweep.launchers import LaunchOptions, chosen_launcher\n"
        "options = LaunchOptions(launcher='slurm', slurm_cluster='local', device='cpu')\n"
        "folder, data = map(Path, sys.argv[1:])\n"
        "launch = chosen_launcher(options)\n"
        "run_sweep(folder, SweepFolder(folder).read(), {'s': data}, launch=launch)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", code, str(folder), str(data)])
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

    tally = run_sweep(folder, sweep, {"s": data}, launch=LOCAL, listener=listener)
    assert (tally.done, tally.failures) == (1, ())
    assert "busy" in events
    lines = records_file.read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines].count("started") == 1  # the orphan's


def test_an_unknown_launcher_and_impossible_options_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def message(kind: type[Exception] = ConfigError, **options: Any) -> str:
        with pytest.raises(kind) as error:
            chosen_launcher(LaunchOptions(**options))
        return str(error.value)

    assert message(UnknownName, launcher="slrum") == (
        "there is no launcher 'slrum'; did you mean 'slurm'?"
    )
    assert message(max_parallel=0) == "--max-parallel must be at least 1, not 0"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert message(launcher="ray") == '--launcher ray needs Ray; pip install "acclimate[ray]"'
    assert message(launcher="slurm") == (
        '--launcher slurm needs submitit; pip install "acclimate[slurm]"'
    )


def test_slurm_without_slurm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: acclimate[slurm]")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ConfigError) as error:
        chosen_launcher(LaunchOptions(launcher="slurm"))
    assert str(error.value) == (
        "--launcher slurm finds no Slurm here (no srun); start it on a login node, "
        "or use --launcher local"
    )


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
    with pytest.raises(ConfigError, match=r"--slurm: Unknown argument 'particion' for executor"):
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
    with pytest.raises(SweepError) as error:
        launcher.start(task)
    assert str(error.value) == (
        "Slurm takes no job (sbatch: error: invalid partition); check --slurm and --max-parallel, "
        "then repeat the command to resume"
    )


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
    with pytest.raises(ConfigError) as error:
        launch(tmp_path)
    assert str(error.value) == ("--device cuda: the Ray cluster has no GPU; use cpu, or add one")
    assert not ray.is_initialized()


def test_a_gpu_is_shared_out_so_that_all_tasks_fit() -> None:
    found = [gpu_share(gpus, slots) for gpus, slots in ((1, 8), (2, 3), (2, 2), (4, 2), (0, 5))]
    assert found == [0.125, 0.5, 1.0, 1.0, 0.0]
