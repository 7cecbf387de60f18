"""A run that goes on with an additional site: from the old weights, with what changed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from acclimate.adapt.classifier import unadapted
from acclimate.config import RunConfig
from acclimate.core.errors import RunError
from acclimate.data.manifest import Manifest
from acclimate.learn.model import Networks, Trained
from acclimate.learn.models.weights import read_weights, weights_licence
from acclimate.records.folder import WEIGHTS
from acclimate.rehearse.training import train
from acclimate.runs.growth import changed_data, compare_runs, config_from
from acclimate.runs.plan import make_plan
from fixtures.errors import refused

Tiny = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def sites(tree: Path) -> Manifest:
    return Manifest.open(tree)


@pytest.fixture(scope="module")
def run(tiny: Tiny, sites: Manifest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("growth") / "run"
    train(tiny("erm"), sites.without_domains("west"), out, device="cpu")
    return out


def test_the_backbone_starts_where_the_run_ended(
    run: Path, sites: Manifest, tmp_path: Path
) -> None:
    config = config_from(run, {"train.steps": 2})
    assert config.model.weights == str(run / WEIGHTS)
    before = Trained.load(run).config.train
    assert (config.train.steps, config.train.per_domain) == (2, before.per_domain)
    plan = make_plan(config, sites, device="cpu")
    networks = Networks(config=plan.config, classes=2, domains=4, in_features=None, pretrained=True)
    learned = Trained.load(run).predictor.backbone.state_dict()
    start = networks.build()[0].backbone.state_dict()
    assert learned.keys() == start.keys()
    assert all(torch.equal(value, start[name]) for name, value in learned.items())
    assert len(read_weights(run / WEIGHTS)) == len(start) - 2  # but the mean and deviation
    assert weights_licence(config.model) == weights_licence(Trained.load(run).config.model)
    assert config_from(run, {}, ["west"]).model.weights == ""
    with refused(RunError, tmp_path / "no", "no finished run"):
        config_from(tmp_path / "no", {})


def test_what_was_added_and_what_it_changed(run: Path, sites: Manifest, tmp_path: Path) -> None:
    plan = make_plan(config_from(run, {}), sites, device="cpu")
    rows = len(sites.rows(domain="west", split="train"))
    assert changed_data(run, plan) == {
        "sites_added": ["west"],
        "sites_gone": [],
        "images_added": rows,
        "images_gone": 0,
    }
    train(plan.config, sites, tmp_path / "grown", device="cpu", plan=plan)
    found, why = compare_runs(run, tmp_path / "grown", plan, device="cpu")
    assert (why, [one.site for one in found]) == ("", list(sites.domains))
    own = Trained.load(tmp_path / "grown")
    for one in found:
        held_out = sites.rows(domain=one.site, split="val")
        assert 0 < one.images <= len(held_out)
        if one.images == len(held_out):
            images = [sites.image_source(int(row)) for row in held_out]
            best = unadapted(own).predict_proba(images).argmax(1)
            assert one.after == pytest.approx(np.mean(best == sites.label_index[held_out]))
    same = make_plan(config_from(run, {}), sites.without_domains("west"), device="cpu")
    assert changed_data(run, same)["images_added"] == 0
