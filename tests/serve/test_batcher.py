"""Batches of many sites: each image as alone, in as few passes as may be, and nobody waits long."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from acclimate.adapt.classifier import Adapted, adapt
from acclimate.core.errors import NotFinite, QueueFull
from acclimate.learn.models import Backbone
from acclimate.serve import Batcher
from fixtures.errors import refused
from fixtures.models import make_trained
from fixtures.uploads import pixels


class Passes(list[int]):
    """The images of each pass."""

    def __call__(self, images: int, seconds: float) -> None:
        self.append(images)


@pytest.fixture
def passes() -> Passes:
    return Passes()


@pytest.fixture
def batcher(passes: Passes) -> Iterator[Batcher]:
    made = Batcher(most=16, wait=0.5, room=100, told=passes)
    yield made
    made.close()


def stored(count: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(pixels(count, seed))


def sites(kind: str, methods: list[str]) -> list[Adapted]:
    """Of one model, each adapted to images of its own."""
    trained = make_trained(kind)
    return [adapt(trained, pixels(12, seed), method=method) for seed, method in enumerate(methods)]


def predict(batcher: Batcher, site: Adapted, images: Tensor) -> Tensor:
    with batcher.reserve(len(images)) as room:
        made = room.submit(site.predictor.backbone, images, site.predictor.head).result()
    assert made.logits is not None
    return made.logits.softmax(1)


@pytest.mark.parametrize(
    ("kind", "methods"),
    [
        ("concat", ["embedding"] * 4),
        ("low-rank", ["embedding", "none", "embedding+prior", "embedding"]),
        ("rehearsed", ["embedding+prior", "embedding+prior", "none", "prior"]),
        ("linear", ["prior", "none", "t3a", "bn"]),
    ],
)
def test_each_image_is_answered_as_alone(
    batcher: Batcher, passes: Passes, kind: str, methods: list[str]
) -> None:
    every = sites(kind, methods)
    calls = [(site, stored(3, seed)) for seed, site in enumerate(every)]
    with ThreadPoolExecutor(4) as threads, batcher.reserve(1):  # so that all wait for each other
        found = list(threads.map(lambda call: predict(batcher, *call), calls))
    for (site, images), answer in zip(calls, found, strict=True):
        np.testing.assert_allclose(answer, site.predict_proba(images), atol=1e-5)
    own = [method for method in methods if method == "bn"]  # which has a backbone of its own
    assert sorted(passes) == sorted([12 - 3 * len(own), *[3 for _ in own]])


def test_features_and_predictions_share_a_pass(batcher: Batcher, passes: Passes) -> None:
    (site,) = sites("concat", ["embedding"])
    backbone, embedding = site.trained.predictor.backbone, site.trained.embedding
    images = stored(5)
    with ThreadPoolExecutor(1) as thread, batcher.reserve(6) as room:
        features = thread.submit(room.run, backbone, images, embedding)
        answer = predict(batcher, site, images)
        made = features.result()
    assert passes == [10]
    assert made.features is not None and made.phi is not None and embedding is not None
    with torch.no_grad():
        torch.testing.assert_close(made.features, backbone(images / 255))
        torch.testing.assert_close(made.phi, embedding.phi(images / 255))
    np.testing.assert_allclose(answer, site.predict_proba(images), atol=1e-5)


def test_a_lone_call_waits_for_nobody(passes: Passes) -> None:
    batcher = Batcher(most=16, wait=600.0, told=passes)
    (site,) = sites("concat", ["embedding"])
    with batcher.reserve(40) as room:
        made = room.run(site.predictor.backbone, stored(40))
    assert made.features is not None and len(made.features) == 40
    assert passes == [16, 16, 8]
    batcher.close()


def test_a_small_call_goes_before_the_rest_of_a_large_one() -> None:
    """Where each pass takes long, one image is answered after one more pass, not after ten."""
    (site,) = sites("concat", ["embedding"])
    backbone, started, free = site.predictor.backbone, threading.Event(), threading.Event()
    order: list[str] = []

    def hold(module: object, inputs: tuple[Tensor]) -> None:
        started.set()
        assert free.wait(10)
        order.append("small" if len(inputs[0]) % 4 else "large")

    hook = backbone.register_forward_pre_hook(hold)
    batcher = Batcher(most=4, wait=0.0)
    with ThreadPoolExecutor(2) as threads, batcher.reserve(40) as many:
        large = threads.submit(many.run, backbone, stored(40))
        assert started.wait(10)
        with batcher.reserve(2) as few:
            small = few.submit(backbone, stored(2), site.predictor.head)
        free.set()
        small.result()
        large.result()
    hook.remove()
    batcher.close()
    assert order.index("small") <= 2 and len(order) == 11


def test_there_is_room_for_so_many(batcher: Batcher) -> None:
    with batcher.reserve(90):
        with refused(QueueFull, 90, 100), batcher.reserve(11):
            pass
        with batcher.reserve(10):
            assert batcher.depth == 100
    assert batcher.depth == 0
    with batcher.reserve(5000):  # one call alone is never refused for good
        pass


def test_one_failure_is_nobody_elses(batcher: Batcher, passes: Passes) -> None:
    good, bad = sites("linear", ["prior", "prior"])
    with torch.no_grad():
        bad.predictor.last.bias.fill_(float("nan"))
    with ThreadPoolExecutor(2) as threads, batcher.reserve(1):
        answers = [threads.submit(predict, batcher, site, stored(2)) for site in (bad, good)]
        with refused(NotFinite):
            answers[0].result()
        np.testing.assert_allclose(answers[1].result(), good.predict_proba(stored(2)), atol=1e-5)
    assert passes == [4]
    with batcher.reserve(1) as room, pytest.raises(RuntimeError):
        room.submit(broken(), stored(1), good.predictor.head).result()
    assert len(predict(batcher, good, stored(1))) == 1  # and it goes on


def broken() -> Backbone:
    """A backbone that takes no images."""
    return make_trained("features").predictor.backbone


def test_closing_answers_what_is_waiting() -> None:
    (site,) = sites("concat", ["embedding"])
    batcher = Batcher(most=4, wait=600.0)
    with batcher.reserve(100) as room:
        waiting = room.submit(site.predictor.backbone, stored(3), site.predictor.head)
        batcher.close()
        assert len(waiting.result().logits) == 3  # type: ignore[arg-type]
    with refused(QueueFull, "stopping"), batcher.reserve(1) as room:
        room.submit(site.predictor.backbone, stored(1))
