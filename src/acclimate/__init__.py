"""Classifiers that adapt themselves to a domain they have never seen, from unlabelled images."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acclimate.adapt.classifier import Adapted
    from acclimate.adapt.many import ManyDomains
    from acclimate.core.errors import AcclimateError
    from acclimate.data.manifest import Manifest
    from acclimate.estimator import AdaptiveClassifier
    from acclimate.learn.embeddings import DomainState

__version__ = "0.1.0"
__all__ = [
    "AcclimateError",
    "Adapted",
    "AdaptiveClassifier",
    "DomainState",
    "Manifest",
    "ManyDomains",
]

_HOMES = {
    "AcclimateError": "core.errors",
    "AdaptiveClassifier": "estimator",
    "Adapted": "adapt.classifier",
    "DomainState": "learn.embeddings",
    "Manifest": "data.manifest",
    "ManyDomains": "adapt.many",
}


def __getattr__(name: str) -> Any:
    # Names are fetched on first use: `acclimate --help` should not pay for torch.
    if name in _HOMES:
        return getattr(import_module(f"acclimate.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'acclimate' has no attribute '{name}'")
