"""`sweep`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.output import Device, Json, names
from acclimate.core.errors import ConfigError

if TYPE_CHECKING:
    from acclimate.sweep.launchers import LaunchOptions

Launcher = Annotated[str, typer.Option(help="local, ray or slurm.")]
MaxParallel = Annotated[
    int | None,
    typer.Option(
        help="Jobs at a time. [default: one per core, or one per GPU where there are any]"
    ),
]
RayAddress = Annotated[
    str | None, typer.Option(help="An existing Ray cluster. [default: RAY_ADDRESS, or a local one]")
]
Slurm = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Passed on to Slurm, e.g. partition=gpu, mem_gb=32."),
]
SlurmCluster = Annotated[
    str, typer.Option(help="slurm, or local: the same through processes of this machine.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try failed jobs again.")]
Extend = Annotated[bool, typer.Option("--extend", help="Add jobs to a sweep that has fewer.")]
Prune = Annotated[
    bool, typer.Option("--prune", help="At the end keep the weights of chosen runs only.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the runs and the time they take; write nothing.")
]


@app.command(
    epilog="Example: acclimate sweep PACS --algorithms erm,coral,da-erm,da-coral "
    "--test-domains each --trials 2 --out sweeps/pacs"
)
def sweep(
    data: Annotated[
        list[Path] | None, typer.Argument(help="Manifests, tables or domain/class/image folders.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The sweep in a TOML file.")] = None,
    algorithms: Annotated[
        list[str] | None, typer.Option(help="See `acclimate list algorithms`; commas or repeat.")
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Test-time methods, each a row of its own; see `acclimate list methods`; commas "
            "or repeat."
        ),
    ] = None,
    test_domains: Annotated[
        list[str] | None,
        typer.Option(
            help="each: every domain unseen in turn; roles: the data's own; folds: groups of "
            "domains in turn; or a group of domains joined by commas, repeated for further groups."
        ),
    ] = None,
    val_domains: Annotated[
        list[str] | None, typer.Option(help="Never trained on, used to choose; commas or repeat.")
    ] = None,
    min_images: Annotated[
        int | None, typer.Option(help="Leave out domains with fewer images, by name.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="How a run is chosen among draws: training-domains, validation-domains, "
            "leave-one-out, k-fold or oracle."
        ),
    ] = None,
    folds: Annotated[
        int | None, typer.Option(help="Folds of domains, where they are used.")
    ] = None,
    draws: Annotated[int | None, typer.Option(help="Settings tried; the first are yours.")] = None,
    trials: Annotated[int | None, typer.Option(help="Repetitions with seeds of their own.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first trial.")] = None,
    baseline: Annotated[str | None, typer.Option(help="What the others are compared with.")] = None,
    preset: Annotated[str | None, typer.Option(help="See `acclimate list presets`.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of every run."),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=RANGE",
            help="Where draws take a setting from, e.g. 'train.optimiser.lr=log10(-5, -3.5)'.",
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heads tables and reports.")] = None,
    out: Annotated[Path | None, typer.Option(help="Sweep folder. [default: sweeps/DATA]")] = None,
    launcher: Launcher = "local",
    max_parallel: MaxParallel = None,
    ray_address: RayAddress = None,
    slurm: Slurm = None,
    slurm_cluster: SlurmCluster = "slurm",
    device: Device = "auto",
    retry_failed: RetryFailed = False,
    extend: Extend = False,
    prune: Prune = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train algorithms × unseen domains × drawn settings × trials, and choose among the runs.

    Repeating the command resumes it at any point and skips what is done. The sweep is what the
    --config file says, then the flags and --set.
    """
    from acclimate.cli.sweep_run import announce, run_and_show
    from acclimate.config import parse_assignments
    from acclimate.data.readers import data_name
    from acclimate.sweep.conduct import Conduct, Prepared
    from acclimate.sweep.definition import gather, open_data
    from acclimate.sweep.jobs import count, define, notes, notes_on

    flags = {
        "data": tuple(str(path) for path in data or ()),
        "algorithms": names(algorithms),
        "methods": names(methods),
        "test_domains": tuple(test_domains or ()),
        "val_domains": names(val_domains),
        "rule": rule,
        "folds": folds,
        "draws": draws,
        "trials": trials,
        "seed": seed,
        "baseline": baseline,
        "preset": preset,
        "settings": parse_assignments([*_least(min_images), *(settings or [])]),
        "search": _assigned(search, "--search", "'train.optimiser.lr=log10(-5, -3.5)'"),
        "title": title,
    }
    asked = gather(config, flags)
    launch = launch_options(
        launcher, max_parallel, ray_address, slurm, slurm_cluster=slurm_cluster, device=device
    )
    how = Conduct(launch=launch, retry_failed=retry_failed, extend=extend, prune=prune)
    manifests = open_data(asked)
    places = {data_name(path): Path(path) for path in asked.data}
    made = define(asked, manifests, device=launch.trained_on)
    said = [*notes(asked, manifests), *notes_on(made)]
    plan = Prepared(made, manifests, places, count(asked, manifests), said)
    folder = out or Path("sweeps") / "-".join(places)
    (announce if dry_run else run_and_show)(folder, plan, how, json=json)


def _least(min_images: int | None) -> list[str]:
    return [] if min_images is None else [f"data.min_images={min_images}"]


def launch_options(
    launcher: str,
    max_parallel: int | None,
    ray_address: str | None,
    slurm: list[str] | None,
    *,
    slurm_cluster: str,
    device: str,
) -> "LaunchOptions":
    from acclimate.config import flat, parse_assignments
    from acclimate.sweep.launchers import LaunchOptions, chosen_launcher

    _assigned(slurm, "--slurm", "partition=gpu")
    options = LaunchOptions(
        launcher=launcher,
        max_parallel=max_parallel,
        device=device,
        ray_address=ray_address,
        slurm=flat(parse_assignments(slurm or [])),
        slurm_cluster=slurm_cluster,
    )
    chosen_launcher(options)  # a mistake shows before the data are read
    return options


def _assigned(given: list[str] | None, flag: str, example: str) -> dict[str, Any]:
    values = {}
    for assignment in given or []:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{flag} {assignment}: write it as key=value, e.g. {flag} {example}")
        values[key.strip()] = text.strip()
    return values
