"""What runs wrote, as observations, statistics and choices. Nothing here imports torch."""

from acclimate.core.exports import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    comparison="Comparison Difference Observation observations",
    domainbed="read_domainbed",
    load="load_domainbed load_report report_of_runs",
    material="Report",
    protocol="RULES Job Sweep",
    runs="RunView find_runs",
    selection="candidates select",
    statistics="Estimate difference_p holm",
    sweep_folder="SweepFolder",
)
