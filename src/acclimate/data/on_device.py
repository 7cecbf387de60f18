"""A GPU's memory: what may stay there, and how tensors get there."""

import torch
from torch import Tensor

from acclimate.data.feature_cache import GIB

SHARE = 0.25  # of a GPU's free memory that images may take


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to `device` without waiting for the copy."""
    return tensor.to(device, non_blocking=True)


def fits_on(device: torch.device | None, bytes_: int, gib: float) -> bool:
    """Return whether images of so many bytes may stay on a GPU, of which `gib` are allowed."""
    if device is None or device.type != "cuda" or bytes_ > gib * GIB:
        return False
    return bytes_ <= SHARE * free_on(device)


def free_on(device: torch.device) -> float:
    """Bytes of a GPU that this process may still take, by what others leave and by its own limit;
    without those that torch's allocator holds ready."""
    free, total = torch.cuda.mem_get_info(device)
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total
    return min(free, max(allowed - torch.cuda.memory_reserved(device), 0))
