"""Sweeps: many runs from one definition, whatever happens to the machines they run on.

definition.py  what a sweep is asked to be and which domains it holds out (settings.py: its fields)
jobs.py        the list of its jobs, checked; contenders.py: their settings and random draws
driver.py      runs the jobs that are left; worker.py: one of them; launchers/: where they run
"""

from acclimate.core.exports import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    definition="gather open_data",
    driver="SweepPlan run_sweep",
    jobs="define",
    launchers="LAUNCHERS Launch",
    settings="LaunchOptions SweepConfig",
)
