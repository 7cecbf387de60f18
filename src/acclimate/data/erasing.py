"""What the user's caches hold of some images, taken out of them: features, pixels, file digests.

Caches go by the content of an image. What is taken out is made again should anybody need it.
"""

import json
import os
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from acclimate.core.errors import DamagedFile
from acclimate.core.files import user_cache, write_error
from acclimate.core.tensors import read_tensors
from acclimate.data.cache import ENDING, FEATURES, HEAD, IMAGES, FeatureCache, cache_folder
from acclimate.data.pictures import AT_ONCE, SIZE, open_store


def erase_features(images: Collection[bytes], beside: Path) -> int:
    """Remove the features of images, by their digests, that any backbone gave; how many rows."""
    erased = 0
    for path in sorted(cache_folder(beside).glob(f"*/*{ENDING}")):
        try:
            with safe_open(path, framework="pt") as file:
                held = [row.tobytes() for row in file.get_tensor(IMAGES).numpy()]
            kept = [place for place, image in enumerate(held) if image not in images]
            if len(kept) == len(held):
                continue
            if kept:
                features = read_tensors(path)[0][FEATURES][torch.tensor(kept)]
                cache = FeatureCache(path.parent, features.shape[1])
                cache.add([held[place] for place in kept], features)
        except (DamagedFile, SafetensorError):
            kept, held = [], []  # nobody can use it
        path.unlink(missing_ok=True)
        erased += len(held) - len(kept)
    return erased


def erase_pixels(images: Collection[bytes]) -> int:
    """Overwrite decoded images, by their digests, in every pack with zeros; how many."""
    root, erased = user_cache("images"), 0
    for about in sorted(root.glob("**/about.json")) if root is not None else ():
        path = about.with_name("images")
        try:
            stride = HEAD + 3 * int(json.loads(about.read_text())["size"]) ** 2
            with path.open("rb+") as file:
                for place in range(0, path.stat().st_size, stride):
                    if os.pread(file.fileno(), SIZE, place) in images:
                        os.pwrite(file.fileno(), bytes(stride), place)
                        erased += 1
                os.fsync(file.fileno())
        except FileNotFoundError:
            continue  # removed for another
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = error if isinstance(error, OSError) else OSError("not a pack")
            raise write_error(path, problem) from error
    return erased


def erase_digests(paths: Sequence[str]) -> int:
    """Remove the digests of files from the cache, and overwrite them; how many."""
    erased = 0
    with suppress(FileNotFoundError, sqlite3.DatabaseError), closing(open_store()) as store:
        store.execute("PRAGMA secure_delete = ON")
        for start in range(0, len(paths), AT_ONCE):
            part = [os.fsencode(path) for path in paths[start : start + AT_ONCE]]
            marks = ",".join("?" * len(part))
            erased += store.execute(f"DELETE FROM files WHERE path IN ({marks})", part).rowcount
    return erased
