"""How commands speak: results on stdout, progress on stderr, JSON when asked; and how they show a
run."""

import json as json_format
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from acclimate.config import AlgorithmName, metric_of
from acclimate.core.environment import first_process
from acclimate.core.progress import Lines, Watch, bar, unwatched
from acclimate.core.text import percent, printable

if TYPE_CHECKING:
    from acclimate.records.folder import RunFolder
    from acclimate.records.records import Score

MOST = 20  # names in one line
FEW = 5  # entries of a list, a line each
MOST_SCORES = 60  # that are shown one by one
MEANINGS = {
    "wrong-embedding": "adapted to another domain, a control that is meant to fail",
    "auto-neutral": "auto without an image of the domain: what of its gain is a better head",
    "auto-other": "auto with another domain's images, a control",
    "lame": "smooths the predictions of each batch, and leaves no classifier: a control",
    "oracle-prior": "knows the true label frequencies: a ceiling, not a method",
}
_NUMBER = re.compile(r"\*?[-+−]?[\d.]+( ± [\d.]+)?( %.*)?|–")


def say(text: str = "", *, err: bool = False) -> None:
    if first_process():
        typer.echo(printable(text), err=err)


def say_some(what: str, entries: Sequence[str]) -> None:
    """The first entries of a list, a line each, and how many more there are."""
    more = [f"and {len(entries) - FEW} more"] if len(entries) > FEW else []
    for entry in [*entries[:FEW], *more]:
        say(f"{what}: {entry}")


def remark(line: str) -> None:
    """Beside the progress: results alone go to stdout."""
    say(line, err=True)


def say_json(value: Mapping[str, Any]) -> None:
    if first_process():
        text = json_format.dumps(value, indent=2, ensure_ascii=False, default=_plain)
        typer.echo(text)


def _plain(value: Any) -> Any:
    """What JSON has no form for: paths and dataclasses."""
    if isinstance(value, Path):
        return str(value)
    return value.to_dict() if hasattr(value, "to_dict") else asdict(value)


def say_facts(facts: Mapping[str, Any], *, json: bool = False, err: bool = False) -> None:
    """JSON, or a line for each fact that is known: {"done_before": 24} -> `done before: 24`.

    Of rows (a list of dictionaries) and notes each has a line of its own.
    """
    if json:
        say_json(facts)
        return
    for name, value in facts.items():
        label = name.replace("_", " ")
        if value in (None, "", [], (), {}):
            continue
        if name == "notes":
            for note in value:
                say(f"note: {note}", err=err)
            continue
        if isinstance(value, list) and isinstance(value[0], dict):
            say_some(label, [": ".join(map(str, row.values())) for row in value])
            continue
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, float):
            value = f"{value:.2g}" if abs(value) < 100 else round(value)
        elif isinstance(value, dict):
            value = [f"{key} {one}" for key, one in value.items()]
        if isinstance(value, list | tuple):
            value = ", ".join([*value[:MOST], *(["…"] if len(value) > MOST else [])])
        say(f"{label}: {value}", err=err)


def say_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    whole_names: bool = False,
) -> None:
    """Text to the left, numbers to the right; `whole_names` of a first column are never folded."""
    if not first_process():
        return
    from rich.console import Console  # rich takes longer to import than --help may
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    rows = [[printable(cell) for cell in row] for row in rows]
    for column, name in enumerate(header):
        numeric = rows and all(_NUMBER.fullmatch(row[column]) for row in rows)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        whole = whole_names and column == 0
        table.add_column(name, justify=justify, overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)


@contextmanager
def stoppable(words: str = "interrupted; repeat the command to resume") -> Iterator[None]:
    """For commands that keep what they have: says so when they are interrupted."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = (words,)
        raise


@contextmanager
def progress_bar() -> Iterator[Watch]:
    """On stderr a bar for each phase, or lines where that is no terminal; nothing in processes
    other than the first."""
    if not first_process():
        yield unwatched
    elif sys.stderr.isatty():
        with bar() as watch:
            yield watch
    else:
        yield Lines(remark)


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
