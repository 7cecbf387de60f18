"""Every operation against torchvision, one sample at a time; the draws against their laws."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from acclimate.core.randomness import stream
from acclimate.data import augment as module
from acclimate.data.augment import (
    Draws,
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    augment,
    crop_and_flip,
    draw,
)
from acclimate.learn.models.weights import import_torchvision
from fixtures.errors import refused


@pytest.fixture(scope="module")
def functional() -> ModuleType:
    import_torchvision()
    from torchvision.transforms.v2 import functional

    return functional


@pytest.fixture
def images() -> Tensor:
    """Eight of noise with greys, pure colours and ties between channels among the pixels."""
    pixels = torch.rand(8, 3, 20, 24, generator=torch.Generator().manual_seed(1))
    pixels[:, :, 0] = pixels[:, :1, 0]
    pixels[:, 0, 1] = pixels[:, 1, 1]
    pixels[:, 1, 2] = pixels[:, 2, 2]
    pixels[:, :, 3] = pixels[:, :, 3].round()
    return pixels


def each(factors: Tensor) -> Tensor:
    return factors.view(-1, 1, 1, 1)


OPERATIONS = {
    "brightness": (adjust_brightness, (0.0, 0.7, 1.0, 1.3)),
    "contrast": (adjust_contrast, (0.0, 0.7, 1.0, 1.3)),
    "saturation": (adjust_saturation, (0.0, 0.7, 1.0, 1.3)),
    "hue": (adjust_hue, (-0.5, -0.3, -0.1, 0.0, 0.01, 0.2, 0.3, 0.5)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_jitter_is_torchvisions(name: str, images: Tensor, functional: ModuleType) -> None:
    operation, values = OPERATIONS[name]
    factors = torch.tensor([values[i % len(values)] for i in range(len(images))])
    before = images.clone()
    ours = operation(images, each(6 * factors if name == "hue" else factors))
    reference: Callable[..., Tensor] = getattr(functional, f"adjust_{name}")
    for image, factor, mine in zip(images, factors, ours, strict=True):
        torch.testing.assert_close(mine, reference(image, factor.item()), atol=2e-6, rtol=0)
    assert torch.equal(images, before)


def test_hue_by_hand() -> None:
    red = torch.tensor([1.0, 0.2, 0.2]).view(1, 3, 1, 1)
    third = adjust_hue(red, torch.tensor(2.0)).flatten()  # red goes to green
    torch.testing.assert_close(third, torch.tensor([0.2, 1.0, 0.2]))
    half = adjust_hue(red, torch.tensor(3.0)).flatten()  # and to cyan
    torch.testing.assert_close(half, torch.tensor([0.2, 1.0, 1.0]))


def cropped(images: Tensor, box: tuple[int, ...], *, flip: bool) -> Tensor:
    draws = neutral(len(images), *images.shape[2:])
    box_of_each = np.tile(np.float32(box), (len(images), 1))
    return crop_of(images, replace(draws, box=box_of_each, flip=np.full(len(images), flip)))


def crop_of(images: Tensor, draws: Draws) -> Tensor:
    return crop_and_flip(images, torch.from_numpy(draws.packed()[:6]))


BOXES = [(0, 0, 20, 24), (3, 5, 14, 17), (0, 0, 15, 20), (6, 2, 14, 22), (1, 1, 18, 18)]


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("flip", [False, True])
def test_crop_is_torchvisions(
    box: tuple[int, ...], flip: bool, images: Tensor, functional: ModuleType
) -> None:
    height, width = images.shape[2:]
    ours = cropped(images[:1], box, flip=flip)
    reference = functional.resized_crop(images[:1], *box, [height, width], antialias=True)
    if flip:
        reference = functional.horizontal_flip(reference)
    # At the border of the box torchvision repeats the last pixel, we see the real neighbour.
    torch.testing.assert_close(ours[..., 1:-1, 1:-1], reference[..., 1:-1, 1:-1], atol=1e-5, rtol=0)


def test_a_box_of_the_images_own_size_moves_whole_pixels(images: Tensor) -> None:
    height, width = images.shape[2:]
    moved = cropped(images, (2, 3, height, width), flip=False)  # beyond the edge on two sides
    torch.testing.assert_close(moved[..., :-2, :-3], images[..., 2:, 3:], atol=1e-5, rtol=0)
    mirrored = cropped(images, (0, 0, height, width), flip=True)
    torch.testing.assert_close(mirrored, images.flip(3), atol=1e-5, rtol=0)


def neutral(count: int, height: int, width: int) -> Draws:
    one, no = np.ones(count, np.float32), np.zeros(count, bool)
    return Draws(
        size=(height, width),
        order=("hue", "contrast", "brightness", "saturation"),
        box=np.tile(np.float32([0, 0, height, width]), (count, 1)),
        flip=no,
        brightness=one,
        contrast=one,
        saturation=one,
        hue=np.zeros(count, np.float32),
        grey=no,
    )


def test_neutral_draws_change_nothing(images: Tensor) -> None:
    out = augment(images, neutral(8, 20, 24))
    torch.testing.assert_close(out, images, atol=1e-5, rtol=0)


def test_operations_run_in_the_drawn_order_and_greyscale_last(
    images: Tensor, functional: ModuleType
) -> None:
    draws = replace(
        neutral(8, 20, 24),
        brightness=np.linspace(0.7, 1.3, 8, dtype=np.float32),
        contrast=np.linspace(1.3, 0.7, 8, dtype=np.float32),
        saturation=np.linspace(0.8, 1.3, 8, dtype=np.float32),
        hue=np.linspace(-0.3, 0.3, 8, dtype=np.float32),
        grey=np.array([False, True] * 4),
    )
    ours = augment(images, draws)
    for i, image in enumerate(images):
        expected = functional.adjust_hue(image, draws.hue[i].item())
        expected = functional.adjust_contrast(expected, draws.contrast[i].item())
        expected = functional.adjust_brightness(expected, draws.brightness[i].item())
        expected = functional.adjust_saturation(expected, draws.saturation[i].item())
        if i % 2:
            expected = functional.rgb_to_grayscale(expected, num_output_channels=3)
        torch.testing.assert_close(ours[i], expected, atol=1e-5, rtol=0)
    other = augment(images, replace(draws, order=tuple(reversed(draws.order))))
    assert (other - ours).abs().max() > 0.01


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_sample_is_the_same_in_any_company(
    layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = 208  # large enough for a reduction over one image to be split among threads
    batch = torch.rand(6, 3, side, side, generator=torch.Generator().manual_seed(2))
    batch = batch.contiguous(memory_format=layout)
    draws = draw(6, side, side, stream(0, "augment"))
    whole = augment(batch, draws)
    assert 0 <= whole.min() < whole.max() <= 1
    assert whole.is_contiguous(memory_format=layout)
    mine = [5, 2, 3]
    assert torch.equal(augment(batch[mine], draws.take(mine)), whole[mine])
    assert torch.equal(augment(batch[::2], draws.take(np.arange(0, 6, 2))), whole[::2])
    monkeypatch.setattr(module, "_CPU_PIXELS", 1)  # one at a time
    assert torch.equal(augment(batch, draws), whole)


def test_edges_are_not_darkened() -> None:
    white = torch.ones(64, 3, 16, 16)
    draws = draw(64, 16, 16, stream(0, "augment"))
    torch.testing.assert_close(crop_of(white, draws), white)


def test_draws_for_other_images_are_refused(images: Tensor) -> None:
    with refused(ValueError, 8, "(24, 20)", "[8, 3, 20, 24]"):
        augment(images, draw(8, 24, 20, stream(0, "x")))
    with refused(ValueError, 1, "(20, 24)", "[8, 3, 20, 24]"):
        augment(images, draw(1, 20, 24, stream(0, "x")))


def test_draws_are_named_by_their_generator() -> None:
    first, again, other = (draw(5, 32, 32, stream(s, "augment")) for s in (0, 0, 1))
    assert np.array_equal(first.packed(), again.packed())
    assert first.order == again.order
    assert not np.array_equal(first.hue, other.hue)
    assert len(first) == 5 and len(first.take([4, 0])) == 2
    assert np.array_equal(first.take([4, 0]).packed(), first.packed()[:, [4, 0]])


def test_an_empty_share_of_a_batch() -> None:
    draws = draw(4, 8, 8, stream(0, "augment")).take(slice(4, 8))
    assert augment(torch.empty(0, 3, 8, 8), draws).shape == (0, 3, 8, 8)


def test_laws_of_the_draws() -> None:
    n = 40_000
    draws = draw(n, 224, 224, stream(3, "augment"))
    top, left, tall, wide = draws.box.T
    assert np.array_equal(draws.box, draws.box.round())
    assert top.min() == 0 and left.min() == 0
    assert (top + tall).max() == 224 and (left + wide).max() == 224
    share, ratio = tall * wide / 224**2, wide / tall
    assert 0.69 < share.min() < 0.71 and 0.99 < share.max() <= 1
    assert 0.74 < ratio.min() < 0.76 and 1.32 < ratio.max() < 1.35
    assert abs(np.log(ratio).mean()) < 0.005  # log-uniform is symmetric about a square
    assert abs((2 * top + tall - 224).mean()) < 0.3  # as much above as below
    assert abs((2 * left + wide - 224).mean()) < 0.3
    assert abs(draws.flip.mean() - 0.5) < 0.01
    assert abs(draws.grey.mean() - 0.1) < 0.005
    for factor in (draws.brightness, draws.contrast, draws.saturation):
        assert 0.7 <= factor.min() < 0.701 and 1.299 < factor.max() <= 1.3
        assert abs(factor.mean() - 1) < 0.003
    assert -0.3 <= draws.hue.min() < -0.299 and 0.299 < draws.hue.max() <= 0.3


@pytest.mark.parametrize(
    ("height", "width", "centre"),
    [(10, 100, (0, 43, 10, 13)), (100, 10, (43, 0, 13, 10))],
)
def test_no_try_fits_a_long_strip(height: int, width: int, centre: tuple[int, ...]) -> None:
    box = draw(50, height, width, stream(0, "augment")).box
    assert np.array_equal(box, np.tile(centre, (50, 1)))


def test_every_order_of_the_jitter_occurs() -> None:
    rng = stream(0, "augment")
    orders = {draw(1, 8, 8, rng).order for _ in range(400)}
    assert len(orders) == 24
