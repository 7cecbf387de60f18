"""What the files of a run folder are called.

`runs.folder` reads and writes them. The names stand here because a model on disk, which everything
from `learn` upwards opens, is a part of its run's folder.
"""

from pathlib import Path
from typing import Any

from acclimate.core.errors import RunError, damage_is
from acclimate.core.sealed import read_sealed

RUN = "run.json"  # what this run is: settings, data digest, domains, classes
EMBEDDING = "embedding.json"  # the same of a Φ that is learned on its own
RECORDS = "records.jsonl"
QUARANTINE = "quarantine.jsonl"  # images that could not be read
PHI = "embedding.safetensors"  # Φ and the training domains' μ, after Step A
CONSISTENCY = "consistency.json"  # how fast μ settles with n; distances between domains
MODEL = "model.json"  # everything needed to load the weights; written after them
WEIGHTS = "model.safetensors"
DOMAINS = "domains.safetensors"  # μ, σ² and n of every domain, for reports
REHEARSAL = "rehearsal.json"  # what adaptation did at held-out domains, and what follows
CARD = "MODEL_CARD.md"  # of a run that a sweep chose, and of a folder that travels
LABELS = "labels.json"  # labels that are no text, in the order of their values
SITE = "site.safetensors"  # of a folder with one domain's classifier
EXAMPLE = "predict.py"  # of a folder that travels
PRUNED = "pruned.json"  # of a run whose weights a sweep deleted
CHECKPOINT = "checkpoint-{phase}.safetensors"  # this one and the next only while training
BEST = "best-{phase}-{step}.safetensors"
LOCK = ".lock"
AGAIN = "restore it, or train again in another folder"


def stored(path: Path) -> dict[str, Any]:
    """The description in one of the JSON files; a missing file is the caller's to explain."""
    with damage_is(RunError, AGAIN):
        return read_sealed(path)


def damaged(path: Path) -> RunError:
    return RunError(f"{path} is damaged; {AGAIN}")


def is_pruned(folder: Path) -> bool:
    """Did a sweep delete the weights of this run?"""
    return (folder / PRUNED).exists() and not (folder / WEIGHTS).exists()
