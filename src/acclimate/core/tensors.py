"""Named tensors: one way to write them, to take a part of them and to tell them from others."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from acclimate.core.errors import DamagedFile, NotFinite
from acclimate.core.files import (
    FORMAT,
    parse_metadata,
    require_format,
    require_regular,
    write_atomically,
)

T = TypeVar("T")
DIGEST = "content digest"  # the key in a file's metadata of the digest of all the rest
# The library writes several entries of metadata in no fixed order; in one entry, equal content is
# equal bytes.
_ENTRY = "acclimate"
_OF = "of"
_DRAWS = (
    nn.init.uniform_,
    nn.init.normal_,
    nn.init.kaiming_uniform_,
    Tensor.uniform_,
    Tensor.normal_,
)


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    of: str = "",
) -> None:
    """A safetensors file, whole or absent, with a digest of its content in its metadata; `of` says
    what it belongs to."""
    plain: dict[str, Tensor] = {}
    storages = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        storage = value.untyped_storage().data_ptr()
        # The library refuses tensors that share memory.
        plain[name] = value.clone() if storage in storages else value
        storages.add(storage)
    facts = {**(metadata or {}), "format": str(FORMAT), **({_OF: of} if of else {})}
    facts[DIGEST] = _content_digest(plain, facts)
    entry = {_ENTRY: json.dumps(facts, sort_keys=True)}
    write_atomically(path, lambda file: _save(plain, file, entry))


def _save(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, file, metadata)
    except SafetensorError as error:  # of the disk, as "… (os error 28)"
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _content_digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    facts = {key: value for key, value in metadata.items() if key != DIGEST}
    text = json.dumps(facts, sort_keys=True) + tensors_digest(tensors.items())
    return hashlib.sha256(text.encode()).hexdigest()


def read_tensors(path: Path, of: str | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, metadata) of a file of `save_tensors`, compared with their digest, and with what
    they are to belong to; a missing file is the caller's to explain."""
    require_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            # Copies: Windows replaces no file of which a part is still in memory.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            metadata = parse_metadata(file.metadata())
    except Exception:  # whatever the library makes of a damaged header
        raise DamagedFile(path) from None
    if metadata.pop(DIGEST, None) != _content_digest(tensors, metadata):
        raise DamagedFile(path)
    if of not in (None, metadata.pop(_OF, "")):
        raise DamagedFile(path)
    require_format(int(metadata.pop("format")), path)
    return tensors, metadata


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata alone, without looking at the rest of the file."""
    require_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            return parse_metadata(file.metadata())
    except (SafetensorError, OSError, ValueError):
        raise DamagedFile(path) from None


class Undrawn(TorchFunctionMode):
    """Inside, layers are built without drawing random weights, which `fill` would replace."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        more = kwargs or {}
        if func in _DRAWS:
            return args[0] if args else more["tensor"]
        return func(*args, **more)


def fill(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load into `module` what a file at `path` holds for it: all of it, and nothing else."""
    own = module.state_dict()
    fits = own.keys() == tensors.keys() and all(
        own[name].shape == value.shape and own[name].dtype == value.dtype
        for name, value in tensors.items()
    )
    if not fits or not all_finite(tensors.values()):
        raise DamagedFile(path)
    module.load_state_dict(tensors)


def require_finite(values: Tensor, what: str) -> None:
    """Refuse NaN and infinity in what a model computed."""
    if not bool(values.isfinite().all()):
        raise NotFinite(
            f"{what} is not finite: the input or a weight is too large for the model's numbers; "
            f"check the input's scale, or train again with a lower learning rate"
        )


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no tensor holds NaN or infinity."""
    # A sum tells in a fifth of the time; one that is not finite may only have overflowed.
    floating = (t for t in tensors if t.is_floating_point())
    return all(bool(t.sum().isfinite()) or bool(t.isfinite().all()) for t in floating)


def below(tensors: Mapping[str, T], prefix: str) -> dict[str, T]:
    """Those whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 over names, shapes and bytes: two models agree exactly when all weights do."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name}:{values.dtype}:{tuple(values.shape)}\n".encode())
        if values.numel():
            digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
