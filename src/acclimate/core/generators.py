"""A generator for each thread; torch's, which threads share, where layers know no other."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")
_HERE = threading.local()
_TURN = threading.RLock()
_PLACES = {
    Tensor: "bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_",
    torch: "bernoulli multinomial normal rand randint randn randperm",
    nn.init: "kaiming_normal_ kaiming_uniform_ normal_ orthogonal_ sparse_ trunc_normal_ uniform_ "
    "xavier_normal_ xavier_uniform_",
}
_DRAWING = {getattr(place, name) for place, names in _PLACES.items() for name in names.split()}


@contextmanager
def own_generator(seed: int, device: torch.device = _CPU) -> Iterator[None]:
    """Inside, `dropout` of this thread draws from a generator of its own: neither other threads
    nor the caller's random state matter to it, or feel it."""
    with _drawing_from(torch.Generator(device).manual_seed(seed)):
        yield


@contextmanager
def own_weights(seed: int) -> Iterator[None]:
    """Inside, layers that this thread builds also draw their weights from its own generator.

    Every call into torch passes through Python in here, so steps of a training do without.
    """
    with own_generator(seed), _Drawing():
        yield


@contextmanager
def weights_to_come() -> Iterator[None]:
    """Inside, layers that this thread builds draw nothing into their parameters, which hold what
    memory held: for networks that are filled before anything else is done with them.

    Buffers are made as ever: not all of them are in files.
    """
    with _Undrawn():
        yield


@contextmanager
def turns(seed: int | None = None) -> Iterator[None]:
    """torch's generator, for layers that draw from it and can be given no other: threads that come
    here take turns, and afterwards its state on the CPU is what it was.

    It begins at `seed`; without, at where this thread's own generator is, which then goes on from
    where this one ends. Draws that other threads make meanwhile without coming here are not kept
    apart: they take numbers from the same sequence, and which is not repeatable.
    """
    own = _own()
    with _TURN, torch.random.fork_rng(devices=[]), _drawing_from(None):
        if seed is not None:
            torch.manual_seed(seed)
        elif own is not None:
            torch.set_rng_state(own.get_state())
        yield
        if seed is None and own is not None:
            own.set_state(torch.get_rng_state())


def _own() -> torch.Generator | None:
    """The generator of this thread; None where it draws from torch's."""
    found: torch.Generator | None = getattr(_HERE, "generator", None)
    return found


@contextmanager
def _drawing_from(generator: torch.Generator | None) -> Iterator[None]:
    before = _own()
    _HERE.generator = generator
    try:
        yield
    finally:
        _HERE.generator = before


def dropout(x: Tensor, share: float, training: bool) -> Tensor:
    """As `torch.nn.functional.dropout`, from the generator of this thread."""
    if not training or not share:
        return x
    kept = torch.empty_like(x).bernoulli_(1 - share, generator=_own())
    return x * kept.div_(1 - share)


class Dropout(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.share, self.training)


class _WhereDrawn(TorchFunctionMode):
    """Sees to every function that draws; others are called as ever."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        return self.drawn(func, args, given) if func in _DRAWING else func(*args, **given)

    def drawn(self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        raise NotImplementedError


class _Drawing(_WhereDrawn):
    """Gives the thread's generator to those that were given none."""

    def drawn(self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        if given.get("generator") is None:
            given = {**given, "generator": _own()}
        return func(*args, **given)


class _Undrawn(_WhereDrawn):
    """Leaves parameters as they are that would be drawn into."""

    def drawn(self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        into = args[0] if args else given.get("tensor")  # as functions of nn.init come here
        return into if isinstance(into, nn.Parameter) else func(*args, **given)
