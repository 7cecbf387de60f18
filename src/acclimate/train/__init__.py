"""Training: one loop, resumable runs, and Step A on its own for runs that share it."""

from acclimate.train.identity import embedding_identity, weights_digest
from acclimate.train.run import RunResult, train
from acclimate.train.shared import train_embedding

__all__ = ["RunResult", "embedding_identity", "train", "train_embedding", "weights_digest"]
