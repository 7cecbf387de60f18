"""Backbones whose passes are recorded: what they are without, number for number."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from acclimate.config import RunConfig, TrainConfig
from acclimate.core.distributed import World
from acclimate.core.graphs import give_back
from acclimate.data.manifest import Manifest
from acclimate.learn.models import Backbone
from acclimate.learn.models.backbones import Preprocess, freeze_batch_norm
from acclimate.learn.objective import Objective
from acclimate.runs import compiling, loop, optimisation, recording, timing
from acclimate.runs.compiling import Wish, trained_backbones
from acclimate.runs.folder import RunFolder
from acclimate.runs.plan import make_plan
from acclimate.runs.recording import FIRST, LEAST_STEPS, SPARE, Recording, recorded, uncompiled
from acclimate.runs.timing import time_plan
from acclimate.runs.training import train
from fixtures.gpu import on_gpu
from fixtures.objectives import on_images

GPU = World(device=torch.device("cuda"))
WISH = Wish("auto", LEAST_STEPS, rows=4, parts=1, size=16, bf16=False)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def kernels_that_repeat_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def done_again(work: Callable[[], None]) -> Callable[[], None]:
    """What is played without a GPU: the same again, into the same memory, which passes share."""
    tape: Any = work.__self__  # type: ignore[attr-defined]
    work()
    back = work.__name__ == "_pass_back"
    where = [one for one in (tape._found if back else [tape._out]) if one is not None]

    def play() -> None:
        if not back:
            for one in filter(torch.is_tensor, tape._found):
                one.data.fill_(torch.nan)
        work()
        made = [one for one in (tape._found if back else [tape._out]) if one is not None]
        for old, new in zip(where, made, strict=True):
            new.data = old.data.copy_(new.data)

    return play


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was recorded, and played; without a GPU, by doing it again."""
    seen: list[str] = []
    real = recording.recorder

    def recorder(device: torch.device) -> Callable[[Callable[[], None]], Callable[[], None]]:
        record = real(device) if device.type == "cuda" else done_again

        def watched(work: Callable[[], None]) -> Callable[[], None]:
            play, name = record(work), work.__name__.strip("_")
            seen.append(f"record {name}")

            def played() -> None:
                seen.append(name)
                play()

            return played

        return watched

    monkeypatch.setattr(recording, "recorder", recorder)
    if DEVICE.type == "cpu":
        monkeypatch.setattr(recording, "taken", lambda device: 0)
        monkeypatch.setattr(recording, "spare", lambda device: 0)
    return seen


def a_backbone(norm: str = "still") -> Backbone:
    """With a layer that nothing passes through, and a parameter that does not learn."""
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8) if norm != "none" else nn.Identity(),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    body.register_parameter("idle", nn.Parameter(torch.ones(2)))
    body[3].bias.requires_grad_(False)  # type: ignore[union-attr]
    if norm == "still":
        freeze_batch_norm(body, affine=False)
    return a_backbone_of(body.to(memory_format=torch.channels_last), 6)  # type: ignore[call-overload]


def a_backbone_of(body: nn.Module, features: int) -> Backbone:
    return Backbone(body, features, Preprocess((0.5,) * 3, (0.25,) * 3, 16)).to(DEVICE).train()


def batches(count: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.rand(4, 3, 16, 16, generator=generator).to(DEVICE)
        yield x.contiguous(memory_format=torch.channels_last)


Learn = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]


def once(backbone: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    found = backbone(x)
    found.float().square().sum().backward()
    return found


def in_two_halves(backbone: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    once(backbone, x)
    return once(backbone, x.flip(0))


def both_at_a_time(backbone: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    one, other = backbone(x), backbone(x.flip(0))
    (one.float() * other.float()).sum().backward()
    return other


def looked_at_first(backbone: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    backbone(x.flip(0)).detach()
    return once(backbone, x)


def after(
    steps: int, learn: Learn, *, played: bool, norm: str = "still", bf16: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Features of each step, and all weights and statistics at the end."""
    backbone = a_backbone(norm)
    run = Recording(backbone) if played else backbone.normalised_body
    optimiser = torch.optim.Adam([p for p in backbone.parameters() if p.requires_grad], lr=0.05)
    made = []
    for x in batches(steps):
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=bf16):
            made.append(learn(run, x).detach())
        optimiser.step()
    return made, [value.detach().clone() for value in backbone.state_dict().values()]


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("norm", ["none", "still", "learning"])
@pytest.mark.parametrize("learn", [once, in_two_halves, both_at_a_time, looked_at_first])
def test_what_is_played_is_what_it_would_be(
    learn: Learn, norm: str, bf16: bool, plays: list[str]
) -> None:
    if norm == "learning" and DEVICE.type == "cpu":
        pytest.skip("recording by doing counts for statistics; on a GPU it does not")
    usual = after(8, learn, played=False, norm=norm, bf16=bf16)
    played = after(8, learn, played=True, norm=norm, bf16=bf16)
    assert plays[:2] == ["record pass", "record pass_back"]
    assert plays.count("pass_back") >= 4
    for one, other in zip(played[0] + played[1], usual[0] + usual[1], strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


def test_the_first_batches_pass_as_ever_and_then_all_are_played(plays: list[str]) -> None:
    run = Recording(a_backbone())
    for number, x in enumerate(batches(6), start=1):
        once(run, x)
        assert plays.count("pass") == plays.count("pass_back") == max(number - FIRST, 0)
    assert plays.count("record pass") == 1


def test_a_second_pass_at_a_time_is_not_played(plays: list[str]) -> None:
    after(FIRST + 3, both_at_a_time, played=True)
    # The first step is both of those that pass as ever.
    assert plays.count("pass") == plays.count("pass_back") == FIRST + 2


def test_parameters_without_a_part_in_it_get_no_gradient(plays: list[str]) -> None:
    backbone = a_backbone()
    run = Recording(backbone)
    for x in batches(FIRST + 2):
        backbone.zero_grad()
        once(run, x)
    assert "pass_back" in plays
    body: Any = backbone.body
    assert body.idle.grad is None and body[3].bias.grad is None and body[0].bias.grad is not None


def test_gradients_can_be_had_once(plays: list[str]) -> None:
    run = Recording(a_backbone())
    for x in batches(FIRST):
        once(run, x)
    (x,) = batches(1)
    total = run(x).square().sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="serves once"):
        total.backward()


def test_batches_of_another_kind_pass_as_ever(plays: list[str]) -> None:
    run, backbone = Recording(a_backbone()), a_backbone()
    for x in batches(FIRST + 1):
        once(run, x)
    (x,) = batches(1)
    for other in (x[:3], x[:, :, :12], x[..., :12]):
        assert torch.equal(once(run, other), backbone(other))
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert torch.equal(once(run, x), backbone(x))
    assert plays.count("pass") == 1
    assert torch.equal(once(run, x), backbone(x))
    assert plays.count("pass") == 2


def test_gradients_by_images_are_to_be_had(plays: list[str]) -> None:
    run, backbone = Recording(a_backbone()), a_backbone()
    for x in batches(FIRST + 1):
        once(run, x)
    found = []
    for way in (run, backbone):
        (x,) = batches(1)
        once(way, x.requires_grad_())
        assert x.grad is not None
        found.append(x.grad)
    assert torch.equal(*found)


class Added(nn.Module):
    """Two parameters that have one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) * (self.one + self.other)


def test_each_parameter_has_a_gradient_of_its_own(plays: list[str]) -> None:
    body = Added()
    run = Recording(a_backbone_of(body, 3))
    for x in batches(FIRST + 2):
        run.backbone.zero_grad()
        once(run, x)
        assert body.one.grad is not None and body.other.grad is not None
        assert torch.equal(body.one.grad, body.other.grad)
        assert body.one.grad.data_ptr() != body.other.grad.data_ptr()
    assert plays.count("pass_back") == 2


@pytest.mark.parametrize("room", [SPARE * 1000, SPARE * 1000 - 1])
def test_it_is_recorded_where_there_is_room(
    room: int, plays: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = iter([0, 5000, 7000, 8000])  # the first pass keeps more than those that follow
    monkeypatch.setattr(recording, "taken", lambda device: next(memory))
    monkeypatch.setattr(recording, "spare", lambda device: room)
    run, backbone = Recording(a_backbone()), a_backbone()
    for x in batches(FIRST + 3):
        assert torch.equal(once(run, x), backbone(x))
    assert plays.count("pass") == (3 if room == SPARE * 1000 else 0)


class Looking(nn.Module):
    """At what it makes, which a graph cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x.mean((2, 3)))
        return found if found.detach().sum().item() < 1e9 else found + 1


def test_what_cannot_be_recorded_passes_as_ever(
    plays: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if DEVICE.type == "cpu":

        def refuse(device: torch.device) -> Callable[[Callable[[], None]], Callable[[], None]]:
            raise RuntimeError("operation not permitted when stream is capturing")

        monkeypatch.setattr(recording, "recorder", refuse)
    backbone, lines = a_backbone_of(Looking(), 2), list[str]()
    run = Recording(backbone, lines.append)
    for x in batches(FIRST + 3):
        assert torch.equal(once(run, x), backbone(x))
    assert run.tape is None and not plays
    assert len(lines) == 1 and lines[0].startswith("steps are not recorded: ")
    if DEVICE.type == "cuda":  # and all is as if nothing had been tried
        torch.rand(1, device=DEVICE)
        held = torch.empty(2**28, device=DEVICE)
        before = torch.cuda.memory_reserved()
        del held
        give_back()
        assert torch.cuda.memory_reserved() <= before - 2**28


def test_a_backbone_is_recorded_in_training_alone_and_only_meanwhile() -> None:
    learned = on_images()
    (backbone,) = trained_backbones(learned)
    with recorded(learned, WISH, GPU):
        assert isinstance(backbone.stand_in, Recording)
        for parameter in backbone.parameters():
            parameter.grad = torch.zeros_like(parameter)
    assert backbone.stand_in is None
    assert all(parameter.grad is None for parameter in backbone.parameters())


Asked = list[tuple[str, bool]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Of which objectives passes were to be recorded, and whether there was a wish to."""
    found: Asked = []

    @contextmanager
    def watched(objective: Objective, wish: Wish | None, world: World) -> Iterator[None]:
        found.append((type(objective).__name__, wish is not None))
        with uncompiled(objective, wish, world):
            yield

    for module in (loop, timing):
        monkeypatch.setattr(module, "uncompiled", watched)
    return found


def test_both_steps_are_recorded_unless_they_are_compiled(
    asked: Asked,
    tree: Path,
    tiny: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train(tiny("da-erm"), Manifest.open(tree), tmp_path / "run", device="cpu")
    assert asked == [("Prototype", True), ("ERM", True)]
    asked.clear()
    monkeypatch.setattr(loop, "compiled", lambda *_: nullcontext(True))
    monkeypatch.setattr(optimisation, "next_step", lambda: None)
    train(tiny("da-erm"), Manifest.open(tree), tmp_path / "compiled", device="cpu")
    assert asked == []


def test_steps_of_both_kinds_are_timed_so(
    asked: Asked, tree: Path, features: Manifest, tiny: Callable[..., RunConfig]
) -> None:
    images, device = Manifest.open(tree), torch.device("cpu")
    time_plan(make_plan(tiny("da-erm"), images, device="cpu"), device)
    assert asked == [("ERM", True), ("Prototype", True)]
    asked.clear()
    time_plan(make_plan(tiny("erm"), features, device="cpu"), device)
    assert asked == [("ERM", False)]


@pytest.mark.parametrize(
    ("wish", "world", "algorithm"),
    [
        (None, GPU, "erm"),
        (replace(WISH, setting="off"), GPU, "erm"),
        (replace(WISH, steps=LEAST_STEPS - 1), GPU, "erm"),
        (WISH, World(), "erm"),
        (WISH, replace(GPU, size=2), "erm"),
        (WISH, GPU, "mldg"),
    ],
)
def test_where_nothing_is_recorded(wish: Wish | None, world: World, algorithm: str) -> None:
    learned = on_images(algorithm)
    with recorded(learned, wish, world):
        assert trained_backbones(learned)[0].stand_in is None


def test_the_setting_says_from_how_many_steps_on() -> None:
    (said,) = (field.metadata["about"] for field in fields(TrainConfig) if field.name == "compile")
    assert f"recorded as CUDA graphs from {LEAST_STEPS} steps on" in said
    assert f"torch.compile as well from {compiling.LEAST_STEPS};" in said


def test_a_backbone_that_draws_is_not_recorded() -> None:
    learned = on_images()
    (backbone,) = trained_backbones(learned)
    backbone.may_draw = True
    with recorded(learned, WISH, GPU):
        assert backbone.stand_in is None


IMAGES: dict[str, Any] = {
    "train.steps": LEAST_STEPS,
    "train.checkpoint_every": 10,
    "model.backbone": "resnet18",
    "model.pretrained": False,
    "model.freeze": "none",
    "test_domains": ["west"],
}


@on_gpu
@pytest.mark.parametrize("algorithm", ["erm", "da-coral", "da-dann", "irm"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_run_is_the_same_with_and_without(
    algorithm: str,
    precision: str,
    tree: Path,
    tiny: Callable[..., RunConfig],
    tmp_path: Path,
    plays: list[str],
) -> None:
    found = {}
    for setting in ("off", "auto"):
        plays.clear()
        changes = {**IMAGES, "train.compile": setting, "train.precision": precision}
        train(tiny(algorithm, **changes), Manifest.open(tree), tmp_path / setting, device="cuda")
        assert bool(plays) == (setting == "auto")
        losses = RunFolder(tmp_path / setting).records().losses
        found[setting] = [(loss.risk, loss.penalty) for loss in losses]
    assert found["auto"] == found["off"]


@on_gpu
def test_steps_are_timed_as_they_will_be(
    tree: Path, tiny: Callable[..., RunConfig], plays: list[str]
) -> None:
    for steps, recorded_once in ((LEAST_STEPS, 1), (LEAST_STEPS - 1, 0)):
        plays.clear()
        config = tiny("erm", **{**IMAGES, "train.steps": steps})
        time_plan(make_plan(config, Manifest.open(tree), device="cuda"), torch.device("cuda"))
        assert plays.count("record pass") == recorded_once


@on_gpu
def test_memory_is_given_back_while_another_thread_records() -> None:
    """Which torch refuses, or does not do: the one waits for the other."""

    def work() -> None:
        begun.set()
        time.sleep(0.2)
        made.append(torch.ones(1000, device="cuda") * 2)

    begun, made = threading.Event(), []
    with ThreadPoolExecutor(1) as pool:
        held = torch.empty(2**28, device="cuda")
        before = torch.cuda.memory_reserved()
        del held
        recording_now = pool.submit(recording.recorder(torch.device("cuda")), work)
        begun.wait(10)
        give_back()
        assert torch.cuda.memory_reserved() <= before - 2**28
        play = recording_now.result(10)
    play()
    assert made[0].sum().item() == 2000
