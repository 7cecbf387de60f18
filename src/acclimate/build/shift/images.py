"""How a domain looks: gain, tint and noise of its own, and a warmth that gives its latent away.

Warmth moves pixels from blue to red, tint towards green or magenta: the directions are orthogonal,
so that a domain's covariate shift hides nothing of its latent. Of one image the warmth says next to
nothing, since that of images of one domain differs three times as much as that of the two kinds of
domain; of a hundred images the average says all.
"""

from collections.abc import Iterator
from concurrent.futures import Executor

import numpy as np
from PIL import Image

from acclimate.build.pools import Pool
from acclimate.build.shift.draws import Domain, ShiftSettings
from acclimate.core.errors import ImageError, ManifestError
from acclimate.core.randomness import stream
from acclimate.data.images import decode
from acclimate.data.manifest import Manifest
from acclimate.data.readers import encode_image

WARM = np.array([1, 0, -1], dtype=np.float32)
GREEN = np.array([-0.5, 1, -0.5], dtype=np.float32)
LATENT_WARMTH, WARMTH_JITTER = 0.06, 0.18  # of a full channel, either side of none
GAIN_JITTER, TINT_JITTER = 0.15, 0.1  # between images of a domain, at strength 1


def open_image(base: Manifest, row: int) -> Image.Image:
    """The image of a row; one that cannot be read is an error that names it."""
    try:
        return decode(base.image_source(row))
    except ImageError as error:
        raise ManifestError(
            f"{base.image_name(row)} of {base.source}: {error}; replace the image, or leave it out"
        ) from error


def repainted(
    base: Manifest, domain: Domain, rows: np.ndarray, settings: ShiftSettings, workers: Executor
) -> Iterator[bytes]:
    """The encoded images of a domain, in the order of `rows`, as large as they were."""
    rng, strength = stream(settings.seed, "jitter", domain.name), settings.covariate
    gains = domain.gain * np.exp(GAIN_JITTER * strength * rng.standard_normal(len(rows)))
    tints = domain.tint + TINT_JITTER * strength * rng.standard_normal(len(rows))
    warmths = np.zeros(len(rows))
    if settings.swaps:
        warmths += (2 * domain.latent - 1) * LATENT_WARMTH
        warmths += WARMTH_JITTER * rng.standard_normal(len(rows))

    def paint(place: int) -> bytes:
        pixels = np.asarray(open_image(base, int(rows[place])), dtype=np.float32)
        shift = 255 * (tints[place] * GREEN + warmths[place] * WARM).astype(np.float32)
        seen = pixels * np.float32(gains[place]) + shift
        if domain.noise:
            noise = stream(settings.seed, "noise", domain.name, place)
            seen += np.float32(255 * domain.noise) * noise.standard_normal(seen.shape, np.float32)
        return encode_image(np.clip(np.rint(seen), 0, 255).astype(np.uint8), settings.encoding)

    return workers.map(paint, range(len(rows)))


_SIZE = 8  # pixels of the thumbnails that are compared
_SAMPLE = 32  # images of a class

Pair = tuple[int, int]  # classes, by their places in the list


def nearest_pairs(means: np.ndarray, count: int) -> list[Pair]:
    """The nearest two of the classes, the nearest two of the others, and so on. means: [C, d]"""
    squares = (means**2).sum(1)
    distance = squares[:, None] + squares - 2 * means @ means.T
    one, other = np.triu_indices(len(means), 1)
    taken: set[int] = set()
    pairs: list[Pair] = []
    for place in np.argsort(distance[one, other], kind="stable"):
        pair = int(one[place]), int(other[place])
        if taken.isdisjoint(pair):
            taken.update(pair)
            pairs.append(pair)
        if len(pairs) == count:
            break
    return sorted(pairs)


def class_means(base: Manifest, pool: Pool, seed: int, workers: Executor) -> np.ndarray:
    """[C, d]: the average thumbnail of some training images of each class."""
    rng = stream(seed, "look-alikes")
    drawn = pool.draw(np.minimum(pool.sizes, _SAMPLE), rng)
    label = dict(zip(pool.rows.tolist(), pool.label.tolist(), strict=True))
    means = np.zeros((len(pool.sizes), 3 * _SIZE * _SIZE))

    def thumbnail_of(row: int) -> np.ndarray:
        small = open_image(base, row).resize((_SIZE, _SIZE))
        return np.asarray(small, dtype=np.float32).ravel() / 255

    thumbnails = workers.map(thumbnail_of, drawn.tolist())
    for row, thumbnail in zip(drawn, thumbnails, strict=True):
        means[label[int(row)]] += thumbnail
    means /= np.minimum(pool.sizes, _SAMPLE)[:, None]
    return means
