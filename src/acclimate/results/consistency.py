"""What a run measured of its domain embedding, for those who ask how well μ is known."""

from pathlib import Path
from typing import Any

from acclimate.config import AlgorithmName
from acclimate.core.errors import RunError
from acclimate.runs.folder import RunFolder


def read_consistency(run: Path) -> dict[str, Any]:
    """What a run measured of its domain embedding."""
    folder = RunFolder(run)
    algorithm = folder.algorithm
    name = AlgorithmName.of(algorithm)
    if not name.adaptive:
        raise RunError(
            f"{run}: {algorithm} has no domain embedding to speak of; "
            f"name a run of an adaptive algorithm, such as {name.adaptive_version}"
        )
    path = folder.consistency_file
    if not path.exists():
        raise RunError(
            f"{run} has no {path.name}; finish the run by repeating its command, "
            f"or train again if an older version made it"
        )
    stored = folder.consistency() or {}
    try:
        complete = all(
            {"domain", "n", "variance", "bound"} <= set(row) for row in stored["domains"]
        ) and all({"n", "error", "error95"} <= set(row) for row in stored["points"])
    except (KeyError, TypeError):
        complete = False
    if not complete or not stored["domains"]:
        raise RunError(f"{path} is damaged; restore it, or train again")
    return stored
