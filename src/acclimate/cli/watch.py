"""`watch`."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import Device, Images, Json, Run
from acclimate.cli.output import progress_bar, say, say_facts, say_json, say_table
from acclimate.core.text import DASH, count, percent, signed

if TYPE_CHECKING:
    from acclimate.watch import Baseline, Watch, WatchReport

EXIT_CODES = {"as before": 0, "adapt again": 3, "label": 4}
SHIFTED = 3  # classes that a line names


@app.command(
    epilog="Example: acclimate watch runs/sites new-site.safetensors this-week/ --log new-site.json"
)
def watch(
    run: Run,
    state: Annotated[Path, typer.Argument(help="The site's state, from `acclimate adapt`.")],
    images: Images,
    log: Annotated[
        Path | None,
        typer.Option(help="The evidence so far: read, added to and written back (JSON)."),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="The evidence over time (PNG).")] = None,
    webhook: Annotated[
        str | None, typer.Option(help="POST the report as JSON to this URL where it is an alarm.")
    ] = None,
    usual_poor: Annotated[
        float, typer.Option(help="Share of images that may be unreadable, dark or empty.")
    ] = 0.05,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Tell whether new images are still of the site that was adapted to.

    Exit code 0: as before; 3: adapt again; 4: promises no longer reach this site, label the images
    that are named. However often you look, one false alarm is expected in 20 site-years at most
    (of 52 times 100 images). Images that the log has seen before count once.
    """
    from acclimate.core.distributed import pick_device
    from acclimate.core.errors import ConfigError, StateMismatch
    from acclimate.core.files import locked, write_document
    from acclimate.data.readers import find_images
    from acclimate.data.source import Quarantine
    from acclimate.learn.embeddings import DomainState
    from acclimate.learn.model import Trained
    from acclimate.records.folder import check_out
    from acclimate.report.figures.canvas import write_figure
    from acclimate.watch import Baseline, draw_watch, read_window
    from acclimate.watch.webhook import check_url, post

    if not 0 < usual_poor < 1:
        raise ConfigError(f"--usual-poor {usual_poor:g}: give a share between 0 and 1, e.g. 0.05")
    for path, kind in ((log, "log of a watch"), (figure, "figure")):
        if path is not None:
            check_out(path, kind, (run, state, *images))
    if webhook is not None:
        check_url(webhook)
    paths = find_images(images)
    trained = Trained.load(run, pick_device(device))
    baseline, quarantine = Baseline.of(trained, DomainState.load(state)), Quarantine()
    with progress_bar() as progress:
        window = read_window(trained, paths, quarantine, progress)
    # Two who look at once wait for each other: no evidence is lost.
    lock: AbstractContextManager[None] = nullcontext()
    if log is not None:
        lock = locked(log.with_name(f".{log.name}.lock"), "watching", StateMismatch, wait=True)
    with lock:
        after, report = _so_far(log, baseline, usual_poor).look(baseline, window)
        if log is not None:
            write_document(log, after.to_dict())
    if figure is not None:
        write_figure(draw_watch(after), figure, "png", dpi=150)
    facts: dict[str, Any] = report.to_dict() | {
        "to_label": [str(paths[place]) for place in report.to_label],
        "unreadable": quarantine.as_dicts(),
    }
    if json:
        say_json(facts)
    else:
        _show(report, facts)
    if webhook is not None and report.alarm:
        post(webhook, facts)
    raise typer.Exit(EXIT_CODES[report.outcome])


def _so_far(log: Path | None, baseline: "Baseline", usual_poor: float) -> "Watch":
    """The watch that a log holds, or a new one."""
    from acclimate.core.errors import DamagedFile, StateMismatch
    from acclimate.core.files import read_document
    from acclimate.watch import Watch

    if log is None or not log.exists() or not log.stat().st_size:
        return Watch.start(baseline, usual_poor)
    try:
        return Watch.from_dict(read_document(log))
    except (DamagedFile, StateMismatch):
        raise StateMismatch(
            f"{log} is damaged; restore it, or choose another --log to begin anew"
        ) from None


def _show(report: "WatchReport", facts: dict[str, Any]) -> None:
    """A report for people."""
    from acclimate.watch import OUTCOMES

    say(OUTCOMES[report.outcome] + (":" if report.to_label else ""))
    for image in facts["to_label"]:
        say(f"  {image}")
    for reason in report.reasons:
        say(f"because {reason}")
    if report.gain is not None:
        gain, error = report.gain
        about = "" if error is None else f" ± {percent(error)}"
        say(f"adapting gained {signed(gain)}{about} points over the plain model in rehearsal")
    rows = [
        (look.name, f"{look.evidence:.3g}", f"{look.threshold:.3g}", str(look.since or DASH))
        for look in report.looks
    ]
    say_table(("look", "evidence", "alarm at", "alarm since image"), rows)
    if report.expected is not None and not report.expected.vague:
        say(f"expected accuracy of these images: {report.expected}")
    if report.label_mix is not None and report.site_mix is not None:
        moved = {name: share - report.site_mix[name] for name, share in report.label_mix.items()}
        most = sorted(moved, key=lambda name: -abs(moved[name]))[:SHIFTED]
        shares = ", ".join(
            f"{name} {percent(report.site_mix[name])} → {percent(report.label_mix[name])} %"
            for name in most
        )
        say(f"class frequencies that moved most: {shares}")
    poor = f", {report.poor} of them unreadable, dark or empty" if report.poor else ""
    say(f"{count(report.images, 'new image')}{poor}; {report.repeats} seen before")
    say_facts({"skipped": facts["unreadable"]})
