"""Files are whole or absent, wherever they go and whatever the disk does."""

import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from acclimate.core import files
from acclimate.core.errors import WriteError
from acclimate.core.files import append_line, clear_temporary, write_atomically, write_text
from acclimate.core.tensors import save_tensors


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


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    write_text(tmp_path / "null", "x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert left(tmp_path) == ["null"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WriteError) as error:
        write_text(tmp_path / "pipe", "x")
    assert str(error.value) == (
        f"{tmp_path / 'pipe'} cannot be written: no such device or address; check the path"
    )
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_text(tmp_path / "pipe", "words")
    assert os.read(reader, 10) == b"words"
    os.close(reader)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(WriteError) as error:
        write_text(tmp_path / "a", "x")
    assert str(error.value) == f"{tmp_path / 'a'} is a folder; write to a file"


def test_a_name_as_long_as_a_name_may_be(tmp_path: Path) -> None:
    write_text(tmp_path / ("ü" * 127), "x")
    assert (tmp_path / ("ü" * 127)).read_text() == "x"
    with pytest.raises(WriteError, match="file name too long; check the path"):
        write_text(tmp_path / ("ü" * 128), "x")


def test_halves_of_characters(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "\udcff")
    write_text(tmp_path / "b", "ü\ud800")
    assert (tmp_path / "a").read_bytes() == b"\xff"
    assert (tmp_path / "b").read_bytes() == "ü\\ud800".encode()


def test_what_killed_writers_left_is_swept_and_what_others_write_is_not(tmp_path: Path) -> None:
    for name in (".a.0123abcd.tmp", ".b.0123abcd.tmp", ".mine.tmp", "a.0123abcd.tmp"):
        (tmp_path / name).write_text("half")
    with (tmp_path / ".a.44444444.tmp").open("w") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        write_text(tmp_path / "a", "x")
        assert left(tmp_path) == [
            ".a.44444444.tmp", ".b.0123abcd.tmp", ".mine.tmp", "a", "a.0123abcd.tmp",
        ]  # fmt: skip
        clear_temporary(tmp_path)
        assert left(tmp_path) == [".a.44444444.tmp", ".mine.tmp", "a", "a.0123abcd.tmp"]
    clear_temporary(tmp_path)
    assert left(tmp_path) == [".mine.tmp", "a", "a.0123abcd.tmp"]
    clear_temporary(tmp_path / "nowhere")


def test_a_file_being_written_is_not_swept(tmp_path: Path) -> None:
    def write(temporary: Path) -> None:
        clear_temporary(tmp_path)
        temporary.write_text("x")

    write_atomically(tmp_path / "a", write)
    assert left(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "no space left on device; free some on its disk, which has 3 MB left, and "
                       "repeat the command"),
        (errno.EDQUOT, "disk quota exceeded; free some on its disk, which has 3 MB left, and "
                       "repeat the command"),
        (errno.EIO, "input/output error; check the disk, and repeat the command"),
        (errno.EROFS, "read-only file system; check the path"),
    ],
)  # fmt: skip
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
        with pytest.raises(WriteError) as error:
            write(path, "new")
        assert str(error.value) == f"{path} cannot be written: {said}"
    with pytest.raises(WriteError) as error:
        save_tensors(path, {"a": torch.ones(1)})
    assert str(error.value) == f"{path} cannot be written: {said}"
    assert left(tmp_path) == ["a"]
