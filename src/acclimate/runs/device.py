"""What the device allows: a training step that fits into its memory, and steps that are faster.

A CPU, where the system kills a process that takes too much without a word, sees a few images at a
time; a GPU raises an error, and the loop then divides the batch.

On one GPU, steps are made faster by PyTorch's own means. A step of ResNet-50 is some thousand
kernels, which the host launches hardly faster than a GPU runs them. A CUDA graph launches a
backbone's forward and backward passes in one call each, with the same kernels and the same numbers.
`torch.compile` fuses kernels as well, for half a minute of work. Whatever fails here leaves
training as it is, and says so.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from acclimate.core.distributed import World
from acclimate.core.text import reason_of
from acclimate.learn.models import Backbone, may_draw
from acclimate.learn.models.backbones import SMALL, keep_buffers, keep_layout
from acclimate.learn.objective import Objective

LEAST = 2  # images of a micro-batch: batch norm takes no single one
AT_A_TIME = 32  # images on a CPU: their activations take 1 to 4 GB at 224 px
LOWER = "lower train.per_domain, embedding.per_domain or data.image_size"
# Below, capturing or compiling takes longer than it saves. The whole run counts, not what is left
# of it: a resumed run must compute as before.
GRAPHED_FROM, COMPILED_FROM = 100, 10_000
# While a graph is captured, other threads go on pinning memory, which by default would break it.
IN_THIS_THREAD: dict[str, Any] = {"capture_error_mode": "thread_local"}
SPARE = 2  # times the memory of a step, which a graph must leave room for: it has its own


def trained_backbones(objective: nn.Module) -> list[Backbone]:
    """Those that see images, and learn."""
    backbones = (module for module in objective.modules() if isinstance(module, Backbone))
    return [
        backbone
        for backbone in backbones
        if backbone.size and any(p.requires_grad for p in backbone.parameters())
    ]


def cpu_micro_batches(
    objective: Objective, images: int, size: int, world: World, say: Callable[[str], None]
) -> int:
    """In how many micro-batches a CPU takes steps of `images` of `size` px; 1 elsewhere."""
    large = world.device.type == "cpu" and size > SMALL
    count = -(-images // AT_A_TIME) if large else 1
    if count == 1 or not (objective.divisible and trained_backbones(objective)):
        return 1
    say(f"{micro_batch_note(count)}; to see all at once, --set train.micro_batches=1")
    return count


def micro_batch_note(count: int) -> str:
    return (
        f"training in {count} micro-batches, with one more forward pass each; losses are those of "
        f"the whole batch, and batch norm takes each micro-batch's statistics"
    )


@contextmanager
def accelerated(
    objective: Objective, setting: str, steps: int, world: World, say: Callable[[str], None]
) -> Iterator["FasterBody | None"]:
    """The objective's backbone graphed or compiled while it is trained, where that is possible and
    pays. `setting` is train.compile; the value is None where steps go as ever."""
    compile = setting == "on" or (setting == "auto" and steps >= COMPILED_FROM)
    backbones = trained_backbones(objective)
    one_gpu = world.device.type == "cuda" and world.size == 1
    possible = one_gpu and len(backbones) == 1 and objective.compilable
    if not possible and setting == "on":
        say(
            "not compiled: that takes one GPU and one process, one backbone that learns from "
            "images, and an algorithm without gradients of gradients"
        )
    # A replayed graph would draw other random numbers than the step is seeded with.
    graph = setting == "auto" and steps >= GRAPHED_FROM and not may_draw(objective)
    if not possible or not (compile or graph):
        with keep_layout(objective) if objective.compilable else nullcontext():
            yield None
        return
    (backbone,) = backbones
    backbone.stand_in = body = FasterBody(backbone, say, compile=compile)
    try:
        # The compiler fuses frozen batch norms itself, and keeps their layout.
        with nullcontext() if compile else keep_layout(backbone):
            yield body
    finally:
        backbone.stand_in = None
        for parameter in backbone.parameters():
            parameter.grad = None  # it may lie in a graph's memory, and would keep it


class FasterBody:
    """Stands in for a backbone's body in training steps, for batches of one shape."""

    def __init__(
        self, backbone: Backbone, say: Callable[[str], None], *, compile: bool = False
    ) -> None:
        self.backbone, self.say, self.compile = backbone, say, compile
        self._body: Callable[[Tensor], Tensor] | None = None
        self._shape: torch.Size | None = None
        # The first pass is eager where graphs are captured: it loads kernels, and shows how much
        # memory a pass takes. Compiled numbers differ, so that resumed runs compile at once.
        self._passes_before = 0 if compile else 1
        self._busy = False  # a graph's memory holds a pass whose gradients may yet be asked for

    def __deepcopy__(self, memo: object) -> None:
        return None  # averages of weights copy the backbone, and not what makes its steps faster

    def begin_step(self) -> None:
        self._busy = False
        if self.compile:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

    def __call__(self, x: Tensor) -> Tensor:
        if self._passes_before == 0:
            self._prepare(x)
        self._passes_before -= 1
        if self._body is None or self._busy or x.shape != self._shape or x.requires_grad:
            return self.backbone.normalised_body(x)
        self._busy = not self.compile
        return self._body(x)

    def _prepare(self, x: Tensor) -> None:
        """Compile or capture on an empty batch; batch norm's statistics stay as they were."""
        make, what = (compiled, "compiled") if self.compile else (graphed, "graphed")
        try:
            with keep_buffers(self.backbone), warnings.catch_warnings():
                # Gradients of the eager pass were accumulated on another stream: no harm done.
                warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")
                self._body = make(self.backbone, x)
            self._shape = x.shape
        except Exception as error:  # whatever a compiler, or a capture, may stumble over
            self.say(f"not {what}: {reason_of(error)}")
            if x.device.type == "cuda":
                renew_generator(x.device)


def renew_generator(device: torch.device) -> None:
    """Give a GPU's own generator a state that no graph is captured with. A capture that fails
    leaves the old one as if it went on, and whatever draws from it would fail (torch 2.11)."""
    generator = torch.cuda.default_generators[device.index or 0]
    fresh = torch.Generator(device).manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


class _Body(nn.Module):
    """A backbone's normalised body as a module, which is what PyTorch makes graphs of."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor) -> Tensor:
        return self.backbone.normalised_body(x)


def graphed(backbone: Backbone, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Forward and backward passes on batches like `x`, captured as CUDA graphs."""
    kind = x.device.type
    if torch.cuda.mem_get_info(x.device)[0] < SPARE * torch.cuda.max_memory_allocated(x.device):
        raise RuntimeError("too little memory is free")
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    # Without autocast's cache, which would keep what lies in a graph's memory for others.
    with (
        torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False),
        mock.patch.object(torch.cuda, "graph", partial(torch.cuda.graph, **IN_THIS_THREAD)),
    ):
        body: Callable[[Tensor], Tensor] = torch.cuda.make_graphed_callables(  # type: ignore[assignment]
            _Body(backbone), (torch.zeros_like(x),), allow_unused_input=True
        )
    return body


def compiled(backbone: Backbone, x: Tensor) -> Callable[[Tensor], Tensor]:
    """`torch.compile` of the passes; its caches on disk make the next run's compilation short."""
    from torch._inductor import config as inductor  # seconds to import, and most runs do without

    options: dict[str, str | int | bool | Callable[..., object]] = {"triton.cudagraphs": True}
    if hasattr(inductor, "deterministic"):
        options["deterministic"] = True  # no kernel is chosen by the clock: resumed runs agree
    body: Callable[[Tensor], Tensor] = torch.compile(
        backbone.normalised_body, dynamic=False, options=options
    )
    learned = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    for _ in range(3):  # errors come now, those of the backward pass too
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        torch.autograd.grad(body(torch.zeros_like(x)).float().sum(), learned, allow_unused=True)
    return body
