"""Methods that change the backbone, rehearsed on images of held-out domains."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from acclimate.adapt.methods import Chain, find_chain
from acclimate.adapt.methods.chain import adapt_model
from acclimate.config import DataConfig, RunConfig
from acclimate.core.errors import ConfigError
from acclimate.data.manifest import Manifest
from acclimate.data.source import Quarantine, open_source
from acclimate.learn.images import Images
from acclimate.learn.model import Model, Trained
from acclimate.learn.models import Predictor
from acclimate.learn.models.predictors import LinearHead, identity_backbone
from acclimate.records.rehearsal import Promise
from acclimate.rehearse.backbone import Pixels
from acclimate.rehearse.training import train
from acclimate.runs.plan import make_plan
from fixtures.errors import refused
from fixtures.models import make_trained, rows_for

Tiny = Callable[..., RunConfig]
BN = {"adapt.rehearse": True, "adapt.rehearse_backbone": ["bn"]}
FROZEN = {
    "model.backbone": "efficientnet-lite0",
    "model.freeze": "backbone",
    "data.image_size": 32,
    "adapt.site.steps": 5,
}
STORED = torch.from_numpy(rows_for("linear", 40))


def weighted(weight: float) -> Chain:
    return find_chain("bn", settings={"bn.weight": weight})


def pixels(*chains: Chain) -> tuple[Pixels, Model]:
    """Forty images, a backbone with batch norm, and a head that was fitted on its features."""
    backbone = make_trained("linear").predictor.backbone
    images = STORED.permute(0, 2, 3, 1).numpy()
    manifest = Manifest.from_arrays(images, ["a"] * 40, ["one"] * 40)
    source = open_source(manifest, images.shape[1], DataConfig(), Quarantine())
    head = LinearHead(backbone.features, 3)
    torch.nn.init.normal_(head.last.weight)
    over = Predictor(identity_backbone(backbone.features), head).eval()
    return Pixels(source, backbone, chains), Model(over)


def test_the_head_of_a_fold_is_adapted_below_itself() -> None:
    tried, model = pixels(weighted(0.0), weighted(1.0))
    seen, scored = np.arange(5, 25), np.array([30, 3, 39])
    found = dict(enumerate(guesses for _, guesses in tried.predict(model, seen, scored)))
    start = Model(Predictor(tried.backbone, model.predictor.head))
    for place, weight in enumerate((0.0, 1.0)):
        chain, images = weighted(weight), Images(STORED[seen], torch.device("cpu"))
        adapted, _ = adapt_model(start, images, chain)
        with torch.no_grad():
            logits = adapted(STORED[scored].float() / 255).logits
        assert found[place].tolist() == logits.argmax(1).tolist()
    with torch.no_grad():  # nothing of the new statistics: the model of features as it is
        plain = model.predictor(tried.backbone(STORED[scored].float() / 255)).logits
    assert found[0].tolist() == plain.argmax(1).tolist()


def test_an_image_that_is_gone_is_no_class() -> None:
    tried, model = pixels(weighted(1.0))
    tried.source.unreadable[7] = True  # type: ignore[attr-defined]
    ((_, guesses),) = tried.predict(model, np.arange(20, 40), np.arange(10))
    assert guesses[7] == -1
    assert (guesses >= 0).sum() == 9


@pytest.mark.slow
def test_a_run_tells_what_batch_norm_would_give(tree: Path, tiny: Tiny, tmp_path: Path) -> None:
    config = tiny("erm", **{**BN, **FROZEN})
    train(config, Manifest.from_folder(tree), tmp_path / "run")
    rehearsal = Trained.load(tmp_path / "run").rehearsal
    assert rehearsal is not None
    plain, bn = rehearsal.backbone
    assert isinstance(bn, Promise)
    assert (plain.chain, bn.chain, bn.n, bn.domains) == ("none", "bn", max(rehearsal.chosen), 4)
    assert bn.gain == pytest.approx(bn.accuracy - plain.accuracy)
    assert "bn" not in rehearsal.chains  # never chosen
    assert any("bn" in line and "--method" in line for line in rehearsal.to_dict()["verdict"])


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"adapt.rehearse_backbone": ["prior"]}, ["prior", "bn"]),
        ({"adapt.rehearse_backbone": ["embedding+bn"]}, ["embedding+bn"]),
        ({"adapt.depth": "whole"}, ["rehearse_backbone", "adapt.depth=heads"]),
    ],
)
def test_what_cannot_be_rehearsed_so(
    settings: dict[str, object], facts: list[str], tree: Path, tiny: Tiny
) -> None:
    with refused(ConfigError, *facts):
        make_plan(tiny("erm", **{**BN, **settings}), Manifest.from_folder(tree), device="cpu")


def test_a_model_without_batch_norm_is_refused_before_it_is_trained(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    with refused(ConfigError, "'bn'", "batch norm"):
        train(tiny("erm", **BN), features, tmp_path / "run")
