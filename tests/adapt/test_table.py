"""A table of images of many sites: in shards, as site by site, and after a kill as without one."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from acclimate.adapt.classifier import adapt, apply_state
from acclimate.adapt.table import (
    PLAN,
    Plan,
    SiteFolder,
    TablePredictor,
    TableTask,
    make_shards,
    predict_table,
)
from acclimate.core.errors import (
    ConfigError,
    ImageError,
    ManifestError,
    RunBusy,
    RunError,
    StateMismatch,
    UnknownName,
)
from acclimate.core.files import locked
from acclimate.core.progress import unwatched
from acclimate.learn.embeddings import DomainState
from acclimate.learn.model import Trained
from fixtures.errors import refused
from fixtures.models import SIZE, make_trained

METHODS = ("embedding", "prior", "none", "embedding+prior", "embedding")
ROWS = 50


class Example:
    """A saved model, the states of five sites, and a table of fifty images of them."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        self.folder, self.run = folder, folder / "run"
        make_trained("frozen rehearsed").save(self.run)
        self.trained = Trained.load(self.run)
        images = rng.integers(0, 256, (ROWS, SIZE, SIZE, 3), dtype=np.uint8)
        (folder / "photos").mkdir()
        self.names = [f"photos/{number}.png" for number in range(ROWS)]
        for name, pixels in zip(self.names, images, strict=True):
            Image.fromarray(pixels).save(folder / name)
        self.images = list(images)
        (folder / "states").mkdir()
        for number, method in enumerate(METHODS):
            site = adapt(self.trained, self.images[8 * number : 8 * number + 8], method=method)
            assert site.state is not None
            site.state.save(folder / "states" / f"site-{number}.safetensors")
        self.sites = [f"site-{rng.integers(len(METHODS))}" for _ in range(ROWS)]
        self.table = folder / "photos.parquet"
        self.write()
        self.task = TableTask(
            run=self.run, table=self.table, out=folder / "out", domains=folder / "states", shard=20
        )

    def write(self, group: int = 7, **columns: Any) -> None:
        values = {"image": self.names, "site": self.sites, **columns}
        pq.write_table(pa.table(values), self.table, row_group_size=group)


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return Example(tmp_path)


def rows_of(out: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted(out.glob("*.parquet")))


@pytest.mark.parametrize("group", [1, 7, 20, 1000])
def test_every_row_as_its_site_by_itself(example: Example, group: int) -> None:
    example.write(group)
    told: list[tuple[str, int, int]] = []
    task = replace(example.task, probabilities=True)
    plan, counts = predict_table(task, lambda phase, n, of, _: told.append((phase, n, of)))
    rows = rows_of(task.out)
    assert (plan.shards, counts.rows, counts.unreadable) == (3, ROWS, 0)
    assert rows["image"].to_pylist() == example.names
    assert rows["site"].to_pylist() == example.sites
    states = {
        site: apply_state(
            example.trained, DomainState.load(example.folder / "states" / f"{site}.safetensors")
        )
        for site in set(example.sites)
    }
    found = np.array(rows["probabilities"].to_pylist())
    for row, (image, site) in enumerate(zip(example.images, example.sites, strict=True)):
        assert np.allclose(found[row], states[site].predict_proba([image])[0], atol=1e-5)
    best = [example.trained.classes[place] for place in found.argmax(1)]
    assert rows["label"].to_pylist() == best
    assert rows["confidence"].to_pylist() == found.max(1).tolist()
    assert rows["problem"].null_count == ROWS
    assert dict(counts.labels) == {name: best.count(name) for name in sorted(set(best))}
    assert [one for one in told if one[0] == "images"] == [
        ("images", n, ROWS) for n in (20, 40, 50)
    ]


def test_a_killed_command_goes_on_to_the_same_bytes(example: Example) -> None:
    predict_table(example.task)
    whole = {path.name: path.read_bytes() for path in example.task.out.glob("*")}
    again = replace(example.task, out=example.folder / "again")
    shutil.copytree(example.task.out, again.out)
    again.shard_path(1).unlink()
    (again.out / ".part-000001.parquet.0123abcd.tmp").write_bytes(b"half")
    kept = again.shard_path(0).stat().st_mtime_ns
    predict_table(again)
    assert {path.name: path.read_bytes() for path in again.out.glob("*")} == whole
    assert again.shard_path(0).stat().st_mtime_ns == kept


def test_an_unreadable_image_keeps_its_row(example: Example) -> None:
    (example.folder / example.names[3]).write_bytes(b"no image")
    (example.folder / example.names[30]).unlink()
    example.names[31] = None  # type: ignore[call-overload]
    example.write()
    _, counts = predict_table(replace(example.task, probabilities=True))
    rows = rows_of(example.task.out).to_pylist()
    problems = {row: one["problem"] for row, one in enumerate(rows) if one["problem"]}
    assert sorted(problems) == [3, 30, 31]
    assert problems[30] == "no such file"
    for row in problems:
        assert (rows[row]["label"], rows[row]["confidence"]) == (None, None)
        assert rows[row]["probabilities"] is None
    assert counts.unreadable == 3
    assert counts.examples[0][0].endswith(example.names[3])


def test_nothing_readable_is_an_error(example: Example) -> None:
    shutil.rmtree(example.folder / "photos")
    with refused(ImageError, "50 images", "photos.parquet", "photos/0.png", "no such file"):
        predict_table(example.task)


def test_unsure_images_have_no_label(example: Example) -> None:
    predict_table(replace(example.task, out=example.folder / "all"))
    sure = np.array(rows_of(example.folder / "all")["confidence"])
    limit = float(np.median(sure))
    _, counts = predict_table(replace(example.task, unsure_below=limit))
    rows = rows_of(example.task.out)
    unsure = [one is None for one in rows["label"].to_pylist()]
    assert unsure == (sure < limit).tolist()
    assert [one is None for one in rows["unsure"].to_pylist()] == (sure >= limit).tolist()
    assert sum(counts.labels.values()) == ROWS - sum(unsure)


def test_what_cannot_be_promised_names_the_site(example: Example) -> None:
    with refused(ConfigError, "site-0", "--unsure-below"):
        predict_table(replace(example.task, at_least=0.9))


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda e: e.write(image=e.names[::-1]), "table"),
        (lambda e: make_trained("frozen rehearsed", seed=1).save(e.run), "model"),
        (
            lambda e: shutil.copy(
                e.folder / "states/site-4.safetensors", e.folder / "states/site-0.safetensors"
            ),
            "site-0",
        ),
    ],
    ids=["table", "model", "state"],
)
def test_a_changed_input_is_refused(
    example: Example, change: Callable[[Example], None], fact: str
) -> None:
    predict_table(replace(example.task, domains=None) if fact == "model" else example.task)
    if fact == "model":
        shutil.rmtree(example.run)
    change(example)
    task = replace(example.task, domains=None) if fact == "model" else example.task
    with refused(RunError, example.task.out, fact, "--out"):
        predict_table(task)


def test_another_request_is_refused(example: Example) -> None:
    predict_table(example.task)
    with refused(RunError, "--probabilities"):
        predict_table(replace(example.task, probabilities=True))
    with locked(example.task.out / ".lock", "predicting", RunError), refused(RunBusy):
        predict_table(example.task)
    (example.task.out / PLAN).write_text("{}")
    with refused(RunError, PLAN, "damaged"):
        predict_table(example.task)
    shutil.rmtree(example.task.out)
    predict_table(example.task)
    example.task.shard_path(1).write_bytes(b"PAR1")
    with refused(RunError, "part-000001", "damaged"):
        predict_table(example.task)
    (example.folder / "other").mkdir()
    (example.folder / "other" / "notes.txt").touch()
    with refused(RunError, "notes.txt"):
        predict_table(replace(example.task, out=example.folder / "other"))
    with refused(RunError, "photos.parquet", "file"):
        predict_table(replace(example.task, out=example.table))


def test_tables_that_cannot_be_predicted(example: Example) -> None:
    example.write(site=[*example.sites[:-1], "site-9"])
    with refused(UnknownName, "site-9", "states"):
        predict_table(example.task)
    example.write(site=[*example.sites[:-1], "../run/site-0"])
    with refused(UnknownName, "../run/site-0"):
        predict_table(example.task)
    example.write(site=[*example.sites[:-1], None])
    with refused(ManifestError, "photos.parquet", "site"):
        predict_table(example.task)
    pq.write_table(pa.table({"image": example.names}), example.table)
    with refused(ManifestError, "'site'"):
        predict_table(example.task)
    predict_table(replace(example.task, domains=None))  # the plain model for all
    example.table.write_text("image,site")
    with refused(ManifestError, "photos.parquet", "Parquet"):
        predict_table(example.task)
    example.table.unlink()
    with refused(ManifestError, "photos.parquet"):
        predict_table(example.task)


def test_states_that_do_not_go_together(example: Example) -> None:
    other = make_trained("frozen rehearsed", seed=1)
    state = adapt(other, example.images[:4], method="prior").state
    assert state is not None
    state.save(example.folder / "states" / "site-2.safetensors")
    with refused(StateMismatch):
        predict_table(example.task)
    with refused(ConfigError, "nowhere"):
        predict_table(replace(example.task, domains=example.folder / "nowhere"))
    folder = SiteFolder(example.trained, example.folder / "states")
    assert (len(folder), next(iter(folder)), "site-7" in folder) == (5, "site-0", False)
    with pytest.raises(KeyError):
        folder["site-7"]


def test_images_in_the_table_and_features(example: Example, tmp_path: Path) -> None:
    predict_table(example.task)
    wanted = rows_of(example.task.out).drop_columns(["image"])
    encoded = [(example.folder / name).read_bytes() for name in example.names]
    example.write(image=[f"row {n}" for n in range(ROWS)], bytes=encoded)
    inside = replace(example.task, out=tmp_path / "inside")
    predict_table(inside)
    assert rows_of(inside.out).drop_columns(["image"]).equals(wanted)

    trained = make_trained("features")
    trained.save(tmp_path / "features")
    X = np.random.default_rng(0).normal(size=(ROWS, trained.size)).astype(np.float32)
    example.write(features=list(X))
    task = replace(example.task, run=tmp_path / "features", domains=None, out=tmp_path / "rows")
    predict_table(replace(task, probabilities=True))
    found = np.array(rows_of(task.out)["probabilities"].to_pylist())
    assert np.allclose(found, apply_state(trained, None).predict_proba(X), atol=1e-6)
    example.write()
    with refused(ManifestError, "'features'"):
        TablePredictor(task).make_plan()


@pytest.mark.slow
def test_a_process_that_is_killed_goes_on(example: Example) -> None:
    """For real: at its first finished shard, and with what it was writing left behind."""
    task = replace(example.task, shard=1)
    imports = "from pathlib import PosixPath; from acclimate.adapt.table import *"
    command = [sys.executable, "-c", f"{imports}; predict_table({task!r})"]
    process = subprocess.Popen(command)
    while not list(task.out.glob("*.parquet")) and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    made = len(list(task.out.glob("*.parquet")))
    assert 0 < made < ROWS
    subprocess.run(command, check=True)
    whole = replace(task, out=example.folder / "whole")
    predict_table(whole)
    assert rows_of(task.out).equals(rows_of(whole.out))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_a_ray_cluster_gives_the_same_bytes(example: Example) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: acclimate[ray]")
    from acclimate.adapt.table_ray import OnRay

    predict_table(example.task)
    on_ray = replace(example.task, out=example.folder / "ray")
    told: list[tuple[str, int, int]] = []

    def make_all_but_one(task: TableTask, plan: Plan, missing: list[int], _: object) -> None:
        make_shards(TablePredictor(task), plan, missing[:1], unwatched)
        OnRay()(task, plan, missing[1:], lambda phase, n, of, note: told.append((phase, n, of)))
        shutil.rmtree(example.run)
        with refused(RunError, example.run, "no such run folder"):
            OnRay()(task, plan, missing, unwatched)

    predict_table(on_ray, elsewhere=make_all_but_one)
    assert told[-1] == ("images", ROWS, ROWS)
    for path in example.task.out.glob("*.parquet"):
        assert (on_ray.out / path.name).read_bytes() == path.read_bytes()
