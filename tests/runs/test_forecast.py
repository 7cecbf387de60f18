"""What is said of a run before it starts, and that it is what the run then is."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from acclimate.config import RunConfig
from acclimate.data import on_device
from acclimate.data.manifest import Manifest
from acclimate.learn.frozen import BATCH
from acclimate.learn.model import build_networks
from acclimate.runs import forecast as module
from acclimate.runs.folder import RunFolder
from acclimate.runs.forecast import Forecast, forecast, what_is_trained, what_it_learns_from
from acclimate.runs.memory import GIB
from acclimate.runs.plan import make_plan
from acclimate.runs.timing import Timing
from acclimate.runs.training import train
from fixtures.gpu import on_gpu
from fixtures.interruption import Killed
from fixtures.settings import as_flags

Tiny = Callable[..., RunConfig]


def rows(sites: int) -> Manifest:
    label = np.tile(["a", "b"], 30 * sites)
    x = np.random.default_rng(0).normal(size=(len(label), 4)).astype("f4")
    return Manifest.from_arrays(x, label, np.repeat([f"s{i}" for i in range(sites)], 60))


@pytest.mark.parametrize(
    ("algorithm", "rehearse", "sites", "said"),
    [
        ("erm", False, 3, "erm, a plain model"),
        ("erm", True, 1, "erm, a plain model: with one site there is nothing to rehearse"),
        (
            "erm", True, 2,
            "erm, then a rehearsal, though two sites cannot tell whether adaptation pays",
        ),
        (
            "erm", True, 3,
            'erm, then a rehearsal: each site plays "new site", and that decides how to adapt',
        ),
        (
            "da-erm", False, 3,
            "da-erm: an embedding of domains (Step A), then a classifier that sees it (Step B)",
        ),
    ],
)  # fmt: skip
def test_what_and_why(algorithm: str, rehearse: bool, sites: int, said: str, tiny: Tiny) -> None:
    config = tiny(algorithm, **{"adapt.rehearse": rehearse})
    assert what_is_trained(make_plan(config, rows(sites))) == said


def test_sites_are_named_up_to_eight(tiny: Tiny) -> None:
    few = make_plan(tiny("erm", test_domains=["s1"]), rows(3))
    learned = sum(map(len, few.train_rows))
    assert what_it_learns_from(few) == (
        f"{learned} rows of 2 classes from 2 sites: s0, s2; unseen: s1"
    )
    many = make_plan(tiny("erm"), rows(10))
    assert what_it_learns_from(many).endswith("10 sites: s0, s1, s2, s3, s4, s5, s6, s7, …")


def test_the_words() -> None:
    told = Forecast(
        what="erm, a plain model",
        data="9 images",
        why=["small-cnn is trained"],
        device="cpu, 2 threads",
        folder=Path("runs/x"),
        seconds={"features of 9 images": 30.0, "Step B": 65.0},
        memory=1.5 * GIB,
        free=8 * GIB,
    )
    assert told.lines() == [
        "will train erm, a plain model",
        "on 9 images",
        "small-cnn is trained",
        "time: about 1 min 35 s on cpu, 2 threads (features of 9 images 30 s, Step B 1 min 05 s)",
        "memory: about 1.5 GiB, and 8.0 GiB are free",
        "ends up in runs/x",
    ]
    assert told.to_dict()["total_seconds"] == 95


def test_step_b_is_steps_times_batch_and_what_is_left_of_it(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a second for an image in a step, none in a forward pass: 6 steps of 2 × 4 images."""
    timing = Timing(step_a=0.0, step_b=0.5, forward=0.0)
    monkeypatch.setattr(module, "time_plan", lambda *_, **__: timing)
    data, folder = rows(2), RunFolder(tmp_path / "run")
    config = tiny("erm")
    plan = make_plan(config, data)
    assert forecast(plan, folder, "cpu").seconds == {"Step B": 6 * 8 * 0.5}
    with pytest.raises(Killed):
        train(config, data, folder.path, device="cpu", watch=_killed_at(5))
    # Checkpoints are every two steps: four were kept, two are left.
    assert forecast(plan, folder, "cpu").seconds == {"Step B": pytest.approx(2 * 8 * 0.5)}


def _killed_at(step: int) -> Callable[[str, int, int, str], None]:
    def watch(phase: str, done: int, total: int, note: str) -> None:
        if phase == "main" and done == step:
            raise Killed

    return watch


def test_a_run_that_goes_on_says_where(tiny: Tiny, tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(Killed):
        train(tiny("erm"), rows(2), tmp_path, device="cpu", watch=_killed_at(5), say=said.append)
    assert said == []
    train(tiny("erm"), rows(2), tmp_path, device="cpu", say=said.append)
    assert said == ["Step B: predictor: going on at step 4 of 6"]


def test_a_gpu_also_holds_the_images_that_stay_there(
    tree: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """96 images of 8 px, where a quarter of what is free takes them."""
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1000)
    plan, gpu = make_plan(tiny("erm"), Manifest.open(tree)), torch.device("cuda", 0)
    network = build_networks(plan.config, 2, 4, None, pretrained=False)[0]
    held = 96 * 3 * 8**2
    for free, stay in ((4 * held, True), (4 * held - 1, False)):
        monkeypatch.setattr(on_device, "free_on", lambda device, free=free: free)
        said = module._memory(plan, gpu, 4, [network], 8, 0)
        assert said == 1000 + (held if stay else 0)
    assert module._memory(plan, gpu, 4, [], 0, 0) == 1000, "features alone"


@pytest.mark.slow
def test_of_images_it_counts_reading_rehearsal_and_memory(
    tree: Path, tiny: Tiny, tmp_path: Path
) -> None:
    plan = make_plan(tiny("erm", **{"adapt.rehearse": True}), Manifest.open(tree))
    told = forecast(plan, RunFolder(tmp_path / "run"), "cpu")
    assert list(told.seconds) == ["reading 96 images", "Step B", "rehearsal"]
    assert all(seconds > 0 for seconds in told.seconds.values())
    assert told.memory is not None and 0.05 * GIB < told.memory < 16 * GIB
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_features_that_were_extracted_before_take_no_time(
    tree: Path, tiny: Tiny, tmp_path: Path
) -> None:
    from acclimate.learn.models import build_backbone

    weights = tmp_path / "weights.pt"
    torch.save(build_backbone("small-cnn").body.state_dict(), weights)
    frozen = {"model.freeze": "backbone", "model.weights": str(weights)}
    config = tiny("erm", **{"model.backbone": "small-cnn", "data.image_size": 72, **frozen})
    data, folder = Manifest.open(tree), RunFolder(tmp_path / "run")
    before = forecast(make_plan(config, data), folder, "cpu").seconds
    assert before["features of 96 images"] > 0
    train(config, data, tmp_path / "other", device="cpu")
    after = forecast(make_plan(config, data), folder, "cpu").seconds
    assert set(before) - set(after) == {"features of 96 images"}


class Passing:
    """An extraction whose batches take as long as they are told to, by a clock of its own."""

    def __init__(self, *takes: float) -> None:
        self.takes, self.now = list(takes), 0.0

    def passed(self, stored: torch.Tensor) -> None:
        self.now += self.takes.pop(0)


class Blank:
    labels = np.zeros(0)

    def take(self, rows: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
        return torch.zeros(len(rows), 1), rows >= 0


@pytest.mark.parametrize(
    ("takes", "count", "expected"),
    [
        ((50, 6, 10, 1), 4 * BATCH, 16 / (2 * BATCH)),  # those between
        ((50, 6), BATCH + 8, 56 / (BATCH + 8)),
        ((7,), 5, 7 / 5),
    ],
)
def test_extraction_is_timed_as_it_goes_on_for_long(
    takes: tuple[float, ...], count: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    passing = Passing(*takes)
    monkeypatch.setattr(module.time, "perf_counter", lambda: passing.now)
    found = module._extracting(passing, Blank(), np.arange(count))  # type: ignore[arg-type]
    assert found == pytest.approx(expected)
    assert module._extracting(passing, Blank(), np.full(3, -1)) == 0, "none can be read"  # type: ignore[arg-type]


@on_gpu
def test_it_is_the_first_to_use_a_gpu(tree: Path, tmp_path: Path) -> None:
    settings = {"test_domains": "west", "model.backbone": "small-cnn", "train.steps": 100}
    flags = [*as_flags(settings), "--out", str(tmp_path / "run"), "--dry-run"]
    command = [sys.executable, "-m", "acclimate", "train", str(tree), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "memory" in done.stdout + done.stderr
