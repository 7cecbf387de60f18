"""Domains of one or two images: left out by name, and the remedy that is told works."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from acclimate.config import RunConfig
from acclimate.core.errors import ManifestError
from acclimate.data.manifest import Manifest
from acclimate.runs.evaluate import evaluate_run
from acclimate.runs.plan import make_plan
from acclimate.runs.training import train


def arrays(**sizes: int) -> Manifest:
    rng = np.random.default_rng(0)
    domains = np.repeat(list(sizes), list(sizes.values()))
    X = rng.normal(size=(len(domains), 3)).astype(np.float32)
    return Manifest.from_arrays(X, np.where(X[:, 0] > 0, "up", "down"), domains)


SITES = {"north": 20, "south": 20, "one": 1, "two": 2, "also-one": 1}


def test_the_remedy_leads_to_no_second_error(tiny: Callable[..., RunConfig]) -> None:
    with pytest.raises(ManifestError) as caught:
        make_plan(tiny(), arrays(**SITES))
    assert str(caught.value) == (
        "domain 'also-one' of arrays has 1 row in split 'train' and needs 2; add images, or leave "
        "out such domains with --min-images 2"
    )
    plan = make_plan(tiny(**{"data.min_images": 2}), arrays(**SITES))
    assert plan.train_domains == ("north", "south", "two")
    assert plan.dropped == "left out 2 domains with fewer than 2 images: also-one (1), one (1)"


def test_no_remedy_that_leaves_too_few(tiny: Callable[..., RunConfig]) -> None:
    with pytest.raises(ManifestError) as caught:
        make_plan(tiny(), arrays(north=20, one=1))
    assert str(caught.value) == (
        "domain 'one' of arrays has 1 row in split 'train' and needs 2; add images"
    )


def test_unseen_domains_that_are_too_small_go_too(tiny: Callable[..., RunConfig]) -> None:
    settings = {"data.min_images": 3, "test_domains": ("one", "south"), "val_domains": ("two",)}
    sites = {**SITES, "east": 20}
    plan = make_plan(tiny(**settings), arrays(**sites))
    assert (plan.val_domains, plan.test_domains) == ((), ("south",))
    assert plan.dropped == (
        "left out 3 domains with fewer than 3 images: also-one (1), one (1), two (2)"
    )


def test_a_folder_without_images_is_such_a_domain(
    tree: Path, tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(tree, tmp_path / "sites")
    (tmp_path / "sites" / "empty").mkdir()
    manifest = Manifest.from_folder(tmp_path / "sites")
    plan = make_plan(tiny(**{"data.min_images": 1}), manifest)
    assert plan.dropped == "left out 1 domain with fewer than 1 image: empty (0)"


def test_a_run_knows_its_own_data_again(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    manifest, told = arrays(**SITES), []
    config = tiny(**{"data.min_images": 3})
    train(config, manifest, tmp_path / "run", device="cpu", say=told.append)
    assert told == ["left out 3 domains with fewer than 3 images: also-one (1), one (1), two (2)"]
    found = evaluate_run(tmp_path / "run", manifest, device="cpu")
    assert found.same_data
    assert {score.domain for score in found.scores} == {"north", "south"}
