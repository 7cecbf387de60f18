"""YFCC100M's places file: photo id -> country, as Flickr's own gazetteer had it."""

from pathlib import Path
from urllib.parse import unquote_plus

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acclimate.core.errors import ManifestError
from acclimate.core.progress import Watch, unwatched
from acclimate.paper.geo_yfcc.grid import NOWHERE
from acclimate.paper.geo_yfcc.rows import PHOTO_ID, Damage, Rows, blocks, compressed, whole

# A line is a photo id, a tab, and places such as 23424829:Germany:Country between commas.
_COUNTRY = r"(?:^|,)[0-9]*:(?P<name>[^:,]+):Country(?:,|$)"


def read_places(
    path: str | Path, photo_id: np.ndarray, *, watch: Watch = unwatched
) -> tuple[tuple[str, ...], np.ndarray]:
    """Country names, and for each of the photos (sorted) an index into them or -1: int16 [n].

    The file is streamed; only the given photos are remembered.
    """
    path = Path(path).expanduser()
    found = np.full(len(photo_id), NOWHERE, dtype=np.int16)
    names: dict[bytes, int] = {}
    size = path.stat().st_size
    rows = 0
    try:
        for block, position in blocks(whole(path)):
            lines = Rows.of(block, 2)
            rows += len(lines)
            _note_countries(lines, photo_id, names, found)
            watch("reading places (MiB)", position >> 20, max(1, size >> 20), "")
    except Damage as error:
        raise ManifestError(
            f"{path.name} is damaged ({str(error).lower()}); download it again"
        ) from error
    if not names and len(photo_id):
        kind = "compressed lines" if compressed(path) else "lines"
        raise ManifestError(
            f"{path.name} names no country for any photo in its {rows} {kind}; give YFCC100M's "
            "places file: photo id, tab, places"
        )
    return _merged(names, found)


def _note_countries(
    lines: Rows, photo_id: np.ndarray, names: dict[bytes, int], found: np.ndarray
) -> None:
    every = np.arange(len(lines))
    text = lines.values("photo_id", every)
    numeric = np.asarray(pc.match_substring_regex(text, PHOTO_ID))
    ids = text.filter(pa.array(numeric)).cast(pa.large_string()).cast(pa.int64()).to_numpy()
    place = np.minimum(np.searchsorted(photo_id, ids), max(len(photo_id) - 1, 0))
    wanted = photo_id[place] == ids if len(photo_id) else np.zeros(len(ids), dtype=bool)
    places = lines.values("places", every[numeric][wanted])
    country = pc.struct_field(pc.extract_regex(places, _COUNTRY), "name")
    encoded = country.dictionary_encode()
    known = [names.setdefault(name, len(names)) for name in encoded.dictionary.to_pylist()]
    code = np.array([*known, NOWHERE], dtype=np.int16)
    index = pc.fill_null(encoded.indices, len(known)).to_numpy()
    found[place[wanted]] = code[index]


def _merged(names: dict[bytes, int], found: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Names decoded and sorted; two spellings of one name become one country."""
    decoded = [unquote_plus(name.decode("utf-8", errors="replace")) for name in names]
    ordered = sorted(set(decoded))
    renumbered = [ordered.index(name) for name in decoded] + [NOWHERE]
    return tuple(ordered), np.array(renumbered, dtype=np.int16)[found]
