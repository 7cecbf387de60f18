"""Sweeps: many runs from one definition, whatever happens to the machines they run on."""

from acclimate.sweep.driver import Event, Tally, look, run_sweep
from acclimate.sweep.launchers import LaunchOptions, chosen_launcher
from acclimate.sweep.opening import write_labels

__all__ = [
    "Event",
    "LaunchOptions",
    "Tally",
    "chosen_launcher",
    "look",
    "run_sweep",
    "write_labels",
]
