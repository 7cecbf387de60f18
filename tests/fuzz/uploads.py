"""Requests that no honest client sends: to be refused with a clear 4xx, or answered if what they
hold is a picture after all."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from fixtures.pictures import png
from fuzz.mutations import Random, mutated, mutated_json
from fuzz.pictures import PICTURES, bombs

EDGE = "edge"
FORM = f"multipart/form-data; boundary={EDGE}"
NAMES = (
    *("../../etc/passwd", "a\0b.png", "x" * 5000, "ü\u202e.png", "con", "%00", "a;b=c", ""),
    *('a"; name="labels', "=cmd()", "\x1b[31m", "a\r\nX-Evil: 1", "\ud83d\ude00.jpg"),
)
OTHERS = (
    *(b"%PDF-1.7\n", b"MZ\x90\0", b"\x7fELF", b"#!/bin/sh\n", b"<?xml version='1.0'?><svg/>"),
    *(
        b"GIF89a/*",
        b"PK\x03\x04",
        b"<script>alert(1)</script>",
        b"\x1f\x8b\x08",
        b"RIFF\0\0\0\0WAVE",
    ),
    *(b"\0\0\0\x18ftypheic", b"\0" * 128 + b"DICM", b"II*\0\xff\xff\xff\xff", b"\x93NUMPY"),
)
INFER = {
    "id": "1",
    "parameters": {"site": "north"},
    "inputs": [{"name": "images", "datatype": "BYTES", "shape": [1], "data": ["aaaa"]}],
    "outputs": [{"name": "labels"}],
}


class Upload(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


def hostile(rng: Random) -> Upload:
    """One of many kinds."""
    return KINDS[rng.integers(len(KINDS))](rng)


def form(image: bytes, name: str = "a.png", field: str = "images", kind: str = "") -> bytes:
    """A form with one file."""
    about = f'Content-Disposition: form-data; name="{field}"; filename="{name}"\r\n'
    about += f"Content-Type: {kind}\r\n" if kind else ""
    head = f"--{EDGE}\r\n{about}\r\n".encode("utf-8", "surrogatepass")
    return head + image + f"\r\n--{EDGE}--\r\n".encode()


def _route(rng: Random) -> str:
    return f"/v1/sites/north/{('images', 'predict')[rng.integers(2)]}"


def _picture(rng: Random) -> bytes:
    return list(PICTURES.values())[rng.integers(len(PICTURES))]


def _sent(rng: Random, image: bytes, **how: str) -> Upload:
    return Upload(_route(rng), {"content-type": FORM}, form(image, **how))


def bomb(rng: Random) -> Upload:
    return _sent(rng, bombs(rng))


def dense(rng: Random) -> Upload:
    """Few bytes that unpack to many more than the picture has."""
    return _sent(rng, png(64, 64, data=bytes(30 << 20)))


def truncated(rng: Random) -> Upload:
    image = _picture(rng)
    return _sent(rng, image[: rng.integers(len(image))])


def damaged(rng: Random) -> Upload:
    return _sent(rng, mutated(_picture(rng), rng))


def polyglot(rng: Random) -> Upload:
    """A picture and something else in one file, or the something else alone."""
    other = OTHERS[rng.integers(len(OTHERS))]
    return _sent(rng, (other + _picture(rng), _picture(rng) + other, other)[rng.integers(3)])


def odd_name(rng: Random) -> Upload:
    name = NAMES[rng.integers(len(NAMES))]
    return _sent(rng, mutated(_picture(rng), rng), name=name)


def odd_field(rng: Random) -> Upload:
    field = (*NAMES, "labels", "image", "images[]")[rng.integers(len(NAMES) + 3)]
    return _sent(rng, _picture(rng), field=field)


def wrong_type(rng: Random) -> Upload:
    kinds = (
        *(
            "",
            "text/plain",
            "application/json",
            "multipart/form-data",
            "multipart/mixed; boundary=edge",
        ),
        *("multipart/form-data; boundary=", f"multipart/form-data; boundary={'x' * 3000}"),
        *(
            "application/x-www-form-urlencoded",
            "image/png",
            FORM.upper(),
            "multipart/form-data; boundary=\xff",
        ),
        *("multipart/form-data; charset=utf-7; boundary=edge", "text/html; boundary=edge"),
    )
    kind = kinds[rng.integers(len(kinds))]
    body = (form(_picture(rng)), _picture(rng), b"")[rng.integers(3)]
    return Upload(_route(rng), {"content-type": kind}, body)


def damaged_form(rng: Random) -> Upload:
    return Upload(_route(rng), {"content-type": FORM}, mutated(form(b"no picture"), rng))


def many_parts(rng: Random) -> Upload:
    part = form(b"x").removesuffix(f"--{EDGE}--\r\n".encode())
    return Upload(_route(rng), {"content-type": FORM}, part * 2000)


def many_headers(rng: Random) -> Upload:
    lines = b"".join(b"X-%d: %s\r\n" % (n, b"a" * 100) for n in range(2000))
    body = form(b"x").replace(b"\r\n\r\n", b"\r\n" + lines + b"\r\n", 1)
    return Upload(_route(rng), {"content-type": FORM}, body)


def packed(rng: Random) -> Upload:
    kind = ("gzip", "deflate", "br", "compress")[rng.integers(4)]
    pack = (gzip.compress, zlib.compress)[rng.integers(2)]
    headers = {"content-type": FORM, "content-encoding": kind}
    return Upload(_route(rng), headers, pack(form(bytes(10 << 20))))


def odd_key(rng: Random) -> Upload:
    keys = ("", "a b", "x" * 5000, "\xfc", "a\tb", "'; DROP TABLE sites; --")
    headers = {"content-type": FORM, "idempotency-key": keys[rng.integers(len(keys))]}
    return Upload("/v1/sites/north/images", headers, form(b"no picture"))


def _json(rng: Random, body: bytes) -> Upload:
    paths = ("labels", "rollback", "move")
    path = f"/v1/sites/north/{paths[rng.integers(3)]}"
    if rng.random() < 0.5:
        path = "/v2/models/main/infer"
    headers = {"content-type": "application/json"}
    if rng.random() < 0.1:
        headers["inference-header-content-length"] = str(rng.integers(-1, 200))
    return Upload(path, headers, body)


def odd_json(rng: Random) -> Upload:
    labels = {"labels": {"0123456789abcdef": "ant"}}
    values: Any = (INFER, labels, {"revision": 99}, {"model": "none"})[rng.integers(4)]
    return _json(rng, mutated_json(json.dumps(values).encode(), rng))


def giant_json(rng: Random) -> Upload:
    parts: tuple[bytes, ...] = (b"[],", b"{},", b'"a",', b"1.5,", b"[[[[[[[[]]]]]]]],")
    part = parts[rng.integers(len(parts))]
    return _json(rng, b"[" + part * ((9 << 20) // len(part)) + b"0]")


def many_labels(rng: Random) -> Upload:
    """Each of them wrong in its own way."""
    labels = {f"{number:x}": number for number in range(400_000)}
    return Upload("/v1/sites/north/labels", {}, json.dumps({"labels": labels}).encode())


def deep_json(rng: Random) -> Upload:
    opening = (b"[", b'{"a":', b'{"labels":{"a":')[rng.integers(3)]
    return _json(rng, opening * int(rng.integers(900, 100_000)))


KINDS: tuple[Callable[[Random], Upload], ...] = (
    *(bomb, dense, truncated, damaged, polyglot, odd_name, odd_field, wrong_type, damaged_form),
    *(
        many_parts,
        many_headers,
        packed,
        odd_key,
        odd_json,
        odd_json,
        giant_json,
        deep_json,
        many_labels,
    ),
)
