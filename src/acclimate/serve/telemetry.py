"""What the server says of itself: one line of JSON per request, and metrics for Prometheus.

Lines hold no image, no header and no query: neither pictures nor tokens can get into a log. Metrics
have a registry of their own. A site's series are made from the sites that exist when they are asked
for, so that a deleted site has none.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

LOGGER = logging.getLogger("acclimate.serve")
METHODS = {"GET", "PUT", "POST", "DELETE", "HEAD"}  # anybody can invent others: they are one label
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SITES = 200  # that have series of their own: those with the most images
Values = Mapping[str, float | None]
PER_SITE = {
    "images": "images that the site has added",
    "expected_accuracy_ratio": "share of predictions expected to be right at the site",
    "drift": "evidence that the site has changed; see docs/serve.md",
}


class Telemetry:
    """The metrics of one server. `sites` gives the values of every site, by `PER_SITE`."""

    def __init__(
        self, sites: Callable[[], Mapping[str, Values]], queue_depth: Callable[[], float]
    ) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_Sites(sites))
        self._requests = Counter(
            "acclimate_requests",
            "Requests answered.",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "acclimate_request_duration_seconds",
            "From a request's head to the end of its answer.",
            ["route", "method"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._batches = Histogram(
            "acclimate_batch_images",
            "Images of all sites in one pass of the backbone.",
            buckets=IMAGES,
            registry=self.registry,
        )
        self._passes = Counter(
            "acclimate_batch_duration_seconds",
            "Time in passes of the backbone.",
            registry=self.registry,
        )
        depth = Gauge("acclimate_queue_depth", "Images being answered.", registry=self.registry)
        depth.set_function(queue_depth)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        method = method if method in METHODS else "other"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route, method).observe(seconds)

    def batch(self, images: int, seconds: float) -> None:
        self._batches.observe(images)
        self._passes.inc(seconds)

    def text(self) -> bytes:
        """All metrics, as Prometheus reads them."""
        return generate_latest(self.registry)


class _Sites(Collector):
    def __init__(self, sites: Callable[[], Mapping[str, Values]]) -> None:
        self.sites = sites

    def describe(self) -> Sequence[GaugeMetricFamily]:
        """Nothing is asked of the store before there is a request."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        values = self.sites()
        yield GaugeMetricFamily("acclimate_sites", "Sites in the store.", len(values))
        chosen = _largest(values)
        for key, about in PER_SITE.items():
            family = GaugeMetricFamily(f"acclimate_site_{key}", f"{about}.", labels=["site"])
            for name in chosen:
                value = values[name].get(key)
                if value is not None:
                    family.add_metric([name], value)
            yield family


def _largest(values: Mapping[str, Values]) -> Iterable[str]:
    """The names of at most `SITES` sites, those with the most images first."""
    names = sorted(values, key=lambda name: (-(values[name].get("images") or 0), name))
    return names[:SITES]


class JsonLines(logging.Formatter):
    """A record as one line of JSON; what it is about is in `facts`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def log_to(stream: TextIO) -> None:
    """Send the server's lines, and the warnings of uvicorn, to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for name, level in {LOGGER.name: logging.INFO, "uvicorn.error": logging.WARNING}.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
