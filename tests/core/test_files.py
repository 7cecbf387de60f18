"""Files are whole or absent, wherever they go and whatever the disk does."""

import errno
import json
import os
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from acclimate.core import files
from acclimate.core.errors import (
    AcclimateError,
    DamagedFile,
    RunBusy,
    RunError,
    SchemaError,
    WriteError,
)
from acclimate.core.files import (
    FORMAT,
    Fields,
    append_line,
    clear_temporary,
    locked,
    parse_json,
    read_document,
    write_document,
    write_text,
)
from acclimate.core.tensors import read_tensors, save_tensors
from fixtures.errors import refused


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def mask() -> object:
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_a_new_file_has_the_mode_of_the_users_mask(tmp_path: Path, mask: object) -> None:
    write_text(tmp_path / "a", "x")
    append_line(tmp_path / "b", "x")
    save_tensors(tmp_path / "c", {"a": torch.ones(1)})
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "abc"}
    assert modes == {0o640}


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o600)
    write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "real").write_text("old")
    for name, leads_to in {"one": "there/real", "two": "one", "new": "there/fresh"}.items():
        (tmp_path / name).symlink_to(leads_to)
        write_text(tmp_path / name, name)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_text() == name
    assert left(tmp_path) == ["new", "one", "there", "two"]
    assert left(tmp_path / "there") == ["fresh", "real"]


def test_what_is_no_file_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name, kind in {"folder": "a folder", "pipe": "a pipe", "null": "a device"}.items():
        with refused(WriteError, tmp_path / name, kind):
            write_text(tmp_path / name, "x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert left(tmp_path) == ["folder", "null", "pipe"]


def test_a_name_as_long_as_a_name_may_be(tmp_path: Path) -> None:
    write_text(tmp_path / ("ü" * 127), "x")
    assert (tmp_path / ("ü" * 127)).read_text() == "x"
    with refused(WriteError, "file name too long"):
        write_text(tmp_path / ("ü" * 128), "x")


def test_halves_of_characters(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "\udcff")
    write_text(tmp_path / "b", "ü\ud800")
    assert (tmp_path / "a").read_bytes() == b"\xff"
    assert (tmp_path / "b").read_bytes() == "ü\\ud800".encode()


def test_what_killed_writers_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    for name in (".a.0123abcd.tmp", ".b.0123abcd.tmp", ".mine.tmp", "a.0123abcd.tmp"):
        (tmp_path / name).write_text("half")
    os.utime(tmp_path / ".a.0123abcd.tmp", (0, 0))
    clear_temporary(tmp_path)
    assert left(tmp_path) == [".b.0123abcd.tmp", ".mine.tmp", "a.0123abcd.tmp"]
    clear_temporary(tmp_path, older_than=0)
    assert left(tmp_path) == [".mine.tmp", "a.0123abcd.tmp"]
    clear_temporary(tmp_path / "nowhere")


def test_one_process_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    lock = tmp_path / "folder" / ".lock"
    for _ in range(2):  # it is free again afterwards
        with (
            locked(lock, "training", RunError),
            refused(RunBusy, "training", lock.parent),
            locked(lock, "training", RunError),
        ):
            pass


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "no space left on device; free some on its disk, which has 3 MB left,"),
        (errno.EIO, "input/output error; check the disk"),
        (errno.EROFS, "read-only file system; check the path"),
    ],
)
def test_failing_disks_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    path = tmp_path / "a"
    path.write_text("old")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3_000_000))
    monkeypatch.setattr(files.os, "fsync", fail)
    for write in (write_text, append_line):
        with refused(WriteError, path, said):
            write(path, "new")
    with refused(WriteError, path, said):
        save_tensors(path, {"a": torch.ones(1)})
    assert left(tmp_path) == ["a"]


VALUES = {"name": "Zürich", "n": 3, "shares": [0.25, 0.75], "inner": {"2": None}}


def test_a_document_comes_back_and_one_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_document(path, VALUES)
    assert read_document(path) == VALUES
    assert json.loads(path.read_text())["format"] == FORMAT
    path.write_text(json.dumps({**VALUES, "format": 99}))
    with refused(SchemaError, path, 99, FORMAT):
        read_document(path)


def test_numbers_as_keys(tmp_path: Path) -> None:
    write_document(tmp_path / "a.json", {"at": {10: 1, 9: 2}})
    assert read_document(tmp_path / "a.json") == {"at": {"10": 1, "9": 2}}


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\xff", "[" * 100_000, "9" * 5000])
def test_what_is_no_object(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedFile):
        read_document(path)


def test_nesting_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    for read in (read_document, read_tensors):
        with refused(AcclimateError, tmp_path / "a", "a pipe"):
            read(tmp_path / "a")


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("text", 1), ("texts", ["a", 1]), ("texts", "ab"), ("table", []), ("whole", 1.0),
        ("whole", True), ("whole", -1), ("whole", 1 << 60), ("number", "1"), ("number", True),
        ("number", float("inf")), ("number", 10**400), ("numbers", [0.5, None]), ("tables", [[]]),
    ],
)  # fmt: skip
def test_fields_are_of_their_kind(method: str, value: object) -> None:
    with pytest.raises(DamagedFile):
        getattr(Fields({"x": value}, Path("a")), method)("x")
    with pytest.raises(DamagedFile):
        getattr(Fields({}, Path("a")), method)("x")


def test_fields() -> None:
    fields = Fields({"t": "x", "l": ["a"], "d": {"k": 1}, "i": 3, "f": [1, 2.5]}, Path("a"))
    assert (fields.text("t"), fields.texts("l"), fields.table("d")) == ("x", ("a",), {"k": 1})
    assert (fields.whole("i"), fields.number("i"), fields.numbers("f")) == (3, 3.0, (1.0, 2.5))
    assert "t" in fields and "none" not in fields
