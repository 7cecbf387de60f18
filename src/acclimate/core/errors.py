"""The exception tree. Every message says what, where and the remedy, in one line."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from acclimate.core.text import listed


class AcclimateError(Exception):
    """Anything a user can mend. The command line prints it as one line and exits with 1."""


class UnknownName(AcclimateError):
    """A name that is not in the table it was looked up in."""


class ConfigError(AcclimateError, ValueError):
    """A setting or an argument that does not exist, does not parse or contradicts another."""


class ManifestError(AcclimateError):
    """A data set that cannot be read, or that is not what it says."""


class ImageError(AcclimateError):
    """An image that cannot be decoded."""


class TooManyUnreadable(AcclimateError):
    """More images were quarantined than the run allows."""


class WeightsError(AcclimateError):
    """Pretrained weights that cannot be had or do not fit."""


class WriteError(AcclimateError, OSError):
    """A file that could not be written: a full disk, a failing one, or no place for a file."""


class NotAFile(AcclimateError):
    """A pipe, a device or a folder where a file is read, or more than such a file can hold."""


class NotFinite(AcclimateError):
    """NaN or infinity where numbers were to be had."""


class StateMismatch(AcclimateError):
    """A domain state used with a model that did not make it."""


class ExportError(AcclimateError):
    """A graph that does not give what PyTorch gives."""


class DamagedFile(AcclimateError):
    """A file that does not hold what it held when it was written, or never was of its kind."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is damaged; restore it, or make it again")
        self.path = path


class RunError(AcclimateError):
    """A run folder that is missing, unfinished or holds another run."""


class RunBusy(RunError):
    """A run folder in which another process is at work."""


class SweepError(AcclimateError):
    """A sweep folder that is missing, damaged or holds another sweep."""


class TrackError(AcclimateError):
    """A tool that shows runs and failed at it."""


class RecordError(AcclimateError):
    """A records file that cannot be understood."""


class SchemaError(RecordError):
    """Records written by another version of the program."""


class StoreError(AcclimateError):
    """A database of sites that cannot be opened, reached or understood."""


class UnknownSite(UnknownName):
    """A site that the server does not have."""


class OverLimit(AcclimateError):
    """More or larger than the server takes."""


class KeyReused(AcclimateError):
    """An idempotency key that came with something else before."""


class QueueFull(AcclimateError):
    """A server that has as much to do as it may."""


def unknown(sentence: str, name: str, known: Iterable[str], *, prefix: str = "") -> UnknownName:
    """`sentence` without its full stop, then the nearest of `known`, or all of them.

    `prefix` is shown before each known name and is no part of the comparison: what all names
    share would make every one of them look near.

    >>> str(unknown("pacs.parquet has no domain 'skech'", "skech", ["photo", "sketch"]))
    "pacs.parquet has no domain 'skech'; did you mean 'sketch'?"
    """
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return UnknownName(f"{sentence}; did you mean '{prefix}{near[0]}'?")
    all_names = listed([f"{prefix}{other}" for other in names], 12) or "none"
    return UnknownName(f"{sentence}; there is {all_names}")


def require_known(name: str, known: Collection[str], sentence: str) -> None:
    """Refuse a name that is not among `known`, with the error that `unknown` makes."""
    if name not in known:
        raise unknown(sentence, name, known)


@contextmanager
def damage_is(error: type[AcclimateError], remedy: str) -> Iterator[None]:
    """A damaged file as the `error` of those who read it, with the way out that they know."""
    try:
        yield
    except DamagedFile as damage:
        raise error(f"{damage.path} is damaged; {remedy}") from None
