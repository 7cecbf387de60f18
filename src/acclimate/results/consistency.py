"""What a run measured of its domain embedding, for those who ask how well μ is known."""

import json
from pathlib import Path
from typing import Any

from acclimate.core.errors import RunError


def read_consistency(run: Path) -> dict[str, Any]:
    """What a run measured of its domain embedding."""
    try:
        identity = json.loads((run / "run.json").read_text(encoding="utf-8"))
        algorithm = str(identity["config"]["algorithm"])
    except FileNotFoundError:
        raise RunError(f"{run}: no run in it; train one with `acclimate train`") from None
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{run / 'run.json'} is damaged; restore it, or train again") from None
    if not algorithm.startswith("da-"):
        raise RunError(
            f"{run}: {algorithm} has no domain embedding to speak of; "
            f"name a run of an adaptive algorithm, such as da-{algorithm}"
        )
    path = run / "consistency.json"
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        complete = all(
            {"domain", "n", "variance", "bound"} <= set(row) for row in stored["domains"]
        ) and all({"n", "error", "error95"} <= set(row) for row in stored["points"])
    except FileNotFoundError:
        raise RunError(
            f"{run} has no {path.name}; finish the run by repeating its command, "
            f"or train again if an older version made it"
        ) from None
    except (ValueError, KeyError, TypeError):
        complete = False
    if not complete or not stored["domains"]:
        raise RunError(f"{path} is damaged; restore it, or train again")
    return stored
