"""Penalties over all domains of a batch at once: pure functions of features and domain numbers.

Domains may have different numbers of rows. One without what a penalty needs (two rows for a
covariance) is left out of its mean, and a batch of one domain costs exactly 0. Everything is
computed in float32 or wider, whatever the precision around it. Domain numbers are best the host's:
counting those of a GPU would wait for it.

Every distance here is between points of an inner product space (mean embeddings, covariances), so
all pairs come from one matrix of inner products: ‖a_i − a_j‖² = ⟨a_i,a_i⟩ + ⟨a_j,a_j⟩ − 2⟨a_i,a_j⟩.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps

import torch
from torch import Tensor

from acclimate.data.source import sent

GAMMAS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)  # DomainBed's kernels


@dataclass(frozen=True)
class Groups:
    """Rows by domain. The m domains present are numbered 0..m-1 in order of domain number."""

    index: Tensor  # [b] a row's domain
    rank: Tensor  # [b] its place among the rows of that domain
    count: Tensor  # [m] rows of each domain
    order: Tensor  # [b] rows, domain by domain
    start: Tensor  # [m] where in `order` a domain begins

    @staticmethod
    def of(domain: Tensor, device: torch.device | None = None) -> "Groups":
        """Counted where `domain` is, to be used on `device`, which need not be the same."""
        _, index, count = torch.unique(domain, return_inverse=True, return_counts=True)
        order = torch.argsort(index, stable=True)
        start = count.cumsum(0) - count
        place = torch.arange(len(index), device=index.device) - start[index[order]]
        rank = torch.empty_like(index).index_copy(0, order, place)
        tensors = (index, rank, count, order, start)
        return Groups(*(sent(tensor, device or domain.device) for tensor in tensors))

    def __len__(self) -> int:
        return len(self.count)

    def members(self, like: Tensor) -> Tensor:
        """1 where a row is of a domain, in the type of `like`: [b, m]"""
        present = torch.arange(len(self), device=self.index.device)
        return (self.index[:, None] == present).to(like.dtype)

    def row(self, group: Tensor, place: Tensor) -> Tensor:
        """The row at `place` of `group`, counted round where the group is shorter: [k] -> [k]"""
        return self.order[self.start[group] + place % self.count[group]]


def widened(x: Tensor) -> Tensor:
    """float32 or wider."""
    return x if x.dtype == torch.float64 else x.float()


def _penalty(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A penalty whose last argument is the domain of each row, from one of their `Groups`: 0 with a
    gradient of 0 where there is one domain, and in full precision."""

    return wraps(compute)(partial(_over_domains, compute))


def _over_domains(compute: Callable[..., Tensor], x: Tensor, *others: Tensor) -> Tensor:
    *labels, domain = others
    groups = Groups.of(domain, x.device)
    if len(groups) < 2:
        return widened(x)[:0].sum()
    with torch.autocast(x.device.type, enabled=False):
        return compute(widened(x), *labels, groups)


@_penalty
def mmd2(hidden: Tensor, groups: Groups) -> Tensor:
    """Mean over pairs of domains of the squared MMD, biased, in DomainBed's form and scale.

    The kernel is the sum over GAMMAS of exp(−γ‖x − y‖²). [b, d], [b] -> []
    """
    members, n = groups.members(hidden), groups.count
    kernel = _kernel(_squared_distances(hidden))
    inner = members.T @ kernel @ members / torch.outer(n, n)
    return _mean_over_pairs(inner, groups.count > 0)


@_penalty
def coral(hidden: Tensor, groups: Groups) -> Tensor:
    """Mean over pairs of domains of ‖m_i − m_j‖²/d + ‖C_i − C_j‖²/d²: the mean squared difference
    of their means and that of their covariances, in DomainBed's form and scale. [b, d], [b] -> []
    """
    centred, means = _centre(hidden, groups)
    means = means - means.mean(0)  # differences stay, cancellation shrinks
    inner = means @ means.T / hidden.shape[1]
    inner = inner + _covariance_products(centred, groups) / hidden.shape[1] ** 2
    return _mean_over_pairs(inner, groups.count > 1)


@_penalty
def irm(logits: Tensor, y: Tensor, groups: Groups) -> Tensor:
    """IRMv1's squared gradient by a scale s of the logits at s = 1, mean over domains.

    The mean gradient of a domain's even rows times that of its odd ones is an unbiased square.
    [b, c], [b], [b] -> []
    """
    half = 2 * groups.index + groups.rank % 2
    sums = logits.new_zeros(2 * len(groups)).index_add(0, half, _slopes(logits, y))
    even, odd = (groups.count + 1) // 2, groups.count // 2
    means = sums.view(-1, 2) / torch.stack([even, odd], dim=1).clamp_min(1)
    # A domain of one row has no odd rows: its product is 0, and it does not count.
    product: Tensor = (means[:, 0] * means[:, 1]).sum() / (odd > 0).sum().clamp_min(1)
    return product


def domain_means(hidden: Tensor, groups: Groups) -> Tensor:
    """The mean of each domain's rows: [b, d] -> [m, d]"""
    hidden = widened(hidden)
    # Two passes: a large common offset would otherwise cost digits.
    offset = hidden.detach().mean(0)
    with torch.autocast(hidden.device.type, enabled=False):
        sums = groups.members(hidden).T @ (hidden - offset)
    return sums / groups.count[:, None] + offset


def variance_within(hidden: Tensor, domain: Tensor) -> Tensor:
    """Variance of a feature within a domain, mean over features and domains. [b, d], [b] -> []"""
    hidden = widened(hidden)
    groups = Groups.of(domain, hidden.device)
    with torch.autocast(hidden.device.type, enabled=False):
        centred, _ = _centre(hidden, groups)
        sums = groups.members(hidden).T @ centred.square().mean(1)
    variances = sums / (groups.count - 1).clamp_min(1)  # 0 of a single row, which does not count
    mean: Tensor = variances.sum() / (groups.count > 1).sum().clamp_min(1)
    return mean


def gradient_variances(residual: Tensor, inputs: Tensor, groups: Groups) -> Tensor:
    """The variance within each domain of the rows' gradients r hᵀ by a linear layer's weights, from
    E[r²h²] − E[r h]², without forming a row's. [b, c], [b, h] -> [m, c, h]
    """
    with torch.autocast(residual.device.type, enabled=False):
        shares = (groups.members(residual) / groups.count).T[:, None]  # [m, 1, b]
        means = (shares * residual.T) @ inputs
        squares = (shares * residual.T.square()) @ inputs.square()
        return squares - means.square()


def _slopes(logits: Tensor, y: Tensor) -> Tensor:
    """Gradient of a row's cross-entropy by a scale of its logits: Σ_k p_k z_k − z_y. [b]"""
    return (logits.softmax(1) * logits).sum(1) - logits.gather(1, y[:, None])[:, 0]


def _squared_distances(x: Tensor) -> Tensor:
    """[b, d] -> [b, b], with an exact 0 on the diagonal"""
    x = x - x.detach().mean(0)  # less cancellation; distances stay
    norms = x.square().sum(1)
    squared = (norms[:, None] + norms - 2 * x @ x.T).clamp_min(0)
    same = torch.eye(len(x), dtype=torch.bool, device=x.device)
    return squared.masked_fill(same, 0)


def _kernel(squared: Tensor) -> Tensor:
    """Sum of exp(−γ·squared) over GAMMAS: [b, b] -> [b, b]"""
    kernel = torch.zeros_like(squared)
    for gamma in GAMMAS:  # one at a time: seven matrices at once would only cost memory
        kernel = kernel + torch.exp(-gamma * squared)
    return kernel


def _centre(hidden: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Rows less their domain's mean, and the means: [b, d] -> [b, d], [m, d]"""
    means = domain_means(hidden, groups)
    return hidden - means[groups.index], means


def _covariance_products(centred: Tensor, groups: Groups) -> Tensor:
    """⟨C_i, C_j⟩ of the domains' covariances, without forming a [d, d] matrix. [b, d] -> [m, m]

    C_i = X_iᵀX_i/(n_i − 1), so ⟨C_i, C_j⟩ = ‖X_i X_jᵀ‖²/((n_i − 1)(n_j − 1)).
    """
    members = groups.members(centred)
    sums = members.T @ (centred @ centred.T).square() @ members
    free = (groups.count - 1).clamp_min(1)
    return sums / torch.outer(free, free)


def _mean_over_pairs(inner: Tensor, valid: Tensor) -> Tensor:
    """Mean of ‖a_i − a_j‖² over pairs of valid points. [m, m] inner products, [m] -> []"""
    own = inner.diagonal()
    squared = own[:, None] + own - 2 * inner
    pairs = torch.outer(valid, valid).to(inner.dtype).triu(1)
    mean: Tensor = (squared * pairs).sum() / pairs.sum().clamp_min(1)
    return mean
