"""The kernel form: κ against loops, the fit against its objective, and adaptation that helps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from acclimate.core.errors import AcclimateError, ConfigError, RunError, UnknownName
from acclimate.learn.consistency import mean_radius
from acclimate.paper.kernel import (
    COMBINATIONS,
    AdaptedKernel,
    KernelClassifier,
    Widths,
    kappa,
)
from fixtures.errors import refused

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
FIXED: dict[str, Any] = {"mean_width": 1.5, "embedding_width": 0.4, "input_width": 2.0}
F: dict[str, Callable[[float, float], float]] = {
    "product": lambda p, x: p * x,
    "sum": lambda p, x: p + x,
    "shared": lambda p, x: x + p * x,
}


def small(seed: int = 0, domains: int = 3, rows: int = 10, classes: int = 2) -> Arrays:
    rng = np.random.default_rng(seed)
    names = np.repeat([f"d{i}" for i in range(domains)], rows)
    X = rng.normal(size=(domains * rows, 3)) + np.repeat(np.arange(domains), rows)[:, None]
    y = np.tile(["ant", "bee", "cat"][:classes], domains * rows)[: domains * rows]
    X[:, 0] += 1.5 * (y == "bee")
    return X, y, names


def conditional(seed: int, domains: int, rows: int) -> Arrays:
    """Two classes whose meaning flips with the domain's offset, which one row alone hides."""
    rng = np.random.default_rng(seed)
    offset = np.repeat(rng.choice([-1.0, 1.0], domains), rows)
    sign = rng.choice([-1.0, 1.0], domains * rows)
    X = rng.normal(size=(domains * rows, 4))
    X[:, 0] += 2.5 * sign
    X[:, 1] += 0.8 * offset
    names = np.repeat([f"d{i:02d}" for i in range(domains)], rows)
    return X, np.where(sign * offset > 0, "up", "down"), names


def phi_by_formula(site: AdaptedKernel, x: np.ndarray) -> np.ndarray:
    """Random Fourier features √(2/D) cos(xᵀω + b), with the sampler's ω and b."""
    phi = site.fitted.phi
    size = len(phi.random_offset_)
    return np.sqrt(2 / size) * np.cos(x @ phi.random_weights_ + phi.random_offset_)


def kappa_by_loops(
    mu: np.ndarray, x: np.ndarray, mu2: np.ndarray, x2: np.ndarray, combine: str
) -> np.ndarray:
    out = np.zeros((len(x), len(x2)))
    for i in range(len(x)):
        for j in range(len(x2)):
            k_p = np.exp(-np.sum((mu[i] - mu2[j]) ** 2) / (2 * 0.4**2))
            k_x = np.exp(-np.sum((x[i] - x2[j]) ** 2) / (2 * 2.0**2))
            out[i, j] = F[combine](k_p, k_x)
    return out


def means_by_loops(site: AdaptedKernel, X: np.ndarray, domains: np.ndarray) -> np.ndarray:
    """μ of each row's domain: [n, d]."""
    mean = {d: sum(phi_by_formula(site, x) for x in X[domains == d]) for d in set(domains)}
    return np.stack([mean[d] / np.sum(domains == d) for d in domains])


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_kappa_is_its_formula_a_kernel_and_symmetric(combine: str) -> None:
    X, y, domains = small()
    model = KernelClassifier(combine=combine, **FIXED).fit(X, y, domains)
    site = model.adapt(X[:4])
    mu = means_by_loops(site, X, domains)
    np.testing.assert_allclose(site.mean, np.mean([phi_by_formula(site, x) for x in X[:4]], axis=0))
    found = kappa((mu, X), (mu[:7], X[:7]), model.widths, combine)
    expected = kappa_by_loops(mu, X, mu[:7], X[:7], combine)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    square = kappa((mu, X), (mu, X), model.widths, combine)
    np.testing.assert_allclose(square, square.T, atol=1e-12)
    assert np.linalg.eigvalsh(square).min() >= -1e-8


def test_mean_embeddings_have_the_inner_product_of_their_kernel() -> None:
    X, y, domains = small(rows=20)
    model = KernelClassifier(mean_components=20_000, **FIXED).fit(X, y, domains)
    a, b = X[domains == "d0"], X[domains == "d1"]
    exact = np.mean([np.exp(-np.sum((s - t) ** 2) / (2 * 1.5**2)) for s in a for t in b])
    assert model.adapt(a).mean @ model.adapt(b).mean == pytest.approx(exact, abs=0.01)
    assert 0.1 < exact < 0.9


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("combine", COMBINATIONS)
def test_the_exact_form_minimises_the_regularised_risk(combine: str, classes: int) -> None:
    """Against the representer theorem: f = Σ αᵢ κ(zᵢ, ·), ‖f‖² = αᵀKα, minimised over α."""
    X, y, domains = small(classes=classes)
    X, y, domains = X[:24], y[:24], domains[:24]  # d2 has 4 rows, the others 10
    C, new = 60.0, small(seed=1)[0][:8]
    model = KernelClassifier(combine=combine, approximate=False, C=C, **FIXED).fit(X, y, domains)
    site = model.adapt(new)
    mu = means_by_loops(site, X, domains)
    K = kappa_by_loops(mu, X, mu, X, combine)
    here = np.repeat(site.mean[None], len(new), axis=0)
    K_new = kappa_by_loops(here, new, mu, X, combine)
    codes = np.unique(y, return_inverse=True)[1]
    weights = np.array([1 / (3 * np.sum(domains == d)) for d in domains])

    def log_probabilities(alpha: np.ndarray, K: np.ndarray) -> np.ndarray:
        scores = K @ alpha.reshape(len(X), -1)
        if classes == 2:  # one f, and its logistic
            scores = np.hstack([np.zeros_like(scores), scores])
        return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))

    def objective(alpha: np.ndarray) -> tuple[float, np.ndarray]:
        logs, columns = log_probabilities(alpha, K), alpha.reshape(len(X), -1)
        risk = -weights @ logs[np.arange(len(X)), codes]
        pull = weights[:, None] * (np.exp(logs) - np.eye(classes)[codes])
        pull = pull[:, -columns.shape[1] :]
        value = risk + 1 / (2 * C) * np.trace(columns.T @ K @ columns)
        return value, (K @ (pull + columns / C)).ravel()

    start = np.zeros(len(X) * (1 if classes == 2 else classes))
    limits = {"ftol": 0, "gtol": 1e-7, "maxiter": 2000}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=limits)
    expected = np.exp(log_probabilities(found.x, K_new))
    np.testing.assert_allclose(site.predict_proba(new), expected, atol=1e-4)
    assert np.ptp(expected) > 0.2


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_landmarks_approach_the_exact_form(combine: str) -> None:
    X, y, domains = small(rows=40)
    new = small(seed=1, rows=40)[0][40:80]

    def probabilities(**options: Any) -> np.ndarray:
        model = KernelClassifier(combine=combine, C=50.0, **FIXED, **options).fit(X, y, domains)
        return model.adapt(new).predict_proba(new)

    exact = probabilities(approximate=False)
    gaps = [np.abs(probabilities(components=m) - exact).max() for m in (3, 40, 120)]
    assert gaps[0] > 0.05
    assert gaps[1] < 0.02
    assert gaps[2] < 1e-4  # every row is a landmark


def score(model: KernelClassifier, unseen: Arrays) -> float:
    X, y, domains = unseen
    right: list[float] = []
    for name in np.unique(domains):
        rows = np.flatnonzero(domains == name)
        site = model.adapt(X[rows[:100]])
        right.append(float(np.mean(np.array(site.predict(X[rows[100:]])) == y[rows[100:]])))
    return float(np.mean(right))


def test_it_adapts_where_only_the_domain_can_tell() -> None:
    data, unseen = conditional(0, domains=24, rows=40), conditional(1, domains=6, rows=160)
    assert score(KernelClassifier().fit(*data), unseen) > 0.95
    assert score(KernelClassifier(combine="shared").fit(*data), unseen) > 0.95
    # k_P = 1 everywhere is the pooled classifier, and a sum has no f that flips with the domain.
    pooled = KernelClassifier(embedding_width=1e6).fit(*data)
    assert score(pooled, unseen) < 0.85
    assert score(KernelClassifier(combine="sum").fit(*data), unseen) < 0.85


def test_a_seed_repeats() -> None:
    X, y, domains = small()

    def probabilities(seed: int) -> np.ndarray:
        model = KernelClassifier(components=10, mean_components=20, seed=seed).fit(X, y, domains)
        return model.adapt(X[:10]).predict_proba(X)

    np.testing.assert_array_equal(probabilities(3), probabilities(3))
    assert np.abs(probabilities(3) - probabilities(4)).max() > 1e-3


def test_landmarks_come_evenly_from_the_domains() -> None:
    X = np.arange(104.0)[:, None]
    y, domains = np.tile(["a", "b"], 52), np.repeat(["large", "small"], [100, 4])
    site = KernelClassifier(components=10, **FIXED).fit(X, y, domains).adapt(X[:5])
    ((_, nystroem),) = site.fitted.map.maps
    landmarks = nystroem.components_[:, -1] * FIXED["input_width"]
    assert len(landmarks) == 10
    assert np.sum(landmarks > 99.5) == 4


def test_median_widths_by_hand() -> None:
    X = np.array([[0.0], [0.0], [1.0], [3.0]])
    model = KernelClassifier().fit(X, ["a", "b", "a", "b"], ["p", "p", "q", "q"])
    # Apart are 1, 1, 3, 3 and 2; the two equal rows do not count. One pair of domains.
    p, q = (model.adapt(rows).mean for rows in (X[:2], X[2:]))
    assert model.widths == Widths(2.0, pytest.approx(np.linalg.norm(p - q)), 2.0)


def test_trust_is_in_units_of_the_embedding_width() -> None:
    X, y, domains = small(rows=200)
    model = KernelClassifier(**FIXED).fit(X, y, domains)
    site = model.adapt(X[domains == "d1"][:150])
    phi = phi_by_formula(site, X[domains == "d1"][:150])
    gaps = np.linalg.norm(phi - phi.mean(0), axis=1)
    means = [phi_by_formula(site, X[domains == d]).mean(0) for d in ("d0", "d1", "d2")]
    steps = [np.linalg.norm(means[1] - means[i]) / 0.4 for i in (0, 2)]
    radius = mean_radius(150, float(np.mean(gaps**2)), float(gaps.max()))
    assert radius is not None
    trust = site.trust
    assert (trust.n, trust.nearest_domain, trust.warnings) == (150, "d1", ())
    assert trust.radius95 == pytest.approx(radius / 0.4)
    assert trust.expected_error == pytest.approx(np.sqrt(np.mean(gaps**2) / 150) / 0.4)
    assert trust.nearest_distance == pytest.approx(np.linalg.norm(phi.mean(0) - means[1]) / 0.4)
    assert trust.typical_distance == pytest.approx(max(steps))


def test_trust_warns_of_few_rows_and_of_far_domains() -> None:
    X, y, domains = small(rows=60)
    trust = KernelClassifier(**FIXED).fit(X, y, domains).adapt(X[:5] - 50).trust
    assert trust.radius95 is None
    few, unsure, far = trust.warnings
    assert "5 rows" in few and "95 % radius" in unsure and "75 % of domains" in far


def test_the_face() -> None:
    X, _, domains = small(classes=3)
    y = np.tile([10, 9, 2], 10)
    site = KernelClassifier().fit(X.astype(np.float32), y, domains).adapt(X[:10])
    assert site.classes == ("2", "9", "10")
    probabilities = site.predict_proba(X)
    assert probabilities.shape == (30, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert site.predict(X) == [int(site.classes[i]) for i in probabilities.argmax(1)]
    assert site.predict(np.zeros((0, 3))) == []
    assert site.predict_proba(np.zeros((0, 3))).shape == (0, 3)


def test_long_input_goes_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, domains = small()
    whole = KernelClassifier().fit(X, y, domains).adapt(X[:20])
    monkeypatch.setattr("acclimate.paper.kernel.maps.CHUNK", 7)
    parts = KernelClassifier().fit(X, y, domains).adapt(X[:20])
    np.testing.assert_allclose(parts.predict_proba(X), whole.predict_proba(X), atol=1e-6)
    assert parts.trust.expected_error == pytest.approx(whole.trust.expected_error)


X, Y, D = small()
ALIKE, MANY = np.ones((4, 2)), np.arange(5001)
ERRORS: dict[str, tuple[Callable[[], object], type[AcclimateError], tuple[object, ...]]] = {
    "combine": (
        lambda: KernelClassifier(combine="produkt").fit(X, Y, D),
        UnknownName,
        ("produkt", "product"),
    ),
    "width": (
        lambda: KernelClassifier(input_width=0.0).fit(X, Y, D),
        ConfigError,
        ("input_width", 0.0),
    ),
    "width name": (
        lambda: KernelClassifier(embedding_width="mean").fit(X, Y, D),
        ConfigError,
        ("embedding_width", "mean", "median"),
    ),
    "components": (
        lambda: KernelClassifier(components=0).fit(X, Y, D),
        ConfigError,
        ("components", 0),
    ),
    "C": (lambda: KernelClassifier(C=float("inf")).fit(X, Y, D), ConfigError, ("C", "inf")),
    "not fitted": (lambda: KernelClassifier().adapt(X), RunError, ("KernelClassifier", "fit")),
    "no labels": (lambda: KernelClassifier().fit(X), ConfigError, ("y", "labels and domains")),
    "lengths": (
        lambda: KernelClassifier().fit(X, Y[:4], D),
        ConfigError,
        ("X [30, 3], y [4], domains [30]",),
    ),
    "images": (
        lambda: KernelClassifier().fit(np.zeros((2, 4, 4)), Y[:2], D[:2]),
        ConfigError,
        ("X [2, 4, 4], y [2], domains [2]",),
    ),
    "text": (
        lambda: KernelClassifier().fit(X.astype(str).astype("<U8"), Y, D),
        ConfigError,
        ("<U8",),
    ),
    "not finite": (
        lambda: KernelClassifier().fit(np.where(X > 1, np.nan, X), Y, D),
        ConfigError,
        ("row 1",),
    ),
    "not finite, adapted to": (
        lambda: KernelClassifier().fit(X, Y, D).adapt(np.where(X > 1, np.inf, X)),
        ConfigError,
        ("row 1",),
    ),
    "missing label": (
        lambda: KernelClassifier().fit(X, [None, *Y[1:]], D),
        ConfigError,
        ("y has rows without a value",),
    ),
    "one class": (lambda: KernelClassifier().fit(X, ["ant"] * 30, D), ConfigError, ("y", "ant")),
    "one domain": (
        lambda: KernelClassifier().fit(X, Y, ["here"] * 30),
        ConfigError,
        ("domains", "here"),
    ),
    "alike rows": (
        lambda: KernelClassifier().fit(ALIKE, Y[:4], [1, 1, 2, 2]),
        ConfigError,
        ("mean_width",),
    ),
    "alike domains": (
        lambda: KernelClassifier().fit(np.tile(X[:2], (2, 1)), Y[:4], [1, 1, 2, 2]),
        ConfigError,
        ("embedding_width",),
    ),
    "exact and large": (
        lambda: KernelClassifier(approximate=False).fit(MANY[:, None] * 0.0, MANY % 2, MANY % 3),
        ConfigError,
        (5000, 5001, "approximate=True"),
    ),
    "nothing to adapt on": (
        lambda: KernelClassifier().fit(X, Y, D).adapt(X[:0]),
        ConfigError,
        ("no row",),
    ),
    "other features": (
        lambda: KernelClassifier().fit(X, Y, D).adapt(X[:, :2]),
        ConfigError,
        ("[n, 3]", "(30, 2)"),
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_say_what_and_the_remedy(case: str) -> None:
    call, kind, facts = ERRORS[case]
    with refused(kind, *facts):
        call()
