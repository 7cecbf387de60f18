"""Fetching images from a server that does everything wrong that servers do."""

import errno
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from PIL import Image
from typer.testing import CliRunner

from acclimate.build.fetch import download
from acclimate.build.fetch import images as fetching
from acclimate.build.fetch.download import Downloader, DownloadSettings, Failed
from acclimate.build.fetch.images import Entry, FetchReport, FetchSettings, Journal, fetch_images
from acclimate.cli import app, load_commands
from acclimate.core.errors import ConfigError, ManifestError, WriteError
from acclimate.data.manifest import Manifest
from fixtures.errors import refused

load_commands()


def picture(shade: int = 0, kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), (shade % 256, shade // 256, 90)).save(file, kind)
    return file.getvalue()


class Handler(BaseHTTPRequestHandler):
    """`/404/x`, `/slow/x`…: the first part of the path says what goes wrong."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[Counter[str]] = Counter()
    agents: ClassVar[set[str]] = set()
    at_once: ClassVar[list[int]] = [0, 0]  # now, most
    lock = threading.Lock()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        with self.lock:
            self.asked[self.path] += 1
            self.agents.add(self.headers["User-Agent"])
            self.at_once[0] += 1
            self.at_once[1] = max(self.at_once)
        try:
            kind, _, rest = self.path.lstrip("/").partition("/")
            getattr(self, f"on_{kind}")(rest)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with self.lock:
                self.at_once[0] -= 1

    def answer(
        self, status: int, body: bytes = b"", *, kind: str = "image/jpeg", **headers: str
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, held in {"Content-Length": str(len(body)), **headers}.items():
            if held:
                self.send_header(name.replace("_", "-"), held)
            else:
                self.close_connection = True
        self.end_headers()
        self.wfile.write(body)

    def on_ok(self, rest: str) -> None:
        self.answer(200, picture(int(rest or 0)))

    def on_status(self, rest: str) -> None:
        self.answer(int(rest), b"<html>no</html>", kind="text/html")

    def on_later(self, rest: str) -> None:
        fine = self.asked[self.path] > 2
        self.answer(200, picture(7)) if fine else self.answer(int(rest), b"")

    def on_patience(self, _: str) -> None:
        fine = self.asked[self.path] > 1
        self.answer(200, picture(8)) if fine else self.answer(429, b"", Retry_After="1")

    def on_truncated(self, _: str) -> None:
        body = picture()
        self.answer(200, body[:200], **{"Content-Length": str(len(body))})
        self.close_connection = True

    def on_cut(self, _: str) -> None:
        self.answer(200, picture()[:400], **{"Content-Length": ""})

    def on_slow(self, _: str) -> None:
        time.sleep(1)
        self.answer(200, picture())

    def on_drip(self, _: str) -> None:
        self.answer(200, b"", **{"Content-Length": "1000"})
        for _ in range(30):
            self.wfile.write(b"x")
            self.wfile.flush()
            time.sleep(0.1)

    def on_dripping_headers(self, _: str) -> None:
        for _ in range(30):
            self.wfile.write(b"HTTP/1.1 200 OK\r\n"[:1])
            self.wfile.flush()
            time.sleep(0.1)

    def on_html(self, _: str) -> None:
        self.answer(200, b"<html>This photo is no longer available</html>")

    def on_text(self, _: str) -> None:
        self.answer(200, picture(9, "PNG"), kind="text/plain")

    def on_endless(self, _: str) -> None:
        self.answer(200, b"", **{"Content-Length": ""})
        while True:
            self.wfile.write(b"\xff\xd8\xff" * 10_000)

    def on_huge(self, _: str) -> None:
        self.answer(200, b"", **{"Content-Length": str(1 << 40)})
        self.close_connection = True

    def on_loop(self, _: str) -> None:
        self.answer(302, b"", Location="/loop/")

    def on_moved(self, rest: str) -> None:
        self.answer(301, b"", Location=f"/ok/{rest}")

    def on_to(self, rest: str) -> None:
        self.answer(302, b"", Location=rest.replace(":/", "://", 1).replace(":///", "://"))

    def on_nowhere(self, _: str) -> None:
        self.answer(302, b"")

    def on_broken(self, _: str) -> None:
        self.answer(302, b"", Location="http://[bad/")

    def on_gone(self, _: str) -> None:
        self.answer(302, b"", Location="https://s.yimg.com/pw/images/en-us/photo_unavailable.png")

    def on_hangup(self, _: str) -> None:
        self.close_connection = True

    def on_wait(self, rest: str) -> None:
        time.sleep(0.05)
        self.answer(200, picture(int(rest)))


@pytest.fixture
def server() -> Iterator[str]:
    yield from serving("127.0.0.1")


@pytest.fixture
def inner() -> Iterator[str]:
    yield from serving("127.0.0.2")


def serving(host: str) -> Iterator[str]:
    Handler.asked.clear()
    Handler.agents.clear()
    Handler.at_once[:] = [0, 0]
    running = ThreadingHTTPServer((host, 0), Handler)
    running.daemon_threads = True
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://{host}:{running.server_port}"
    running.shutdown()
    running.server_close()
    thread.join()


FAST = DownloadSettings(timeout=10, retries=2, backoff=0.01, max_bytes=200_000, private=True)
IMPATIENT = replace(FAST, timeout=0.3)
ONCE = replace(FAST, retries=0)


def manifest_of(urls: dict[str, str | None], tmp_path: Path, **columns: list[Any]) -> Manifest:
    count = len(urls)
    table = pa.table(
        {
            "image": list(urls),
            "label": columns.pop("label", ["cat"] * count),
            "domain": columns.pop("domain", ["Peru"] * count),
            "split": ["train"] * count,
            "url": pa.array(list(urls.values()), pa.string()),
            **columns,
        }
    )
    classes = tuple(sorted(set(table["label"].to_pylist())))
    return Manifest(table, classes, tmp_path / "images", "geo.parquet")


def fetched(manifest: Manifest, download: DownloadSettings = FAST, **options: Any) -> FetchReport:
    return fetch_images(manifest, manifest.root, FetchSettings(download=download, **options))


def journal(manifest: Manifest) -> dict[str, Entry]:
    return Journal(manifest.root / "fetch.jsonl").read()


FAULTS = {
    "status/404": ("dead", "HTTP 404", 1),
    "status/410": ("dead", "HTTP 410", 1),
    "status/403": ("dead", "HTTP 403", 1),
    "status/500": ("failed", "HTTP 500", 3),
    "truncated/": ("failed", "truncated", 3),
    "cut/": ("failed", "no image: truncated", 3),
    "hangup/": ("failed", "connection closed", 3),
    "html/": ("dead", "no image: not a JPEG, PNG, WebP, BMP, TIFF or GIF image", 1),
    "endless/": ("dead", "larger than 200000 bytes", 1),
    "huge/": ("dead", "larger than 200000 bytes", 1),
    "loop/": ("dead", "more than 5 redirects", 6),
    "gone/": ("dead", "photo unavailable", 1),
    "nowhere/": ("dead", "HTTP 302 without a Location", 1),
    "broken/": ("dead", "redirect to what is no URL", 1),
    "to/http://169.254.169.254/latest": ("dead", "a link-local address, which is never asked", 1),
    "to/http://[fe80::1]/x": ("dead", "a link-local address, which is never asked", 1),
    "to/file:///etc/passwd": ("dead", "not an http or https URL", 1),
    "to/ftp://127.0.0.1/x": ("dead", "not an http or https URL", 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(server: str, tmp_path: Path, fault: str) -> None:
    status, reason, attempts = FAULTS[fault]
    manifest = manifest_of({"a/1.jpg": f"{server}/{fault}"}, tmp_path)
    report = fetched(manifest)
    assert report.reasons == {reason: 1}
    assert len(report.manifest) == 0
    entry = journal(manifest)["a/1.jpg"]
    assert (entry.status, entry.reason, entry.url) == (status, reason, f"{server}/{fault}")
    assert entry.time.endswith("+00:00")
    assert not (tmp_path / "images" / "a").exists()
    assert sum(Handler.asked.values()) == attempts
    fetched(manifest)  # dead ones are left alone, the others are tried again
    assert sum(Handler.asked.values()) == attempts * (1 if status == "dead" else 2)
    fetched(manifest, retry_dead=True)
    assert sum(Handler.asked.values()) == attempts * (2 if status == "dead" else 3)
    assert fetched(manifest_of({"a/1.jpg": f"{server}/ok/1"}, tmp_path)).reasons == {}  # mended


@pytest.mark.parametrize("fault", ["slow", "drip", "dripping_headers"])
def test_an_attempt_ends_with_its_time_however_bytes_drip(
    server: str, tmp_path: Path, fault: str
) -> None:
    started = time.monotonic()
    report = fetched(manifest_of({"1.jpg": f"{server}/{fault}/"}, tmp_path), IMPATIENT)
    assert report.reasons == {"slower than 0.3 s": 1}
    assert Handler.asked == {f"/{fault}/": 3}
    assert time.monotonic() - started < 2.5


@pytest.mark.parametrize(
    ("path", "shade", "attempts"),
    [("ok/5", 5, 1), ("later/500", 7, 3), ("later/503", 7, 3), ("moved/5", 5, 2), ("text/", 9, 1)],
)
def test_what_ends_well(server: str, tmp_path: Path, path: str, shade: int, attempts: int) -> None:
    manifest = manifest_of({"300/1.jpg": f"{server}/{path}"}, tmp_path)
    report = fetched(manifest)
    assert (report.reasons, len(report.manifest)) == ({}, 1)
    content = picture(shade, "PNG" if path == "text/" else "JPEG")
    assert (tmp_path / "images" / "300" / "1.jpg").read_bytes() == content
    assert sum(Handler.asked.values()) == attempts
    assert {agent.split("/")[0] for agent in Handler.agents} == {"acclimate"}
    fetched(manifest)
    assert sum(Handler.asked.values()) == attempts  # it is there
    (manifest.root / "300" / "1.jpg").write_bytes(b"x")  # changed since
    no_image = "unreadable: not a JPEG, PNG, WebP, BMP, TIFF or GIF image"
    assert fetched(manifest, check_only=True).reasons == {no_image: 1}


def test_the_server_may_ask_for_patience(server: str, tmp_path: Path) -> None:
    started = time.monotonic()
    fetched(manifest_of({"1.jpg": f"{server}/patience/"}, tmp_path))
    assert 1.0 <= time.monotonic() - started < 5.0


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (None, "no URL"),
        ("file:///etc/passwd", "not an http or https URL"),
        ("ftp://127.0.0.1/x.jpg", "not an http or https URL"),
        ("http://", "not an http or https URL"),
        ("http://127.0.0.1:99999/", "not an http or https URL"),
        ("http://127.0.0.1/a b", "not an http or https URL"),
        ("http://127.0.0.1/\r\nX: y", "not an http or https URL"),
        ("http://169.254.169.254/latest/meta-data", "a link-local address, which is never asked"),
    ],
)
def test_urls_that_are_none(tmp_path: Path, url: str | None, reason: str) -> None:
    manifest = manifest_of({"1.jpg": url}, tmp_path)
    assert fetched(manifest).reasons == {reason: 1}
    assert journal(manifest)["1.jpg"].status == "dead"


def test_a_host_that_is_not_there(tmp_path: Path) -> None:
    closed = manifest_of({"1.jpg": "http://127.0.0.1:1/x", "2.jpg": "http://x.invalid/"}, tmp_path)
    assert fetched(closed).reasons == {"connection refused": 1, "unknown host": 1}


def test_no_redirect_from_outside_to_a_private_address(
    server: str, inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "is_inside", lambda address: address == "127.0.0.2")
    with closing(Downloader(FAST)) as fetcher:
        with pytest.raises(Failed) as caught:
            fetcher.get(f"{server}/to/{inner}/ok/1")
        assert (caught.value.reason, caught.value.dead) == ("redirect to a private address", True)
        assert Handler.asked["/ok/1"] == 0
        # Neither over a connection that is open because an earlier image came that way.
        assert fetcher.get(f"{inner}/ok/1") == picture(1)
        with refused(Failed, "redirect", "private"):
            fetcher.get(f"{server}/to/{inner}/ok/2")
        assert Handler.asked["/ok/2"] == 0
        # Who starts inside may stay there, and go out.
        assert fetcher.get(f"{inner}/to/{inner}/ok/3") == picture(3)
        assert fetcher.get(f"{inner}/to/{server}/ok/4") == picture(4)


def test_no_redirect_inside_to_another_port(server: str, inner: str) -> None:
    """A mirror of images has no say over what else listens in the network."""
    with closing(Downloader(FAST)) as fetcher:
        assert fetcher.get(f"{server}/to/{server}/ok/1") == picture(1)
        with pytest.raises(Failed) as caught:
            fetcher.get(f"{server}/to/{inner}/ok/2")
        reason = "redirect to another port of a private address"
        assert (caught.value.reason, caught.value.dead) == (reason, True)
        assert Handler.asked["/ok/2"] == 0


LINK_LOCAL = (
    *("169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "::ffff:169.254.169.254"),
    *("64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::a9fe:a9fe"),
    *("192.0.0.192", "168.63.129.16", "fd00:ec2::254", "100.100.100.200"),
    *("::ffff:168.63.129.16", "::ffff:100.100.100.200", "64:ff9b::a83f:8110"),
    *("2001:db8::5efe:169.254.169.254", "2600::200:5efe:a9fe:a9fe", "fd00::5efe:168.63.129.16"),
)
# Also 127.0.0.1 translated, tunnelled and written in IPv6; a site of old.
INSIDE = (
    *("127.0.0.1", "10.1.2.3", "::1", "0.0.0.0", "::ffff:10.0.0.1", "224.0.0.1", "100.64.0.1"),
    *("64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::1", "::127.0.0.1", "fec0::1"),
    *("5f00::1", "3fff::1", "3fff:fff::1", "2600::5efe:10.0.0.1", "2600::200:5efe:7f00:1"),
)


def test_which_addresses_are_private() -> None:
    assert [a for a in (*LINK_LOCAL, *INSIDE) if not download.is_inside(a)] == []
    assert [a for a in LINK_LOCAL if not download.is_never_asked(a)] == []
    assert [a for a in (*INSIDE, "2002:808:808::1") if download.is_never_asked(a)] == []
    for address in ("8.8.8.8", "2001:4860:4860::8888", "3ffe::1", "168.63.129.17"):
        assert not download.is_inside(address)
        assert not download.is_never_asked(address)


def test_private_addresses_are_only_asked_when_told(server: str, tmp_path: Path) -> None:
    manifest = manifest_of({"1.jpg": f"{server}/ok/1"}, tmp_path)
    report = fetched(manifest, replace(FAST, private=False))
    assert report.reasons == {"a private address; allow it with --private": 1}
    assert not Handler.asked
    assert journal(manifest)["1.jpg"].status == "dead"
    assert len(fetched(manifest, replace(FAST, private=False)).manifest) == 0
    assert not Handler.asked
    assert len(fetched(manifest).manifest) == 1  # now that it is allowed


def test_waiting_for_our_turn_takes_no_time_from_an_attempt(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our turn comes a thousand seconds late, by the clock that attempts go by."""
    clock, late = time.monotonic, 0.0

    class Late(threading.BoundedSemaphore):
        def __enter__(self) -> bool:
            nonlocal late
            late += 1000.0
            return super().__enter__()

    monkeypatch.setattr(time, "monotonic", lambda: clock() + late)
    monkeypatch.setattr(threading, "BoundedSemaphore", Late)
    with closing(Downloader(ONCE)) as fetcher:
        assert fetcher.get(f"{server}/ok/1") == picture(1)


def test_one_host_gets_only_so_many_connections(server: str, tmp_path: Path) -> None:
    manifest = manifest_of({f"{n}.jpg": f"{server}/wait/{n}" for n in range(12)}, tmp_path)
    settings = FetchSettings(workers=8, download=replace(FAST, per_host=2))
    fetch_images(manifest, manifest.root, settings)
    assert Handler.at_once[1] == 2


def test_a_connection_is_used_again_and_replaced_when_closed(server: str) -> None:
    opened = 0
    original = download._Connection.connect

    def connect(self: Any) -> None:
        nonlocal opened
        opened += 1
        original(self)

    with pytest.MonkeyPatch.context() as patch, closing(Downloader(ONCE)) as fetcher:
        patch.setattr(download._Connection, "connect", connect)
        for path in ("ok/1", "status/404", "ok/2"):
            try:
                fetcher.get(f"{server}/{path}")
            except Failed:
                assert path == "status/404"
        assert opened == 1
        [[idle]] = fetcher._idle.values()
        idle.sock.shutdown(socket.SHUT_RDWR)  # as a server does that is tired of waiting
        assert fetcher.get(f"{server}/ok/3") == picture(3)
        assert opened == 2


def test_many_links_to_one_file_are_a_placeholder(server: str, tmp_path: Path) -> None:
    links = {f"{n}.jpg": f"{server}/ok/1?photo={n}" for n in range(4)}
    links["own.jpg"] = f"{server}/ok/2"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "on_ok", lambda self, rest: self.answer(200, picture(int(rest[0]))))
        manifest = manifest_of({**links}, tmp_path)
        report = fetched(manifest, repeats=4)
        assert report.reasons == {"placeholder: one file for many links": 4}
        assert report.manifest.table["image"].to_pylist() == ["own.jpg"]
        assert sorted(path.name for path in manifest.root.iterdir()) == ["fetch.jsonl", "own.jpg"]
        assert fetched(manifest, repeats=4).reasons == report.reasons  # and not asked for again
        assert sum(Handler.asked.values()) == 5
        assert fetched(manifest, repeats=5, retry_dead=True).reasons == {}


def test_rows_that_share_an_image_fetch_it_once(server: str, tmp_path: Path) -> None:
    urls: dict[str, str | None] = {"1.jpg": f"{server}/ok/1", "2.jpg": f"{server}/status/404"}
    manifest = manifest_of(urls, tmp_path, domain=["Peru", "Peru"], label=["cat", "dog"])
    again = manifest.table.slice(0, 1).set_column(1, "label", pa.array(["dog"]))
    report = fetched(replace(manifest, table=pa.concat_tables([manifest.table, again])))
    assert len(report.manifest) == 2
    assert Handler.asked == {"/ok/1": 1, "/status/404": 1}
    assert (report.domains[0].images, report.domains[0].fetched) == (2, 1)


def test_losses_per_domain(server: str, tmp_path: Path) -> None:
    urls = {
        "1.jpg": f"{server}/ok/1",
        "2.jpg": f"{server}/status/404",
        "3.jpg": f"{server}/status/500",
        "4.jpg": None,
        "5.jpg": f"{server}/ok/5",
    }
    manifest = manifest_of(
        urls,
        tmp_path,
        domain=["Peru", "Peru", "Peru", "Fiji", "Fiji"],
        label=["cat", "dog", "cat", "dog", "cat"],
        role=["train", "train", "train", "test", "test"],
    )
    manifest.root.mkdir()
    (manifest.root / "5.jpg").write_bytes(picture(1))
    report = fetched(manifest)
    found = {
        loss.domain: (loss.role, loss.images, loss.there, loss.fetched, loss.dead, loss.failed)
        for loss in report.domains
    }
    assert found == {"Fiji": ("test", 2, 1, 0, 1, 0), "Peru": ("train", 3, 0, 1, 1, 1)}
    assert [loss.lost_share for loss in report.domains] == [1 / 2, 2 / 3]
    assert [(loss.classes, loss.classes_left) for loss in report.domains] == [(2, 1), (2, 1)]
    assert report.manifest.table["image"].to_pylist() == ["1.jpg", "5.jpg"]
    assert report.manifest.classes == manifest.classes
    report.manifest.check()


def test_check_only_looks_and_writes_nothing(server: str, tmp_path: Path) -> None:
    urls: dict[str, str | None] = {f"{n}.jpg": f"{server}/ok/{n}" for n in range(3)}
    manifest = manifest_of(urls, tmp_path)
    manifest.root.mkdir()
    (manifest.root / "0.jpg").write_bytes(picture())
    (manifest.root / "1.jpg").write_bytes(picture()[:300])
    report = fetched(manifest, check_only=True)
    assert report.reasons == {"unreadable: truncated": 1, "missing": 1}
    [loss] = report.domains
    assert (loss.there, loss.fetched, loss.missing, loss.dead) == (1, 0, 2, 0)
    assert loss.lost_share == 2 / 3
    assert not Handler.asked
    assert sorted(path.name for path in manifest.root.iterdir()) == ["0.jpg", "1.jpg"]
    assert fetched(manifest).reasons == {}  # the unreadable one is replaced
    assert (manifest.root / "1.jpg").read_bytes() == picture(1)
    for options in ({}, {"check_only": True}):  # what was fetched before is there now
        [loss] = fetched(manifest, **options).domains
        assert (loss.there, loss.fetched, loss.missing) == (3, 0, 0)


def test_a_torn_line_of_the_journal_is_cut(server: str, tmp_path: Path) -> None:
    manifest = manifest_of(
        {"1.jpg": f"{server}/status/404", "2.jpg": f"{server}/status/410"}, tmp_path
    )
    fetched(manifest)
    path = manifest.root / "fetch.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:20])
    fetched(manifest)
    assert set(journal(manifest)) == {"1.jpg", "2.jpg"}
    assert len(path.read_text().splitlines()) == 2
    path.write_text("?\n")
    with refused(ManifestError, path, "1"):
        fetched(manifest)


@pytest.mark.parametrize("path", ["../1.jpg", "/tmp/1.jpg", "a/../../1.jpg", "./fetch.jsonl"])
def test_paths_that_lead_out_or_to_the_journal_are_refused_before_anything_is_asked(
    server: str, tmp_path: Path, path: str
) -> None:
    with refused(ManifestError, "geo.parquet", path.removeprefix("./")):
        fetched(manifest_of({path: f"{server}/ok/1"}, tmp_path))
    assert not Handler.asked


def test_manifests_without_urls_or_paths_are_refused(tmp_path: Path) -> None:
    manifest = manifest_of({"1.jpg": None}, tmp_path)
    bare = Manifest(
        manifest.table.drop_columns("url"), manifest.classes, manifest.root, manifest.source
    )
    with refused(ManifestError, "geo.parquet", "url", "--check-only"):
        fetched(bare)
    assert fetched(bare, check_only=True).reasons == {"missing": 1}
    held = Manifest(
        bare.table.append_column("bytes", pa.array([b"x"])), ("cat",), bare.root, bare.source
    )
    with refused(ManifestError, "geo.parquet"):
        fetched(held)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"workers": 0}, ("--workers", 0)),
        ({"timeout": float("nan")}, ("--timeout", "nan")),
        ({"retries": -1}, ("--retries", -1)),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], facts: tuple[object, ...]) -> None:
    with refused(ConfigError, *facts):
        (FetchSettings if "workers" in options else DownloadSettings)(**options)


@pytest.mark.parametrize("kind", [OSError, WriteError])
def test_a_full_disk_stops_the_work_and_the_journal_is_kept(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[OSError]
) -> None:
    def full(*_: object) -> None:
        raise kind(errno.ENOSPC, "No space left on device")

    urls: dict[str, str | None] = {f"{n}.jpg": f"{server}/status/404" for n in range(3)}
    manifest = manifest_of({**urls, "z.jpg": f"{server}/ok/1"}, tmp_path)
    monkeypatch.setattr(fetching, "write_atomically", full)
    with pytest.raises(kind):
        fetched(manifest, workers=1)
    assert set(journal(manifest)) == {*urls, "z.jpg"}  # whose line comes before its file


KILLED = """
import sys
from pathlib import Path
from acclimate.build.fetch.download import DownloadSettings
from acclimate.build.fetch.images import FetchSettings, fetch_images
from acclimate.data.manifest import Manifest
settings = FetchSettings(workers=2, download=DownloadSettings(private=True))
fetch_images(Manifest.read(sys.argv[1]), sys.argv[2], settings)
"""


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on(server: str, tmp_path: Path) -> None:
    count = 40
    manifest = manifest_of({f"{n}.jpg": f"{server}/wait/{n}" for n in range(count)}, tmp_path)
    manifest.write(tmp_path / "geo.parquet")
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "geo.parquet"), str(manifest.root)]
    )
    while sum(Handler.asked.values()) < 12:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    asked = sum(Handler.asked.values())
    assert asked < count
    there = {path.name for path in manifest.root.glob("[0-9]*.jpg")}
    assert len(there) >= asked - 2
    report = fetched(manifest, workers=2)
    assert len(report.manifest) == count
    assert report.domains[0].there == len(there)
    assert sum(Handler.asked.values()) <= count + 2  # those under way are asked for again
    for number in range(count):
        assert (manifest.root / f"{number}.jpg").read_bytes() == picture(number)


@pytest.mark.parametrize("kills", [(5,), (30, 40, 58)])
def test_killed_it_ends_with_the_rows_of_one_that_was_not(
    server: str, tmp_path: Path, kills: tuple[int, ...]
) -> None:
    """Twelve of sixty links lead to a picture that says "gone"."""
    links = {f"{n}.jpg": f"{server}/wait/{n if n % 5 else 0}?photo={n}" for n in range(60)}
    links = {name: url.replace("/wait/0?", "/wait/0/") for name, url in links.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "on_wait", _slow_photo)
        whole = fetched(manifest_of({**links}, tmp_path / "whole")).manifest.table["image"]
        assert len(whole) == 48
        manifest = manifest_of({**links}, tmp_path)
        manifest.write(tmp_path / "geo.parquet")
        Handler.asked.clear()
        for asked in kills:
            task = [sys.executable, "-c", KILLED, str(tmp_path / "geo.parquet"), str(manifest.root)]
            process = subprocess.Popen(task)
            while sum(Handler.asked.values()) < asked and process.poll() is None:
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            process.wait()
        report = fetched(manifest)
    assert report.manifest.table["image"].to_pylist() == whole.to_pylist()
    assert report.reasons == {"placeholder: one file for many links": 12}
    assert sorted(path.name for path in manifest.root.glob("*.jpg")) == sorted(whole.to_pylist())


def _slow_photo(self: Handler, rest: str) -> None:
    time.sleep(0.01)
    self.answer(200, picture(int(rest.partition("/")[0].partition("?")[0])))


def test_killed_while_placeholders_are_removed(server: str, tmp_path: Path) -> None:
    links = {f"{n}.jpg": f"{server}/wait/0/{n}" for n in range(12)}
    links["own.jpg"] = f"{server}/wait/3"
    manifest = manifest_of({**links}, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "on_wait", _slow_photo)
        unlink, left = Path.unlink, [4]

        def killed(self: Path, missing_ok: bool = False) -> None:
            if self.suffix == ".jpg":
                left[0] -= 1
                if not left[0]:
                    raise KeyboardInterrupt
            unlink(self, missing_ok=missing_ok)

        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            fetched(manifest)
        assert len(list(manifest.root.glob("*.jpg"))) == 10
        assert fetched(manifest).manifest.table["image"].to_pylist() == ["own.jpg"]


def test_the_command(server: str, tmp_path: Path) -> None:
    manifest = manifest_of({"1.jpg": f"{server}/ok/1", "2.jpg": f"{server}/status/404"}, tmp_path)
    manifest.write(tmp_path / "geo.parquet")
    arguments = ["build", "fetch", str(tmp_path / "geo.parquet"), "--root", str(tmp_path / "here")]
    refused = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(refused.stdout)["reasons"] == {
        "a private address; allow it with --private": 2
    }
    arguments += ["--private"]
    out = tmp_path / "left.parquet"
    shown = CliRunner().invoke(app, [*arguments, "--out", str(out), "--retries", "0"])
    assert shown.exit_code == 0, shown.output
    assert "gone: 1 × HTTP 404" in shown.output
    left = Manifest.read(out)
    left.check()
    assert (left.root, len(left)) == (tmp_path / "here", 1)
    facts = json.loads(CliRunner().invoke(app, [*arguments, "--json", "--check-only"]).stdout)
    assert facts["rows"] == 1
    assert facts["losses"][0]["lost_share"] == 0.5
    assert facts["reasons"] == {"missing": 1}


@pytest.mark.parametrize(
    ("root", "out", "fact"),
    [
        ("here", "x.csv", "x.csv"),
        ("here", "folder.parquet", "folder.parquet"),
        ("file", "x.parquet", "file"),
        ("file/below/it", "x.parquet", "file"),
    ],
)
def test_the_command_refuses_before_the_first_request(
    server: str, tmp_path: Path, root: str, out: str, fact: str
) -> None:
    manifest_of({"1.jpg": f"{server}/ok/1"}, tmp_path).write(tmp_path / "geo.parquet")
    (tmp_path / "file").touch()
    (tmp_path / "folder.parquet").mkdir()
    arguments = ["build", "fetch", str(tmp_path / "geo.parquet"), "--private"]
    arguments += ["--root", str(tmp_path / root), "--out", str(tmp_path / out)]
    problem = CliRunner().invoke(app, arguments).exception
    assert isinstance(problem, ManifestError | ConfigError)
    assert fact in str(problem)
    assert not Handler.asked


def test_nothing_left_is_an_error_and_no_file(server: str, tmp_path: Path) -> None:
    manifest = manifest_of({f"{n}.jpg": f"{server}/status/404" for n in range(3)}, tmp_path)
    manifest.write(tmp_path / "geo.parquet")
    out = tmp_path / "left.parquet"
    arguments = ["build", "fetch", str(tmp_path / "geo.parquet"), "--private"]
    arguments += ["--root", str(tmp_path / "here")]
    for more in ([], ["--out", str(out)], ["--out", str(out), "--json"]):
        result = CliRunner().invoke(app, [*arguments, *more])
        assert isinstance(result.exception, ManifestError)
        assert "3 × HTTP 404" in str(result.exception)
    assert json.loads(result.stdout)["manifest"] is None
    assert not out.exists()
    assert CliRunner().invoke(app, [*arguments, "--check-only"]).exit_code == 0  # only a look


def test_nothing_is_written_where_a_link_leads_out(server: str, tmp_path: Path) -> None:
    root, outside = tmp_path / "images", tmp_path / "outside"
    outside.mkdir()
    (root / "inside").mkdir(parents=True)
    (root / "folder").symlink_to(outside)
    (root / "file.jpg").symlink_to(outside / "new.jpg")
    (root / "near").symlink_to("inside")
    names = ("folder/1.jpg", "file.jpg", "near/1.jpg", "x" * 300 + ".jpg")
    report = fetched(manifest_of(dict.fromkeys(names, f"{server}/ok/1"), tmp_path))
    too_long = "no place for it (file name too long)"
    assert report.reasons == {"a link leads out of the root": 2, too_long: 1}
    assert list(outside.iterdir()) == []
    assert (root / "inside" / "1.jpg").is_file()


def test_what_a_killed_fetch_left_is_swept_up(server: str, tmp_path: Path) -> None:
    left = tmp_path / "images" / "a" / ".1.jpg.0123abcd.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    os.utime(left, (0, 0))  # long ago: nobody is still writing it
    fetched(manifest_of({"a/2.jpg": f"{server}/ok/1"}, tmp_path))
    assert sorted(path.name for path in left.parent.iterdir()) == ["2.jpg"]
