"""MLflow: settings as parameters, records as metrics, and the model as a pyfunc on demand."""

import os
import re
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acclimate.records.records import Finished
from acclimate.track.feed import PROJECT, Entry, RunFacts, require_library

RUN, COUNT = "acclimate.run", "acclimate.records"  # tags: which run it is, and how much of it
MOST = 100  # parameters in a request
LONGEST = 500  # characters of a parameter or tag
MANY, PAUSE = 500, 1.0  # metrics in a request, and seconds between two: requests take long
FORBIDDEN = re.compile(r"[^\w\-. :/]")  # in the names of metrics
STATUS = {True: "FINISHED", False: "KILLED"}


class MLflow:
    """With `model`, which lists states of sites, a finished run has its model too."""

    def __init__(self, model: Sequence[Path] | None = None) -> None:
        self.model = model
        self.waiting: list[Any] = []
        self.mlflow = require_library("mlflow", "mlflow")
        require_library("pandas", "mlflow")
        self.client: Any = self.mlflow.MlflowClient()

    def on_start(self, run: RunFacts) -> int:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self.client.get_experiment_by_name(name)
        place = self.client.create_experiment(name) if known is None else known.experiment_id
        self.run, there, self.end, self.sent = run, 0, None, time.monotonic()
        if same := self.client.search_runs([place], f"tags.`{RUN}` = '{run.id}'"):
            there = int(same[0].data.tags.get(COUNT, 0))
            self.id, self.end = same[0].info.run_id, same[0].info.end_time
            self.client.update_run(self.id, status="RUNNING")
        else:
            tags = {RUN: run.id, "group": run.group or "", **run.facts}
            tags = {key: value[:LONGEST] for key, value in tags.items()}
            made = self.client.create_run(place, _ms(run.started), tags, run_name=run.name)
            self.id = made.info.run_id
        param, settings = self.mlflow.entities.Param, run.settings.items()
        params = [param(key, str(value)[:LONGEST]) for key, value in settings]
        for first in range(0, len(params), MOST):
            self.client.log_batch(self.id, params=params[first : first + MOST])
        return there

    def on_record(self, entry: Entry) -> None:
        # The time is the session's, so that a database takes what comes twice for the same.
        when, metric, self.count = _ms(entry.time), self.mlflow.entities.Metric, entry.number + 1
        if isinstance(entry.record, Finished):
            self.end = _ms(self.run.started + entry.record.seconds)
        self.waiting += [
            metric(name_of(name), value, when, entry.step) for name, value in entry.values.items()
        ]
        if len(self.waiting) >= MANY or time.monotonic() - self.sent > PAUSE:
            self._send()

    def _send(self) -> None:
        if self.waiting:
            count = self.mlflow.entities.RunTag(COUNT, str(self.count))
            self.client.log_batch(self.id, metrics=self.waiting, tags=[count])
        self.waiting, self.sent = [], time.monotonic()

    def on_end(self, *, finished: bool) -> None:
        self._send()
        if finished and self.model is not None:
            from acclimate.track.pyfunc import log_pyfunc

            with self.mlflow.start_run(run_id=self.id), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of a missing example
                log_pyfunc(self.run.folder, self.model)
        self.client.set_terminated(self.id, STATUS[finished], self.end if finished else None)


def name_of(value: str) -> str:
    """A name that MLflow takes; different ones stay different."""
    return FORBIDDEN.sub(lambda found: f"_{ord(found[0]):x}_", value)


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
