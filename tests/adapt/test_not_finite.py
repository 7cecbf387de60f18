"""NaN and infinity never pass for an answer: features, states, probabilities, weights."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from acclimate.adapt.classifier import adapt, apply_state
from acclimate.core.errors import NotFinite, WeightsError
from acclimate.core.tensors import save_tensors
from acclimate.learn.embeddings import DomainState
from acclimate.learn.models.weights import read_weights
from fixtures.errors import refused
from fixtures.models import FEATURES, make_trained

HUGE = np.full((4, FEATURES), 3e38, dtype=np.float32)


def test_a_state_takes_no_image_that_is_not_finite() -> None:
    state = DomainState.empty("m", 2).updated(torch.ones(3, 2))
    for value in (float("nan"), float("inf"), float("-inf")):
        with refused(NotFinite):
            state.updated(torch.tensor([[1.0, value]]))


def test_adaptation_to_features_that_overflow() -> None:
    with refused(NotFinite):
        adapt(make_trained("features concat"), HUGE, method="embedding")
    for method in ("prior", "t3a"):
        with refused(NotFinite):
            adapt(make_trained("features"), HUGE, method=method)


def test_predictions_that_overflow() -> None:
    site = apply_state(make_trained("features"), None)
    with refused(NotFinite):
        site.predict_proba(HUGE)


def test_weights_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    trained = make_trained("features")
    with torch.no_grad():
        trained.predictor.head.last.bias[0] = float("nan")
    with refused(NotFinite, tmp_path / "model.safetensors", "train.optimiser.clip"):
        replace(trained).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_pretrained_weights_that_are_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_tensors(path, {"a": torch.tensor([1.0, float("inf")])})
    with refused(WeightsError, path):
        read_weights(path)
