"""Domain embeddings: THE table, and the objects that carry μ."""

from dataclasses import dataclass
from typing import Any

from acclimate.config import EmbeddingConfig, component_settings
from acclimate.core.errors import require_known
from acclimate.learn.embeddings.baselines import FromERM, Mean, Posterior, Softmax
from acclimate.learn.embeddings.joint import JointEmbedding
from acclimate.learn.embeddings.prototype import Prototype
from acclimate.learn.embeddings.state import DomainState, DomainTable, embed_rows
from acclimate.learn.objective import Embedding

__all__ = [
    "EMBEDDINGS",
    "DomainState",
    "DomainTable",
    "Embedding",
    "FromERM",
    "JointEmbedding",
    "embed_rows",
    "embedding_settings",
    "find_embedding",
]


@dataclass(frozen=True)
class Row:
    build: type[Embedding]
    about: str


EMBEDDINGS: dict[str, Row] = {
    "prototype": Row(Prototype, "prototypical training over domains (the paper's)"),
    "mean": Row(Mean, "backbone features of the run `erm`, which Step A then is"),
    "softmax": Row(Softmax, "features of a classifier that tells the training domains apart"),
    "posterior": Row(Posterior, "class probabilities of the run `erm`, which Step A then is"),
}


def find_embedding(name: str) -> Row:
    require_known(name, EMBEDDINGS, f"there is no embedding '{name}'")
    return EMBEDDINGS[name]


def embedding_settings(config: EmbeddingConfig) -> dict[str, Any]:
    """Every embedding's own settings, checked; those of embeddings not chosen have no effect."""
    kinds = {name: row.build.Config for name, row in EMBEDDINGS.items()}
    return component_settings(config, kinds, prefix="embedding.")
