"""THE table of trackers, which show what runs record in other tools. A new one is a file beside
this one and a row here.

Rows name their class by its path: a tool is imported when it is asked for, and not before.
"""

from acclimate.track.feed import Entry, RunFacts, Tracker, replay, tracked

__all__ = ["TRACKERS", "Entry", "RunFacts", "Tracker", "replay", "tracked"]

TRACKERS: dict[str, str] = {  # name, which is also that of the extra -> module:class
    "tensorboard": "acclimate.track.tensorboard:TensorBoard",
    "mlflow": "acclimate.track.mlflow:MLflow",
    "wandb": "acclimate.track.logbooks:WandB",
    "trackio": "acclimate.track.logbooks:Trackio",
}
