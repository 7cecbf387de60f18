"""Each penalty against loops over rows and pairs written from its formula, and by hand."""

import math
from collections.abc import Callable
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.learn.penalties import (
    DOMAINBED_GAMMAS,
    FACTORS,
    Groups,
    coral,
    coral_domainbed,
    irm,
    irm_square,
    median_squared_distance,
    mmd2,
    mmd2_domainbed,
)

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


def reference_mmd2(x: Tensor, domain: Tensor, widths: list[float]) -> float:
    def k(a: list[float], b: list[float]) -> float:
        return mean([math.exp(-squared(a, b) / w) for w in widths])

    def within(rows: list[list[float]]) -> float:
        pairs = [(i, j) for i in range(len(rows)) for j in range(len(rows)) if i != j]
        return mean([k(rows[i], rows[j]) for i, j in pairs])

    gaps = []
    for one, two in combinations([rows for rows in split(x, domain) if len(rows) > 1], 2):
        across = mean([k(a, b) for a in one for b in two])
        gaps.append(within(one) + within(two) - 2 * across)
    return mean(gaps)


def reference_median(x: Tensor) -> float:
    distances = sorted(squared(a, b) for a, b in combinations(x.tolist(), 2))
    return distances[(len(distances) - 1) // 2]


def reference_median_mmd2(x: Tensor, domain: Tensor) -> float:
    return reference_mmd2(x, domain, [f * reference_median(x) for f in FACTORS])


def reference_mmd2_domainbed(x: Tensor, domain: Tensor) -> float:
    def k(one: list[list[float]], two: list[list[float]]) -> float:
        return mean(
            [
                math.fsum(math.exp(-gamma * squared(a, b)) for gamma in DOMAINBED_GAMMAS)
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


def reference_coral(x: Tensor, domain: Tensor, *, domainbed: bool = False) -> float:
    d, gaps = x.shape[1], []
    known = [moments(rows) for rows in split(x, domain) if len(rows) > 1]
    for (m, c), (n, e) in combinations(known, 2):
        apart = math.fsum(squared(a, b) for a, b in zip(c, e, strict=True))
        gaps.append(squared(m, n) / d + apart / d**2 if domainbed else apart / (4 * d**2))
    return mean(gaps)


def reference_coral_domainbed(x: Tensor, domain: Tensor) -> float:
    return reference_coral(x, domain, domainbed=True)


PENALTIES: dict[str, tuple[Penalty, Callable[[Tensor, Tensor], float]]] = {
    "mmd2": (mmd2, reference_median_mmd2),
    "mmd2_domainbed": (mmd2_domainbed, reference_mmd2_domainbed),
    "coral": (coral, reference_coral),
    "coral_domainbed": (coral_domainbed, reference_coral_domainbed),
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
def test_the_order_of_rows_does_not_matter(name: str) -> None:
    penalty, _ = PENALTIES[name]
    x = points(RAGGED)
    order = torch.randperm(len(RAGGED), generator=torch.Generator().manual_seed(2))
    shuffled = penalty(x[order], RAGGED[order])
    torch.testing.assert_close(shuffled, penalty(x, RAGGED), rtol=1e-12, atol=0)


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


@pytest.mark.parametrize("name", ["mmd2", "coral", "coral_domainbed"])
def test_a_domain_of_one_row_is_left_out(name: str) -> None:
    penalty, reference = PENALTIES[name]
    domain = torch.cat([RAGGED, torch.tensor([9])])
    x = points(domain).requires_grad_()
    gap = penalty(x, domain)
    assert gap.item() == pytest.approx(reference(x, domain), rel=1e-10)
    gap.backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    only = penalty(x[:2], torch.tensor([0, 1]))
    assert only.item() == 0


@every
def test_gradients(name: str) -> None:
    penalty, _ = PENALTIES[name]
    x = points(RAGGED).requires_grad_()
    if name == "mmd2":  # the median is held constant, finite differences would move it
        widths = torch.tensor([2.0, 9.0], dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda x: mmd2(x, RAGGED, widths), x)
    else:
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
def test_equal_points_keep_gradients_finite(name: str) -> None:
    penalty, _ = PENALTIES[name]
    x = torch.ones(6, 3, requires_grad=True)
    gap = penalty(x, torch.tensor([0, 0, 0, 1, 1, 1]))
    gap.backward()
    assert gap.item() == pytest.approx(0, abs=1e-6)
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_mmd2_by_hand() -> None:
    # Points 0, 1 and 0, 2 at width 1: within e⁻¹ and e⁻⁴, across (1 + e⁻⁴ + e⁻¹ + e⁻¹)/4.
    x = torch.tensor([[0.0], [1.0], [0.0], [2.0]], dtype=torch.float64)
    gap = mmd2(x, torch.tensor([0, 0, 1, 1]), x.new_ones(1))
    e1, e4 = math.exp(-1), math.exp(-4)
    assert gap.item() == pytest.approx(e1 + e4 - (1 + e4 + 2 * e1) / 2)


def test_coral_by_hand() -> None:
    # Variances 2 and 8, d = 1: (8 − 2)²/4; DomainBed: 6² + (0 − 5)².
    x = torch.tensor([[-1.0], [1.0], [3.0], [7.0]])
    domain = torch.tensor([0, 0, 1, 1])
    assert coral(x, domain).item() == pytest.approx(9)
    assert coral_domainbed(x, domain).item() == pytest.approx(61)


def test_one_distribution_gives_about_0_and_domainbeds_estimate_does_not() -> None:
    generator = torch.Generator().manual_seed(0)
    domain = torch.arange(2).repeat_interleave(32)
    x = torch.randn(200, 64, 64, generator=generator)
    ours = torch.stack([mmd2(sample, domain) for sample in x])
    theirs = torch.stack([mmd2_domainbed(sample, domain) for sample in x])
    error = ours.std() / math.sqrt(len(x))
    assert abs(ours.mean()) < 3 * error
    assert ours.std() < 0.01
    assert theirs.mean() > 0.2
    shifted = x[0] + domain[:, None] * 0.5
    assert mmd2(shifted, domain) > 10 * ours.std()


def test_mmd2_has_no_scale_of_its_own() -> None:
    x = points(RAGGED)
    for scale in (1e-3, 1e3):
        torch.testing.assert_close(mmd2(scale * x, RAGGED), mmd2(x, RAGGED))


def test_median_of_distances_between_distinct_rows() -> None:
    squared_distances = torch.tensor([[0.0, 1, 4], [1, 0, 9], [4, 9, 0]], requires_grad=True)
    median = median_squared_distance(squared_distances)
    assert median.item() == 4
    assert not median.requires_grad
    assert median_squared_distance(torch.zeros(3, 3)).item() > 0


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


def slope(logits: Tensor, y: Tensor) -> Tensor:
    """The gradient by a scale of the logits, by autograd."""
    scale = torch.ones((), dtype=logits.dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits * scale, y), scale, create_graph=True)
    return gradient


def labelled(domain: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.randint(3, (len(domain),), generator=torch.Generator().manual_seed(5))
    return points(domain), y


@pytest.mark.parametrize("domain", [RAGGED, torch.cat([RAGGED, torch.tensor([9])])], ids=str)
def test_irm_is_the_product_of_two_halves_gradients(domain: Tensor) -> None:
    logits, y = labelled(domain)
    logits.requires_grad_()
    products, squares = [], []
    for d in domain.unique():
        z, t = logits[domain == d], y[domain == d]
        squares.append(slope(z, t) ** 2)
        if len(t) > 1:
            products.append(slope(z[::2], t[::2]) * slope(z[1::2], t[1::2]))
    for form, terms in ((irm, products), (irm_square, squares)):
        expected, found = torch.stack(terms).mean(), form(logits, y, domain)
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
    squares = ((slopes[0] + slopes[1]) / 2) ** 2 + ((slopes[2] + slopes[3]) / 2) ** 2
    assert irm_square(logits, y, domain).item() == pytest.approx(squares / 2)


def test_irm_takes_interleaved_domains_apart() -> None:
    logits, y = labelled(RAGGED)
    order = torch.argsort(RAGGED, stable=True)
    together = irm(logits[order], y[order], RAGGED[order])
    torch.testing.assert_close(irm(logits, y, RAGGED), together, rtol=1e-12, atol=0)


@pytest.mark.slow
def test_irm_is_unbiased_and_its_square_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    domain = torch.arange(2).repeat_interleave(4)
    # Labels drawn from the model's own probabilities: the expected slope is 0.
    found = []
    for _ in range(2000):
        logits = torch.randn(8, 3, generator=generator)
        y = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        found.append(torch.stack([irm(logits, y, domain), irm_square(logits, y, domain)]))
    means, errors = torch.stack(found).mean(0), torch.stack(found).std(0) / math.sqrt(len(found))
    assert abs(means[0]) < 3 * errors[0]
    assert means[1] > 10 * errors[1]


@pytest.mark.parametrize("form", [irm, irm_square])
def test_irm_at_the_edges(form: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    logits, y = labelled(RAGGED)
    assert torch.autograd.gradcheck(lambda z: form(z, y, RAGGED), logits.requires_grad_())
    assert form(logits, y, torch.zeros_like(RAGGED)).item() == 0
    low = (8 * logits).detach().bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gap = form(low, y, RAGGED)
    assert gap.dtype == torch.float32
    assert gap.item() == pytest.approx(form(low.double(), y, RAGGED).item(), rel=1e-4)
