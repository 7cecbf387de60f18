"""The library's face, and that adaptation helps where a domain decides."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acclimate import AdaptiveClassifier, Manifest
from acclimate.core.errors import ConfigError, ImageError, RunError
from acclimate.records.folder import RunFolder
from fixtures.errors import refused
from fixtures.settings import TINY


def conditional(seed: int, domains: int, images: int = 60) -> tuple[np.ndarray, ...]:
    """Two classes whose meaning flips with the domain's offset, which one row alone hides."""
    rng = np.random.default_rng(seed)
    offset = rng.choice([-1.0, 1.0], domains)
    names = np.repeat([f"d{i:02d}" for i in range(domains)], images)
    sign = rng.choice([-1.0, 1.0], domains * images)
    X = rng.normal(size=(domains * images, 4))
    X[:, 0] += 2.5 * sign
    X[:, 1] += 0.8 * np.repeat(offset, images)
    y = np.where(sign * np.repeat(offset, images) > 0, "up", "down")
    return X.astype(np.float32), y, names


FIT: dict[str, Any] = TINY | {
    "model.head": "mlp",
    "model.width": 32,
    "model.hidden": 32,
    "embedding.dim": 8,
    "embedding.steps": 200,
    "embedding.domains_per_step": 8,
    "embedding.per_domain": 16,
    "train.steps": 200,
    "train.per_domain": 4,
    "train.evaluate_every": 50,
    "train.checkpoint_every": 100,
}


@pytest.mark.slow
def test_it_adapts_where_only_the_domain_can_tell() -> None:
    X, y, domains = conditional(seed=0, domains=30)
    model = AdaptiveClassifier(algorithm="da-erm", settings=FIT).fit(X, y, domains)
    new_X, new_y, new_domains = conditional(seed=1, domains=6, images=200)
    scores, crossed = [], []
    for name in np.unique(new_domains):
        rows = new_domains == name
        site = model.adapt(new_X[rows][:100])
        scores.append(np.mean(np.array(site.predict(new_X[rows][100:])) == new_y[rows][100:]))
        crossed.append(site)
    # One row leaves the convention nearly open: without its domain nobody gets far.
    plain = AdaptiveClassifier(algorithm="erm", settings=FIT).fit(X, y, domains)
    alone = np.mean(np.array(plain.for_domain(None).predict(new_X)) == new_y)
    assert np.mean(scores) > 0.9
    assert alone < 0.8
    assert all(site.trust is not None and site.trust.n == 100 for site in crossed)


@pytest.fixture(scope="module")
def model(features: Manifest) -> AdaptiveClassifier:
    return AdaptiveClassifier(algorithm="da-erm", settings=TINY).fit(features)


def test_probabilities_and_empty_input(model: AdaptiveClassifier, features: Manifest) -> None:
    site = model.adapt(features.features()[:10])
    probabilities = site.predict_proba(features.features()[:7])
    assert probabilities.shape == (7, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert site.predict(np.zeros((0, 5), np.float32)) == []
    with refused(ImageError, "at least one"):
        model.adapt(np.zeros((0, 5), np.float32))


def test_a_kept_run_loads_again(features: Manifest, tmp_path: Path) -> None:
    fitted = AdaptiveClassifier(algorithm="da-erm", settings=TINY, out=tmp_path / "run").fit(
        features
    )
    loaded = AdaptiveClassifier.load(tmp_path / "run", device="cpu")
    rows = features.features()[:9]
    one, two = (model.adapt(rows).predict_proba(rows) for model in (fitted, loaded))
    np.testing.assert_allclose(one, two, rtol=1e-5)  # one of them may be on a GPU
    assert RunFolder(tmp_path / "run").records().finished is not None


def test_a_state_serves_again(
    model: AdaptiveClassifier, features: Manifest, tmp_path: Path
) -> None:
    site, rows = model.adapt(features.features()[:9]), features.features()[:4]
    assert site.state is not None
    site.state.save(tmp_path / "site.safetensors")
    again = model.for_domain(tmp_path / "site.safetensors")
    np.testing.assert_array_equal(site.predict_proba(rows), again.predict_proba(rows))


def test_trust_warns_of_few_images_and_of_far_domains(
    model: AdaptiveClassifier, features: Manifest
) -> None:
    near = model.adapt(features.features()[features.rows(domain="site-0")])
    far = model.adapt(features.features()[:5] + 1000)
    assert near.trust is not None and far.trust is not None
    assert near.trust.nearest_distance < near.trust.typical_distance
    assert any("the model extrapolates" in warning for warning in far.trust.warnings)
    assert any("only 5 images" in warning for warning in far.trust.warnings)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_features_that_are_not_finite_are_refused(
    model: AdaptiveClassifier, features: Manifest, value: float
) -> None:
    rows = features.features().astype(np.float64)
    site = model.adapt(rows[:30])
    rows[17, 2] = value
    for use in (model.adapt, site.predict, site.predict_proba):
        with refused(ConfigError, "17"):
            use(rows)


def test_errors(model: AdaptiveClassifier) -> None:
    with pytest.raises(RunError, match="this AdaptiveClassifier is not fitted yet; call fit first"):
        AdaptiveClassifier().adapt([])
    with pytest.raises(ConfigError, match="the target y is None; give a manifest or a path, or"):
        AdaptiveClassifier().fit(np.zeros((3, 2)))
    with refused(ConfigError, "[n, 5]", "(2, 4)"):
        model.adapt(np.zeros((2, 4)))
