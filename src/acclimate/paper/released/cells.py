"""Cells of the released table, whose authors and whose pandas wrote them in several ways."""

from acclimate.paper.geo_yfcc.rows import METADATA
from acclimate.paper.released.frames import Unexpected, array, scalar
from acclimate.paper.released.pickled import Call, Global

# The fields in metadata kept as dictionaries; only letters and digits of a key are looked at.
_KEYS = {
    "photo_id": ("photoid", "photovideoidentifier", "identifier", "id"),
    "url": ("downloadurl", "photovideodownloadurl", "photourl", "url"),
    "page": ("pageurl", "photovideopageurl", "page"),
    "longitude": ("longitude", "lon"),
    "latitude": ("latitude", "lat"),
}


# A cell that all rows share costs a file nothing, and what is made of it costs memory each time.
MOST_TEXT = 200_000  # characters of a photo's metadata
MOST_FIELD = 2_000  # of one field of it that is looked at
MOST_NAME = 200  # of a country's name
MOST_LABELS = 5_000  # of a photo: ImageNet-5K has no more


def value(node: object) -> object:
    """Returns a cell as plain Python: a number or a list for numpy's, None for what is no part of
    a table, and everything else as it is."""
    if not isinstance(node, Call):
        return None if isinstance(node, Global) else node
    try:
        if node.target.name == "scalar":
            return scalar(node)
        column, shape = array(node)
    except Unexpected:
        return None
    if len(shape) > 1:
        return None
    return column if isinstance(column, list) else column.tolist()


def whole_number(cell: object) -> int | None:
    """A whole number that is not negative, also one written as text or as 17.0."""
    if isinstance(cell, str) and cell.strip().isascii() and cell.strip().isdecimal():
        cell = int(cell) if len(cell) < 19 else None
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    right = isinstance(cell, int) and not isinstance(cell, bool) and 0 <= cell < 1 << 63
    return int(cell) if right and isinstance(cell, int) else None


def text_of(cell: object) -> str:
    """Text that can be written; lone surrogates, which cannot, become question marks."""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    if isinstance(cell, str):
        return cell if cell.isascii() else cell.encode("utf-8", "replace").decode("utf-8")
    return str(cell) if type(cell) in (int, float) else ""


def _short(cell: object) -> str:
    """The text of a field; one that is longer than such fields are is none."""
    long = isinstance(cell, str | bytes) and len(cell) > MOST_FIELD
    return "" if long else text_of(cell)


def degrees(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if abs(number) <= 180 else None


def metadata_of(cell: object) -> dict[str, str]:
    """What is known of the photo: from a line with tabs, a list of its fields, or a dictionary."""
    if isinstance(cell, dict):
        folded = {
            "".join(filter(str.isalnum, key)).casefold(): values
            for key, values in cell.items()
            if isinstance(key, str)
        }
        values = {
            name: next((folded[key] for key in keys if key in folded), None)
            for name, keys in _KEYS.items()
        }
    else:
        if isinstance(cell, str) and len(cell) > MOST_TEXT:
            return {}
        fields = cell.rstrip("\r\n").split("\t") if isinstance(cell, str) else cell
        if not isinstance(fields, list | tuple) or len(fields) not in METADATA:
            return {}
        values = dict(zip(METADATA[len(fields)], fields, strict=True))
    texts = {name: _short(value(values[name])).strip() for name in _KEYS}
    for name in ("url", "page"):
        if not texts[name].startswith(("http://", "https://")):
            texts[name] = ""
    return {name: text for name, text in texts.items() if text}
