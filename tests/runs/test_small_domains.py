"""Domains of one or two images: left out by name, and the remedy that is told works."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.config import RunConfig, from_dict
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.data.manifest import Manifest
from acclimate.rehearse.training import train
from acclimate.runs.evaluate import evaluate_run
from acclimate.runs.plan import make_plan
from acclimate.sweep.definition import gather
from acclimate.sweep.jobs import define, notes
from acclimate.sweep.settings import SweepConfig
from fixtures.errors import refused
from fixtures.settings import TINY


def arrays(**sizes: int) -> Manifest:
    rng = np.random.default_rng(0)
    domains = np.repeat(list(sizes), list(sizes.values()))
    X = rng.normal(size=(len(domains), 3)).astype(np.float32)
    return Manifest.from_arrays(X, np.where(X[:, 0] > 0, "up", "down"), domains)


SITES = {"north": 20, "south": 20, "one": 1, "two": 2, "also-one": 1}


def test_domains_are_left_out_where_that_is_the_remedy(tiny: Callable[..., RunConfig]) -> None:
    with refused(ManifestError, "'also-one'", "1 row", "--min-images 2"):
        make_plan(tiny(), arrays(**SITES))
    plan = make_plan(tiny(**{"data.min_images": 2}), arrays(**SITES))
    assert plan.train_domains == ("north", "south", "two")
    assert plan.decided == ("left out 2 domains with fewer than 2 images: also-one (1), one (1)",)


def test_unseen_domains_that_are_too_small_go_too(tiny: Callable[..., RunConfig]) -> None:
    settings = {"data.min_images": 3, "test_domains": ("one", "south"), "val_domains": ("two",)}
    sites = {**SITES, "east": 20}
    plan = make_plan(tiny(**settings), arrays(**sites))
    assert (plan.val_domains, plan.test_domains) == ((), ("south",))
    assert "also-one (1), one (1), two (2)" in plan.decided[0]


def test_a_folder_without_images_is_such_a_domain(
    tree: Path, tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(tree, tmp_path / "sites")
    (tmp_path / "sites" / "empty").mkdir()
    manifest = Manifest.from_folder(tmp_path / "sites")
    plan = make_plan(tiny(**{"data.min_images": 1}), manifest)
    assert plan.decided == ("left out 1 domain with fewer than 1 image: empty (0)",)


def test_a_run_knows_its_own_data_again(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    manifest, told = arrays(**SITES), []
    config = tiny(**{"data.min_images": 3})
    train(config, manifest, tmp_path / "run", device="cpu", say=told.append)
    assert told == ["left out 3 domains with fewer than 3 images: also-one (1), one (1), two (2)"]
    found = evaluate_run(tmp_path / "run", manifest, device="cpu")
    assert found.same_data
    assert {score.domain for score in found.scores} == {"north", "south"}


def sweep_of(**changes: Any) -> SweepConfig:
    flags = {"data": ("sites",), "settings": {**TINY, "data.min_images": 3}, "trials": 1}
    return gather(None, {**flags, **changes})


def test_a_sweep_has_no_jobs_for_domains_that_are_left_out() -> None:
    data = {"sites": arrays(**SITES, east=20, west=20)}
    config = sweep_of(rule="leave-one-out")
    sweep = define(config, data)
    assert {job.groups for job in sweep.jobs} == {
        (("east",),),
        (("north",),),
        (("south",),),
        (("west",),),
    }
    assert notes(config, data) == [
        "left out 3 domains with fewer than 3 images: also-one (1), one (1), two (2)"
    ]
    assert len(sweep.jobs) == 8
    for job in sweep.jobs:
        planned = make_plan(from_dict(RunConfig, job.config, where=""), data["sites"])
        assert len(planned.train_domains) == 3 and planned.test_domains == job.held_out
    paired = define(sweep_of(rule="leave-one-out", draws=2), data)
    held = {name for job in paired.jobs for name in job.held_out}
    assert held == {"north", "south", "east", "west"}
    assert notes(sweep_of(settings=TINY), data) == []


def test_a_sweep_that_names_such_a_domain() -> None:
    data = {"sites": arrays(**SITES, east=20)}
    for changes in ({"test_domains": ("south,two",)}, {"val_domains": ("two",)}):
        with refused(ConfigError, "'two'", "2 images", "data.min_images"):
            define(sweep_of(**changes), data)


def test_a_sweep_leaves_out_the_same_domains_in_all_runs() -> None:
    with refused(ConfigError, "per_algorithm.erm.data.min_images"):
        sweep_of(per_algorithm={"erm": {"data.min_images": 3}})
