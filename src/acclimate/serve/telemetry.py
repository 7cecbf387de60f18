"""What the server says of itself: one line of JSON per request, and metrics for Prometheus.

Lines hold no image, no header and no query: neither pictures nor tokens can get into a log. Metrics
have a registry of their own. A site's series are made from the sites that exist when they are asked
for, so that a deleted site has none.
"""

import json
import logging
from collections.abc import Iterator, Sequence
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

from acclimate.serve.service import Service

LOGGER = logging.getLogger("acclimate.serve")
METHODS = {"GET", "PUT", "POST", "DELETE", "HEAD"}  # anybody can invent others: they are one label
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SITES = 200  # that have series of their own: those with the most images
PER_SITE = {  # fields of a summary
    "images": ("images", "Different images of the site."),
    "expected_accuracy": ("expected_accuracy_ratio", "Share of predictions expected to be right."),
    "drift": ("drift_ratio", "Evidence that the site has changed: 1 raises an alarm."),
}


class Telemetry:
    """The metrics of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
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

    def watch(self, service: Service) -> None:
        """Tell of a service's queue and sites, too."""
        depth = Gauge("acclimate_queue_depth", "Images being answered.", registry=self.registry)
        depth.set_function(lambda: service.batcher.depth)
        self.registry.register(_Sites(service))

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
    """Series of the sites that there are now."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def describe(self) -> Sequence[GaugeMetricFamily]:
        """Nothing is asked of the store before there is a request."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        sites = self.service.sites()
        yield GaugeMetricFamily("acclimate_sites", "Sites in the store.", len(sites))
        largest = sorted(sites, key=lambda site: (-site.images, site.name))[:SITES]
        for field, (name, about) in PER_SITE.items():
            family = GaugeMetricFamily(f"acclimate_site_{name}", about, labels=["site"])
            for site in largest:
                value = getattr(site, field)
                if value is not None:
                    family.add_metric([site.name], value)
            yield family


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
    """Send the server's lines, and the warnings of what runs it, to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    # What is wrong with a form is in the answer; its parser would say so byte by byte.
    levels = {LOGGER.name: logging.INFO, "uvicorn.error": logging.WARNING}
    for name, level in {**levels, "python_multipart": logging.ERROR}.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
