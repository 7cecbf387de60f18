"""Label shift: the domain's class frequencies from unlabelled images, and Bayes' correction.

Posteriors p(y|x) that hold under the training prior p hold under another prior q once multiplied
by q(y)/p(y) and normalised, as long as p(x|y) stays.

A conditioned classifier has learned to take a domain's frequencies into account: the posteriors of
F(·, μ) hold under a prior of its own, and to correct them from the training prior would count the
shift twice. `implied_prior` reads that prior off.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from acclimate.adapt.methods.base import Context, Method, last_layer, with_last_layer
from acclimate.config import setting
from acclimate.data.source import Images
from acclimate.learn.models import Predictor

TINY = 1e-12


def em_prior(
    posteriors: Tensor, train_prior: Tensor, *, tolerance: float = 1e-8, most: int = 10_000
) -> tuple[Tensor, int]:
    """The maximum-likelihood prior of unlabelled images, by EM (Saerens et al. 2002).

    [n, C], [C] -> [C] and the number of iterations, in float64. It ends when no class moves by
    more than `tolerance`. A class of prior 0 in training keeps it.
    """
    rows, train = posteriors.double(), train_prior.double()
    target, iterations, change = train, 0, float("inf")
    while change > tolerance and iterations < most:
        weighted = rows * torch.where(train > 0, target / train, 0.0)
        shares = weighted / weighted.sum(1, keepdim=True).clamp(min=torch.finfo(torch.double).tiny)
        before, target = target, shares.mean(0)
        target = target / target.sum()
        change = float((target - before).abs().max())
        iterations += 1
    return target, iterations


def soft_confusion(posteriors: Tensor, labels: Tensor) -> Tensor:
    """Σ over rows of posterior ⊗ one-hot label: [n, C], [n] -> [C predicted, C true] float64."""
    true = torch.nn.functional.one_hot(labels, posteriors.shape[1])
    return posteriors.double().T @ true.double()


def black_box_prior(confusion: Tensor, predicted: Tensor) -> Tensor:
    """The prior that explains `predicted`, the mean posterior on new images (Lipton et al. 2018).

    confusion [C predicted, C true] of held-out training images, in any scale; predicted [C] -> [C].
    Solves (confusion) w = predicted for the ratios w = q/p in the least-squares sense; a negative
    ratio counts as 0, and a class that the held-out images lack gets 0.
    """
    joint = confusion.double() / confusion.sum()
    solved = torch.linalg.lstsq(joint, predicted.double()[:, None], driver="gelsd")
    ratios: Tensor = solved.solution[:, 0].clamp(min=0)
    target = ratios * joint.sum(0)
    return target / target.sum()


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
def posteriors(predictor: Predictor, images: Images) -> Tensor:
    """[n, C] float64, on the CPU."""
    logits = torch.cat([predictor(x).logits.cpu() for x in images.batches()])
    return logits.double().softmax(1)


@dataclass(frozen=True, kw_only=True)
class PriorConfig:
    tolerance: float = setting(1e-8, "EM ends when no class moves by more", at_least=0)
    iterations: int = setting(10_000, "or after so many iterations", at_least=1)


@final
class Prior(Method):
    """Keeps the domain's class frequencies, and those that the posteriors stood under before."""

    Config = PriorConfig

    def observe(
        self, predictor: Predictor, images: Images, context: Context
    ) -> Mapping[str, Tensor]:
        base = context.label_prior
        if context.start is not None and context.centre is not None:
            start, centre = (posteriors(p, images) for p in (context.start, context.centre))
            base = implied_prior(start, centre, base)
        found = posteriors(predictor, images)
        tolerance, most = self.config.tolerance, self.config.iterations
        prior, iterations = em_prior(found, base, tolerance=tolerance, most=most)
        return {"prior": prior, "base": base, "iterations": torch.tensor(iterations)}

    def apply(self, predictor: Predictor, tensors: Mapping[str, Tensor]) -> Predictor:
        last = last_layer(predictor)
        shift = log_ratio(tensors["prior"], tensors["base"]).to(last.bias)
        return with_last_layer(predictor, last.weight, last.bias + shift)
