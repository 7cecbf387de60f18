"""Each penalty against loops over rows and pairs written from its formula, and by hand."""

import math
from collections.abc import Callable
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.learn.penalties import GAMMAS, Groups, coral, irm, mmd2

RAGGED = torch.tensor([4, 1, 1, 7, 4, 7, 4, 1, 7, 7, 4, 7, 1])  # 4, 4 and 5 rows
Penalty = Callable[[Tensor, Tensor], Tensor]


def points(domain: Tensor, d: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(domain), d, dtype=torch.float64, generator=generator)
    return x * (1 + 0.3 * domain[:, None]) + 0.2 * domain[:, None]


def split(x: Tensor, domain: Tensor) -> list[list[list[float]]]:
    return [x[domain == d].tolist() for d in sorted(set(domain.tolist()))]


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def squared(a: list[float], b: list[float]) -> float:
    return math.fsum((p - q) ** 2 for p, q in zip(a, b, strict=True))


def reference_mmd2(x: Tensor, domain: Tensor) -> float:
    """As DomainBed's code has it: a loop over pairs of domains."""

    def k(one: list[list[float]], two: list[list[float]]) -> float:
        return mean(
            [
                math.fsum(math.exp(-gamma * squared(a, b)) for gamma in GAMMAS)
                for a in one
                for b in two
            ]
        )

    pairs = combinations(split(x, domain), 2)
    return mean([k(a, a) + k(b, b) - 2 * k(a, b) for a, b in pairs])


def moments(rows: list[list[float]]) -> tuple[list[float], list[list[float]]]:
    d = len(rows[0])
    m = [mean([row[k] for row in rows]) for k in range(d)]
    c = [
        [math.fsum((r[i] - m[i]) * (r[j] - m[j]) for r in rows) / (len(rows) - 1) for j in range(d)]
        for i in range(d)
    ]
    return m, c


def reference_coral(x: Tensor, domain: Tensor) -> float:
    """As DomainBed's code has it: means over entries, then over pairs of domains."""
    d, gaps = x.shape[1], []
    known = [moments(rows) for rows in split(x, domain) if len(rows) > 1]
    for (m, c), (n, e) in combinations(known, 2):
        apart = math.fsum(squared(a, b) for a, b in zip(c, e, strict=True))
        gaps.append(squared(m, n) / d + apart / d**2)
    return mean(gaps)


PENALTIES: dict[str, tuple[Penalty, Callable[[Tensor, Tensor], float]]] = {
    "mmd2": (mmd2, reference_mmd2),
    "coral": (coral, reference_coral),
}
every = pytest.mark.parametrize("name", PENALTIES)


@every
@pytest.mark.parametrize("domain", [RAGGED, RAGGED[:8], torch.tensor([0, 0, 1, 1])], ids=str)
def test_against_loops(name: str, domain: Tensor) -> None:
    penalty, reference = PENALTIES[name]
    x = points(domain)
    assert penalty(x, domain).item() == pytest.approx(reference(x, domain), rel=1e-10)
    assert reference(x, domain) != 0


@every
def test_one_domain_costs_nothing(name: str) -> None:
    penalty, _ = PENALTIES[name]
    for rows in (1, 5):
        x = torch.randn(rows, 3, requires_grad=True)
        gap = penalty(x, torch.full([rows], 2))
        gap.backward()
        assert gap.item() == 0
        assert x.grad is not None
        assert not x.grad.any()


@every
def test_a_domain_of_one_row(name: str) -> None:
    """CORAL leaves it out, having no covariance of it; a kernel mean of one row there is."""
    penalty, reference = PENALTIES[name]
    domain = torch.cat([RAGGED, torch.tensor([9])])
    x = points(domain).requires_grad_()
    gap = penalty(x, domain)
    assert gap.item() == pytest.approx(reference(x, domain), rel=1e-10)
    gap.backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    only = penalty(x[:2], torch.tensor([0, 1]))
    assert (only.item() == 0) == (name == "coral")


@every
def test_gradients(name: str) -> None:
    penalty, _ = PENALTIES[name]
    x = points(RAGGED).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: penalty(x, RAGGED), x)


@every
def test_bf16_around_it_costs_no_digits(name: str) -> None:
    penalty, reference = PENALTIES[name]
    x = (points(RAGGED, d=16) + 3).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gap = penalty(x, RAGGED)
    assert gap.dtype == torch.float32
    assert gap.item() == pytest.approx(reference(x.double(), RAGGED), rel=1e-4)


@every
def test_an_offset_that_all_points_share_costs_no_digits(name: str) -> None:
    """In float32; another one in each dimension, so that only the mean of each takes it away."""
    penalty, reference = PENALTIES[name]
    x = points(RAGGED, d=4).float() + torch.tensor([3e3, -3e3, 3e3, -3e3])
    expected = reference(x.double(), RAGGED)
    assert penalty(x, RAGGED).item() == pytest.approx(expected, rel=2e-3)


@every
def test_equal_points_keep_gradients_finite(name: str) -> None:
    penalty, _ = PENALTIES[name]
    x = torch.ones(6, 3, requires_grad=True)
    gap = penalty(x, torch.tensor([0, 0, 0, 1, 1, 1]))
    gap.backward()
    assert gap.item() == pytest.approx(0, abs=1e-6)
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_mmd2_by_hand() -> None:
    # Points 0, 1 and 0, 2: within (1 + e⁻ᵍ)/2 and (1 + e⁻⁴ᵍ)/2, across (1 + e⁻⁴ᵍ + 2e⁻ᵍ)/4.
    x = torch.tensor([[0.0], [1.0], [0.0], [2.0]], dtype=torch.float64)
    gap = mmd2(x, torch.tensor([0, 0, 1, 1]))
    terms = [(math.exp(-gamma), math.exp(-4 * gamma)) for gamma in (1e-3, 1e-2, 0.1, 1, 10, 100)]
    terms.append((0.0, 0.0))  # e⁻¹⁰⁰⁰ is 0 in float64
    expected = sum((1 + e1) / 2 + (1 + e4) / 2 - (1 + e4 + 2 * e1) / 2 for e1, e4 in terms)
    assert gap.item() == pytest.approx(expected)


def test_coral_by_hand() -> None:
    # Variances 2 and 8, means 0 and 5, d = 1: 6² + 5².
    x = torch.tensor([[-1.0], [1.0], [3.0], [7.0]])
    domain = torch.tensor([0, 0, 1, 1])
    assert coral(x, domain).item() == pytest.approx(61)


def test_groups_of_rows() -> None:
    groups = Groups.of(torch.tensor([5, 2, 5, 5, 2]))
    assert groups.index.tolist() == [1, 0, 1, 1, 0]
    assert groups.rank.tolist() == [0, 0, 1, 2, 1]
    assert groups.count.tolist() == [2, 3]
    assert len(groups) == 2
    members = groups.members(torch.zeros(1)).tolist()
    assert members == [[0, 1], [1, 0], [0, 1], [0, 1], [1, 0]]
    rows = groups.row(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2, 2]))
    assert rows.tolist() == [1, 4, 1, 3]


def test_rows_of_a_domain_keep_their_order() -> None:
    """In batches that torch would shuffle within a domain, did one not ask for a stable order."""
    groups = Groups.of(torch.arange(64) % 2)
    assert groups.order.tolist() == [*range(0, 64, 2), *range(1, 64, 2)]
    assert groups.rank.tolist() == [row // 2 for row in range(64)]


def slope(logits: Tensor, y: Tensor) -> Tensor:
    """The gradient by a scale of the logits, by autograd."""
    scale = torch.ones((), dtype=logits.dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits * scale, y), scale, create_graph=True)
    return gradient


def labelled(domain: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.randint(3, (len(domain),), generator=torch.Generator().manual_seed(5))
    return points(domain), y


ONE_HALF_LESS = (torch.cat([RAGGED, torch.tensor([9])]), torch.tensor([0, 0, 1]))


@pytest.mark.parametrize("domain", [RAGGED, *ONE_HALF_LESS], ids=str)
def test_irm_is_the_product_of_two_halves_gradients(domain: Tensor) -> None:
    logits, y = labelled(domain)
    logits.requires_grad_()
    products = []
    for d in domain.unique():
        z, t = logits[domain == d], y[domain == d]
        if len(t) > 1:
            products.append(slope(z[::2], t[::2]) * slope(z[1::2], t[1::2]))
    expected, found = torch.stack(products).mean(), irm(logits, y, domain)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    gradients = [
        torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_irm_by_hand() -> None:
    # Two classes, logits (z, 0) of class 0: the slope is z(p − 1) with p = 1/(1 + e⁻ᶻ).
    z = [1.0, 2.0, 0.0, 3.0]
    slopes = [v * (1 / (1 + math.exp(-v)) - 1) for v in z]
    logits = torch.tensor([[v, 0.0] for v in z], dtype=torch.float64)
    domain, y = torch.tensor([0, 0, 1, 1]), torch.zeros(4, dtype=torch.long)
    expected = (slopes[0] * slopes[1] + slopes[2] * slopes[3]) / 2
    assert irm(logits, y, domain).item() == pytest.approx(expected)


def test_irm_at_the_edges() -> None:
    logits, y = labelled(RAGGED)
    assert torch.autograd.gradcheck(lambda z: irm(z, y, RAGGED), logits.requires_grad_())
    assert irm(logits, y, torch.zeros_like(RAGGED)).item() == 0
    low = (8 * logits).detach().bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gap = irm(low, y, RAGGED)
    assert gap.dtype == torch.float32
    assert gap.item() == pytest.approx(irm(low.double(), y, RAGGED).item(), rel=1e-4)
