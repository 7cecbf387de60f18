"""`train`."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import Data, Device, Flags, Json, Track, grouped, names
from acclimate.cli.output import (
    progress_bar,
    remark,
    say,
    say_facts,
    say_json,
    say_table,
    show_run,
    stoppable,
)
from acclimate.config import (
    RECIPE,
    RunConfig,
    flat,
    gather,
    parse_assignments,
    settings_of,
    with_settings,
)
from acclimate.core.environment import first_process
from acclimate.core.errors import ConfigError
from acclimate.core.text import DASH, percent

if TYPE_CHECKING:
    from acclimate.data.manifest import Manifest
    from acclimate.runs.plan import Plan
    from acclimate.track.feed import Listener

BACKBONE = "model.backbone"
FLAGS = (
    *("algorithm", "test_domains", "val_domains", "data.min_images", "data.keep_shared"),
    *(BACKBONE, "model.weights", "train.steps", "train.metric", "seed"),
)


@app.command(epilog="Example: acclimate train sites --test-domains north --out runs/sites")
@grouped(flags=Flags(one for one in settings_of(RunConfig()) if one.name in FLAGS))
def train(
    *,
    data: Data,
    flags: dict[str, Any],
    preset: Annotated[str | None, typer.Option(help="See `acclimate list presets`.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings in a TOML file.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. train.per_domain=16."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. [default: runs/DATA-ALGORITHM-SEED]")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option("--from", help="A finished run: its settings, and the weights it learned."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Sites to leave out; with --from, no learned weights are taken over."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be trained, and stop.")
    ] = False,
    device: Device = "auto",
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Cores to take, if others work here, too. [default: all]"),
    ] = None,
    track: Track = None,
    json: Json = False,
) -> None:
    """Train a classifier. A killed run resumes when the same command is repeated.

    Without an algorithm or a preset it is --preset rehearsed: ordinary training, then each site is
    held out in turn and every adaptation method is tried on it. `adapt` uses what helped.

    Settings come from the defaults, then --preset, then --config, then the flags and --set.
    Under torchrun several processes share the work.

    --backbone A,B trains with each, in folders of their names below OUT, and compares them by their
    rehearsals and by what they cost.

    With --from, a run goes on with more sites or images: it says what was added, and the accuracy
    of both runs on images that neither has learned from.
    """
    from acclimate.core.distributed import busy_with, use_threads
    from acclimate.data.manifest import Manifest
    from acclimate.data.readers import data_name
    from acclimate.records.folder import RunFolder
    from acclimate.rehearse.training import train as train_run
    from acclimate.runs.growth import changed_data, compare_runs, config_from
    from acclimate.runs.identity import run_identity
    from acclimate.runs.plan import make_plan

    if threads is not None:
        use_threads(threads)
    changes, several = parse_assignments(settings or []), names([flags.get(BACKBONE, "")])
    if len(several) > 1:
        flags.pop(BACKBONE)
    if start is None:
        chosen = gather(preset, config, flags, changes, recipe=RECIPE)
    elif preset or config:
        raise ConfigError("--from has the settings of its run; leave out --preset and --config")
    else:
        chosen = config_from(start, {**flags, **flat(changes)}, names(without))
    recipe = chosen.algorithm + ("-rehearsed" if chosen.adapt.rehearse else "")
    folder = out or Path("runs") / f"{data_name(data)}-{recipe}-{chosen.seed}"
    with progress_bar() as watch:
        manifest = Manifest.open(data, watch=watch)
    if without:
        manifest = manifest.without_domains(*names(without))
    if len(several) > 1:
        if start is not None or dry_run or not chosen.adapt.rehearse:
            raise ConfigError(
                f"--backbone {','.join(several)} compares rehearsals; leave out --from, --dry-run "
                f"and --algorithm, or name one backbone"
            )
        _compare_backbones(several, chosen, manifest, folder, device=device, json=json)
        return
    place = RunFolder(folder)
    plan = make_plan(place.settled(chosen), manifest, device=device)
    place.refuse_others(run_identity(plan))
    outlook = _outlook(plan, folder, finished=place.finished is not None)
    grown = {} if start is None else {"from": str(start), **changed_data(start, plan)}
    outlook |= grown
    if dry_run:
        say_facts(outlook, json=json)
        return
    if not outlook["finished"]:
        say_facts(outlook, err=True)
        if load := busy_with():
            remark(
                f"note: this machine is busy ({load}); forecasts are for its present speed, and "
                f"--threads takes fewer cores"
            )
    with _followed(folder, track) as listen, stoppable(), progress_bar() as watch:
        result = train_run(
            chosen, manifest, folder,
            device=device, watch=watch, say=remark, plan=plan, listen=listen,
        )  # fmt: skip
    if start is not None:
        with progress_bar() as watch:
            compared, why = compare_runs(start, folder, plan, device=device, watch=watch)
        grown |= {"held_out": [asdict(one) for one in compared], "why": why}
    show_run(folder, already=result.already, json=json, grown=grown)


def _compare_backbones(
    several: tuple[str, ...],
    chosen: RunConfig,
    manifest: "Manifest",
    folder: Path,
    *,
    device: str,
    json: bool,
) -> None:
    """Train with each backbone, in a folder of its own, and show how they did."""
    from acclimate.rehearse.training import score_backbone
    from acclimate.rehearse.training import train as train_run

    scores = []
    for name in several:
        remark(f"backbone: {name}")
        config, place = with_settings(chosen, {BACKBONE: name}), folder / name.replace("/", "-")
        with stoppable(), progress_bar() as watch:
            train_run(config, manifest, place, device=device, watch=watch, say=remark)
        scores.append(score_backbone(place, device))
    if json:
        say_json({"backbones": [one._asdict() for one in scores]})
        return
    title = "Accuracy where a site was held out, %, and cost"
    header = ("backbone", "plain", "adapted", "ms an image", "parameters, millions")
    rows = [
        (
            one.backbone,
            *(DASH if share is None else percent(share) for share in (one.plain, one.adapted)),
            *(f"{cost:.1f}" for cost in (one.milliseconds, one.parameters)),
        )
        for one in scores
    ]
    say_table(header, rows, title=title)
    say(f"the runs: {', '.join(str(one.folder) for one in scores)}")


def _followed(folder: Path, track: list[str] | None) -> AbstractContextManager["Listener | None"]:
    """Trackers of the run, in the process that writes its records."""
    if not track or not first_process():
        return nullcontext()
    from acclimate.track import tracked

    return tracked(folder, names(track), remark)


def _outlook(plan: "Plan", folder: Path, *, finished: bool) -> dict[str, Any]:
    """What a run will do, by arithmetic alone: how long it takes, its first steps will tell."""
    train, images = plan.config.train, sum(map(len, plan.train_rows))
    batch = (train.domains_per_step or len(plan.train_domains)) * train.per_domain
    return {
        "run": str(folder),
        "finished": finished,
        "algorithm": plan.algorithm.name,
        "backbone": plan.config.model.backbone,
        "rehearsal": plan.config.adapt.rehearse and len(plan.train_domains) > 1,
        "images": images,
        "classes": len(plan.classes),
        "train_domains": list(plan.train_domains),
        "unseen_domains": [*plan.val_domains, *plan.test_domains],
        "embedding_steps": plan.config.embedding.steps if plan.algorithm.over_mu else None,
        "steps": train.steps,
        "images_per_step": batch,
        "epochs": round(train.steps * batch / max(images, 1), 1),
        "notes": plan.decided,
    }
