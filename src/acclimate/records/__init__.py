"""What runs write down and others read; without torch."""

from acclimate.core.exports import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    folder="RunFolder runs_below write_checksums",
    metrics="METRICS Metric find_metric metric_values",
    predictions="Predictions",
    records="Finished Loss Records Score Started Validated",
    doubt="Answer Forecast",
    rehearsal="Promise Rehearsal verdict",
)
