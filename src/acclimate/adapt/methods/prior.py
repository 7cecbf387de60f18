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
    rows, train = posteriors.double(), train_prior.double()
    given = strength / (strength + len(rows))
    target, iterations, change = train, 0, float("inf")
    while change > tolerance and iterations < most:
        weighted = rows * torch.where(train > 0, target / train, 0.0)
        shares = weighted / weighted.sum(1, keepdim=True).clamp(min=torch.finfo(torch.double).tiny)
        before, target = target, (1 - given) * shares.mean(0) + given * train
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
def posteriors(predictor: Predictor, images: Images, temperature: float = 1.0) -> Tensor:
    """[n, C] float64, on the CPU."""
    logits = torch.cat([predictor(x).logits.cpu() for x in images.batches()])
    return (logits.double() / temperature).softmax(1)


@dataclass(frozen=True, kw_only=True)
class PriorConfig:
    temperature: float = setting(
        1.0, "logits are divided by it: above 1 for a model that is too sure", at_least=0.01
    )
    strength: float = setting(
        0.0, "images that training's frequencies count as beside the new ones", at_least=0
    )
    tolerance: float = setting(1e-8, "EM ends when no class moves by more", at_least=0)
    iterations: int = setting(10_000, "or after so many iterations", at_least=1)


@final
class Prior(Method):
    """Keeps the domain's class frequencies, and those that the posteriors stood under before.

    EM multiplies what the posteriors say, so that it needs posteriors that are as sure as they are
    right, and with few images it takes chance for a shift: `temperature` and `strength` are for
    that, and a rehearsal finds them.
    """

    Config = PriorConfig
    head_only = True

    def observe(
        self, predictor: Predictor, images: Images, context: Context
    ) -> Mapping[str, Tensor]:
        base = context.label_prior
        if context.start is not None and context.centre is not None:
            start, centre = (posteriors(p, images) for p in (context.start, context.centre))
            base = implied_prior(start, centre, base)
        config = self.config
        prior, iterations = em_prior(
            posteriors(predictor, images, config.temperature),
            base,
            strength=config.strength,
            tolerance=config.tolerance,
            most=config.iterations,
        )
        temperature = torch.tensor(config.temperature, dtype=torch.float64)
        found = {"prior": prior, "base": base, "temperature": temperature}
        return {**found, "iterations": torch.tensor(iterations)}

    def apply(self, predictor: Predictor, tensors: Mapping[str, Tensor]) -> Predictor:
        last = last_layer(predictor)
        shift = log_ratio(tensors["prior"], tensors["base"]).to(last.bias)
        if shift.shape != last.bias.shape:
            raise ValueError("frequencies of other classes")
        scale = 1 / float(tensors.get("temperature", 1.0))  # states of earlier versions have none
        return with_last_layer(predictor, last.weight * scale, last.bias * scale + shift)
