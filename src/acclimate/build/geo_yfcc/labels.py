"""Which synsets are labels, which words name them, and what the classes are called."""

import importlib.util
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.sealed import parse_json

_QUOTED = 60  # characters
_SYNSET = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Label:
    """A synset, the name of its class, and the words that stand for it."""

    synset: str
    name: str
    lemmas: tuple[str, ...]


def read_labels(path: str | Path, *, exclude_ilsvrc12: bool = True) -> tuple[Label, ...]:
    """The labels of a file, sorted by synset, less those of ILSVRC12 unless told otherwise.

    A JSON list of `{"label_id": …, "label_name": "n04407435"}` or of synsets, or text with a synset
    on each line but those that begin with #. A line may go on with a tab and its own lemmas,
    separated by commas; then anything may stand in the place of the synset. Other lemmas come from
    timm's table of ImageNet's.
    """
    path = Path(path).expanduser()
    listed = _listed(path)
    if exclude_ilsvrc12 and any(map(is_synset, listed)):
        excluded = ilsvrc12_synsets()
        listed = {synset: own for synset, own in listed.items() if synset not in excluded}
    if not listed:
        raise ManifestError(f"{path.name} names no synset that is not in ILSVRC12; add some")
    lemmas = _with_lemmas(listed, path.name)
    names = class_names(lemmas)
    return tuple(Label(synset, names[synset], lemmas[synset]) for synset in sorted(lemmas))


def read_names(path: str | Path) -> tuple[str, ...]:
    """The names that a file of labels lists, in the forms that `read_labels` reads."""
    return tuple(_listed(Path(path).expanduser()))


def short(name: str) -> str:
    """A name as an error quotes it, whatever was taken for one."""
    return name if len(name) <= _QUOTED else f"{name[: _QUOTED - 1]}…"


def is_synset(name: str) -> bool:
    return _SYNSET.fullmatch(name) is not None


def ilsvrc12_synsets() -> frozenset[str]:
    """The 1,000 classes of ILSVRC12, from timm's list."""
    return frozenset(_packaged("imagenet_synsets.txt").split())


def class_names(lemmas: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Synset -> its first lemma, with the synset after it where several have the same one."""
    folded = Counter(words[0].casefold() for words in lemmas.values())
    return {
        synset: words[0] if folded[words[0].casefold()] == 1 else f"{words[0]} ({synset})"
        for synset, words in lemmas.items()
    }


def packaged_lemmas(synsets: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The lemmas of ImageNet's synsets; those that are not among its 21,844 are left out."""
    lines = _packaged("imagenet_synset_to_lemma.txt").splitlines()
    known = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return {synset: _words(known[synset]) for synset in synsets if synset in known}


def _with_lemmas(listed: dict[str, str], source: str) -> dict[str, tuple[str, ...]]:
    lemmas = {synset: words for synset, own in listed.items() if (words := _words(own))}
    bare = [synset for synset in listed if synset not in lemmas]
    found = packaged_lemmas(bare) if bare else {}
    missing = [synset for synset in bare if synset not in found]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        quoted = ", ".join(map(short, missing[:3]))
        raise ManifestError(
            f"{source} names {quoted}{more}, for which there are no lemmas; "
            "remove them, or give the lemmas after a tab"
        )
    return lemmas | found


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _listed(path: Path) -> dict[str, str]:
    """Synset -> its own lemmas, or nothing."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if text.lstrip()[:1] not in ("[", "{"):
            given = (
                line for line in map(str.strip, text.splitlines()) if line[:1] not in ("", "#")
            )
            lines = [line.partition("\t") for line in given]
            found = {synset.strip(): own.strip() for synset, _, own in lines}
        else:
            held = parse_json(text)
            if not isinstance(held, list):
                raise TypeError("not a list")
            entries = [entry if isinstance(entry, str) else entry["label_name"] for entry in held]
            found = {entry.strip(): "" for entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(
            f"{path.name} is no list of labels; give a JSON list such as "
            '[{"label_id": 0, "label_name": "n04407435"}], '
            "or a text file with a synset on each line"
        ) from error
    if not found:
        raise ManifestError(f"{path.name} is empty; give a list of synsets")
    return found


def _packaged(name: str) -> str:
    """A file of timm's, without importing timm: that would take seconds, and torch."""
    spec = importlib.util.find_spec("timm")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        path = Path(folder) / "data" / "_info" / name
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise ConfigError(f"timm's file '{name}' is not installed; pip install timm")
