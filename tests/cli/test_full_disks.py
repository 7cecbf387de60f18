"""Every command that writes, on disks that are full or fail: one line, what was there before, and
repeated the command ends with what it would have made at once."""

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from acclimate.adapt.classifier import adapt
from acclimate.learn.model import Trained
from fixtures.builder_inputs import TINY
from fixtures.faults import KINDS, failing, no_file_above

Cli = Callable[..., tuple[int, str, str]]
Command = Callable[[Path], list[str]]  # its arguments, for a folder to work in
SIZES = (0, 600, 3000)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server(tree: Path) -> Iterator[str]:
    """The tree over HTTP."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tree))) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture(scope="module")
def state(run: Path, tree: Path) -> Path:
    path = run.parent / "west.safetensors"
    found = adapt(Trained.load(run), sorted((tree / "west").rglob("*.jpg"))[:8]).state
    assert found is not None
    found.save(path)
    return path


@pytest.fixture
def commands(tree: Path, run: Path, state: Path, server: str) -> dict[str, Command]:
    def build(name: str, folder: Path) -> list[str]:
        given = TINY[name](tree, _emptied(folder / "given"))
        return ["build", name, *given, "--out", str(folder / "out" / "made.parquet")]

    def fetch(folder: Path) -> list[str]:
        images = [f"{site}/red/0{n}.jpg" for site in ("north", "west") for n in range(2)]
        rows = [f"{n}.jpg,red,{image[:4]},{server}/{image}" for n, image in enumerate(images)]
        table = _emptied(folder / "given") / "photos.csv"
        table.write_text("\n".join(["image,label,domain,url", *rows]))
        out = folder / "out"
        where = [f"--root={out / 'images'}", f"--out={out / 'made.parquet'}", "--private"]
        return ["build", "fetch", str(table), *where, "--workers=1"]

    def to(name: str, *given: object) -> Command:
        return lambda folder: [*map(str, given), "--out", str(folder / "out" / name)]

    site = tree / "west" / "red"
    return {
        **{name: partial(build, name) for name in TINY if name != "fetch"},
        "fetch": fetch,
        "pack": lambda _: ["pack", str(tree), "--size=8", "--workers=1"],
        "adapt": to("site.safetensors", "adapt", run, site),
        "predict": to("found.csv", "predict", run, site, "--adapt"),
        "export": to("site.npz", "export", run, "--domain", state),
    }


NAMES = [*TINY, "pack", "adapt", "predict", "export"]


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def made(folder: Path) -> dict[str, bytes]:
    """All files of a folder; without the times that some have in them, and the order of others."""
    found = {}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        if "digests" in path.parts:  # a cache of what files hold, which is done without
            continue
        content = path.read_bytes()
        if path.name == "fetch.jsonl":
            content = repr(
                sorted({json.loads(line)["image"] for line in content.splitlines()})
            ).encode()
        if path.name != "about.json":
            found[str(path.relative_to(folder))] = content
    return found


def one_line(code: int, said: str) -> None:
    """After what progress has to say."""
    *progress, last = said.strip().splitlines()
    assert code == 1
    assert last.startswith("error: "), said
    assert last.endswith("repeat the command"), said
    assert all(re.fullmatch(r"[a-z ]+: \d+ of \d+, .*", line) for line in progress), said


def spread(count: int) -> list[int]:
    """Some of 1..count: each of few, the first, the last and three between of many."""
    return sorted({1 + round(share * (count - 1) / 4) for share in range(5)}) if count else []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_whatever_fails_the_next_try_ends_as_if_nothing_had(
    name: str,
    cli: Cli,
    commands: dict[str, Command],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "work"
    monkeypatch.setenv("ACCLIMATE_CACHE", str(folder / "out" / "cache"))

    def start(fault: AbstractContextManager[Any]) -> tuple[int, str]:
        arguments = commands[name](folder)
        with fault:
            code, _, said = cli(*arguments)
        return code, said

    def tried(fault: AbstractContextManager[Any], what: object) -> None:
        _emptied(folder)
        code, said = start(fault)
        if code:
            one_line(code, said)
            again = start(nullcontext())
            assert again[0] == 0, again
        assert made(folder / "out") == whole, what

    assert start(nullcontext())[0] == 0
    whole = made(folder / "out")
    for kind in KINDS:
        _emptied(folder)
        with failing(0, kind) as seen:
            again = start(nullcontext())
            assert again[0] == 0, again
        assert seen or kind == "short write" or name == "pack", kind
        for at in spread(len(seen)):
            tried(failing(at, kind), (kind, at))
    for size in SIZES:
        tried(no_file_above(size), size)
