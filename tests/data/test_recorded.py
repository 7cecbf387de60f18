"""Augmentation that is played from a record: what it is without, image for image."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from acclimate.core.randomness import stream
from acclimate.data import recorded
from acclimate.data.augment import Numbers, augment, draw
from acclimate.data.recorded import Recorder, augmented_images
from acclimate.data.source import to_float
from fixtures.gpu import on_gpu

SIDE = 20


def some(number: int, count: int = 6, device: str = "cpu") -> tuple[Tensor, Numbers]:
    rng = stream(number, "images")
    stored = torch.from_numpy(rng.integers(0, 256, (count, 3, SIDE, SIDE), np.uint8))
    return stored.to(device), draw(count, SIDE, SIDE, rng).sent(torch.device(device))


def on_a_side_stream(record: Callable[[], None]) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        record()
        torch.cuda.current_stream().synchronize()


def test_without_a_gpu_nothing_is_recorded() -> None:
    recorder = Recorder()
    for number in range(3):
        stored, numbers = some(number)
        expected = augment(to_float(stored, torch.device("cpu")), numbers)
        assert torch.equal(recorder(stored, numbers), expected)
        assert torch.equal(augmented_images(stored, numbers), expected)


@on_gpu
def test_every_order_is_played_as_it_would_be_done() -> None:
    def check() -> None:
        recorder, made = Recorder(), []
        orders = list(itertools.permutations(some(0)[1].order))
        for number, order in enumerate([*orders, *orders]):
            stored, numbers = some(number, device="cuda")
            numbers = replace(numbers, order=order)
            made.append((recorder(stored, numbers), augmented_images(stored, numbers)))
        assert recorder._tape is not None and len(recorder._tape.graphs) == len(orders)
        for played, done in made:  # of those that came before, too
            assert torch.equal(played, done)
            assert played.is_contiguous(memory_format=torch.channels_last)

    on_a_side_stream(check)


@on_gpu
def test_images_of_another_number_are_done_as_ever() -> None:
    def check() -> None:
        recorder = Recorder()
        for number, count in enumerate((6, 6, 5, 6)):
            stored, numbers = some(number, count, device="cuda")
            assert torch.equal(recorder(stored, numbers), augmented_images(stored, numbers))

    on_a_side_stream(check)


@on_gpu
@pytest.mark.parametrize("needed", [0, 10**9])
def test_without_room_to_record_all_is_done_as_ever(
    needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is known before, or found out in the middle of it; then no memory stays taken."""

    def too_large(images: Tensor, numbers: Numbers) -> Tensor:
        if not torch.cuda.is_current_stream_capturing():
            return augment(images, numbers)
        tried.append(torch.empty(1000, device="cuda"))
        raise torch.OutOfMemoryError

    tried: list[object] = []
    monkeypatch.setattr(recorded, "NEEDED", needed)
    monkeypatch.setattr(recorded, "augment", too_large)

    def check() -> None:
        recorder = Recorder()
        for number in range(4):
            stored, numbers = some(number, device="cuda")
            assert torch.equal(recorder(stored, numbers), augmented_images(stored, numbers))
        tried.clear()
        before = torch.cuda.memory_allocated()
        for number in range(20):
            stored, numbers = some(number, count=500, device="cuda")
            made = recorder(stored, numbers)
            made.record_stream(torch.cuda.default_stream())
            del made, stored
        torch.cuda.synchronize()
        torch.empty(1, device="cuda")  # whoever asks for memory gives back what is done with
        assert torch.cuda.memory_allocated() <= before + 2**20

    on_a_side_stream(check)
