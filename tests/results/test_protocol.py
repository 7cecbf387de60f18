"""A sweep on disk: round trips, names and digests, and the state of a job from its files alone."""

import json
from pathlib import Path

import pytest

from acclimate.core.errors import AcclimateError, SchemaError, SweepError
from acclimate.core.files import read_document, write_document
from acclimate.records.folder import RunFolder, write_checksums
from acclimate.records.records import Finished
from acclimate.results.protocol import (
    Axis,
    DataSet,
    EmbeddingJob,
    Job,
    Sweep,
    job_digest,
    job_name,
    targets,
)
from acclimate.results.sweep_folder import Failure, SweepFolder
from fixtures.errors import refused

CONFIG = {
    "algorithm": "erm",
    "model": {"freeze": "none", "weights": "", "width": 8},
    "adapt": {"depth": "heads"},
    "seed": 0,
}


def job(name: str, *groups: tuple[str, ...]) -> Job:
    return Job(
        id=name, dataset="pets", algorithm="erm", groups=groups, draw=0, trial=0, config=CONFIG
    )


def sweep() -> Sweep:
    return Sweep(
        title="pets",
        rule="leave-one-out",
        baseline="erm",
        datasets=(DataSet(name="pets", digest="abc", source="pets.parquet", domains=("a", "b")),),
        embeddings=(EmbeddingJob(id="phi-1", dataset="pets", config=CONFIG),),
        jobs=(job("one", ("a",)), job("two", ("a",), ("b", "c")), job("three", ("b", "c"))),
        axis=Axis(label="N", places={"N = 2": 2.0, "none": None}),
    )


def finished(folder: Path) -> None:
    folder.mkdir(parents=True)
    record = Finished(kept_step=1, kept_by="x", kept_score=None, seconds=1.0, quarantined=0)
    RunFolder(folder).append(record)
    write_checksums(folder, finished=True)


def test_a_sweep_survives_the_disk(tmp_path: Path) -> None:
    assert not SweepFolder(tmp_path).exists
    SweepFolder(tmp_path).write(sweep())
    assert SweepFolder(tmp_path).exists
    assert SweepFolder(tmp_path).read() == sweep()
    assert SweepFolder(tmp_path).read().dataset("pets").digest == "abc"


def test_held_out_domains_are_those_of_all_groups_in_order() -> None:
    assert job("x", ("c", "d"), ("a",)).held_out == ("a", "c", "d")


def test_targets_are_the_groups_that_runs_are_scored_on() -> None:
    assert targets(sweep().jobs) == [("a",), ("b", "c")]


@pytest.mark.parametrize(
    ("content", "error", "facts"),
    [
        (None, SweepError, ["no sweep.json", "acclimate sweep"]),
        ("{", SweepError, ["sweep.json", "damaged"]),
        ("[]", SweepError, ["sweep.json", "damaged"]),
        ('{"format": 9}', SchemaError, ["sweep.json", "format 9"]),
        ('{"format": 1}', SweepError, ["sweep.json", "damaged"]),
    ],
)
def test_what_is_no_sweep_is_said(
    tmp_path: Path, content: str | None, error: type[AcclimateError], facts: list[str]
) -> None:
    if content is not None:
        (tmp_path / "sweep.json").write_text(content)
    with refused(error, tmp_path, *facts):
        SweepFolder(tmp_path).read()


def test_a_digest_is_of_data_and_settings_not_of_where_weights_lie() -> None:
    def digest(weights: str, content: str, data: str = "abc", seed: int = 0) -> str:
        config = {**CONFIG, "seed": seed, "model": {"weights": weights, "width": 8}}
        return job_digest(data, config, content)

    assert digest("/here/w", "123") == digest("/there/w", "123")
    assert digest("w", "123") != digest("w", "456")
    assert digest("w", "123") != digest("w", "123", data="other")
    assert digest("w", "123") != digest("w", "123", seed=1)


def test_the_order_of_settings_is_no_part_of_a_digest() -> None:
    assert job_digest("d", {"a": 1, "b": 2}) == job_digest("d", {"b": 2, "a": 1})


def test_names_can_be_read_and_are_safe_as_folders() -> None:
    assert job_name(["da-erm", "", "art painting/x", "d0"], "0123456789abcdef") == (
        "da_erm-art_painting_x-d0-0123456789"
    )
    assert "/" not in job_name(["../../etc"], "0" * 64)


def test_the_state_of_a_job_is_read_from_its_files(tmp_path: Path) -> None:
    here = SweepFolder(tmp_path)
    assert here.job_state("j") == "waiting"
    here.run("j").path.mkdir(parents=True)
    (here.run("j").path / "run.json").write_text("{}")
    assert here.job_state("j") == "started"
    here.write_failure(Failure(job="j", error="e", traceback="t", time="now", attempts=2))
    assert here.job_state("j") == "failed"
    finished(here.run("k").path)
    assert here.job_state("k") == "done"
    (here.run("k").path / "checksums.json").unlink()  # not all was written
    assert here.job_state("k") == "waiting"


def test_the_state_of_an_embedding_is_read_from_its_files(tmp_path: Path) -> None:
    here = SweepFolder(tmp_path)
    assert here.embedding_state("phi") == "waiting"
    here.embedding("phi").path.mkdir(parents=True)
    assert here.embedding_state("phi") == "started"
    here.failure_file("phi").parent.mkdir()
    here.failure_file("phi").write_text("{}")
    assert here.embedding_state("phi") == "failed"
    (here.embedding("phi").path / "embedding.safetensors").touch()
    assert here.embedding_state("phi") == "done"


def test_a_failure_survives_the_disk_and_damage(tmp_path: Path) -> None:
    assert SweepFolder(tmp_path).failure("j") is None
    failure = Failure(job="j", error="e", traceback="t", time="now", attempts=2)
    SweepFolder(tmp_path).write_failure(failure)
    assert SweepFolder(tmp_path).failure("j") == failure
    SweepFolder(tmp_path).failure_file("j").write_text(json.dumps({"job": "j"}))
    damaged = SweepFolder(tmp_path).failure("j")
    assert damaged is not None
    assert damaged.error == "j.json is damaged"


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("jobs", {"variant": []}),
        ("jobs", {"variant": None}),
        ("jobs", {"needs": 1}),
        ("jobs", {"drawn": {}}),
        ("jobs", {"drawn": None}),
        ("embeddings", {"drawn": None}),
        ("jobs", {"draw": "0"}),
        ("jobs", {"id": "../x"}),
        ("jobs", {"dataset": "z"}),
        ("jobs", {"config": {"adapt": {"methods": [None]}}}),
        ("jobs", {"config": {"adapt": {"methods": "prior"}}}),
        ("jobs", {"config": {"adapt": ["prior"]}}),
    ],
)
def test_a_value_of_another_kind_is_damage(
    tmp_path: Path, kind: str, change: dict[str, object]
) -> None:
    SweepFolder(tmp_path).write(sweep())
    stored = read_document(tmp_path / "sweep.json")
    stored[kind][0].update(change)
    write_document(tmp_path / "sweep.json", stored)
    write_checksums(tmp_path)
    with refused(SweepError, tmp_path / "sweep.json", "damaged"):
        SweepFolder(tmp_path).read()
