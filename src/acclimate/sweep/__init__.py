"""Sweeps: many runs from one definition, whatever happens to the machines they run on.

definition.py  what a sweep is asked to be: groups.py what it holds out, contenders.py what competes
jobs.py        the list of its jobs; checks.py that each could start, estimate.py how long they take
conduct.py     run it (driver.py, queue.py), choose, and keep the chosen (cards.py)
launchers/     where jobs run; task.py and worker.py: one of them there
ablations/     the paper's, each a sweep in which one thing varies
"""
