"""User tags -> labels: whole tags, after normalisation, against the lemmas of the labels.

A tag and a lemma are the same when they are so after percent-decoding, in lower case, and with
pluses, underscores, hyphens and white space made into single spaces. Nearly all tags are plain
ASCII, and for them one look into a table of bytes does all of that at once; the others are decoded
one by one.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acclimate.paper.geo_yfcc.labels import Label

_SEPARATORS = re.compile(r"[\s_+\-]+")
_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_COMMA, _SPACE, _PERCENT = b", %"


class Matches(NamedTuple):
    """The labels found in a block of tag lists, and what was odd about the tags."""

    row: np.ndarray  # int64 [m], ascending
    label: np.ndarray  # int32 [m], ascending within a row
    broken_escapes: int  # tag lists with a "%" that two hexadecimal digits do not follow
    not_utf8: int  # tag lists with a tag that does not decode


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Keys and the labels that each stands for: labels[first[k]:first[k + 1]]."""

    keys: pa.Array  # large_binary, each with a comma at its end, as tags are cut
    first: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, labels: Sequence[Label], *, plurals: bool = False) -> "Vocabulary":
        """With `plurals`, "temples" is "temple" too, unless it is a lemma in its own right."""
        standing: dict[str, set[int]] = defaultdict(set)
        for number, label in enumerate(labels):
            for lemma in label.lemmas:
                standing[normalise(lemma.encode())].add(number)
        standing.pop("", None)
        lemmas = set(standing)
        if plurals:
            for key in sorted(lemmas):
                for plural in _plurals(key):
                    if plural not in lemmas:
                        standing[plural] |= standing[key]
        keys = sorted(standing)
        counts = [len(standing[key]) for key in keys]
        return cls(
            pa.array([f"{key},".encode() for key in keys], pa.large_binary()),
            np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
            np.array([label for key in keys for label in sorted(standing[key])], dtype=np.int32),
        )

    def match(self, text: np.ndarray, ends: np.ndarray) -> Matches:
        """text: uint8, tag lists on end, each closed by a comma or tab; ends: int64 [rows].

        Empty tags match nothing.
        """
        plain = _TABLE[text]
        tags = _cut(plain)
        key = pc.fill_null(pc.index_in(tags, value_set=self.keys), -1).to_numpy().astype(np.int64)
        row = np.searchsorted(ends, _ends(tags) - 1, side="right")
        odd = _odd(plain, tags)
        broken = undecodable = 0
        if len(odd):
            decoded = _decoded(tags.take(pa.array(odd)))
            key[odd] = pc.fill_null(pc.index_in(decoded.keys, value_set=self.keys), -1).to_numpy()
            broken = len(np.unique(row[odd[decoded.broken]]))
            undecodable = len(np.unique(row[odd[decoded.not_utf8]]))
        hit = np.flatnonzero(key >= 0)
        return Matches(*self._labels(row[hit], key[hit]), broken, undecodable)

    def _labels(self, row: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The distinct (row, label), sorted."""
        count = self.first[key + 1] - self.first[key]
        start = np.repeat(self.first[key] - (np.cumsum(count) - count), count)
        label = self.labels[start + np.arange(len(start))].astype(np.int64)
        span = int(self.labels.max(initial=0)) + 1
        pairs = np.unique(np.repeat(row, count) * span + label)
        return pairs // span, (pairs % span).astype(np.int32)


def normalise(tag: bytes) -> str:
    """What a tag or lemma is compared by; bytes that are not UTF-8 become U+FFFD."""
    text = unquote_to_bytes(tag.replace(b"+", b" ")).decode("utf-8", errors="replace")
    # Lower case may take composed characters apart.
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).lower())
    return _SEPARATORS.sub(" ", text).strip()


def _plurals(key: str) -> tuple[str, ...]:
    """The regular plurals of a word."""
    if key.endswith(("s", "x", "z", "ch", "sh")):
        return (f"{key}es",)
    if key.endswith("y") and key[-2:-1] not in tuple("aeiou"):
        return (f"{key[:-1]}ies", f"{key}s")
    return (f"{key}s",)


class _Decoded(NamedTuple):
    keys: pa.Array
    broken: np.ndarray  # bool [n]
    not_utf8: np.ndarray  # bool [n]


def _decoded(tags: pa.Array) -> _Decoded:
    """The normalised tags, each distinct one decoded once."""
    encoded = pc.dictionary_encode(tags)
    keys, broken, not_utf8 = [], [], []
    for tag in encoded.dictionary.to_pylist():
        key = normalise(tag[:-1])
        keys.append(f"{key},".encode())
        broken.append(_ESCAPE.search(tag) is not None)
        not_utf8.append("\ufffd" in key)
    index = encoded.indices.to_numpy()
    return _Decoded(
        pa.array(keys, pa.large_binary()).take(encoded.indices),
        np.array(broken, dtype=bool)[index],
        np.array(not_utf8, dtype=bool)[index],
    )


def _cut(plain: np.ndarray) -> pa.Array:
    """The tags with their commas, without copying."""
    offsets = np.concatenate([[0], np.flatnonzero(plain == _COMMA) + 1]).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(plain)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _ends(tags: pa.Array) -> np.ndarray:
    return np.frombuffer(tags.buffers()[1], dtype=np.int64)[1 : len(tags) + 1]


def _odd(plain: np.ndarray, tags: pa.Array) -> np.ndarray:
    """The tags that the table of bytes does not normalise: escapes, no ASCII, spare spaces."""
    odd = (plain == _PERCENT) | (plain >= 0x80)
    gap = (plain == _SPACE) | (plain == _COMMA)
    two = gap[:-1] & gap[1:]
    # Two commas are an empty tag, which is nothing to mend.
    two &= (plain[:-1] == _SPACE) | (plain[1:] == _SPACE)
    odd[:-1] |= two & (plain[:-1] == _SPACE)
    odd[1:] |= two & (plain[1:] == _SPACE)
    odd[:1] |= plain[:1] == _SPACE
    return np.unique(np.searchsorted(_ends(tags), np.flatnonzero(odd), side="right"))


def _table() -> np.ndarray:
    """uint8 [256]: lower case, separators to spaces, and the tab that ends a field to a comma."""
    table = np.arange(256, dtype=np.uint8)
    table[ord("A") : ord("Z") + 1] += 32
    table[[ord(separator) for separator in "+_- \r\v\f\x1c\x1d\x1e\x1f"]] = _SPACE
    table[ord("\t")] = _COMMA
    return table


_TABLE = _table()
