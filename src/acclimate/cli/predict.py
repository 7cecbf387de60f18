"""`predict`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import Device, Json, Page, Run, State
from acclimate.cli.output import progress_bar, say_facts, stoppable
from acclimate.core.errors import require_known
from acclimate.core.text import count, listed, percent

if TYPE_CHECKING:
    from acclimate.adapt.classifier import Predictions
    from acclimate.adapt.table import TableTask
    from acclimate.learn.model import Trained


@app.command(epilog="Example: acclimate predict runs/sites new-site/ --adapt --out predictions.csv")
def predict(
    run: Run,
    out: Annotated[
        Path,
        typer.Option(help="CSV: a header line, then one line per image. With --table, a folder."),
    ],
    images: Annotated[
        list[Path] | None, typer.Argument(help="Files or folders, searched recursively.")
    ] = None,
    domain: State = None,
    adapt: Annotated[
        bool, typer.Option("--adapt", help="Adapt to these images first, as `acclimate adapt`.")
    ] = False,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="A column for each class as well.")
    ] = False,
    at_least: Annotated[
        float | None,
        typer.Option(
            help="Label only images so sure that such a share of the labels is right, as rehearsed."
        ),
    ] = None,
    unsure_below: Annotated[
        float | None, typer.Option(help="Leave the label empty below this confidence.")
    ] = None,
    page: Page = None,
    table: Annotated[
        Path | None,
        typer.Option(help="Parquet with columns image and site, in place of IMAGES."),
    ] = None,
    domains: Annotated[
        Path | None,
        typer.Option(help="The folder of its sites' states, SITE.safetensors."),
    ] = None,
    launcher: Annotated[
        str, typer.Option(help="Where the table is worked on: local or ray.")
    ] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(help="An existing Ray cluster. [default: RAY_ADDRESS, or a local one]"),
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Predict classes of images. An unreadable image keeps its line, with the problem in it.

    Without --adapt or --domain a plain model predicts as it is. With --at-least or --unsure-below,
    an image that is not sure has no label; its likeliest class is in the column unsure.

    With --table, images of any number of sites are predicted together, each by its site's state.
    --out is then a folder of Parquet files; a killed command, repeated, makes those that are left.
    """
    from acclimate.adapt.choice import choose_method, sure_answer
    from acclimate.adapt.classifier import adapt as adapt_to
    from acclimate.adapt.classifier import apply_state, predictions
    from acclimate.core.distributed import pick_device
    from acclimate.core.errors import ConfigError
    from acclimate.core.files import write_text
    from acclimate.data.readers import find_images
    from acclimate.data.source import Quarantine
    from acclimate.learn.embeddings import DomainState
    from acclimate.learn.model import Trained
    from acclimate.records.folder import check_out

    if at_least is not None and unsure_below is not None:
        raise ConfigError("--at-least chooses a threshold and --unsure-below gives one; use one")
    for flag, value in (("--at-least", at_least), ("--unsure-below", unsure_below)):
        if value is not None and not 0 < value < 1:
            raise ConfigError(f"{flag} {value:g}: give a share between 0 and 1, e.g. 0.95")
    if table is not None:
        if images or adapt or domain is not None or page is not None:
            raise ConfigError(
                "--table names the images, and --domains has the sites' states; leave out IMAGES, "
                "--adapt, --domain and --page"
            )
        from acclimate.adapt.table import TableTask

        task = TableTask(
            run=run,
            table=table,
            out=out,
            domains=domains,
            probabilities=probabilities,
            at_least=at_least,
            unsure_below=unsure_below or 0.0,
            device=device,
        )
        _predict_table(task, launcher, ray_address, json=json)
        return
    if domains is not None or (launcher, ray_address) != ("local", None):
        raise ConfigError("--domains, --launcher and --ray-address go with --table; add it")
    if not images:
        raise ConfigError("no images given; give files or folders, or --table FILE")
    if adapt and domain is not None:
        raise ConfigError("--adapt makes a state and --domain gives one; use one of them")
    check_out(out, "table of predictions", (run, domain, *images))
    if page is not None:
        check_out(page, "page", (run, domain, out, *images))
    paths = find_images(images)
    trained = Trained.load(run, pick_device(device))
    state = None if domain is None else DomainState.load(domain)
    quarantine = Quarantine()
    with progress_bar() as watch:
        if adapt:
            site = adapt_to(trained, paths, quarantine=Quarantine(), watch=watch)
        else:
            site = apply_state(trained, state)
        answer = None if at_least is None else sure_answer(trained, site.state, at_least)
        below = unsure_below or 0.0 if answer is None else answer.threshold
        rows = replace(predictions(site, paths, quarantine, watch), unsure_below=below)
    write_text(out, rows.csv(every_class=probabilities))
    notes = list(site.notes)
    if site.state is None and choose_method(trained, len(rows)).method != "none":
        notes.append(
            f"these are the plain model's predictions; rehearsal says that adapting to "
            f"{len(rows)} images pays: add --adapt"
        )
    if (at_least, unsure_below) != (None, None):
        notes.append(
            f"{percent(rows.answered)} % of images have a label: confidence {below:g} or more"
        )
    if answer is not None:
        notes.append(
            f"rehearsal promises {percent(answer.right)} % of them to be right, on average over "
            f"sites, and labelled {percent(answer.share)} % of images"
        )
    if page is not None:
        title = f"{listed([one.name for one in images])} by {run.name}"
        unreadable = [": ".join(entry) for entry in quarantine.entries]
        _write_page(page, title, rows, trained, notes, unreadable)
    facts: dict[str, Any] = {
        "predictions": out,
        "page": page,
        "images": len(rows),
        "method": site.method,
        "engine": site.engine,
        "notes": notes,
        "changes": rows.changes,
        "classes": rows.counts(),
        "unreadable": quarantine.as_dicts(),
    }
    if json:
        facts |= {"unsure_below": below, "answered": rows.answered, "promised": answer}
    say_facts(facts, json=json)


def _write_page(
    page: Path,
    title: str,
    rows: "Predictions",
    trained: "Trained",
    notes: list[str],
    unreadable: list[str],
) -> None:
    import numpy as np

    from acclimate.report.answer_pages import Answers, write_predictions_page

    answers = Answers(
        list(rows.probabilities),
        rows.classes,
        np.stack(list(rows.probabilities.values())),
        rows.before,
        rows.unsure_below,
        trained.label_prior,
    )
    said = notes if rows.changes is None else [*notes, str(rows.changes)]
    write_predictions_page(page, title, answers, said, unreadable)


def _predict_table(
    task: "TableTask", launcher: str, ray_address: str | None, *, json: bool
) -> None:
    from acclimate.adapt.table import predict_table
    from acclimate.adapt.table_ray import OnRay

    require_known(launcher, ("local", "ray"), f"--table has no launcher '{launcher}'")
    elsewhere = OnRay(ray_address) if launcher == "ray" else None
    with stoppable(), progress_bar() as watch:
        plan, counts = predict_table(task, watch, elsewhere)
    readable = counts.rows - counts.unreadable
    answered = sum(counts.labels.values()) / readable if readable else 0.0
    notes = []
    if task.at_least or task.unsure_below:
        notes.append(f"{percent(answered)} % of images have a label")
    if counts.unreadable:
        notes.append(f"{count(counts.unreadable, 'image')} cannot be read")
    facts = {
        "predictions": task.out,
        "shards": plan.shards,
        "images": readable,
        "sites": len(plan.sites) if task.domains else None,
        "notes": notes,
        "classes": dict(sorted(counts.labels.items())),
        "unreadable": [{"image": image, "reason": reason} for image, reason in counts.examples],
    }
    if json:
        facts |= {"unreadable_images": counts.unreadable, "answered": answered}
    say_facts(facts, json=json)
