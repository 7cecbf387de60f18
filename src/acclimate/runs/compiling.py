"""Training steps through torch.compile and CUDA graphs, where that is possible and pays."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acclimate.core.distributed import World
from acclimate.core.generators import turns
from acclimate.learn.models import Backbone
from acclimate.learn.objective import Objective

# Compiling takes half a minute and makes a step some thousandths of a second shorter than one that
# is recorded. The whole run counts, not what is left of it: a resumed run must compute as before.
LEAST_STEPS = 10_000


@dataclass(frozen=True)
class Wish:
    """What a run asks for: `setting` is train.compile; batches have `rows` images of `size` px, of
    which each of `parts` is worked off by itself."""

    setting: str
    steps: int
    rows: int
    parts: int
    size: int
    bf16: bool
    say: Callable[[str], None] = lambda line: None


@contextmanager
def compiled(objective: Objective, wish: Wish | None, world: World) -> Iterator[bool]:
    """The objective's backbone compiled, for as long as training goes on; whether it is."""
    if wish is None or wish.setting == "off":
        yield False
        return
    why = impossible(objective, world)
    if why or (wish.setting == "auto" and wish.steps < LEAST_STEPS):
        if why and wish.setting == "on":
            wish.say(f"not compiled: {why}")
        yield False
        return
    backbone = trained_backbones(objective)[0]
    try:
        why = _tried(backbone, wish, world.device)
        if why:
            wish.say(f"not compiled: {why}")
        yield not why
    finally:
        backbone.stand_in = None


def trained_backbones(objective: Objective) -> list[Backbone]:
    """Those that see images, and learn."""
    found = [part for part in objective.modules() if isinstance(part, Backbone)]
    return [
        one
        for one in found
        if one.size and one.extractor is None and any(p.requires_grad for p in one.parameters())
    ]


def impossible(objective: Objective, world: World) -> str:
    """Why neither compiled nor recorded steps can be, if so."""
    if world.device.type != "cuda":
        return "that is for GPUs"
    if world.size > 1:
        return "several processes share the run"
    if not objective.compilable:
        return "the algorithm takes gradients of gradients, which compiled networks do not have"
    backbones = trained_backbones(objective)
    if len(backbones) != 1:
        return f"{len(backbones)} backbones learn from images, not one"
    return ""


def _tried(backbone: Backbone, wish: Wish, device: torch.device) -> str:
    """Compile by a first step on nothing, which leaves no trace; why that failed, if it did."""
    buffers = {name: value.clone() for name, value in backbone.named_buffers()}
    modes = [(part, part.training) for part in backbone.modules()]
    try:
        backbone.stand_in = compile_body(backbone)
        backbone.train()
        with turns():
            for _ in range(3):  # CUDA graphs are recorded after a first pass
                _step_on_nothing(backbone, wish, device)
    except Exception as error:  # whatever the compiler and its tools raise
        backbone.stand_in = None
        return in_a_line(error)
    finally:
        for part, mode in modes:
            part.training = mode
        for parameter in backbone.parameters():
            parameter.grad = None
        with torch.no_grad():
            for name, value in backbone.named_buffers():
                value.copy_(buffers[name])
    return ""


def in_a_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"


def compile_body(backbone: Backbone) -> Callable[[Tensor], Tensor]:
    """A function, not a module: names of weights stay what they are."""
    from torch._inductor import config as inductor  # seconds to import, and most runs do without

    options: dict[str, Any] = {"triton.cudagraphs": True}
    if hasattr(inductor, "deterministic"):
        options["deterministic"] = True  # no kernel is chosen by the clock: resumed runs agree
    made: Callable[[Tensor], Tensor] = torch.compile(
        backbone.normalised_body, dynamic=False, options=options
    )
    return made


def next_step() -> None:
    """What the last step left in the memory of CUDA graphs may be overwritten."""
    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


def _step_on_nothing(backbone: Backbone, wish: Wish, device: torch.device) -> None:
    shape = (wish.rows, 3, wish.size, wish.size)
    x = torch.zeros(shape, device=device).contiguous(memory_format=torch.channels_last)
    next_step()
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=wish.bf16):
        found = backbone(x[:: wish.parts])
    found.float().sum().backward()
    for parameter in backbone.parameters():
        parameter.grad = None
