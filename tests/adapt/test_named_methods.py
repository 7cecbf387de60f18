"""A method that the user names: with the settings that rehearsal found, and with what it said."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from acclimate.adapt.classifier import adapt
from acclimate.adapt.methods import find_chain
from acclimate.adapt.methods.chain import adapt_model
from acclimate.config import SiteConfig
from acclimate.learn.images import Images
from acclimate.learn.model import Model, Trained
from acclimate.learn.models import Predictor
from acclimate.learn.models.predictors import identity_backbone
from acclimate.learn.site import Features, fit_plain
from acclimate.records.doubt import Forecast
from acclimate.records.rehearsal import Promise, Rehearsal
from fixtures.models import make_trained

ROWS = np.random.default_rng(3).normal(size=(60, 5)).astype(np.float32)
FOUND = {"prior.strength": 40.0}
BY_HAND = {"prior.temperature": 3.0, **FOUND}  # as rehearsal calibrated the model
NEXT = Forecast(accuracy=0.7, floor=0.6)

WARM = {"none": 3.0, "embedding": 0.5}
assert_close = partial(np.testing.assert_allclose, atol=1e-5)


def rehearsed(**gains: float) -> Trained:
    """As if rehearsal with 5 and 20 images had found these gains of the prior, and its settings."""
    trained = make_trained("features")
    facts: dict[str, Any] = {"frequencies": "as they are", "accuracy": 0.7, "domains": 4}
    promises = tuple(
        Promise(
            chain=chain,
            n=n,
            gain=gain,
            error=0.002,
            forecasts=(NEXT,),
            settings=FOUND if chain == "prior" else {},
            **facts,
        )
        for n, own in ((5, gains["few"]), (20, gains["more"]))
        for chain, gain in (("none", 0.0), ("prior", own))
    )
    rehearsal = Rehearsal(
        promises=promises,
        chosen={5: "none", 20: "prior"},
        temperatures={"none": 3.0},
        domains=4,
        exact=True,
    )
    return replace(trained, rehearsal=rehearsal)


def test_a_rehearsed_model_is_calibrated_from_the_start() -> None:
    """With its second path and without: logits over the temperature of either, whichever the
    chain, and the same classes."""
    raw, rows = make_trained("rehearsed"), np.random.default_rng(0).integers(0, 256, (9, 3, 8, 8))
    rehearsal = replace(rehearsed(few=0.0, more=0.0).rehearsal, temperatures=WARM)  # type: ignore[type-var]
    warm = replace(raw, rehearsal=rehearsal)
    for method, temperature in WARM.items():
        before, after = (
            adapt(model, rows.astype(np.uint8), method=method, settings={}) for model in (raw, warm)
        )
        logs = np.log(before.predict_proba(rows.astype(np.uint8))) / temperature
        expected = np.exp(logs) / np.exp(logs).sum(1, keepdims=True)
        assert_close(after.predict_proba(rows.astype(np.uint8)), expected)
    assert_close(warm.predictor.last.weight.detach(), raw.predictor.last.weight.detach())


def test_a_named_method_is_what_rehearsal_tried() -> None:
    trained, plain = rehearsed(few=-0.007, more=0.04), make_trained("features")
    by_name = adapt(trained, ROWS[:20], method="prior")
    np.testing.assert_array_equal(
        by_name.predict_proba(ROWS), adapt(trained, ROWS[:20]).predict_proba(ROWS)
    )
    by_hand = adapt(plain, ROWS[:20], method="prior", settings=BY_HAND)
    assert_close(by_name.predict_proba(ROWS), by_hand.predict_proba(ROWS))
    usual = adapt(plain, ROWS[:20], method="prior").predict_proba(ROWS)
    assert np.abs(by_name.predict_proba(ROWS) - usual).max() > 1e-3


def test_settings_of_the_user_go_before_what_rehearsal_found() -> None:
    trained, plain = rehearsed(few=0.0, more=0.04), make_trained("features")
    own = {"prior.temperature": 1.5}
    components = {"prior": {"temperature": 1.5}}
    config = replace(trained.config, adapt=replace(trained.config.adapt, components=components))
    both = {"prior.temperature": 3.0 * 1.5, **FOUND}
    wanted = adapt(plain, ROWS[:20], method="prior", settings=both)
    for model, settings in ((trained, own), (replace(trained, config=config), None)):
        for method in ("prior", "auto"):
            site = adapt(model, ROWS[:20], method=method, settings=settings)
            assert_close(site.predict_proba(ROWS), wanted.predict_proba(ROWS))
            # What was promised is not about other settings.
            assert site.trust is not None and site.trust.expected_accuracy is None


def test_a_strength_of_the_user_is_not_lost_on_what_sites_showed() -> None:
    trained = rehearsed(few=0.0, more=0.04)
    assert trained.rehearsal is not None
    learned = {"prior.expect": "learned"}
    promises = tuple(replace(one, settings=learned) for one in trained.rehearsal.promises)
    model = replace(trained, rehearsal=replace(trained.rehearsal, promises=promises))
    site = adapt(model, ROWS[:20], method="prior", settings={"prior.strength": 40.0})
    wanted = adapt(make_trained("features"), ROWS[:20], method="prior", settings=BY_HAND)
    assert_close(site.predict_proba(ROWS), wanted.predict_proba(ROWS))


@pytest.mark.parametrize(
    ("n", "notes"),
    [
        (20, ["prior in rehearsal: +4.0 ± 0.2 points with 20 images"]),
        (7, ["prior in rehearsal: −0.7 ± 0.2 points with 5 images"]),
        (
            2,
            [
                "prior in rehearsal: −0.7 ± 0.2 points with 5 images",
                "note: 2 images are fewer than were rehearsed with, so that prior changes less",
            ],
        ),
    ],
)
def test_it_says_what_rehearsal_said(n: int, notes: list[str]) -> None:
    site = adapt(rehearsed(few=-0.007, more=0.04), ROWS[:n], method="prior")
    assert list(site.notes) == notes
    assert site.trust is not None and site.trust.expected_accuracy == NEXT
    plain = adapt(
        make_trained("features"),
        ROWS[:n],
        method="prior",
        settings={
            "prior.temperature": 3.0,
            "prior.strength": 40.0 * max(5 / n, 1.0),
        },
    )
    assert_close(site.predict_proba(ROWS), plain.predict_proba(ROWS))


def test_a_gain_within_its_error_is_no_difference() -> None:
    site = adapt(rehearsed(few=0.0, more=-0.002), ROWS[:20], method="prior")
    assert site.notes == ("prior in rehearsal: no difference (−0.2 ± 0.2 points) with 20 images",)


@pytest.mark.parametrize("kind", ["linear", "rehearsed"])
@pytest.mark.parametrize("method", ["none", "prior", "t3a", "bn", "tent"])
def test_there_is_trust_after_every_method(kind: str, method: str) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8)).astype(np.uint8)
    trust = adapt(make_trained(kind), rows, method=method).trust
    assert trust is not None and trust.n == 6
    assert bool(trust.warnings) == (method != "none")  # six are few


@pytest.mark.parametrize("lr", [0.02, 0.003])  # well calibrated, and not sure enough
@pytest.mark.parametrize("classes", [10, 12])
def test_a_handful_of_images_does_no_harm_to_a_good_model(classes: int, lr: float) -> None:
    """By its defaults, where nothing was rehearsed and nothing is shifted; plain EM loses tens of
    points of a model that is right on 19 of 20 images."""
    rng = np.random.default_rng(classes)
    centres = 1.25 * rng.normal(size=(classes, 16))
    y = rng.integers(classes, size=4200)
    x = torch.from_numpy(centres[y] + rng.normal(size=(4200, 16))).float()
    part = Features(x, torch.from_numpy(y), [np.arange(1200)], classes)
    config = SiteConfig(steps=400, batch=128, width=32, dim=4, lr=lr)
    head = fit_plain(part, config, layers=False, seed=0)
    prior = np.full(classes, 1 / classes).tolist()
    model = Model(Predictor(identity_backbone(16), head), None, None, False, prior)

    def right(predictor: Predictor) -> float:
        with torch.no_grad():
            return float((predictor(x[2200:]).logits.argmax(1).numpy() == y[2200:]).mean())

    plain = right(model.predictor)
    assert plain > 0.93
    for n in (5, 20):
        came = {
            strength: np.mean(
                [
                    right(adapt_model(model, Images(x[at : at + n], x.device), chain)[0]) - plain
                    for at in range(1200, 2200, 50)
                ]
            )
            for strength, chain in (
                ("as it comes", find_chain("prior")),
                ("plain EM", find_chain("prior", settings={"prior.strength": 0.0})),
            )
        }
        assert came["as it comes"] > -0.004  # the error of an accuracy on 2,000 images is 0.005
        assert came["plain EM"] < -0.05
