"""Records, whole-or-absent files, named randomness and the exception tree."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from acclimate.core import errors
from acclimate.core.errors import AcclimateError, RecordError, SchemaError, UnknownName, unknown
from acclimate.core.files import append_line, write_atomically, write_json, write_text
from acclimate.core.randomness import derive, stream
from acclimate.records.records import (
    Finished,
    Loss,
    Record,
    Records,
    Score,
    Started,
    append,
    read,
)
from fixtures.errors import refused

STARTED = Started(
    time="2026-11-01T12:00:00",
    version="0.1.0",
    device="cpu",
    processes=1,
    resumed_at=None,
)
SCORE = Score(
    moment="validation",
    step=5,
    domain="Zürich \u2028 \n '\"",
    role="test",
    split="all",
    n=0,
    top1=None,
    top5=None,
    method="none",
)
FINISHED = Finished(kept_step=5, kept_by="last", kept_score=None, seconds=1.5, quarantined=0)


def loss(step: int, risk: float = 0.1) -> Loss:
    return Loss(phase="main", step=step, risk=risk, penalty=None, lr=1e-3, images_per_second=9.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.jsonl"


def test_every_kind_comes_back_as_it_was(path: Path) -> None:
    adapted = dataclasses.replace(
        SCORE, top1=0.1 + 0.2, top5=1.0, n=3, adapted_on="held-out", adapt_n=200, adapt_seed=1
    )
    written: list[Record] = [
        STARTED,
        loss(1, risk=1 / 3),
        dataclasses.replace(loss(2), penalty=0.25),
        SCORE,
        dataclasses.replace(adapted, method="embedding"),
        FINISHED,
    ]
    for record in written:
        append(path, record)
    found = read(path)
    assert found == Records(tuple(written))
    assert found.scores == [SCORE, written[4]]
    assert found.losses == written[1:3]
    assert found.finished == FINISHED
    assert path.read_bytes().count(b"\n") == len(written)
    first = json.loads(path.read_text(encoding="utf-8").split("\n")[0])
    assert (first["format"], first["kind"], first["device"]) == (1, "started", "cpu")


def test_no_file_is_no_records(path: Path) -> None:
    assert read(path) == Records(())
    assert read(path).finished is None
    path.touch()
    assert read(path) == Records(())


@pytest.mark.parametrize("before", [0, 2])
def test_a_torn_line_is_counted_then_mended(path: Path, before: int) -> None:
    for step in range(before):
        append(path, loss(step))
    whole = path.read_bytes() if before else b""
    append(path, SCORE)
    torn = path.read_bytes()
    for end in range(len(whole) + 1, len(torn)):
        path.write_bytes(torn[:end])
        assert read(path) == Records(tuple(loss(step) for step in range(before)), torn=1)
    append(path, FINISHED)
    assert read(path) == Records((*(loss(step) for step in range(before)), FINISHED))
    assert path.read_bytes().startswith(whole)


def test_the_last_of_a_key_counts(path: Path) -> None:
    other = dataclasses.replace(loss(1, risk=7.0), phase="embedding")
    for record in (loss(1, risk=1.0), loss(2, risk=2.0), other, loss(1, risk=3.0), FINISHED):
        append(path, record)
    append(path, dataclasses.replace(FINISHED, kept_step=9))
    found = read(path)
    assert {(item.phase, item.step): item.risk for item in found.losses} == {
        ("main", 1): 3.0,
        ("main", 2): 2.0,
        ("embedding", 1): 7.0,
    }
    assert found.finished == dataclasses.replace(FINISHED, kept_step=9)
    assert found.duplicates == 2


def test_scores_differ_by_moment_step_domain_split_and_method(path: Path) -> None:
    changes: list[dict[str, object]] = [
        {"moment": "final"},
        {"step": 6},
        {"domain": "b"},
        {"split": "val"},
        {"method": "embedding"},
    ]
    for change in ({}, *changes):
        append(path, dataclasses.replace(SCORE, **change))  # type: ignore[arg-type]
    append(path, dataclasses.replace(SCORE, top1=0.5))
    assert len(read(path).scores) == 6
    assert read(path).duplicates == 1


@pytest.mark.parametrize(
    ("line", "kind", "fact"),
    [
        (b"garbage", RecordError, "not a record"),
        (b"\xff\xfe\x00", RecordError, "not a record"),
        (b"[1, 2]", RecordError, "not a record"),
        (b"3", RecordError, "not a record"),
        (b'{"kind": "loss"}', RecordError, "not a record"),
        (b'{"format": 1}', RecordError, "not a record"),
        (b'{"format": 2, "kind": "loss"}', SchemaError, "format 2"),
        (b'{"format": 1, "kind": "lost", "step": 1}', RecordError, "'lost'"),
        (b'{"format": 1, "kind": "loss", "step": 1}', RecordError, "'loss'"),
        (b'{"format": 1, "kind": "finished", "extra": 1}', RecordError, "'finished'"),
    ],
)
def test_damage_before_the_end_is_refused(
    path: Path, line: bytes, kind: type[RecordError], fact: str
) -> None:
    """And another format is told from damage."""
    append(path, loss(1))
    with path.open("ab") as file:
        file.write(line + b"\n")
    append(path, loss(2))
    with refused(kind, path, "line 2", fact) as caught:
        read(path)
    assert type(caught.value) is kind


@pytest.mark.parametrize("metrics", [3, None, {"top-1": "high"}, {"top-1": [1.0]}])
def test_metrics_are_numbers_or_missing(path: Path, metrics: object) -> None:
    values = {"top-1": 0.5, "nll": None, "ece": 1}
    append(path, dataclasses.replace(SCORE, metrics=values))
    assert read(path).scores[0].metrics == values
    append(path, dataclasses.replace(SCORE, metrics=metrics))  # type: ignore[arg-type]
    with refused(RecordError, "line 2", "'score'"):
        read(path)


def test_a_disk_that_takes_a_part_of_a_line_gets_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:3]))
    append_line(tmp_path / "lines", "a whole line")
    assert (tmp_path / "lines").read_text() == "a whole line\n"


def test_files_are_put_in_place_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "file.json"
    write_json(target, {"b": "ü", "a": 1})
    assert target.read_text(encoding="utf-8") == '{\n  "a": 1,\n  "b": "ü"\n}\n'
    write_text(target, "second")
    assert target.read_text() == "second"
    assert [entry.name for entry in target.parent.iterdir()] == ["file.json"]


def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_text(target, "old")

    def fail(temporary: Path) -> None:
        assert temporary.parent == tmp_path  # or the rename would cross file systems
        temporary.write_text("half of the ne")
        assert target.read_text() == "old"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, fail)
    assert target.read_text() == "old"
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "never", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_streams_never_change() -> None:
    """Pinned: a change here would silently change every run, as would one between processes."""
    assert derive(3, "split", 7) == derive(3, "split", "7")
    assert derive(0) == 4761921975702974394
    assert derive(0, "split", "sketch") == 5355530014159756933
    assert stream(0, "split", "sketch").integers(0, 1000, 5).tolist() == [400, 477, 371, 495, 780]
    assert stream(0, "split", "sketch").permutation(6).tolist() == [3, 0, 4, 5, 2, 1]


def test_errors_are_one_tree() -> None:
    own = [value for value in vars(errors).values() if isinstance(value, type)]
    kinds = [kind for kind in own if kind.__module__ == errors.__name__]
    assert len(kinds) >= 10
    assert all(issubclass(kind, AcclimateError) for kind in kinds)
    assert all(kind.__doc__ for kind in kinds)


NUMBERS = [f"{n:02}" for n in range(15)]


@pytest.mark.parametrize(
    ("name", "known", "ending"),
    [
        ("skech", ["photo", "sketch"], "; did you mean 'sketch'?"),
        ("xyz", ["photo", "art"], "; there is art, photo"),
        ("xyz", [], "; there is none"),
        ("xyz", NUMBERS[:12], "; there is " + ", ".join(NUMBERS[:12])),
        ("xyz", NUMBERS, "; there is " + ", ".join(NUMBERS[:12]) + " and 3 more"),
    ],
)
def test_a_miss_names_the_nearest_or_all(name: str, known: list[str], ending: str) -> None:
    error = unknown("no such thing", name, known)
    assert isinstance(error, UnknownName)
    assert str(error) == f"no such thing{ending}"
