"""What the device allows: a training step that fits into its memory, and steps that are faster.

On a CPU, where the system kills a process that takes too much without a word, memory is checked by
arithmetic; a GPU raises an error, and the loop then divides the batch.

On one GPU, steps are made faster by PyTorch's own means. A step of ResNet-50 is some thousand
kernels, which the host launches hardly faster than a GPU runs them. A CUDA graph launches a
backbone's forward and backward passes in one call each, with the same kernels and the same numbers.
`torch.compile` fuses kernels as well, for half a minute of work. Whatever fails here leaves
training as it is, and says so.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from acclimate.core.distributed import World, local_processes
from acclimate.core.errors import ConfigError
from acclimate.learn.models import Backbone, may_draw
from acclimate.learn.models.backbones import SMALL, keep_buffers, keep_layout
from acclimate.learn.objective import Objective

GIB = 1 << 30
LEAST = 2  # images of a micro-batch: batch norm takes no single one
COPIES = 4  # of the weights: gradients and Adam's two moments beside them
# Batches that lie ready, the allocator's gaps, validation and checkpoints beside a step: measured
# on EfficientNet-Lite0 and ResNet-50 at 224 px, 24 to 64 images.
BESIDE, SLACK = 0.3 * GIB, 1.2
LOWER = "lower train.per_domain, embedding.per_domain or data.image_size"
# Below, capturing or compiling takes longer than it saves. The whole run counts, not what is left
# of it: a resumed run must compute as before.
GRAPHED_FROM, COMPILED_FROM = 100, 10_000
SPARE = 2  # times the memory of a step, which a graph must leave room for: it has its own


def trained_backbones(objective: Objective) -> list[Backbone]:
    """Those that see images, and learn."""
    backbones = (module for module in objective.modules() if isinstance(module, Backbone))
    return [
        backbone
        for backbone in backbones
        if backbone.size
        and backbone.extractor is None
        and any(p.requires_grad for p in backbone.parameters())
    ]


def step_memory(backbones: Sequence[Backbone], size: int) -> tuple[float, float]:
    """Bytes that training `backbones` on images of `size` px takes, counted on a pass of two
    images: a fixed number, and those for each image of a micro-batch."""
    fixed, per_image = BESIDE, 0.0
    for backbone in backbones:
        weights = sum(p.nbytes for p in backbone.parameters())
        fixed += COPIES * weights
        per_image += max(_saved_bytes(backbone, size) - weights, 0) / 2 * SLACK
    return fixed, per_image


def _saved_bytes(backbone: Backbone, size: int) -> int:
    """Bytes that autograd keeps of a forward pass of two images, weights among them."""
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.data_ptr()] = tensor
        return tensor

    x = torch.zeros(2, 3, size, size, device=backbone.mean.device)
    was_training = backbone.training
    with keep_buffers(backbone), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        backbone.train()
        backbone.normalised_body(x.contiguous(memory_format=torch.channels_last))
    backbone.train(was_training)
    return sum(tensor.nbytes for tensor in saved.values())


def fitting_micro_batches(
    objective: Objective, images: int, size: int, world: World, say: Callable[[str], None]
) -> int:
    """The fewest micro-batches in which steps of `images` fit into the memory of a CPU; 1
    elsewhere, and for small images. An error where none do."""
    backbones = trained_backbones(objective)
    if world.device.type != "cpu" or not backbones or size <= SMALL:
        return 1
    free = torch.tensor([available_bytes()], dtype=torch.float64)
    world.broadcast(free)  # processes refuse together, or not at all
    fixed, per_image = step_memory(backbones, size)
    needed = fixed + per_image * images
    if needed <= free.item():
        return 1
    told = (
        f"a step of {images} images of {size} px needs about {needed / GIB:.1f} GiB and "
        f"{free.item() / GIB:.1f} GiB are free"
    )
    if objective.divisible:
        for count in range(2, images // LEAST + 1):
            if fixed + per_image * -(-images // count) <= free.item():
                say(f"{told}: {micro_batch_note(count)}")
                return count
    raise ConfigError(f"{told}; {LOWER}, or train on a GPU")


def micro_batch_note(count: int) -> str:
    return (
        f"training in {count} micro-batches, with one more forward pass each; losses are those of "
        f"the whole batch, and batch norm takes each micro-batch's statistics"
    )


def available_bytes(root: Path = Path("/")) -> float:
    """Bytes that this process may still take, by the machine and by its container's limit;
    infinity where the system does not say."""
    machine = _numbers(root / "proc/meminfo").get("MemAvailable", float("inf")) * 1024
    group = root / "sys/fs/cgroup"
    limit = _numbers(group / "memory.max").get("", float("inf"))
    # Cached files count as used in a container, but give way.
    used, cached = _numbers(group / "memory.current"), _numbers(group / "memory.stat")
    left = limit - used.get("", 0) + cached.get("active_file", 0) + cached.get("inactive_file", 0)
    # Processes of one run on one machine share it equally.
    return max(min(machine, left), 0) / local_processes()


def _numbers(path: Path) -> dict[str, int]:
    """The whole numbers in a file of the system, by the name that stands before each."""
    text = path.read_text() if path.is_file() else ""
    pairs = re.findall(r"^([A-Za-z_]*):?[ \t]*(\d+)\b", text, re.MULTILINE)
    return {name: int(number) for name, number in pairs}


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
            text = " ".join(str(error).split()) or type(error).__name__
            self.say(f"not {what}: {text[:200]}")


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
    with torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False):
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
