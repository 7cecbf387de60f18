"""Images that count twice are told of."""

from pathlib import Path

import numpy as np
import pytest
import torch

from acclimate.adapt.classifier import adapt
from acclimate.learn.embeddings import DomainState
from fixtures.models import FEATURES, SIZE, make_trained


def pictures(count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return list(rng.integers(0, 256, (count, SIZE, SIZE, 3)).astype(np.uint8))


def test_images_that_were_seen_before_are_noticed(tmp_path: Path) -> None:
    trained, images = make_trained("concat"), pictures(6)
    first = adapt(trained, images[:4], method="embedding")
    assert first.notes == () and first.state is not None
    first.state.save(tmp_path / "state")
    stored = DomainState.load(tmp_path / "state")
    assert torch.equal(stored.seen, first.state.seen) and len(stored.seen) == 4
    assert adapt(trained, images[4:], method="embedding", into=stored).notes == ()
    again = adapt(trained, images[3:], method="embedding", into=stored)
    (note,) = again.notes
    assert "1 image was seen before" in note
    assert again.state is not None and (again.state.count, len(again.state.seen)) == (7, 6)


@pytest.mark.parametrize(
    ("kind", "method"),
    [("concat", "auto"), ("concat", "embedding"), ("concat", "prior"),
     ("frozen", "prior"), ("frozen", "none")],
)  # fmt: skip
def test_images_that_are_given_twice_are_noticed(kind: str, method: str) -> None:
    images = pictures(3)
    found = adapt(make_trained(kind), [*images, *images[:2]], method=method)
    assert "2 images were seen before" in found.notes[-1]


def test_equal_rows_of_features_are_no_repeats() -> None:
    rows = np.ones((5, FEATURES), dtype=np.float32)
    found = adapt(make_trained("features concat"), rows, method="embedding")
    assert found.notes == () and found.state is not None and len(found.state.seen) == 0
