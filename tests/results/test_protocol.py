"""A sweep on disk: round trips, names and digests, and the state of a job from its files alone."""

import json
from pathlib import Path

import pytest

from acclimate.core.errors import SchemaError, SweepError
from acclimate.core.files import read_document, write_document
from acclimate.records.folder import write_checksums
from acclimate.records.records import Finished, append
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
    append(folder / "records.jsonl", record)
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
    ("content", "message"),
    [
        (None, "{0}: no sweep in it (no sweep.json); make one with `acclimate sweep`"),
        ("{", "{0}/sweep.json is damaged; restore it, or choose another --out"),
        ("[]", "{0}/sweep.json is damaged; restore it, or choose another --out"),
        (
            '{"format": 9}',
            "{0}/sweep.json: format 9, this version reads 1; "
            "use the version of acclimate that wrote it",
        ),
        (
            '{"format": 1}',
            "{0}/sweep.json is damaged; restore it, or choose another --out",
        ),
    ],
)
def test_what_is_no_sweep_is_said(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "sweep.json").write_text(content)
    with pytest.raises((SweepError, SchemaError)) as caught:
        SweepFolder(tmp_path).read()
    assert str(caught.value) == message.format(tmp_path)


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
    assert SweepFolder(tmp_path).job_state("j") == "waiting"
    folder = SweepFolder(tmp_path).run("j").path
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    assert SweepFolder(tmp_path).job_state("j") == "started"
    SweepFolder(tmp_path).write_failure(
        Failure(job="j", error="e", traceback="t", time="now", attempts=2)
    )
    assert SweepFolder(tmp_path).job_state("j") == "failed"
    finished(SweepFolder(tmp_path).run("k").path)
    assert SweepFolder(tmp_path).job_state("k") == "done"
    (SweepFolder(tmp_path).run("k").path / "checksums.json").unlink()  # not all was written
    assert SweepFolder(tmp_path).job_state("k") == "waiting"


def test_the_state_of_an_embedding_is_read_from_its_files(tmp_path: Path) -> None:
    assert SweepFolder(tmp_path).embedding_state("phi") == "waiting"
    folder = SweepFolder(tmp_path).embedding("phi").path
    folder.mkdir(parents=True)
    assert SweepFolder(tmp_path).embedding_state("phi") == "started"
    SweepFolder(tmp_path).failure_file("phi").parent.mkdir()
    SweepFolder(tmp_path).failure_file("phi").write_text("{}")
    assert SweepFolder(tmp_path).embedding_state("phi") == "failed"
    (folder / "embedding.safetensors").touch()
    assert SweepFolder(tmp_path).embedding_state("phi") == "done"


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
    ("name", "value"),
    [("variant", []), ("needs", 1), ("drawn", {}), ("draw", "0"), ("id", "../x"), ("dataset", "z")],
)
def test_a_job_of_another_kind_is_damage(tmp_path: Path, name: str, value: object) -> None:
    config = {"algorithm": "erm", "seed": 0}
    job = Job(
        id="j", dataset="d", algorithm="erm", groups=(("a",),), draw=0, trial=0, config=config
    )
    data = DataSet(name="d", digest="x", source="d.parquet", domains=("a", "b"))
    sweep = Sweep(
        title="t", rule="oracle", baseline="erm", datasets=(data,), embeddings=(), jobs=(job,)
    )
    SweepFolder(tmp_path).write(sweep)
    assert SweepFolder(tmp_path).read().jobs[0].id == "j"
    stored = read_document(tmp_path / "sweep.json")
    stored["jobs"][0][name] = value
    write_document(tmp_path / "sweep.json", stored)
    write_checksums(tmp_path)
    with pytest.raises(SweepError) as error:
        SweepFolder(tmp_path).read()
    assert str(error.value) == (
        f"{tmp_path}/sweep.json is damaged; restore it, or choose another --out"
    )


@pytest.mark.parametrize("adapt", [{"methods": [None]}, {"methods": "prior"}, ["prior"]])
def test_methods_of_a_damaged_sweep_are_refused(tmp_path: Path, adapt: object) -> None:
    SweepFolder(tmp_path).write(sweep())
    stored = read_document(tmp_path / "sweep.json")
    stored["jobs"][0]["config"]["adapt"] = adapt
    write_document(tmp_path / "sweep.json", stored)
    write_checksums(tmp_path)
    with pytest.raises(SweepError, match="damaged"):
        SweepFolder(tmp_path).read()


@pytest.mark.parametrize(
    ("kind", "name"), [("jobs", "variant"), ("jobs", "drawn"), ("embeddings", "drawn")]
)
def test_a_null_in_a_damaged_sweep_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    SweepFolder(tmp_path).write(sweep())
    stored = read_document(tmp_path / "sweep.json")
    stored[kind][0][name] = None
    write_document(tmp_path / "sweep.json", stored)
    write_checksums(tmp_path)
    with pytest.raises(SweepError, match="damaged"):
        SweepFolder(tmp_path).read()
