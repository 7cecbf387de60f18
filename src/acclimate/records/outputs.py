"""What a command may write over: an earlier output of the same kind, and nothing else."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from acclimate.core.errors import ConfigError
from acclimate.core.files import odd_kind
from acclimate.records.folder import is_own_file

LOOK = 1 << 20  # bytes at both ends of a file that say what it is
_KINDS = {  # by what is in the file: a name can say anything
    "domain state": rb".{8}\{.*domain state",
    "manifest": rb"PAR1.*acclimate\.data\.seal",
    "table of predictions": rb"image,label,confidence,problem",
    # No list of images to label: it may have been filled in.
    "page": rb"<!DOCTYPE html>.*<meta name=\"generator\" content=\"acclimate\">",
    "figure": rb"(\x89PNG|%PDF|<\?xml).*[Mm]atplotlib",
    ".md file": rb"# .*<!-- acclimate report -->",
    ".tex file": rb"% Needs \\usepackage\{booktabs\}",
    ".csv file": rb"rule,dataset,algorithm,method,variant,",
    ".json file": rb"\{\s*\"baseline\": \{\s*\"algorithm\"",
    "log of a watch": rb"\{.*\"kind\": \"watch of a site\"",
    "data sheet": rb"\{\s*\"@context\".*mlcommons\.org/croissant/1",
    ".onnx file": rb".*made_by.{1,8}acclimate",
    ".pt2 file": rb"PK\x03\x04.*made_by.{1,8}acclimate",
    "configuration of Triton's": rb"# Made by acclimate\.",
    ".npz file": rb"PK\x03\x04.*prior\.npy.*temperature\.npy",
}


def check_out(path: Path, kind: str, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse a `path` at which a file of this `kind` would replace what nobody meant to lose: one
    of the `inputs`, a file of a run, or anything that is no earlier output of the same kind."""
    path, remedy = path.expanduser(), "choose another file to write"
    real = Path(os.path.realpath(path))
    if is_own_file(real):
        raise ConfigError(f"{path} belongs to what {real.parent} holds; {remedy}")
    if not path.exists():
        return
    if any(one is not None and one.exists() and path.samefile(one) for one in inputs):
        raise ConfigError(f"{path} is an input of this command; {remedy}")
    if (odd := odd_kind(path)) is not None:
        raise ConfigError(f"{path} is {odd}, not a file; {remedy}")
    if not is_output(path, kind):
        raise ConfigError(f"{path} holds something else than an earlier {kind}; {remedy}")


def is_output(path: Path, kind: str) -> bool:
    """Whether a file is empty, or of the `kind`."""
    with path.open("rb") as file:
        ends = file.read(LOOK)
        file.seek(max(file.tell(), path.stat().st_size - LOOK))
        ends += file.read(LOOK)
    return not ends or re.match(_KINDS.get(kind, rb"(?!)"), ends, re.DOTALL) is not None
