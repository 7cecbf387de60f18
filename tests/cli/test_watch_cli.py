"""`acclimate watch`: exit codes, the log, the figure and the webhook."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


def write_images(folder: Path, count: int, seed: int, brightness: float = 190) -> Path:
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for number in range(count):
        pixels = rng.normal(brightness, 20, (16, 16, 3))
        pixels[4:12, 4:12, 2 * rng.integers(2)] += 60
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number:03}.png")
    return folder


@pytest.fixture(scope="module")
def site(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A run, a site's state by 120 images, and a folder for more of them."""
    from acclimate.adapt.classifier import adapt
    from acclimate.learn.model import Trained

    folder = tmp_path_factory.mktemp("site")
    images = write_images(folder / "first", 120, 0)
    state = adapt(Trained.load(run), sorted(images.iterdir())).state
    assert state is not None
    state.save(folder / "site.safetensors")
    return run, folder / "site.safetensors", folder


@contextmanager
def webhook(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The URL of a server on this machine, and what is posted there."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/drift", posted
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


@pytest.mark.slow
def test_weeks_of_a_site(cli: Any, site: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """A week as before, twice; then one whose images are dark; then the log of another state."""
    run, state, _ = site
    log, figure = tmp_path / "log.json", tmp_path / "over-time.png"
    week = write_images(tmp_path / "week-1", 40, 1)
    flags = ("--log", log, "--figure", figure)
    with webhook() as (url, posted):
        code, out, _ = cli("watch", run, state, week, *flags, "--webhook", url)
        assert (code, out.splitlines()[0], posted) == (0, "as before", [])
        stored = log.read_bytes()
        code, out, _ = cli("watch", run, state, week, *flags)
        assert (code, out.splitlines()[-1]) == (0, "0 new images; 40 seen before")
        assert log.read_bytes() == stored
        assert figure.read_bytes().startswith(b"\x89PNG")
        other = write_images(tmp_path / "week-2", 60, 2, brightness=60)
        code, out, _ = cli("watch", run, state, other, *flags, "--webhook", url, "--json")
        assert code == 3
        report = json.loads(out)
        assert [one["words"] for one in posted] == [report["words"]] == ["adapt again"]
        assert report["alarm"]
    assert len(json.loads(log.read_text())["history"]) == 2


def test_poor_images_ask_for_labels(
    cli: Any, site: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """Without a log: most of a window is dark, or no image at all."""
    run, state, _ = site
    week = write_images(tmp_path / "week", 30, 3)
    for number in range(20):
        (week / f"bad-{number}.jpg").write_bytes(b"no image %d" % number)
        Image.new("RGB", (16, 16), (number, 0, 0)).save(week / f"dark-{number}.png")
    code, out, _ = cli("watch", run, state, week, "--json")
    report = json.loads(out)
    assert (code, report["outcome"], report["poor"]) == (4, "label", 40)
    assert len(report["unreadable"]) == 20
    assert len(report["to_label"]) == 20
    assert not any("dark" in name or "bad" in name for name in report["to_label"])
    code, out, _ = cli("watch", run, state, week, "--usual-poor", "0.9")
    assert code != 4


@pytest.mark.parametrize("status", [302, 500])
def test_a_webhook_that_fails_is_an_error(
    cli: Any, site: tuple[Path, Path, Path], tmp_path: Path, status: int
) -> None:
    """The evidence is kept, and the command can be repeated."""
    run, state, _ = site
    other, log = write_images(tmp_path / "week", 60, 2, brightness=60), tmp_path / "log.json"
    with webhook(status) as (url, posted):
        code, _, err = cli("watch", run, state, other, "--log", log, "--webhook", url)
        assert (code, len(posted)) == (1, 1)
        assert str(status) in err
    with webhook() as (url, posted):
        code, _, _ = cli("watch", run, state, other, "--log", log, "--webhook", url)
        assert (code, len(posted), posted[0]["repeats"]) == (3, 1, 60)


@pytest.mark.parametrize(
    "flags",
    [
        ("--webhook", "ftp://127.0.0.1/x"),
        ("--webhook", "drift"),
        ("--usual-poor", "1"),
        ("--log", "week/000.png"),
        ("--log", "other.json"),
        ("--figure", "site.txt"),
    ],
)
def test_what_cannot_be_is_refused(
    cli: Any,
    site: tuple[Path, Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, str],
) -> None:
    run, state, _ = site
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "week", 3, 1)
    (tmp_path / "other.json").write_text('{"kind": "watch of a site"}')
    (tmp_path / "site.txt").write_text("mine")
    code, _, err = cli("watch", run, state, "week", *flags)
    assert code == 1
    assert err.startswith("error: ") or "\nerror: " in err or flags[1] in err
