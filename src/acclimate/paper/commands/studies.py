"""What `ablate` and `reproduce` share: an option, and how a study is run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from acclimate.sweep.driver import SweepPlan, Tally
    from acclimate.sweep.launchers import Launch

RunSettings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of every run.")
]


def run_study(folder: Path, study: "SweepPlan", launch: "Launch", *, retry_failed: bool) -> "Tally":
    """Write the data that were built for the study, and run what is left of it."""
    from acclimate.cli.sweep import run_announced
    from acclimate.paper.ablations.study import write_data
    from acclimate.sweep.driver import claim

    with claim(folder, study.sweep):  # before anything is written into a folder of something else
        write_data(study, folder)
    return run_announced(folder, study, launch, retry_failed=retry_failed)
