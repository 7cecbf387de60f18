"""Logistic regression on features: what a plain model has to beat."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.learn.models.predictors import Head, head_of, linear_layer

ITERATIONS = 60  # of L-BFGS: in these coordinates, few change a prediction
CHANGE = 3e-4  # of the loss per row, below which it ends


def fit_logistic(x: Tensor, y: Tensor, classes: int, strengths: Iterable[float]) -> list[Head]:
    """For each strength, the multinomial regression that minimises the summed cross-entropy of its
    rows plus strength / 2 · ‖W‖²: scikit-learn's, with C = 1 / strength.

    x [n, f], y [n] in 0..classes - 1. Strengths descend, and each starts where the one before it
    has ended.
    """
    mean, ordered = x.mean(0), sorted(strengths, reverse=True)
    rows = x - mean
    # Coordinates in which the loss bends about alike, whatever the scale of the features.
    values, vectors = torch.linalg.eigh((rows.T @ rows).double())
    share = (1 - 1 / classes) / classes
    scale = (values.clamp(min=0) * share + ordered[-1]).rsqrt().to(x)
    basis = vectors.to(x) * scale
    z, weight = rows @ basis, torch.zeros(x.shape[1], classes, device=x.device)
    counts = torch.bincount(y, minlength=classes).to(x)
    bias = (counts / len(y)).clamp(min=1e-9).log()
    heads: list[Head] = []
    for strength in ordered:
        weight, bias = _minimise(z, y, weight, bias, strength * scale.square()[:, None])
        final = (basis @ weight).T
        layer = linear_layer(x.shape[1], classes, final, bias - final @ mean, x)
        heads.append(head_of(layer).requires_grad_(False).eval())
    return heads


def _minimise(
    z: Tensor, y: Tensor, weight: Tensor, bias: Tensor, pulls: Tensor
) -> tuple[Tensor, Tensor]:
    """Weight [f, C] and bias [C] of rows z [n, f], from those given; `pulls` [f, 1] on the square
    of each coordinate's weights."""
    weight, bias = (part.clone().requires_grad_() for part in (weight, bias))
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=ITERATIONS,
        tolerance_grad=0.0,
        tolerance_change=CHANGE * len(y) / ITERATIONS,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        misfit = F.cross_entropy(z @ weight + bias, y, reduction="sum")
        value: Tensor = misfit + (pulls * weight.square()).sum() / 2
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimiser.step(loss)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()
