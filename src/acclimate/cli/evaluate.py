"""`evaluate`, and how the scores of a run are shown."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import Device, Json, MethodSettings, Page, Run, names
from acclimate.cli.output import progress_bar, say, say_facts, say_json, say_table
from acclimate.config import AlgorithmName, flat, metric_of, parse_assignments
from acclimate.core.errors import ConfigError
from acclimate.core.text import percent

if TYPE_CHECKING:
    from acclimate.records.folder import RunFolder
    from acclimate.records.records import Score

MOST_SCORES = 60  # that are shown one by one
MEANINGS = {
    "wrong-embedding": "adapted to another domain, a control that is meant to fail",
    "auto-neutral": "auto without an image of the domain: what of its gain is a better head",
    "auto-other": "auto with another domain's images, a control",
    "lame": "smooths the predictions of each batch, and leaves no classifier: a control",
    "oracle-prior": "knows the true label frequencies: a ceiling, not a method",
}


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
    from acclimate.records.folder import RunFolder
    from acclimate.records.outputs import check_out
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


def show_run(
    folder: Path,
    *,
    already: bool,
    json: bool,
    metric: str | None = None,
    grown: dict[str, Any] | None = None,
) -> None:
    """Print the final scores of a run, its weights, and the accuracy to expect at a new site; of a
    run that went on from another one, what has `grown`."""
    from acclimate.core.errors import RunError
    from acclimate.records.folder import RunFolder

    run_folder = RunFolder(folder)
    records, rehearsal = run_folder.records(), run_folder.rehearsal()
    if records.finished is None:
        raise RunError(f"{folder}: there is no finished run; train one with `acclimate train`")
    scores = [score for score in records.scores if score.moment == "final"]
    metric = metric or metric_of(run_folder.identity()["config"])
    facts = {"run": folder, "already_finished": already, **asdict(records.finished)}
    if json:
        further = {"grown": grown} if grown else {}
        say_json({**facts, **as_json(scores, metric), "rehearsal": rehearsal, **further})
        return
    show_scores(scores, metric)
    say_facts(facts)
    _show_outlook(run_folder, rehearsal, tested=any(score.role == "test" for score in scores))
    if grown:
        _show_growth(grown)


def _show_growth(grown: dict[str, Any]) -> None:
    """What a run has more than the one it started from, and both on the same held-out images."""
    say()
    rows = [
        (one["site"], str(one["images"]), *map(percent, (one["before"], one["after"])))
        for one in grown["held_out"]
    ]
    title = f"Top-1 on images that neither {grown['from']} nor this run has learned from, %"
    if rows:
        say_table(("site", "images", "before", "after"), rows, title=title)
    say_facts({name: value for name, value in grown.items() if name not in ("held_out", "why")})
    if grown["why"]:
        say(f"note: {grown['why']}")


def _show_outlook(run: "RunFolder", rehearsal: dict[str, Any] | None, *, tested: bool) -> None:
    """What to expect at a new site, as far as that is known."""
    from acclimate.records.rehearsal import unrehearsed

    known = run.identity()
    domains = len(known["train_domains"])
    if rehearsal is not None:
        _show_rehearsal(rehearsal, run.path)
    elif known["config"]["adapt"]["rehearse"]:
        say(unrehearsed(domains))
    elif not tested and domains > (2 if AlgorithmName.of(run.algorithm).adaptive else 1):
        # With fewer, there would be nothing left to train on.
        say("no domain was held out: name one with --test-domains to score an unseen domain")


def _show_rehearsal(stored: dict[str, Any], folder: Path) -> None:
    from acclimate.records.rehearsal import Rehearsal, verdict

    rehearsal = Rehearsal.from_dict(stored, where=str(folder))
    header, *rows = rehearsal.grid.texts
    say()
    say_table(header, rows, title="Rehearsal: training sites held out in turn")
    say()
    for sentence in verdict(rehearsal):
        say(sentence)
    pays = set(rehearsal.chosen.values()) != {"none"}
    say(f"next: acclimate predict {folder} NEW-SITE {'--adapt ' if pays else ''}--out FILE.csv")


def show_scores(scores: Sequence["Score"], metric: str) -> None:
    """A table of the scores, and one of their means over domains, by accuracy and the metric."""
    from acclimate.records.metrics import METRICS
    from acclimate.records.records import shared_notes

    shown = list(dict.fromkeys(("top-1", "top-5", metric)))
    rows = [
        (s.domain, s.role, _use(s), str(s.n), *(METRICS[m].write(s.value(m)) for m in shown))
        for s in scores
    ]
    if len(rows) <= MOST_SCORES:
        say_table(("domain", "role", "adapted by", "images", *shown), rows)
        say()
    means, write = _means(scores, metric), METRICS[metric].write
    say_table(
        ("mean over domains", "role", "split", "domains", metric, "worst domain"),
        [
            (
                *(str(line[name]) for name in ("method", "role", "split", "domains")),
                *(write(line[name]) for name in (_key(metric), "worst")),
            )
            for line in means
        ],
    )
    methods = {line["method"] for line in means}
    for method, meaning in MEANINGS.items():
        if method in methods:
            say(f"{method}: {meaning}")
    for note in shared_notes(scores):
        say(note)
    say()


def _use(score: "Score") -> str:
    """By what the model was adapted, and on how many images."""
    if score.adapt_n is None:
        return score.method
    return f"{score.method} ({score.adapt_n} {score.adapted_on})"


def as_json(scores: Sequence["Score"], metric: str) -> dict[str, Any]:
    return {"summary": _means(scores, metric), "scores": [asdict(score) for score in scores]}


def _means(scores: Sequence["Score"], metric: str) -> list[dict[str, Any]]:
    """A line for each way to score."""
    from acclimate.records.metrics import METRICS
    from acclimate.records.records import values_by_use

    worst = min if METRICS[metric].sign > 0 else max
    by_role = sorted(scores, key=lambda score: ("train", "val", "test").index(score.role))
    return [
        {
            "role": role,
            "split": split,
            "method": method,
            "domains": len(values),
            _key(metric): sum(values) / len(values),
            "worst": worst(values),
        }
        for (role, split, method), values in values_by_use(by_role, metric).items()
    ]


def _key(metric: str) -> str:
    return "top1" if metric == "top-1" else metric
