"""A sweep on disk: round trips, names and digests, and the state of a job from its files alone."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.core.errors import SweepError
from acclimate.results.protocol import (
    Axis,
    DataSet,
    EmbeddingJob,
    Failure,
    Job,
    Sweep,
    embedding_folder,
    embedding_state,
    failure_path,
    is_sweep,
    job_digest,
    job_name,
    job_state,
    read_failure,
    read_sweep,
    run_folder,
    runs_needed,
    targets,
    write_failure,
    write_sweep,
)
from acclimate.runs.records import Finished, append

CONFIG = {"algorithm": "erm", "model": {"weights": "", "width": 8}, "seed": 0}


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
    (folder / "model.json").write_text("{}")


def test_a_sweep_survives_the_disk(tmp_path: Path) -> None:
    assert not is_sweep(tmp_path)
    write_sweep(tmp_path, sweep())
    assert is_sweep(tmp_path)
    assert read_sweep(tmp_path) == sweep()
    assert read_sweep(tmp_path).dataset("pets").digest == "abc"


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
            '{"format": "acclimate-sweep-9"}',
            "{0}/sweep.json: format acclimate-sweep-9, this version reads acclimate-sweep-1; "
            "use the version of acclimate that wrote it",
        ),
        (
            '{"format": "acclimate-sweep-1"}',
            "{0}/sweep.json is damaged; restore it, or choose another --out",
        ),
    ],
)
def test_what_is_no_sweep_is_said(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(SweepError) as caught:
        read_sweep(tmp_path)
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


@given(groups=st.integers(2, 30), draws=st.integers(2, 20))
def test_leave_one_out_needs_a_run_for_each_group_and_pair(groups: int, draws: int) -> None:
    pairs = sum(1 for i in range(groups) for j in range(i))
    assert runs_needed("leave-one-out", groups, draws=draws) == draws * (groups + pairs)
    assert runs_needed("k-fold", groups, folds=5, draws=draws) == draws * (groups + 5 * groups)
    for rule in ("training-domains", "validation-domains", "oracle"):
        assert runs_needed(rule, groups, draws=draws) == draws * groups


def test_one_draw_leaves_nothing_to_choose() -> None:
    assert runs_needed("leave-one-out", 4, draws=1) == 4


def test_the_state_of_a_job_is_read_from_its_files(tmp_path: Path) -> None:
    assert job_state(tmp_path, "j") == "waiting"
    folder = run_folder(tmp_path, "j")
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    assert job_state(tmp_path, "j") == "started"
    write_failure(tmp_path, Failure(job="j", error="e", traceback="t", time="now", attempts=2))
    assert job_state(tmp_path, "j") == "failed"
    finished(run_folder(tmp_path, "k"))
    assert job_state(tmp_path, "k") == "done"
    (run_folder(tmp_path, "k") / "model.json").unlink()  # weights never written: not done
    assert job_state(tmp_path, "k") == "waiting"


def test_the_state_of_an_embedding_is_read_from_its_files(tmp_path: Path) -> None:
    assert embedding_state(tmp_path, "phi") == "waiting"
    folder = embedding_folder(tmp_path, "phi")
    folder.mkdir(parents=True)
    assert embedding_state(tmp_path, "phi") == "started"
    failure_path(tmp_path, "phi").parent.mkdir()
    failure_path(tmp_path, "phi").write_text("{}")
    assert embedding_state(tmp_path, "phi") == "failed"
    (folder / "embedding.safetensors").touch()
    assert embedding_state(tmp_path, "phi") == "done"


def test_a_failure_survives_the_disk_and_damage(tmp_path: Path) -> None:
    assert read_failure(tmp_path, "j") is None
    failure = Failure(job="j", error="e", traceback="t", time="now", attempts=2)
    write_failure(tmp_path, failure)
    assert read_failure(tmp_path, "j") == failure
    failure_path(tmp_path, "j").write_text(json.dumps({"job": "j"}))
    damaged = read_failure(tmp_path, "j")
    assert damaged is not None
    assert damaged.error == "j.json is damaged"
