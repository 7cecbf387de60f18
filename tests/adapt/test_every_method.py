"""One suite for every row of the table of adaptation methods, with its settings."""

from pathlib import Path
from typing import Any

import pytest
import torch

from acclimate.adapt.methods import METHODS, chain_of, find_chain, method_settings
from acclimate.adapt.methods.chain import adapt_model, apply_chain
from acclimate.adapt.methods.prior import Prior
from acclimate.config import AdaptConfig, settings_of
from acclimate.core.errors import ConfigError, UnknownName
from acclimate.learn.embeddings import DomainState
from acclimate.learn.images import Images
from acclimate.learn.model import Model
from acclimate.learn.models import Predictor
from acclimate.rehearse.rehearsal import _candidates
from fixtures.errors import refused
from fixtures.predictors import UNIFORM, batch_normed, logits_of, pixels, weights_of

NAMES = [name for name, row in METHODS.items() if row.method and not row.method.control]
# Settings that matter, each with a value that is not the default.
OTHER = {
    "prior": {
        "iterations": 1,
        "tolerance": 0.5,
        "temperature": 2.0,
        "strength": 50.0,
        "expect": "learned",
    },
    "shift": {"amount": 1.0},
    "labels": {"strength": 0.1},
    "bn": {"weight": 0.5},
    "t3a": {"keep": 1},
    "tent": {"steps": 3, "lr": 0.1, "batch": 7},
    "sar": {
        "steps": 3,
        "lr": 0.1,
        "batch": 7,
        "margin": 0.9,
        "radius": 0.5,
        "collapse": 9.0,
    },
    "shot": {"steps": 3, "lr": 0.1},
}
# Where the defaults would find nothing to do on noise.
USUAL = {"sar": {"margin": 2.0}}


MODEL = Model(
    batch_normed(),
    label_prior=[1 / 3] * 3,
    ratios=UNIFORM.ratios.tolist(),
    centre=torch.zeros(batch_normed().last.in_features, dtype=torch.float64),
)


def adapted(
    name: str, images: Images, predictor: Predictor | None = None, **settings: Any
) -> tuple[Predictor, DomainState]:
    chain = find_chain(name, AdaptConfig(components={name: settings}))
    model = MODEL._replace(predictor=predictor or batch_normed())
    return adapt_model(model, images, chain, labels=torch.arange(len(images)) % 3)


@pytest.mark.parametrize("name", NAMES)
class TestMethod:
    def test_numbers_are_finite(self, name: str) -> None:
        found, state = adapted(name, pixels(40))
        assert logits_of(found, pixels(40)).isfinite().all()
        assert all(t.isfinite().all() for t in state.payloads[name].values())

    def test_the_models_weights_are_untouched(self, name: str) -> None:
        predictor = batch_normed()
        before = weights_of(predictor)
        adapted(name, pixels(40), predictor)
        assert weights_of(predictor) == before
        assert not predictor.training

    def test_a_stored_state_predicts_the_same_whatever_the_settings_were(
        self, name: str, tmp_path: Path
    ) -> None:
        found, state = adapted(name, pixels(40), **OTHER[name])
        state.save(tmp_path / "site.safetensors")
        stored = DomainState.load(tmp_path / "site.safetensors")
        again = apply_chain(MODEL._replace(predictor=batch_normed()), chain_of(stored), stored)
        assert torch.equal(logits_of(found, pixels(9)), logits_of(again, pixels(9)))

    def test_one_image_is_enough_or_is_refused(self, name: str) -> None:
        try:
            found, _ = adapted(name, pixels(1))
        except ConfigError as error:
            assert "2 images" in str(error)
        else:
            assert logits_of(found, pixels(1)).isfinite().all()

    def test_one_class(self, name: str) -> None:
        predictor = batch_normed()
        with torch.no_grad():
            predictor.head.last.bias.copy_(torch.tensor([1e3, 0.0, 0.0]))
        found, _ = adapted(name, pixels(40), predictor)
        assert logits_of(found, pixels(40)).isfinite().all()

    def test_same_images_same_numbers(self, name: str) -> None:
        one, two = (adapted(name, pixels(40))[0] for _ in range(2))
        assert torch.equal(logits_of(one, pixels(9)), logits_of(two, pixels(9)))

    def test_every_setting_plays_a_part(self, name: str) -> None:
        assert METHODS[name].method is not None
        known = {s.name for s in settings_of(METHODS[name].method.Config())}
        assert set(OTHER[name]) == known
        own = USUAL.get(name, {})
        usual = logits_of(adapted(name, pixels(40), **own)[0], pixels(40))
        for key, value in OTHER[name].items():
            found, _ = adapted(name, pixels(40), **{**own, key: value})
            assert not torch.equal(logits_of(found, pixels(40)), usual), key


def test_the_defaults_are_those_of_no_settings() -> None:
    assert method_settings(AdaptConfig()) == {
        name: row.method.Config() for name, row in METHODS.items() if row.method
    }


@pytest.mark.parametrize(
    ("tables", "kind", "facts"),
    [
        ({"tnet": {"steps": 3}}, UnknownName, ("'adapt.tnet'", "'adapt.tent'")),
        ({"tent": {"step": 3}}, UnknownName, ("'adapt.tent.step'", "'adapt.tent.steps'")),
        ({"tent": {"steps": -1}}, ConfigError, ("'adapt.tent.steps'", "at least 0", "-1")),
        ({"tent": 3}, ConfigError, ("'adapt.tent'", "3")),
        ({"bn": {"weight": 2}}, ConfigError, ("'adapt.bn.weight'", "from 0 to 1", "2.0")),
    ],
)
def test_settings_that_are_none(
    tables: dict[str, Any], kind: type[Exception], facts: tuple[str, ...]
) -> None:
    with refused(kind, *facts):
        find_chain("prior", AdaptConfig(components=tables))


def test_what_changes_the_backbone_is_not_rehearsed_on_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tried() -> set[str]:
        return {chain.name for chain, _ in _candidates(many_domains=False)}

    assert "prior" in tried()
    monkeypatch.setattr(Prior, "changes", "backbone")
    assert "prior" not in tried()
