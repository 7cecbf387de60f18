"""Hostile uploads: a clear answer each, the server alive, its memory bounded."""

import gc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from acclimate.core.randomness import stream
from fixtures.servers import files, pictures
from fuzz import uploads

MOST_GROWTH = 250 << 20  # bytes, of client and server together


def resident() -> int:
    """Bytes of this process that are in memory, without what is garbage."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def attack(running: Any, kind: Any, seed: int, number: int) -> int:
    """The status of one hostile request, after a look at the answer."""
    upload = kind(stream(seed, "uploads", kind.__name__, number))
    headers = [(name.encode(), text.encode("latin-1")) for name, text in upload.headers.items()]
    answer = running.client.post(upload.path, content=upload.body, headers=headers)
    where = f"{kind.__name__} {number}: {answer.status_code} {answer.text[:200]}"
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, where
    body = answer.json()
    if answer.status_code != 200:
        sentence = body["error"] if upload.path.startswith("/v2") else body["error"]["message"]
        assert len(sentence) < 700 and sentence.isprintable(), where
        assert "; " in sentence or ": give " in sentence, where  # there is a remedy
    elif "predictions" in body:  # a picture after all
        assert body["predictions"][0]["label"] is not None, where
    return int(answer.status_code)


def alive(running: Any) -> None:
    answer = running.client.post("/v1/sites/north/predict", files=files(pictures(2)))
    assert answer.status_code == 200


def attack_often(running: Any, times: int, seed: int) -> Counter[int]:
    statuses = Counter[int]()
    for kind in uploads.KINDS:  # what is loaded for the first time is no growth
        statuses[attack(running, kind, seed, 0)] += 1
    before = resident()
    for number in range(1, times // len(uploads.KINDS) + 1):
        for kind in uploads.KINDS:
            statuses[attack(running, kind, seed, number)] += 1
    assert resident() - before < MOST_GROWTH
    alive(running)
    return statuses


@pytest.mark.slow
def test_a_hundred_hostile_uploads(running: Any) -> None:
    statuses = attack_often(running, 100, 0)
    assert statuses.total() >= 100 and {400, 413, 415, 422} <= {*statuses}


@pytest.mark.full
@pytest.mark.slow
def test_a_thousand_hostile_uploads(running: Any) -> None:
    statuses = attack_often(running, 1000, 1)
    assert statuses.total() >= 1000


@pytest.mark.parametrize(
    "raw",
    [
        b"\0\xff" * 50,
        b"GET / HTTP/9\r\n\r\n",
        b"POST /v1/sites/north/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /%zz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"A: " + b"a" * 100_000 + b"\r\n\r\n",
        b"POST /v1/sites/north/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/sites/north/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nx",
    ],
)
def test_what_is_no_http_ends_the_connection_alone(running: Any, raw: bytes) -> None:
    import socket

    with socket.create_connection(running.door.getsockname(), timeout=10) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(1 << 16)
    assert not answer or b" 4" in answer[:13] or b" 200" in answer[:13]
    alive(running)
