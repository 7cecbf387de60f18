"""W&B and Trackio, whose libraries are alike: `init`, `log`, `finish`. A row of theirs is a record,
so that the number of rows says where to go on."""

import os
from abc import ABC, abstractmethod
from typing import Any

from acclimate.track.feed import PROJECT, Entry, RunFacts, require_library

STEP = "training step"


class Logbook(ABC):
    name: str
    run: Any  # of the library

    def __init__(self) -> None:
        self.library = require_library(self.name, self.name)

    @abstractmethod
    def begin(self, run: RunFacts, **shared: Any) -> int:
        """Open the run as `self.run`; returns its next row."""

    def on_start(self, run: RunFacts) -> int:
        return self.begin(
            run,
            project=os.environ.get(f"{self.name.upper()}_PROJECT", PROJECT),
            group=run.group,
            config={**run.facts, **run.settings},
            resume="allow",
        )

    def on_record(self, entry: Entry) -> None:
        if entry.values:
            self.run.log({STEP: entry.step, **entry.values}, step=entry.number)

    def on_end(self, *, finished: bool) -> None:
        self.library.finish()


class WandB(Logbook):
    name = "wandb"

    def begin(self, run: RunFacts, **shared: Any) -> int:
        quiet = self.library.Settings(console="off", x_disable_stats=True)
        self.run = self.library.init(id=run.id, name=run.name, settings=quiet, **shared)
        self.run.define_metric(STEP)
        self.run.define_metric("*", step_metric=STEP)
        return int(self.run.step)  # offline always 0: each session makes a whole run

    def on_end(self, *, finished: bool) -> None:
        self.library.finish(exit_code=0 if finished else 1)


class Trackio(Logbook):
    name = "trackio"

    def begin(self, run: RunFacts, **shared: Any) -> int:
        # It knows runs by their names.
        name = f"{run.name}-{run.id[:8]}"
        self.run = self.library.init(name=name, embed=False, auto_log_cpu=False, **shared)
        return int(self.run._next_step)
