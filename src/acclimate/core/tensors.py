"""Named tensors: one way to write them, to take a part of them and to tell them from others."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from acclimate.core.errors import DamagedFile, NotFinite
from acclimate.core.files import write_atomically
from acclimate.core.sealed import SEAL, check_tensors, write_tensors

T = TypeVar("T")
_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    sweep: bool = False,
) -> None:
    """A safetensors file with its checksum, whole or absent; `sweep` as in `write_atomically`."""
    # The widest first, as the format has them, so that each lies where its numbers may.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, place = {}, 0
    for name in order:
        value, start = tensors[name], place
        place += value.numel() * value.element_size()
        kind, shape = _KINDS[value.dtype], list(value.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, place]}
    parts = (_bytes(tensors[name]) for name in order)
    write_atomically(
        path, lambda file: write_tensors(file, header, metadata or {}, parts), sweep=sweep
    )


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, metadata) of a file of `save_tensors`, checked; a missing file is the caller's to
    explain."""
    check_tensors(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError):
        raise DamagedFile(path) from None
    metadata.pop(SEAL, None)
    return tensors, metadata


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata alone, without looking at the rest of the file."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError):
        raise DamagedFile(path) from None


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
    return all(_finite(t) for t in tensors if t.is_floating_point())


def _finite(tensor: Tensor) -> bool:
    """A sum tells in a fifth of the time; one that is not finite may only have overflowed."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def below(tensors: Mapping[str, T], prefix: str) -> dict[str, T]:
    """Those whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 over names, shapes and bytes: two models agree exactly when all weights do."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name}:{values.dtype}:{tuple(values.shape)}\n".encode())
        digest.update(_bytes(values))
    return digest.hexdigest()
