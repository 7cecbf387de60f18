"""Files by address, such as s3://bucket/photos.tar: fsspec opens them, if it is installed."""

import re
from importlib import import_module
from pathlib import Path
from typing import IO

from acclimate.core.errors import ManifestError
from acclimate.core.files import require_regular
from acclimate.core.text import reason_of

_SCHEME = re.compile("([a-z][a-z0-9+]+):/")  # a Path keeps one of an address's slashes


def open_binary(path: Path) -> IO[bytes]:
    """A regular file of this machine, or what an address names."""
    text = path.as_posix()
    if not (scheme := _SCHEME.match(text)):
        require_regular(path)
        return path.open("rb")
    address = f"{scheme[1]}://{text[scheme.end() :]}"
    try:
        file: IO[bytes] = import_module("fsspec").open(address).open()
    except Exception as error:  # each store has errors of its own
        remedy = "check the address, and your right to read it"
        if isinstance(error, ImportError):
            remedy = 'pip install "acclimate[remote]"'
        raise ManifestError(f"cannot open {address} ({reason_of(error)}); {remedy}") from error
    return file
