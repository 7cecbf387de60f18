"""Is this week's batch still the site that was adapted to? Evidence that is valid at any time.

evidence.py  bets, what they come to, and how rarely chance alone brings as much
baseline.py  a site as it was adapted to, and a window of its new images
watch.py     the evidence so far, and what a further window adds
outcome.py   what it comes to, in words
figure.py    the evidence over time
"""

from acclimate.core.exports import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    baseline="Baseline Window read_window",
    watch="LOOKS THRESHOLD Watch",
    outcome="OUTCOMES LookResult WatchOutcome WatchReport",
    figure="draw_watch",
)
