"""Training: one loop, resumable runs."""

from acclimate.train.run import RunResult, train

__all__ = ["RunResult", "train"]
