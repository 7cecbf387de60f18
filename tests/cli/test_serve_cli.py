"""`serve` and `token` as people start them."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

LISTENING = (  # also where tests run in the background
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from acclimate.cli import main; main()"
)


@contextmanager
def serving(run: Path, *flags: object) -> Iterator[tuple["subprocess.Popen[str]", dict[str, Any]]]:
    """The process, and what it says on stdout once it listens."""
    command = [sys.executable, "-c", LISTENING, "serve", str(run), "--port", "0", "--json"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*command, *map(str, flags)], stdout=pipe, stderr=pipe, text=True, bufsize=1
    )
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line == "}\n":
                break
        assert lines, process.communicate(timeout=60)[1]
        yield process, json.loads("".join(lines))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_site_outlives_the_server(run: Path, unlabelled: Path, number: int) -> None:
    site, paths = "/v1/sites/new", sorted(unlabelled.rglob("*.jpg"))
    images = [("images", (path.name, path.read_bytes())) for path in paths]
    database = run.with_name("sites.sites.sqlite")
    database.unlink(missing_ok=True)
    with serving(run, "--threads", 1, "--sites", 3) as (process, facts):
        assert facts["models"] == ["sites"] and facts["tokens"] is False
        with httpx.Client(base_url=facts["address"], timeout=60) as client:
            client.put(site)
            assert client.post(f"{site}/images", files=images).json()["added"] == 12
            before = client.post(f"{site}/predict", files=images).json()
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    *requests, last = map(json.loads, errors.splitlines())
    assert [line["status"] for line in requests] == [200, 200, 200]
    assert last["message"] == "stopped"
    assert database.exists()
    with serving(run) as (_, facts), httpx.Client(base_url=facts["address"], timeout=60) as client:
        assert client.get(site).json()["images"] == 12
        after = client.post(f"{site}/predict", files=images).json()
    assert [one["label"] for one in after["predictions"]] == [
        one["label"] for one in before["predictions"]
    ]


def test_other_machines_need_tokens(cli: Any, run: Path, tmp_path: Path) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "::"):
        code, _, error = cli("serve", run, "--host", host)
        assert code == 1 and host in error and "--token-file" in error
    code, _, error = cli("serve", run, "--token-file", tmp_path / "tokens.json")
    assert code == 1 and "tokens.json" in error and "acclimate token" in error


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (["--also", "next"], "next"),
        (["--also", "sites=elsewhere"], "sites"),
        (["--also", "next=nowhere"], "nowhere"),
        (["--database", "mysql://x"], "mysql"),
        (["--sites", "0"], "sites"),
        (["--timeout", "0"], "timeout"),
        (["--keep", "0"], "keep"),
        (["--host", "192.0.2.1", "--token-file", "tokens.json"], "192.0.2.1"),
    ],
)
def test_what_is_wrong_is_one_line(
    cli: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: Any, fact: str
) -> None:
    monkeypatch.chdir(tmp_path)
    cli("token", "--file", "tokens.json", "--scope", "admin")
    database = [] if "--database" in flags else ["--database", "sqlite:///a.sqlite"]
    code, out, error = cli("serve", run, "--port", 0, *database, *flags)
    assert (code, out) == (1, "")
    assert error.startswith("error: ") and error.count("\n") <= 1 and fact in error


def test_without_its_packages_it_says_what_to_install(
    cli: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, error = cli("serve", run)
    assert code == 1 and "uvicorn" in error and "acclimate[serve]" in error


def test_a_token_is_shown_once(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    code, out, error = cli("token", "--file", path, "--scope", "predict,observe")
    assert (code, len(out.strip())) == (0, 43)
    assert out.strip() not in error + path.read_text()
    code, out, _ = cli("token", "--file", path, "--scope", "admin", "--name", "me", "--json")
    assert json.loads(out)["token"] not in path.read_text()
    scopes = [one["scopes"] for one in json.loads(path.read_text())["tokens"]]
    assert scopes == [["predict", "observe"], ["admin"]]
