"""EQRM (Eastwood et al. 2022): a quantile of the domains' risks is minimised."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.config import log10, setting, uniform
from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses, mean_by
from acclimate.learn.penalties import widened

HALVINGS = 50  # of the interval that holds the quantile: to the last digit of a float64


@dataclass(frozen=True, kw_only=True)
class EQRMConfig:
    quantile: float = setting(
        0.75, "level of the quantile (α)", at_least=1e-3, at_most=0.999, search=uniform(0.5, 0.99)
    )
    anneal: int = setting(
        2500, "steps before that, which minimise the mean risk", at_least=0, search=log10(2.5, 3.5)
    )


class EQRM(Algorithm):
    """The α-quantile of a kernel density estimate of the risks of a batch's domains.

    The learning rate stays the run's once the quantile counts.
    """

    Config = EQRMConfig
    least_domains = 2

    def forward(self, batch: Batch, step: int) -> Losses:
        losses = F.cross_entropy(widened(self.predict(batch).logits), batch.y, reduction="none")
        risks = mean_by(self.world.gather(losses), self.world.whole(batch.domain))
        if step < self.config.anneal or len(risks) < 2:
            return Losses(risk=risks.mean())
        return Losses(risk=kde_quantile(risks, self.config.quantile))


def kde_quantile(values: Tensor, level: float) -> Tensor:
    """The `level`-quantile q of a Gaussian kernel density estimate of `values`: [m] -> []

    The bandwidth is 1.06 s m^(−1/5), s² the values' variance. F(q) = level is solved by bisection.
    A Newton step from there, by the density there, changes no digit of q and has its gradient.
    """
    x = values.double()
    spread = x.var().clamp_min(1e-16).sqrt()  # equal values: a root has no slope at 0
    width = 1.06 * spread * len(x) ** -0.2
    with torch.no_grad():
        from_kernel = NormalDist().inv_cdf(level) * width  # its own quantile, were it alone
        low, high = x.min() + from_kernel, x.max() + from_kernel
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = _cdf(middle, x, width) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        found = (low + high) / 2
        # A gap between far values is where neither counts.
        density = _pdf(found, x, width).clamp_min(torch.finfo(x.dtype).tiny)
    quantile: Tensor = found - (_cdf(found, x, width) - level) / density
    return quantile.to(values)


def _cdf(at: Tensor, x: Tensor, width: Tensor) -> Tensor:
    below: Tensor = torch.special.ndtr((at - x) / width)
    return below.mean()


def _pdf(at: Tensor, x: Tensor, width: Tensor) -> Tensor:
    kernels: Tensor = (-0.5 * ((at - x) / width).square()).exp() / (width * math.sqrt(2 * math.pi))
    return kernels.mean()
