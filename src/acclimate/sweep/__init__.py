"""Sweeps: many runs from one definition, whatever happens to the machines they run on."""

from acclimate.sweep.claim import write_labels
from acclimate.sweep.driver import Event, Tally, look, run_sweep
from acclimate.sweep.launchers import LaunchOptions, chosen_launcher

__all__ = [
    "Event",
    "LaunchOptions",
    "Tally",
    "chosen_launcher",
    "look",
    "run_sweep",
    "write_labels",
]
