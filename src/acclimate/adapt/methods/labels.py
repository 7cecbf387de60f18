"""A few labelled images of the new domain: the last layer moves as far as they ask for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor

from acclimate.adapt.methods.base import Context, Method
from acclimate.config import setting
from acclimate.core.errors import ConfigError
from acclimate.learn.images import Images
from acclimate.learn.models import Head

ITERATIONS = 200


def anchored(
    rows: np.ndarray, logits: np.ndarray, labels: np.ndarray, strength: float
) -> np.ndarray:
    """How the last layer changes by labelled rows: the D that minimises the summed cross-entropy
    of logits + rows Dᵀ, plus strength · m / 2 · ‖D‖², m being the rows' mean squared length.

    rows [k, h], logits [k, C], labels [k] -> A [k, C], of which D = Aᵀ rows. The strength has no
    unit: with 1, an image that is all wrong moves its own logit by about 1.
    """
    values, vectors = np.linalg.eigh(rows @ rows.T)
    values = values.clip(min=0)
    pull = strength * max(float(np.square(rows).sum(1).mean()), np.finfo(float).tiny)
    # D lies in the span of the rows, so that it has k coordinates for each class. They are scaled
    # by what the loss may bend along them: L-BFGS then needs few iterations.
    scale = 1 / np.sqrt(values / 4 + pull)
    z, pulls = vectors * np.sqrt(values) * scale, pull * np.square(scale)[:, None]
    true = np.eye(logits.shape[1])[labels]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        b = flat.reshape(true.shape)
        log_p = log_softmax(logits + z @ b, axis=1)
        value = -(log_p * true).sum() + (pulls * np.square(b)).sum() / 2
        return float(value), (z.T @ (np.exp(log_p) - true) + pulls * b).ravel()

    options = {"maxiter": ITERATIONS, "gtol": 1e-6}
    b = minimize(loss, np.zeros(true.size), method="L-BFGS-B", jac=True, options=options).x
    log_p = log_softmax(logits + z @ b.reshape(true.shape), axis=1)
    change: np.ndarray = (true - np.exp(log_p)) / pull  # as the gradient vanishes there
    return change


@dataclass(frozen=True, kw_only=True)
class LabelsConfig:
    strength: float | None = setting(
        None,
        "how firmly the model before is held to; not given: what rehearsal found for so many "
        "labels, or 1",
        at_least=1e-6,
    )


@final
class Labels(Method):
    """Logistic regression on the labelled images' hidden layer, anchored at the layer as it is."""

    Config = LabelsConfig
    changes = "head"
    needs = "labels"

    @torch.no_grad()
    def observe(self, classifier: Head, images: Images, context: Context) -> Mapping[str, Tensor]:
        if context.labels is None or not bool((context.labels >= 0).any()):
            raise ConfigError(
                "method 'labels' needs labelled images of the domain; give some with --labels FILE "
                "(columns image and label), or leave the method out"
            )
        known = context.labels >= 0
        rows = images.outputs(classifier).hidden.cpu()[known].half()
        strength = 1.0 if self.config.strength is None else self.config.strength
        x, last = with_constant(rows), classifier.last
        weight, bias = (part.detach().double().cpu() for part in (last.weight, last.bias))
        logits = rows.double() @ weight.T + bias
        change = anchored(x.numpy(), logits.numpy(), context.labels[known].numpy(), strength)
        return {"rows": rows, "coefficients": torch.from_numpy(change)}

    def apply(self, classifier: Head, tensors: Mapping[str, Tensor]) -> Head:
        x, last = with_constant(tensors["rows"]), classifier.last
        change = tensors["coefficients"].T @ x
        weight, bias = last.weight.double().cpu(), last.bias.double().cpu()
        return classifier.with_last(weight + change[:, :-1], bias + change[:, -1] * x[0, -1])


def with_labels(chain: str) -> str:
    """The chain and then `labels`, if that is not in it anyway."""
    names = [name for name in chain.split("+") if name != "none"]
    return "+".join(names if "labels" in names else [*names, "labels"])


def with_constant(rows: Tensor) -> Tensor:
    """Rows [k, h] in float64 and, for the bias, one number more that is as long as they are."""
    x = rows.double()
    length = x.square().sum(1).mean().sqrt()
    return torch.cat([x, length.expand(len(x), 1)], 1)
