"""Near copies: different files whose pictures look the same, by a perceptual hash.

A model that was trained on one copy and is scored on another is scored on what it was trained on.
"""

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from acclimate.core.errors import ImageError

if TYPE_CHECKING:
    from acclimate.data.manifest import Manifest

SIDE, LOWEST = 32, 8  # of the thumbnail, and of the corner of its cosine transform
NEAR_BITS = 4  # of 63 may differ: two photographs of different things differ in some 31
NEAR_GREY = 8.0  # of 255, on average over the thumbnails
FLAT = 3.0  # standard deviation of grey below which a picture shows too little to compare


def near_copies(manifest: "Manifest", rows: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of `rows` whose pictures look the same. Images that cannot be read are passed over."""
    rows = manifest.one_row_each(np.sort(rows))
    with ThreadPoolExecutor() as pool:
        thumbnails = pool.map(lambda row: _thumbnail(manifest, row), rows.tolist())
        greys = list(zip(rows.tolist(), thumbnails, strict=True))
    known = [(row, grey) for row, grey in greys if grey is not None and grey.std() >= FLAT]
    bits = [perceptual_hash(grey) for _, grey in known]
    pairs = []
    for a, b in sorted(_candidates(bits)):
        (row, grey), (other, compared) = known[a], known[b]
        differing = (bits[a] ^ bits[b]).bit_count()
        if differing <= NEAR_BITS and np.abs(grey - compared).mean() <= NEAR_GREY:
            pairs.append((min(row, other), max(row, other)))
    return pairs


def _thumbnail(manifest: "Manifest", row: int) -> np.ndarray | None:
    """float64 [SIDE, SIDE], grey"""
    from PIL import Image

    from acclimate.data.images import decode

    try:
        image = decode(manifest.image_source(row), hint=SIDE).convert("L")
    except ImageError:
        return None
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype=np.float64)


def perceptual_hash(grey: np.ndarray) -> int:
    """pHash of an image [SIDE, SIDE]: one bit for each of the lowest frequencies of its cosine
    transform but the mean, set if it is above their median."""
    from scipy.fft import dctn

    low = dctn(grey, norm="ortho")[:LOWEST, :LOWEST].ravel()[1:]
    bits = low > np.median(low)
    return int("".join("1" if bit else "0" for bit in bits), 2)


def _candidates(bits: Sequence[int]) -> set[tuple[int, int]]:
    """Pairs that agree in one of NEAR_BITS + 1 bands: of those within NEAR_BITS, all do."""
    bands, width = NEAR_BITS + 1, -(-63 // (NEAR_BITS + 1))
    pairs: set[tuple[int, int]] = set()
    for band in range(bands):
        buckets = defaultdict(list)
        for place, value in enumerate(bits):
            buckets[value >> (band * width) & ((1 << width) - 1)].append(place)
        for places in buckets.values():
            pairs.update(combinations(places, 2))
    return pairs


def joined(codes: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Codes [n] in which both rows of each pair, and whatever shares a code with them, agree."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    names, code = np.unique(codes, return_inverse=True)
    ends = code[np.array(pairs, dtype=np.int64).reshape(-1, 2)].T
    graph = coo_array((np.ones(len(pairs)), tuple(ends)), shape=(len(names), len(names)))
    component = connected_components(graph, directed=False)[1]
    _, first = np.unique(component, return_index=True)  # the smallest code of each
    return np.asarray(names[first[component[code]]])
