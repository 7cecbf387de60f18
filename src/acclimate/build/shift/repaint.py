"""How a domain looks: gain, tint and noise of its own, and a warmth that gives its latent away.

Warmth moves pixels from blue to red, tint towards green or magenta: the directions are orthogonal,
so that a domain's covariate shift hides nothing of its latent. Of one image the warmth says next to
nothing, since that of images of one domain differs three times as much as that of the two kinds of
domain; of a hundred images the average says all.
"""

from collections.abc import Iterator
from concurrent.futures import Executor
from io import BytesIO

import numpy as np
from PIL import Image

from acclimate.build.shift.draws import Domain
from acclimate.build.shift.settings import ShiftSettings
from acclimate.core.errors import ImageError, ManifestError
from acclimate.core.randomness import stream
from acclimate.data.images import decode
from acclimate.data.manifest import Manifest

WARM = np.array([1, 0, -1], dtype=np.float32)
GREEN = np.array([-0.5, 1, -0.5], dtype=np.float32)
LATENT_WARMTH, WARMTH_JITTER = 0.06, 0.18  # of a full channel, either side of none
GAIN_JITTER, TINT_JITTER = 0.15, 0.1  # between images of a domain, at strength 1
_SAVE = {"jpeg": {"quality": 95, "subsampling": 0}, "png": {"compress_level": 1}}


def opened(base: Manifest, row: int) -> Image.Image:
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
        pixels = np.asarray(opened(base, int(rows[place])), dtype=np.float32)
        shift = 255 * (tints[place] * GREEN + warmths[place] * WARM).astype(np.float32)
        seen = pixels * np.float32(gains[place]) + shift
        if domain.noise:
            noise = stream(settings.seed, "noise", domain.name, place)
            seen += np.float32(255 * domain.noise) * noise.standard_normal(seen.shape, np.float32)
        return _encoded(np.clip(np.rint(seen), 0, 255).astype(np.uint8), settings.encoding)

    return workers.map(paint, range(len(rows)))


def _encoded(pixels: np.ndarray, encoding: str) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, format=encoding, **_SAVE[encoding])
    return file.getvalue()
