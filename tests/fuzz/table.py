"""THE table of families, and the share of each in all cases, in 1/1000."""

from fuzz.families import (
    Checkpoints,
    Family,
    Folders,
    Images,
    Manifests,
    Models,
    Pickles,
    Runs,
    States,
    Sweeps,
)
from fuzz.mixed import Copies, Outs, Pipes, Swaps

FAMILIES: dict[str, tuple[type[Family], int]] = {
    "images": (Images, 180),
    "states": (States, 124),
    "models": (Models, 124),
    "manifests": (Manifests, 74),
    "folders": (Folders, 25),
    "runs": (Runs, 19),
    "pickles": (Pickles, 37),
    "sweeps": (Sweeps, 25),
    "checkpoints": (Checkpoints, 12),
    "swaps": (Swaps, 110),
    "pipes": (Pipes, 70),
    "outs": (Outs, 150),
    "copies": (Copies, 50),
}
