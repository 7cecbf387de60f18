"""How long work says how far it is. The library is silent; the command line draws a bar."""

from typing import Protocol


class Watch(Protocol):
    """Told of `done` of `total` pieces of `phase`, with a word on how it goes."""

    def __call__(self, phase: str, done: int, total: int, note: str) -> None: ...


def unwatched(phase: str, done: int, total: int, note: str) -> None:
    """For those who do not look."""
