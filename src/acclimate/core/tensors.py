"""Named tensors on disk: one way to write them, one way to take a part of them."""

from collections.abc import Mapping
from pathlib import Path

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
