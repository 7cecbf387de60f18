"""How far a running job is, from what it has written: the same under every launcher."""

from dataclasses import dataclass

from acclimate.core.errors import RecordError, RunError
from acclimate.runs.folder import RunFolder


@dataclass(frozen=True)
class Progress:
    phase: str  # "" before the first step
    step: int = 0
    total: int = 0  # 0: not known


def progress_of(folder: RunFolder) -> Progress:
    """Of the run or the embedding in `folder`, which somebody may be writing."""
    try:
        losses = folder.records().losses
    except (OSError, RecordError):
        return Progress("")
    if not losses:
        return Progress("")
    return Progress(losses[-1].phase, losses[-1].step, _steps(folder, losses[-1].phase))


def _steps(folder: RunFolder, phase: str) -> int:
    try:
        settings = folder.identity()["config"]
        return int(settings["train" if phase == "main" else "embedding"]["steps"])
    except (OSError, RunError, ValueError, KeyError, TypeError):
        return 0
