"""Label shift: the domain's class frequencies from unlabelled images, and Bayes' correction.

Posteriors p(y|x) that hold under the training prior p hold under another prior q once multiplied
by q(y)/p(y) and normalised, as long as p(x|y) stays.

A conditioned classifier has learned to take a domain's frequencies into account: the posteriors of
F(·, μ) hold under a prior of its own, and to correct them from the training prior would count the
shift twice. `implied_prior` reads that prior off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from acclimate.adapt.methods.base import Context, Method
from acclimate.config import setting
from acclimate.core.errors import ConfigError
from acclimate.data.batches import RATIOS
from acclimate.learn.images import Images
from acclimate.learn.models import Head

TINY = 1e-12
PER_CLASS = 10.0  # images that training's frequencies count as, where nothing was rehearsed


def em_prior(
    posteriors: Tensor,
    train_prior: Tensor,
    *,
    strength: float = 0.0,
    tolerance: float = 1e-8,
    most: int = 10_000,
) -> tuple[Tensor, int]:
    """The prior of unlabelled images by EM (Saerens et al. 2002), the likeliest one, or with a
    `strength` the likeliest under a Dirichlet prior: as if so many images more had been seen,
    shared out over the classes as in training. So few images change little and many decide.

    [n, C], [C] -> [C] and the number of iterations, in float64. It ends when no class moves by
    more than `tolerance`. A class of prior 0 in training keeps it.
    """
    # In NumPy, whose small operations are several times as fast: rehearsal asks for thousands.
    rows, train = (part.double().cpu().numpy() for part in (posteriors, train_prior))
    weight, tiny = strength / (strength + len(rows)), np.finfo(float).tiny
    per_class = np.where(train > 0, 1 / np.maximum(train, tiny), 0.0)
    target, iterations, change = train, 0, float("inf")
    while change > tolerance and iterations < most:
        weighted = rows * (target * per_class)
        weighted /= np.maximum(weighted.sum(1, keepdims=True), tiny)
        before, target = target, (1 - weight) * weighted.mean(0) + weight * train
        target = target / target.sum()
        change = float(np.abs(target - before).max())
        iterations += 1
    return torch.from_numpy(target), iterations


def learned_prior(
    posteriors: Tensor,
    train_prior: Tensor,
    weights: np.ndarray,
    *,
    tolerance: float = 1e-3,
    most: int = 200,
) -> tuple[Tensor, int]:
    """The expected prior of unlabelled images, where class frequencies vary between domains as
    `fit_ratios` found: each class is r times as frequent as in training, and r has `weights`.

    [n, C], [C], [K] -> [C] and the number of iterations, in float64; it ends when no log ratio
    moves by more than `tolerance`. Images and ratios are inferred together (collapsed variational
    Bayes, to second order: Teh et al. 2006): what one image is depends on what the *others* say of
    the frequencies, and how many images a class has is known up to a variance. A class of prior 0
    in training keeps it.
    """
    train = train_prior.double()
    rows = torch.where(train > 0, posteriors.double(), 0.0)
    rows = rows / rows.sum(1, keepdim=True).clamp(min=torch.finfo(torch.double).tiny)
    possible = torch.from_numpy(weights > TINY)
    ratios = torch.from_numpy(RATIOS)[possible]
    log_weights = torch.from_numpy(weights)[possible].log()
    expected = len(rows) * train

    def mean_ratio(counts: Tensor, variance: Tensor) -> Tensor:
        """E[r | count], averaged over a count of that mean and variance: [C], [C] -> [C]"""
        nodes = (counts[:, None] + variance.clamp(min=0).sqrt()[:, None] * _NODES).clamp(min=0)
        logs = log_weights + nodes[..., None] * ratios.log() - expected[:, None, None] * ratios
        mean: Tensor = (logs.softmax(-1) @ ratios) @ _NODE_WEIGHTS
        return mean

    shares, ratio, iterations, change = rows, torch.ones_like(train), 0, float("inf")
    while change > tolerance and iterations < most:
        counts = shares.sum(0)
        variance = counts - shares.square().sum(0)
        before, ratio = ratio, mean_ratio(counts, variance)
        others = mean_ratio((counts - 1).clamp(min=0), variance)
        weighted = rows * (ratio - shares * (ratio - others))
        shares = weighted / weighted.sum(1, keepdim=True).clamp(min=torch.finfo(torch.double).tiny)
        change = float((ratio.log() - before.log()).abs().max())
        iterations += 1
    target = train * ratio
    return target / target.sum(), iterations


_nodes, _node_weights = np.polynomial.hermite_e.hermegauss(5)  # of the normal distribution
_NODES = torch.from_numpy(_nodes)
_NODE_WEIGHTS = torch.from_numpy(_node_weights / _node_weights.sum())


def soft_confusion(posteriors: Tensor, labels: Tensor) -> Tensor:
    """Σ over rows of posterior ⊗ one-hot label: [n, C], [n] -> [C predicted, C true] float64."""
    true = torch.nn.functional.one_hot(labels, posteriors.shape[1])
    return posteriors.double().T @ true.double()


def implied_prior(posteriors: Tensor, at_centre: Tensor, train_prior: Tensor) -> Tensor:
    """The prior under which F(·, μ) stands, if F at the centre stands under the training prior.

    [n, C], [n, C], [C] -> [C]. Another prior shifts all log-posteriors by log q/p (and a constant
    per image), so the mean shift over the images tells q.
    """
    shift = (posteriors.clamp(min=TINY).log() - at_centre.clamp(min=TINY).log()).mean(0)
    return (train_prior.log() + shift).softmax(0)


def log_ratio(target: Tensor, train: Tensor) -> Tensor:
    """What Bayes' correction adds to the logits: [C], [C] -> [C].

    Finite: a class that EM ruled out goes far down, and one that training lacked stays put.
    """
    ratio = target.clamp(min=TINY).log() - train.clamp(min=TINY).log()
    return torch.where(train > 0, ratio, 0.0)


@torch.no_grad()
def posteriors(classifier: Head, images: Images, temperature: float = 1.0) -> Tensor:
    """Class probabilities of images, or of rows of features for a head: [n, C] float64, CPU."""
    return (images.outputs(classifier).logits.cpu().double() / temperature).softmax(1)


@dataclass(frozen=True, kw_only=True)
class PriorConfig:
    temperature: float = setting(
        1.0, "logits are divided by it: above 1 for a model that is too sure", at_least=1e-4
    )
    strength: float | None = setting(
        None,
        "images that training's frequencies count as beside the new ones; 0: plain EM; not given: "
        "what rehearsal found, or ten for each class",
        at_least=0,
    )
    expect: Literal["anything", "learned"] = setting(
        "anything", "learned: frequencies that vary between domains as in training"
    )
    tolerance: float = setting(1e-8, "EM ends when no class moves by more", at_least=0)
    iterations: int = setting(10_000, "or after so many iterations", at_least=1)


@final
class Prior(Method):
    """Keeps the domain's class frequencies, and those that the posteriors stood under before.

    EM multiplies what the posteriors say, so that it needs posteriors that are as sure as they are
    right, as those of a rehearsed model are; others may need a `temperature`. With few images it
    takes chance for a shift: `strength` and `expect` are for that, and a rehearsal chooses them.
    """

    Config = PriorConfig
    changes = "bias"
    assumes_label_shift = True

    @classmethod
    def rehearsed(cls, *, many_domains: bool) -> Sequence[Mapping[str, Any]]:
        """Strengths, the stronger preferred; how frequencies vary is learned from many domains."""
        # Thousands of estimates are made: a rough one is enough to choose by.
        rough = {"tolerance": 1e-4, "iterations": 200}
        smoothed = [
            {"strength": strength, **rough} for strength in (1000.0, 300.0, 100.0, 30.0, 10.0)
        ]
        return [*smoothed, {"expect": "learned"}] if many_domains else smoothed

    def observe(self, classifier: Head, images: Images, context: Context) -> Mapping[str, Tensor]:
        rows = posteriors(classifier, images, self.config.temperature)
        prior, _ = estimate(rows, context.label_prior, self.config, context.ratios)
        return {
            "prior": prior,
            "base": context.label_prior,
            "temperature": torch.tensor(self.config.temperature, dtype=torch.float64),
        }

    def shift(self, tensors: Mapping[str, Tensor]) -> tuple[float, Tensor]:
        return float(tensors["temperature"]), log_ratio(tensors["prior"], tensors["base"])


def estimate(
    posteriors: Tensor, base: Tensor, config: PriorConfig, ratios: np.ndarray | None
) -> tuple[Tensor, int]:
    """The frequencies behind `posteriors` [n, C], as `config` asks for."""
    if config.expect == "anything":
        return em_prior(
            posteriors,
            base,
            strength=len(base) * PER_CLASS if config.strength is None else config.strength,
            tolerance=config.tolerance,
            most=config.iterations,
        )
    if ratios is None:
        raise ConfigError(
            "adapt.prior.expect=learned needs a model that knows how its training domains vary, "
            "and this one does not; train again, or leave the setting out"
        )
    return learned_prior(posteriors, base, ratios)
