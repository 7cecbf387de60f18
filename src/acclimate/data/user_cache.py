"""Where what runs share lies on disk: decoded images and features."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

VARIABLE = "ACCLIMATE_CACHE"
MIB, GIB = 1 << 20, 1 << 30


def user_cache(kind: str) -> Path | None:
    """The folder for `kind`: in $ACCLIMATE_CACHE, else in the user's cache; None without a home
    that can be written to."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser() / kind
    with suppress(OSError, RuntimeError):
        usual = Path.home() / ".cache" / "acclimate" / kind
        usual.mkdir(parents=True, exist_ok=True)
        if os.access(usual, os.W_OK):
            return usual
    return None


def image_identity(image: str | bytes) -> bytes:
    """32 bytes: of an encoded image by its content, of a file by its absolute path, size and time
    of change."""
    if isinstance(image, bytes):
        return hashlib.sha256(b"content:" + image).digest()
    try:
        facts = os.stat(image)  # noqa: PTH116
        known = f"{facts.st_size}:{facts.st_mtime_ns}"
    except (OSError, ValueError):
        known = "none"  # whoever reads it will say why it cannot be
    return hashlib.sha256(f"file:{known}:".encode() + os.fsencode(image)).digest()
