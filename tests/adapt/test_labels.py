"""The methods `labels` and `shift`, and which images to label."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor

from acclimate.adapt.classifier import adapt
from acclimate.adapt.methods import find_chain, open_to_labels
from acclimate.adapt.methods.chain import adapt_model
from acclimate.adapt.methods.labels import anchored, with_constant, with_labels
from acclimate.adapt.suggest import read_labels, spread
from acclimate.core.errors import ConfigError, ManifestError, UnknownName
from acclimate.learn.images import Images
from acclimate.learn.model import Model
from acclimate.learn.models import Predictor
from acclimate.learn.models.predictors import LinearHead, identity_backbone
from fixtures.errors import refused
from fixtures.models import make_trained, rows_for

CPU = torch.device("cpu")


def linear(weight: Tensor, bias: Tensor) -> Predictor:
    head = LinearHead(weight.shape[1], len(weight))
    head.load_state_dict({"last.weight": weight, "last.bias": bias})
    return Predictor(identity_backbone(weight.shape[1]), head).eval()


def test_the_anchored_layer_is_the_minimum_of_its_loss() -> None:
    """Against a general minimiser over all weights, not only those in the rows' span."""
    draw = np.random.default_rng(0)
    rows, weight = draw.normal(size=(6, 4)), draw.normal(size=(3, 4))
    labels, unit = draw.integers(3, size=6), np.square(rows).sum(1).mean()

    def loss(change: np.ndarray) -> float:
        log_p = log_softmax(rows @ (weight + change.reshape(3, 4)).T, axis=1)
        return float(-log_p[range(6), labels].sum() + 0.2 * unit / 2 * np.square(change).sum())

    expected = minimize(loss, np.zeros(12), method="BFGS", options={"gtol": 1e-8}).x
    change = anchored(rows, rows @ weight.T, labels, 0.2).T @ rows
    np.testing.assert_allclose(change.ravel(), expected, atol=1e-4)


def test_the_strength_has_no_unit() -> None:
    """Features in another unit are as good: logits change alike."""
    draw = np.random.default_rng(1)
    rows, labels = draw.normal(size=(5, 4)), np.array([0, 1, 2, 0, 1])
    logits = rows @ draw.normal(size=(3, 4)).T
    one = rows @ (anchored(rows, logits, labels, 0.3).T @ rows).T
    other = 7 * rows @ (anchored(7 * rows, logits, labels, 0.3).T @ (7 * rows)).T
    np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_firm_model_stays_and_a_loose_one_learns_the_labels() -> None:
    x, y = torch.eye(4)[:3], torch.tensor([2, 0, 1])
    model = Model(linear(torch.zeros(3, 4), torch.tensor([1.0, 0.0, 0.0])), label_prior=[1 / 3] * 3)

    def adapted(strength: float) -> Tensor:
        chain = find_chain("labels", settings={"labels.strength": strength})
        logits: Tensor = adapt_model(model, Images(x, CPU), chain, labels=y)[0](x).logits
        return logits.detach()

    assert adapted(1e6).softmax(1).allclose(torch.tensor([1.0, 0, 0]).softmax(0), atol=1e-5)
    assert adapted(1e-3).argmax(1).tolist() == y.tolist()


def test_the_bias_learns_as_a_constant_feature_does() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(with_constant(rows)[:, -1], [12.5**0.5] * 2)


def test_unlabelled_images_play_no_part() -> None:
    trained, rows = make_trained("features erm"), rows_for("features erm")
    some = [trained.classes[0], None, trained.classes[1], *[None] * (len(rows) - 3)]
    one = adapt(trained, rows, method="labels", labels=some)
    two = adapt(trained, rows[[0, 2]], method="labels", labels=[some[0], some[2]])
    np.testing.assert_array_equal(one.predict_proba(rows), two.predict_proba(rows))


@pytest.mark.parametrize(
    ("labels", "kind", "facts"),
    [
        (["no such", None], UnknownName, ("'no such'",)),
        ([None], ConfigError, ("1 labels",)),
        ([None, None], ConfigError, ("--labels", "image and label")),
    ],
)
def test_labels_that_cannot_be_used(
    labels: Sequence[Any], kind: type[Exception], facts: tuple[str, ...]
) -> None:
    trained, rows = make_trained("features erm"), rows_for("features erm")
    with refused(kind, *facts):
        adapt(trained, rows[:2], method="labels", labels=labels)


def test_the_name_of_a_chain_with_labels() -> None:
    assert with_labels("none") == "labels"
    assert with_labels("embedding+prior") == "embedding+prior+labels"
    assert with_labels("labels") == "labels"
    assert open_to_labels("embedding+prior") == "embedding+prior"
    assert open_to_labels("embedding+t3a") == "embedding"
    assert open_to_labels("t3a") == "none"


def test_features_move_towards_training_and_less_where_chance_may_explain_it() -> None:
    """By hand: the site's mean is (2, 0), its scatter 2 · 2/1 = 4, of which 4/2 = 2 is expected in
    ‖(2, 0)‖² = 4 by chance."""
    x = torch.tensor([[2.0, 2**0.5], [2.0, -(2**0.5)]])
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    centre = torch.zeros(2, dtype=torch.float64)
    model = Model(linear(weight, torch.zeros(3)), label_prior=[1 / 3] * 3, centre=centre)
    chain = find_chain("shift", settings={"shift.amount": 0.5})
    adapted, state = adapt_model(model, Images(x, CPU), chain)
    np.testing.assert_allclose(state.payloads["shift"]["shift"], [-0.5, 0.0, -1.5], atol=1e-6)
    moved = model.predictor(x - torch.tensor([0.5, 0.0])).logits
    np.testing.assert_allclose(adapted(x).logits.detach(), moved.detach(), atol=1e-6)


def test_one_image_moves_nothing() -> None:
    centre = torch.zeros(2, dtype=torch.float64)
    model = Model(linear(torch.eye(2), torch.zeros(2)), label_prior=[0.5] * 2, centre=centre)
    _, one = adapt_model(model, Images(torch.ones(1, 2), CPU), find_chain("shift"))
    assert one.payloads["shift"]["shift"].abs().max() == 0


def test_a_model_that_was_not_rehearsed_cannot_shift() -> None:
    trained, rows = make_trained("features erm"), rows_for("features erm")
    with refused(ConfigError, "adapt.rehearse=true"):
        adapt(trained, rows, method="shift")


def test_one_image_of_each_cluster() -> None:
    """Three directions of different size: length does not matter."""
    draw = np.random.default_rng(0)
    which = np.repeat([0, 1, 2], [50, 4, 2])
    rows = (np.eye(3)[which] + 0.05 * draw.normal(size=(56, 3))) * draw.uniform(1, 9, (56, 1))
    chosen = spread(torch.from_numpy(rows), 3)
    assert sorted(which[chosen]) == [0, 1, 2]
    assert (np.diff(chosen) > 0).all()
    assert spread(torch.from_numpy(rows), 56).tolist() == list(range(56))
    assert len(set(spread(torch.ones(9, 2), 4))) == 4  # no row twice, though all are one


def test_labels_are_read_by_path(tmp_path: Path) -> None:
    images = [tmp_path / name for name in ("a.png", "b.png", "c.png")]
    table = tmp_path / "labels.csv"
    table.write_text(f"image,label,guess\na.png,007,x\n{images[2]}, cat ,x\nb.png,,x\n")
    assert read_labels(table, images) == ["007", None, "cat"]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("image,class\na.png,x\n", ("labels.csv", "'label'")),
        ("image,label\nz.png,x\n", ("z.png", "none of the images")),
        ("image,label\na.png,x\na.png,y\n", ("'x'", "'y'")),
    ],
)
def test_tables_of_labels_that_are_wrong(tmp_path: Path, text: str, facts: Sequence[str]) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with refused(ManifestError, *facts):
        read_labels(tmp_path / "labels.csv", [tmp_path / "a.png"])
