"""Classifiers that adapt themselves to a domain they have never seen, from unlabelled images."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acclimate.adapt import Adapted
    from acclimate.embeddings import DomainState
    from acclimate.errors import AcclimateError
    from acclimate.estimator import AdaptiveClassifier
    from acclimate.kernel import KernelClassifier
    from acclimate.manifest import Manifest

__version__ = "0.1.0"
__all__ = [
    "AcclimateError",
    "Adapted",
    "AdaptiveClassifier",
    "DomainState",
    "KernelClassifier",
    "Manifest",
]

_HOMES = {
    "AcclimateError": "errors",
    "AdaptiveClassifier": "estimator",
    "Adapted": "adapt",
    "DomainState": "embeddings",
    "KernelClassifier": "kernel",
    "Manifest": "manifest",
}


def __getattr__(name: str) -> Any:
    # Names are fetched on first use: `acclimate --help` should not pay for torch.
    if name in _HOMES:
        return getattr(import_module(f"acclimate.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'acclimate' has no attribute '{name}'")
