"""The library's face."""

from pathlib import Path

import numpy as np
import pytest

from acclimate import AdaptiveClassifier, Manifest
from acclimate.core.errors import ConfigError, ImageError, RunError
from acclimate.records.folder import RunFolder
from fixtures.errors import refused
from fixtures.settings import TINY


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
    state = fitted.adapt(rows).state
    assert state is not None
    state.save(tmp_path / "site.safetensors")
    again = fitted.for_domain(tmp_path / "site.safetensors")
    np.testing.assert_array_equal(again.predict_proba(rows), one)


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
    with refused(RunError, "AdaptiveClassifier", "fit"):
        AdaptiveClassifier().adapt([])
    with refused(ConfigError, "y is None"):
        AdaptiveClassifier().fit(np.zeros((3, 2)))
    with refused(ConfigError, "[n, 5]", "(2, 4)"):
        model.adapt(np.zeros((2, 4)))
