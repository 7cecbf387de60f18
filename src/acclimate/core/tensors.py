"""Named tensors: one way to write them, to take a part of them and to tell them from others."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from acclimate.core.files import write_atomically


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """A safetensors file, whole or absent."""
    whole = {name: value.detach().contiguous() for name, value in tensors.items()}
    facts = None if metadata is None else dict(metadata)
    write_atomically(path, lambda temporary: save_file(whole, temporary, facts))


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 over names, shapes and bytes: two models agree exactly when all weights do."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name}:{values.dtype}:{tuple(values.shape)}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
