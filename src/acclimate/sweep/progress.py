"""How far a running job is, from what it has written: the same under every launcher."""

import json
from dataclasses import dataclass
from pathlib import Path

from acclimate.core.errors import RecordError
from acclimate.runs.records import read


@dataclass(frozen=True)
class Progress:
    phase: str  # "" before the first step
    step: int = 0
    total: int = 0  # 0: not known


def progress_of(folder: Path) -> Progress:
    """Of the run or the embedding in `folder`, which somebody may be writing."""
    try:
        losses = read(folder / "records.jsonl").losses
    except (OSError, RecordError):
        return Progress("")
    if not losses:
        return Progress("")
    return Progress(losses[-1].phase, losses[-1].step, _steps(folder, losses[-1].phase))


def _steps(folder: Path, phase: str) -> int:
    for name in ("run.json", "embedding.json"):
        try:
            settings = json.loads((folder / name).read_text(encoding="utf-8"))["config"]
            return int(settings["train" if phase == "main" else "embedding"]["steps"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return 0
