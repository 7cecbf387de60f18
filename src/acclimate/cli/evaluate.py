"""`evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli import app
from acclimate.cli.options import Device, Json, MethodSettings, Page, Run, names
from acclimate.cli.output import as_json, progress_bar, say_facts, say_json, show_run, show_scores
from acclimate.config import flat, metric_of, parse_assignments
from acclimate.core.errors import ConfigError


@app.command(epilog="Example: acclimate evaluate runs/pacs pacs.parquet --source test")
def evaluate(
    run: Run,
    data: Annotated[
        Path | None, typer.Argument(help="Data to score; the run's own final scores if left out.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="held-out: images adapted on are not scored; test: they are."),
    ] = None,
    points: Annotated[int | None, typer.Option(help="Unlabelled images that make μ.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed that chooses them.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Score unseen domains by this method too; can be repeated."),
    ] = None,
    settings: MethodSettings = None,
    metric: Annotated[
        str | None, typer.Option(help="Show it as well. [default: the run's train.metric]")
    ] = None,
    keep_shared: Annotated[
        bool | None,
        typer.Option("--keep-shared", help="Score rows of pictures that were trained on, too."),
    ] = None,
    page: Page = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Score a run per domain: top-1, top-5, any metric, worst domain, and the controls."""
    from acclimate.records.metrics import find_metric

    if metric:
        find_metric(metric)
    if data is None and (method or settings or page):
        flag = "--method" if method else "--set" if settings else "--page"
        raise ConfigError(f"{flag} scores anew; name the data to score as well")
    if data is None:
        show_run(run, already=True, json=json, metric=metric)
        return
    from acclimate.records.folder import RunFolder, check_out
    from acclimate.runs.evaluate import evaluate_run

    if page is not None:
        check_out(page, "page", (run, data))

    flags = {"adapt.source": source, "adapt.points": points, "seed": seed}
    flags["data.keep_shared"] = keep_shared
    changes = {key: value for key, value in flags.items() if value is not None}
    changes |= flat(parse_assignments(settings or [], only="adapt"))
    with progress_bar() as watch:
        scored = evaluate_run(run, data, changes, methods=names(method), device=device, watch=watch)
    metric = metric or metric_of(RunFolder(run).identity()["config"])
    if page is not None:
        from acclimate.report.answer_pages import write_scores_page

        write_scores_page(page, RunFolder(run), scored.manifest, scored.scores, scored.predictions)
    facts = {"unreadable": scored.unreadable, "same_data": scored.same_data, "page": page}
    if json:
        say_json({**as_json(scored.scores, metric), **facts})
        return
    show_scores(scored.scores, metric)
    say_facts(facts)
