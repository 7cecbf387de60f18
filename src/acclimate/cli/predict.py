"""`predict`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import Device, Images, Json, Page, Run, State
from acclimate.cli.output import progress_bar, say_facts
from acclimate.core.text import listed, percent


@app.command(epilog="Example: acclimate predict runs/sites new-site/ --adapt --out predictions.csv")
def predict(
    run: Run,
    images: Images,
    out: Annotated[Path, typer.Option(help="CSV: a header line, then one line per image.")],
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
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Predict classes of images. An unreadable image keeps its line, with the problem in it.

    Without --adapt or --domain a plain model predicts as it is. With --at-least or --unsure-below,
    an image that is not sure has no label; its likeliest class is in the column unsure.
    """
    import numpy as np

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
    from acclimate.records.outputs import check_out

    if adapt and domain is not None:
        raise ConfigError("--adapt makes a state and --domain gives one; use one of them")
    if at_least is not None and unsure_below is not None:
        raise ConfigError("--at-least chooses a threshold and --unsure-below gives one; use one")
    for flag, value in (("--at-least", at_least), ("--unsure-below", unsure_below)):
        if value is not None and not 0 < value < 1:
            raise ConfigError(f"{flag} {value:g}: give a share between 0 and 1, e.g. 0.95")
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
        from acclimate.report.answer_pages import Answers, write_predictions_page

        write_predictions_page(
            page,
            f"{listed([one.name for one in images])} by {run.name}",
            Answers(
                list(rows.probabilities),
                rows.classes,
                np.stack(list(rows.probabilities.values())),
                rows.before,
                below,
                trained.label_prior,
            ),
            [*notes, *([] if rows.changes is None else [str(rows.changes)])],
            [": ".join(entry) for entry in quarantine.entries],
        )
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
