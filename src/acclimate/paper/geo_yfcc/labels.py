"""Which synsets are labels, which words name them, and what the classes are called."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from acclimate.build.synsets import ilsvrc12_synsets, is_synset, listed, short, timm_file
from acclimate.core.errors import ManifestError


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
    known = listed(path)
    if exclude_ilsvrc12 and any(map(is_synset, known)):
        excluded = ilsvrc12_synsets()
        known = {synset: own for synset, own in known.items() if synset not in excluded}
    if not known:
        raise ManifestError(f"{path.name} names no synset that is not in ILSVRC12; add some")
    lemmas = _with_lemmas(known, path.name)
    names = class_names(lemmas)
    return tuple(Label(synset, names[synset], lemmas[synset]) for synset in sorted(lemmas))


def class_names(lemmas: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Synset -> its first lemma, with the synset after it where several have the same one."""
    folded = Counter(words[0].casefold() for words in lemmas.values())
    return {
        synset: words[0] if folded[words[0].casefold()] == 1 else f"{words[0]} ({synset})"
        for synset, words in lemmas.items()
    }


def packaged_lemmas(synsets: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The lemmas of ImageNet's synsets; those that are not among its 21,844 are left out."""
    lines = timm_file("imagenet_synset_to_lemma.txt").splitlines()
    known = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return {synset: _words(known[synset]) for synset in synsets if synset in known}


def _with_lemmas(listed: dict[str, str], source: str) -> dict[str, tuple[str, ...]]:
    lemmas = {synset: words for synset, own in listed.items() if (words := _words(own))}
    bare = [synset for synset in listed if synset not in lemmas]
    packaged = packaged_lemmas(bare) if bare else {}
    missing = [synset for synset in bare if synset not in packaged]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        quoted = ", ".join(map(short, missing[:3]))
        raise ManifestError(
            f"{source} names {quoted}{more}, for which there are no lemmas; "
            "remove them, or give the lemmas after a tab"
        )
    return lemmas | packaged


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
