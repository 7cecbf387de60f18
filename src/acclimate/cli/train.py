"""`train` and `evaluate`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.output import (
    Device,
    Json,
    names,
    percent,
    progress_bar,
    say,
    say_json,
    say_table,
    stoppable,
)
from acclimate.core.errors import ConfigError
from acclimate.runs.records import Score


@app.command(
    epilog="Example: acclimate train PACS --algorithm da-erm --test-domains sketch --out runs/pacs"
)
def train(
    data: Annotated[
        Path, typer.Argument(help="A manifest, a table, or a domain/class/image folder.")
    ],
    algorithm: Annotated[str | None, typer.Option(help="See `acclimate list algorithms`.")] = None,
    test_domains: Annotated[
        list[str] | None,
        typer.Option(help="Kept out of training, scored at the end; repeat or use commas."),
    ] = None,
    val_domains: Annotated[
        list[str] | None,
        typer.Option(help="Kept out of training, used to choose weights; repeat or use commas."),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="See `acclimate list backbones`.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A local pretrained-weights file.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps of Step B.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    preset: Annotated[str | None, typer.Option(help="See `acclimate list presets`.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings in a TOML file.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. train.per_domain=16."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. [default: runs/DATA-ALGORITHM-SEED]")
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a classifier. A killed run resumes when the same command is repeated.

    Settings come from the defaults, then --preset, then --config, then the flags and --set.
    Under torchrun several processes share the work.
    """
    from acclimate.data.manifest import Manifest
    from acclimate.runs.training import train as train_run

    flags = {
        "algorithm": algorithm,
        "test_domains": names(test_domains),
        "val_domains": names(val_domains),
        "model.backbone": backbone,
        "model.weights": None if weights is None else str(weights),
        "train.steps": steps,
        "train.epochs": None if steps is None else 0.0,  # a preset's epochs give way
        "seed": seed,
    }
    chosen = gather_settings(preset, config, flags, settings or [])
    folder = out or Path("runs") / f"{_name_of(data)}-{chosen.algorithm}-{chosen.seed}"
    manifest = Manifest.open(data)
    with stoppable(), progress_bar() as watch:
        result = train_run(chosen, manifest, folder, device=device, watch=watch)
    _show_run(folder, already=result.already, json=json)


@app.command(epilog="Example: acclimate evaluate runs/pacs pacs.parquet --source test")
def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
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
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Score a run per domain: top-1, top-5, worst domain, and the controls."""
    if data is None:
        if method:
            raise ConfigError("--method scores anew; name the data to score as well")
        _show_run(run, already=True, json=json)
        return
    from acclimate.runs.evaluate import evaluate_run

    changes = {"adapt.source": source, "adapt.points": points, "seed": seed}
    given = {key: value for key, value in changes.items() if value is not None}
    with progress_bar() as watch:
        found = evaluate_run(run, data, given, methods=names(method), device=device, watch=watch)
    if json:
        facts = {"unreadable": found.unreadable, "same_data": found.same_data}
        say_json({**_as_json(found.scores), **facts})
        return
    _show_scores(found.scores)
    if found.unreadable:
        say(f"{len(found.unreadable)} unreadable images left out, e.g. {found.unreadable[0]}")
    if not found.same_data and any(score.role == "train" for score in found.scores):
        say("note: not the run's own data: training domains may be scored on images trained on")


def gather_settings(
    preset: str | None, config: Path | None, flags: dict[str, Any], assignments: list[str]
) -> Any:
    """Defaults < preset < file < flags and --set."""
    from acclimate.config import (
        RunConfig,
        from_dict,
        merged,
        nested,
        parse_assignments,
        read_toml,
    )
    from acclimate.config.presets import preset as preset_settings

    values: dict[str, Any] = preset_settings(preset) if preset else {}
    if config is not None:
        from_dict(RunConfig, read_toml(config), where=str(config))  # its errors name the file
        values = merged(values, read_toml(config))
    given = {key: value for key, value in flags.items() if value not in (None, ())}
    values = merged(values, nested(given))
    values = merged(values, parse_assignments(assignments))
    return from_dict(RunConfig, values, where="settings")


def _name_of(data: Path) -> str:
    """What to call a run on `data`: its name, without the ending of a table."""
    path = data.resolve()
    tables = (".parquet", ".csv", ".jsonl", ".ndjson")
    return path.stem if path.suffix.lower() in tables else path.name


def _show_run(folder: Path, *, already: bool, json: bool) -> None:
    from acclimate.core.errors import RunError
    from acclimate.runs.records import read

    records = read(folder / "records.jsonl")
    finished = records.finished
    if finished is None:
        raise RunError(f"{folder}: there is no finished run; train one with `acclimate train`")
    scores = [score for score in records.scores if score.moment == "final"]
    if json:
        run = {"run": str(folder), "already_finished": already, **dataclasses.asdict(finished)}
        say_json({**run, **_as_json(scores)})
        return
    _show_scores(scores)
    if not any(score.role == "test" for score in scores):
        say("no domain was kept unseen: name one with --test-domains to see how a new one fares")
    say(f"kept step {finished.kept_step} ({finished.kept_by}); {finished.seconds:.0f} s")
    if finished.quarantined:
        say(f"{finished.quarantined} unreadable images were skipped: {folder}/quarantine.jsonl")
    say(f"run folder: {folder}")


def _show_scores(scores: list[Score]) -> None:
    header = ("domain", "role", "adapted by", "images", "top-1", "top-5")
    rows = [
        (s.domain, s.role, _method(s), str(s.n), percent(s.top1), percent(s.top5)) for s in scores
    ]
    if len(rows) <= 60:
        say_table(header, rows)
        say()
    summary = _as_json(scores)["summary"]
    say_table(
        ("mean over domains", "role", "domains", "top-1", "worst domain"),
        [
            (
                line["method"],
                line["role"],
                str(line["domains"]),
                percent(line["top1"]),
                percent(line["worst"]),
            )
            for line in summary
        ],
    )


def _method(score: Score) -> str:
    if score.adapt_n is None:
        return score.method
    return f"{score.method} ({score.adapt_n} {score.adapted_on})"


def _as_json(scores: list[Score]) -> dict[str, Any]:
    lines = []
    for role in ("train", "val", "test"):
        for method in dict.fromkeys(score.method for score in scores):
            known = [
                score.top1
                for score in scores
                if (score.role, score.method) == (role, method) and score.top1 is not None
            ]
            if known:
                mean = sum(known) / len(known)
                lines.append(
                    {
                        "role": role,
                        "method": method,
                        "domains": len(known),
                        "top1": mean,
                        "worst": min(known),
                    }
                )
    return {"summary": lines, "scores": [dataclasses.asdict(score) for score in scores]}
