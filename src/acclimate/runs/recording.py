"""Training steps whose backbone is asked for in two calls.

A step of ResNet-50 is some thousand operations, over which a GPU takes little longer than the host
does to ask for them; and the host has batches to make ready at the same time. In runs too short to
compile, a backbone's forward and backward passes are recorded as CUDA graphs while a batch passes,
and played for those that follow: the same kernels, and the same numbers to the bit.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from acclimate.core.distributed import World
from acclimate.core.graphs import give_back, recorded_graph
from acclimate.data.on_device import free_on
from acclimate.learn.models import Backbone, layout_kept, may_draw
from acclimate.learn.objective import Objective
from acclimate.runs.compiling import Wish, impossible, in_a_line, trained_backbones

LEAST_STEPS = 100  # with fewer, recording takes longer than it saves
FIRST = 2  # passes that go as ever: they load what is called, and show what memory it takes
SPARE = 3  # times what a pass keeps for gradients; a recording takes less than two


@contextmanager
def uncompiled(objective: Objective, wish: Wish | None, world: World) -> Iterator[None]:
    """Steps that are not compiled, spared some work where one gradient is enough."""
    if not objective.compilable:
        yield
        return
    with layout_kept(objective, world.device), recorded(objective, wish, world):
        yield


@contextmanager
def recorded(objective: Objective, wish: Wish | None, world: World) -> Iterator[None]:
    """The objective's backbone recorded, for as long as training goes on, where that is possible
    and pays. Whoever changes what its layers do must have done so before."""
    if (
        wish is None
        or wish.setting == "off"
        or wish.steps < LEAST_STEPS
        or impossible(objective, world)
        or may_draw(objective)  # what is played draws other numbers
    ):
        yield
        return
    (backbone,) = trained_backbones(objective)
    backbone.stand_in = Recording(backbone, wish.say)
    try:
        yield
    finally:
        backbone.stand_in = None
        for parameter in backbone.parameters():
            parameter.grad = None  # which lie in the recording's memory, and would keep it


class Recording:
    """A backbone that learns, for batches of one shape; as ever, where that cannot be recorded."""

    def __init__(self, backbone: Backbone, say: Callable[[str], None] = lambda line: None) -> None:
        self.backbone, self._say = backbone, say
        self.tape: Tape | None = None
        self._passed = 0
        self._kept = 0  # bytes, for gradients

    def __call__(self, x: Tensor) -> Tensor:
        if self._passed < FIRST:
            return self._first(x)
        if self._passed == FIRST:
            self._passed += 1
            self.tape = self._recorded(x)
        if self.tape is None or not self.tape.fits(x):
            return self.backbone.normalised_body(x)
        found: Tensor = _Played.apply(x, self.tape, *self.tape.parameters)  # type: ignore[no-untyped-call]
        return found

    def _first(self, x: Tensor) -> Tensor:
        before = taken(x.device)
        found = self.backbone.normalised_body(x)
        self._passed += 1
        self._kept = taken(x.device) - before
        return found

    def _recorded(self, x: Tensor) -> "Tape | None":
        if spare(x.device) < SPARE * self._kept:
            return None
        give_back()  # what passes took that went as ever
        try:
            return Tape(self.backbone, x)
        except Exception as error:  # whatever a network does that graphs cannot hold
            self._say(f"steps are not recorded: {in_a_line(error)}")
            return None


class Tape:
    """The passes of a batch: they read and write the same memory each time."""

    _out: Tensor
    _found: tuple[Tensor | None, ...]

    def __init__(self, backbone: Backbone, x: Tensor) -> None:
        self.parameters = [one for one in backbone.parameters() if one.requires_grad]
        self._backbone, self._x = backbone, torch.empty_like(x)
        self._kind = _kind_of(x)
        record = recorder(x.device)
        self._forward = record(self._pass)
        self._slope = torch.zeros_like(self._out)
        self._backward = record(self._pass_back)
        # Parameters are not to know of the stream on which it was recorded.
        self._out = self._out.detach()
        self._turn: weakref.ref[Turn] | None = None

    def fits(self, x: Tensor) -> bool:
        """Whether it is for batches like this one, and what it holds is of no more use."""
        return _kind_of(x) == self._kind and (self._turn is None or self._turn() is None)

    def played(self, x: Tensor, turn: "Turn") -> Tensor:
        self._turn = weakref.ref(turn)
        for parameter in self.parameters:
            if parameter.grad is not None:  # of another part of the batch, in memory used again now
                parameter.grad = parameter.grad.clone()
        self._x.copy_(x)
        self._forward()
        return self._out.detach().clone()  # whoever has it may keep it

    def played_back(self, slope: Tensor, turn: "Turn") -> tuple[Tensor | None, ...]:
        """Gradients by the parameters, in memory of its own, which autograd takes as it is."""
        if self._turn is None or self._turn() is not turn:
            raise RuntimeError("what a recorded pass keeps for gradients serves once")
        self._turn = None
        self._slope.copy_(slope)
        self._backward()
        return tuple(None if one is None else one.detach() for one in self._found)

    def _pass(self) -> None:
        kind = self._x.device.type
        on, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        # Without a cache: it would keep what a recording holds for others.
        with torch.enable_grad(), torch.autocast(kind, dtype, enabled=on, cache_enabled=False):
            self._out = self._backbone.normalised_body(self._x)

    def _pass_back(self) -> None:
        with torch.autocast(self._x.device.type, enabled=False):
            found = torch.autograd.grad(self._out, self.parameters, self._slope, allow_unused=True)
        # Parameters that are added have one gradient, and are to have one each.
        places = [None if one is None else one.data_ptr() for one in found]
        self._found = tuple(
            one if one is None or places.index(one.data_ptr()) == place else one.clone()
            for place, one in enumerate(found)
        )


def _kind_of(x: Tensor) -> tuple[object, ...]:
    """What a recording is made for."""
    kind = x.device.type
    cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return x.shape, x.dtype, x.requires_grad, cast


class Turn:
    """Lives as long as gradients of a pass may be asked for."""


class _Played(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tape: Tape, *parameters: Tensor) -> Tensor:
        ctx.tape, ctx.turn = tape, Turn()
        return tape.played(x, ctx.turn)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.tape.played_back(slope, ctx.turn))


def recorder(device: torch.device) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """What records work as CUDA graphs that share memory, and are played one after the other."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    pool = torch.cuda.graph_pool_handle()

    def record(work: Callable[[], None]) -> Callable[[], None]:
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            graph = recorded_graph(work, pool)
        torch.cuda.current_stream(device).wait_stream(stream)
        return graph.replay

    return record


def taken(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device)


def spare(device: torch.device) -> float:
    """Bytes that may be taken, those that torch holds ready among them."""
    ready = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free_on(device) + ready
