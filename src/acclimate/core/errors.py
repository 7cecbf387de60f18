"""The exception tree. Every message says what, where and the remedy, in one line."""

from collections.abc import Iterable
from difflib import get_close_matches


class AcclimateError(Exception):
    """Anything a user can mend. The command line prints it as one line and exits with 1."""


class UnknownName(AcclimateError):
    """A name that is not in the table it was looked up in."""


class ConfigError(AcclimateError):
    """A setting that does not exist, does not parse or contradicts another."""


class ManifestError(AcclimateError):
    """A data set that cannot be read, or that is not what it says."""


class ImageError(AcclimateError):
    """An image that cannot be decoded."""


class TooManyUnreadable(AcclimateError):
    """More images were quarantined than the run allows."""


class WeightsError(AcclimateError):
    """Pretrained weights that cannot be had or do not fit."""


class StateMismatch(AcclimateError):
    """A domain state used with a model that did not make it."""


class ExportError(AcclimateError):
    """A graph that does not give what PyTorch gives."""


class RunError(AcclimateError):
    """A run folder that is missing, unfinished or holds another run."""


class RunBusy(RunError):
    """A run folder in which another process is at work."""


class SweepError(AcclimateError):
    """A sweep folder that is missing, damaged or holds another sweep."""


class RecordError(AcclimateError):
    """A records file that cannot be understood."""


class SchemaError(RecordError):
    """Records written by another version of the program."""


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
    shown = [f"{prefix}{other}" for other in names[:12]]
    listed = ", ".join(shown) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return UnknownName(f"{sentence}; there is {listed}" if names else f"{sentence}; there is none")
