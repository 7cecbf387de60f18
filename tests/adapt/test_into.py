"""A site's images over months: whatever came when, the classifier is that of all of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acclimate.adapt.classifier import Adapted, adapt, apply_state, open_images
from acclimate.adapt.methods import find_chain
from acclimate.adapt.methods.chain import adapt_model
from acclimate.adapt.seen import begin_state, look
from acclimate.core.errors import ConfigError, ImageError, StateMismatch
from acclimate.data.source import Quarantine, readable
from acclimate.learn.embeddings import DomainState
from acclimate.learn.embeddings.pictures import UNLABELLED, picture_hashes
from acclimate.learn.images import Images
from acclimate.learn.model import Trained
from fixtures.errors import refused
from fixtures.models import CLASSES, FEATURES, SIZE, make_trained, rows_for

# What a state keeps of images is rounded to 16 bits; rows of features stay what they are.
ROUNDED = 2e-3
ORDERS = [[0, 1, 2], [2, 0, 1], [1, 2, 1, 0, 2]]


def in_parts(
    trained: Trained, parts: Sequence[Any], folder: Path, labels: Any = None, **options: Any
) -> Adapted:
    """Adapted to one part after the other, from the file that the one before left."""
    site, path = None, folder / "site.safetensors"
    for place, part in enumerate(parts):
        into = None if site is None else DomainState.load(path)
        own = None if labels is None else labels[place]
        site = adapt(trained, part, labels=own, into=into, **options)
        assert site.state is not None
        site.state.save(path)
    assert site is not None
    return site


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("features", "prior"),
        ("features", "t3a"),
        ("features concat", "embedding+prior"),
        ("concat", "embedding"),
        ("concat", "embedding+prior"),
        ("linear", "prior"),
        ("rehearsed", "embedding+prior"),
        ("frozen rehearsed", "embedding+t3a"),
    ],
)
def test_images_in_parts_are_images_at_once(
    kind: str, method: str, order: list[int], tmp_path: Path
) -> None:
    trained, rows = make_trained(kind), rows_for(kind, 60)
    parts = np.split(rows, [9, 50])
    if "features" in kind:  # equal rows of features are images of their own
        order = list(dict.fromkeys(order))
    once = adapt(trained, rows, method=method)
    found = in_parts(trained, [parts[place] for place in order], tmp_path, method=method)
    assert found.state is not None and found.method == method
    assert found.state.count == len(found.state.pictures) == 60
    tolerance = 1e-6 if "features" in kind else ROUNDED
    np.testing.assert_allclose(found.predict_proba(rows), once.predict_proba(rows), atol=tolerance)
    first = adapt(trained, parts[0], method=method).predict_proba(rows)
    assert np.abs(first - once.predict_proba(rows)).max() > 2 * ROUNDED
    stored = apply_state(trained, DomainState.load(tmp_path / "site.safetensors"))
    np.testing.assert_array_equal(stored.predict_proba(rows), found.predict_proba(rows))


def test_labels_in_parts_are_labels_at_once(tmp_path: Path) -> None:
    trained, rows = make_trained("features"), rows_for("features", 40)
    labels = [CLASSES[place % 2] if place % 5 == 0 else None for place in range(40)]
    once = adapt(trained, rows, labels=labels, method="prior")
    parts, own = [rows[:20], rows[20:]], [labels[:20], [None] * 20]
    found = in_parts(trained, parts, tmp_path, own, method="prior")
    assert found.method == "prior+labels"  # those of the first part stay
    found = in_parts(trained, parts, tmp_path, [labels[:20], labels[20:]], method="prior")
    np.testing.assert_array_equal(found.predict_proba(rows), once.predict_proba(rows))


def test_an_image_that_was_seen_gets_its_label_later(tmp_path: Path) -> None:
    trained, images = make_trained("linear"), pictures(6)
    labels = [CLASSES[2], *[None] * 5]
    once = adapt(trained, images, labels=labels, method="none")
    parts, own = [images, images[:1]], [None, labels[:1]]
    found = in_parts(trained, parts, tmp_path, own, method="none")
    assert found.state is not None
    assert (found.state.count, found.state.pictures.labelled, found.method) == (6, 1, "labels")
    assert "1 image was seen before" in found.notes[-1]
    np.testing.assert_allclose(
        found.predict_proba(images), once.predict_proba(images), atol=ROUNDED
    )


def test_with_more_images_than_are_kept_a_sample_adapts(tmp_path: Path) -> None:
    """It is that of the smallest hashes, with every label, whatever the order; μ is of all."""
    trained, rows = make_trained("features concat"), rows_for("features", 60)
    labels = [CLASSES[1] if place == 13 else None for place in range(60)]
    every = picture_hashes(torch.from_numpy(rows), {})[0].numpy()
    chosen = [*[row for row in every.argsort() if row != 13][:9], 13]
    chosen.sort(key=lambda row: every[row])
    method, probabilities = "embedding+prior", []
    for order in (range(60), range(59, -1, -1)):
        parts = np.array_split(list(order), 4)
        found = in_parts(
            trained,
            [rows[part] for part in parts],
            tmp_path,
            [[labels[row] for row in part] for part in parts],
            method=method,
            keep=10,
        )
        assert found.state is not None and found.state.count == 60 and not found.state.whole
        np.testing.assert_array_equal(found.state.pictures.features, rows[chosen])
        assert found.state.pictures.labels.tolist() == [1 if row == 13 else -1 for row in chosen]
        probabilities.append(found.predict_proba(rows))
    np.testing.assert_allclose(probabilities[0], probabilities[1], atol=1e-6)
    mu = adapt(trained, rows, method="embedding").state
    sample = Images(torch.from_numpy(rows[chosen]), torch.device("cpu"))
    known = torch.tensor([1 if row == 13 else -1 for row in chosen])
    chain = find_chain(f"{method}+labels")
    expected = adapt_model(trained.start(embedding=True), sample, chain, mu, known)[0]
    logits = expected(torch.from_numpy(rows)).logits.detach()
    np.testing.assert_allclose(probabilities[0], logits.softmax(1), atol=1e-6)


def test_all_images_of_one_call_count_and_only_some_are_kept() -> None:
    trained, rows = make_trained("features"), rows_for("features", 60)
    few, all_ = (adapt(trained, rows, method="prior", keep=keep) for keep in (7, 500))
    np.testing.assert_array_equal(few.predict_proba(rows), all_.predict_proba(rows))
    assert few.state is not None and all_.state is not None
    assert (len(few.state.pictures), len(all_.state.pictures)) == (7, 60)
    # What is no longer kept does not come back.
    for state, keep, count in ((few.state, 30, 7), (few.state, 5, 5), (all_.state, 30, 30)):
        more = adapt(trained, rows + 1, method="prior", into=state, keep=keep).state
        assert more is not None and (len(more.pictures), more.count) == (count, 120)


def test_a_state_that_keeps_nothing_goes_on_by_its_embedding_alone(tmp_path: Path) -> None:
    trained, rows = make_trained("features concat"), rows_for("features", 40)
    once = adapt(trained, rows, method="embedding")
    parts = [rows[:9], rows[9:]]
    found = in_parts(trained, parts, tmp_path, method="embedding", keep=0)
    assert found.state is not None and (found.state.count, len(found.state.pictures)) == (40, 0)
    assert (tmp_path / "site.safetensors").stat().st_size < 3000
    np.testing.assert_allclose(found.predict_proba(rows), once.predict_proba(rows), atol=1e-6)
    assert found.changes is None and found.trust is not None
    for method in ("prior", "embedding+t3a"):
        with refused(StateMismatch, f"'{method.split('+')[-1]}'", "--keep 0", "anew"):
            adapt(trained, rows, method=method, into=found.state)
    first = adapt(trained, rows, method="prior", keep=0)
    np.testing.assert_array_equal(
        first.predict_proba(rows), adapt(trained, rows, method="prior").predict_proba(rows)
    )


@pytest.mark.parametrize("method", ["bn", "tent", "embedding+bn"])
def test_what_changes_the_backbone_needs_the_images(method: str) -> None:
    trained, rows = make_trained("concat"), rows_for("concat")
    begun = adapt(trained, rows[:8], method=method).state
    assert begun is not None and len(begun.pictures) == 8
    for again in (method, "auto"):
        with refused(StateMismatch, f"'{method.split('+')[-1]}'", "images themselves"):
            adapt(trained, rows[8:], method=again, into=begun)
    more = adapt(trained, rows[8:], method="prior", into=begun)
    once = adapt(trained, rows, method="prior")
    np.testing.assert_allclose(more.predict_proba(rows), once.predict_proba(rows), atol=ROUNDED)


def test_without_a_rehearsal_auto_goes_on_as_before() -> None:
    trained, rows = make_trained("concat"), rows_for("concat")
    begun = adapt(trained, rows[:8], method="prior").state
    assert adapt(trained, rows[8:], into=begun).method == "prior"
    assert adapt(trained, rows[8:], into=begun, method="none").method == "none"


def test_merged_states_are_adapted_without_further_images() -> None:
    for kind in ("features concat", "concat"):
        trained, rows = make_trained(kind), rows_for(kind, 30)
        one, two = (adapt(trained, part).state for part in (rows[:9], rows[9:]))
        assert one is not None and two is not None
        merged = adapt(trained, rows[:0], method="embedding+prior", into=one.merged(two))
        once = adapt(trained, rows, method="embedding+prior")
        np.testing.assert_allclose(
            merged.predict_proba(rows), once.predict_proba(rows), atol=ROUNDED
        )
        with refused(ImageError, "no image"):
            adapt(trained, rows[:0])


def test_images_that_cannot_be_read_are_an_error_also_where_a_state_goes_on(tmp_path: Path) -> None:
    trained, images = make_trained("linear"), pictures(3)
    begun = adapt(trained, images, method="none").state
    (tmp_path / "a.png").write_bytes(b"no image")
    with refused(ImageError, "a.png"):
        adapt(trained, [tmp_path / "a.png"], into=begun, quarantine=Quarantine())


@pytest.mark.parametrize(
    "changed",
    [
        {"features": torch.zeros(1, FEATURES + 1)},
        {"labels": torch.tensor([len(CLASSES)])},
    ],
    ids=["features", "classes"],
)
def test_pictures_that_are_not_of_the_model(changed: dict[str, Any]) -> None:
    trained, rows = make_trained("features"), rows_for("features")
    state = adapt(trained, rows[:1], method="prior").state
    assert state is not None
    wrong = replace(state, pictures=replace(state.pictures, **changed))
    with refused(StateMismatch):
        adapt(trained, rows, into=wrong)


@pytest.mark.parametrize("keep", [-1, 50_001])
def test_how_many_images_a_state_can_keep(keep: int) -> None:
    with refused(ConfigError, keep, 50_000):
        adapt(make_trained("features"), rows_for("features"), keep=keep)


@pytest.mark.parametrize(
    ("method", "rows", "stored"),
    [("embedding", 3, (3, None)), ("prior", 24, (24, None)), ("bn", 24, (24, 3, SIZE, SIZE))],
)
def test_only_what_is_looked_at_stays_in_memory(
    method: str, rows: int, stored: tuple[int | None, ...]
) -> None:
    """Features where a method looks at them, images where it changes the backbone."""
    trained, images = make_trained("concat"), rows_for("concat")
    source, places = open_images(images, trained, Quarantine())
    batches = readable(source, places, most=5)
    unknown = torch.full((24,), UNLABELLED)
    found = look(trained, batches, unknown, find_chain(method), begin_state(trained, None), 3)
    assert len(found.pictures) == len(found.images) == rows
    shape = tuple(found.images.stored.shape)
    assert shape == tuple(
        trained.predictor.backbone.features if side is None else side for side in stored
    )
    known = found.images.features(trained.predictor.backbone).stored
    assert torch.equal(known, found.pictures.features)
    if method == "bn":  # images and features are in one order
        fresh = Images(found.images.stored, trained.device).features(trained.predictor.backbone)
        torch.testing.assert_close(fresh.stored, known)


# --- images that come twice -----------------------------------------------------------------------


def pictures(count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return list(rng.integers(0, 256, (count, SIZE, SIZE, 3)).astype(np.uint8))


def test_images_that_were_seen_before_change_nothing(tmp_path: Path) -> None:
    trained, images = make_trained("concat"), pictures(6)
    first = in_parts(trained, [images[:4]], tmp_path, method="embedding+prior")
    assert first.notes == ()
    stored = DomainState.load(tmp_path / "site.safetensors")
    assert len(stored.seen) == 4
    passed: list[int] = []
    hook = trained.predictor.backbone.register_forward_pre_hook(
        lambda backbone, given: passed.append(len(given[0]))
    )
    again = adapt(trained, images[2:4], method="embedding+prior", into=stored)
    hook.remove()
    (note,) = again.notes
    assert passed == []  # their features are known
    assert "2 images were seen before" in note
    assert again.state is not None and again.state.count == 4
    np.testing.assert_allclose(
        again.predict_proba(images), first.predict_proba(images), atol=ROUNDED
    )
    assert adapt(trained, images[4:], method="embedding+prior", into=stored).notes == ()


@pytest.mark.parametrize(
    ("kind", "method"),
    [("concat", "auto"), ("concat", "embedding"), ("concat", "prior"), ("concat", "bn"),
     ("frozen", "prior"), ("frozen", "none")],
)  # fmt: skip
def test_images_that_are_given_twice_count_once(kind: str, method: str) -> None:
    images, trained = pictures(3), make_trained(kind)
    found = adapt(trained, [*images, *images[:2]], method=method)
    assert "2 images were seen before" in found.notes[-1]
    once = adapt(trained, images, method=method)
    assert found.state is not None and found.state.count == 3
    np.testing.assert_allclose(found.predict_proba(images), once.predict_proba(images), atol=1e-6)


def test_equal_rows_of_features_are_images_of_their_own() -> None:
    rows, trained = np.ones((5, FEATURES), dtype=np.float32), make_trained("features concat")
    found = adapt(trained, rows, method="embedding")
    more = adapt(trained, rows[:2], method="embedding", into=found.state)
    assert found.notes == more.notes == () and more.state is not None
    assert more.state.count == len(more.state.pictures) == len(more.state.seen) == 7
