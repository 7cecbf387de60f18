"""Classifiers that adapt themselves to a domain they have never seen, from unlabelled images."""

from typing import TYPE_CHECKING

from acclimate.core.exports import lazy_exports

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

# `acclimate --help` should not pay for torch. Type checkers read the imports above.
__getattr__, _ = lazy_exports(
    __name__,
    adapt="Adapted ManyDomains",
    core="AcclimateError",
    data="Manifest",
    estimator="AdaptiveClassifier",
    learn="DomainState",
)
