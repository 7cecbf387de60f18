"""Lists of ImageNet's synsets: those of a file, and those of ILSVRC12."""

import importlib.util
import re
from pathlib import Path

from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.files import parse_json, read_bytes

_QUOTED = 60  # characters
_SYNSET = re.compile(r"n\d{8}")


def read_names(path: str | Path) -> tuple[str, ...]:
    """The names that a file of labels lists, in the forms that `read_labels` reads."""
    return tuple(listed(Path(path).expanduser()))


def short(name: str) -> str:
    """A name as an error quotes it, whatever was taken for one."""
    return name if len(name) <= _QUOTED else f"{name[: _QUOTED - 1]}…"


def is_synset(name: str) -> bool:
    return _SYNSET.fullmatch(name) is not None


def ilsvrc12_synsets() -> frozenset[str]:
    """The 1,000 classes of ILSVRC12, from timm's list."""
    return frozenset(timm_file("imagenet_synsets.txt").split())


def listed(path: Path) -> dict[str, str]:
    """Synset -> its own lemmas, or nothing, of a file of labels."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
        if text.lstrip()[:1] not in ("[", "{"):
            rows = (line for line in map(str.strip, text.splitlines()) if line[:1] not in ("", "#"))
            lines = [line.partition("\t") for line in rows]
            labels = {synset.strip(): own.strip() for synset, _, own in lines}
        else:
            document = parse_json(text)
            if not isinstance(document, list):
                raise TypeError("not a list")
            entries = [
                entry if isinstance(entry, str) else entry["label_name"] for entry in document
            ]
            labels = {entry.strip(): "" for entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(
            f"{path.name} is no list of labels; give a JSON list such as "
            '[{"label_id": 0, "label_name": "n04407435"}], '
            "or a text file with a synset on each line"
        ) from error
    if not labels:
        raise ManifestError(f"{path.name} is empty; give a list of synsets")
    return labels


def timm_file(name: str) -> str:
    """A file of timm's, without importing timm: that would take seconds, and torch."""
    spec = importlib.util.find_spec("timm")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        path = Path(folder) / "data" / "_info" / name
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise ConfigError(f"timm's file '{name}' is not installed; pip install timm")
