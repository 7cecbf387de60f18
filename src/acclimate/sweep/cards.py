"""Model cards of the chosen runs, and what may be deleted of the others."""

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from acclimate.config import AlgorithmName, RunConfig, as_dict, flat
from acclimate.core.errors import RunError, SweepError
from acclimate.core.files import write_text
from acclimate.core.text import markdown, percent
from acclimate.records.folder import REHEARSAL, RunFolder, is_pruned
from acclimate.records.records import Score, Started
from acclimate.records.rehearsal import Rehearsal, rows, verdict
from acclimate.results.protocol import RULES, Sweep
from acclimate.results.selection import Choice
from acclimate.results.sweep_folder import SweepFolder

SAID_ELSEWHERE = ("algorithm", "test_domains", "val_domains", "model.weights", "model.backbone")
SHOWN_CLASSES = 20


def write_cards(folder: Path, sweep: Sweep, choices: Sequence[Choice], rule: str) -> list[Path]:
    """Write a card into the folder of each chosen run, from what that folder holds, and remove
    those of runs that are chosen no more."""
    here, chosen = SweepFolder(folder), dict[str, list[Choice]]()
    for choice in choices:
        if choice.run is not None:
            chosen.setdefault(choice.run, []).append(choice)
    for job in sweep.jobs:
        if job.id not in chosen and here.run(job.id).card.exists():
            here.run(job.id).card.unlink()
    for id, reasons in chosen.items():
        card, text = here.run(id).card, _card(here.run(id), sweep, reasons, rule)
        if not card.exists() or card.read_text(encoding="utf-8") != text:
            write_text(card, text)
    return [here.run(id).card for id in chosen]


def prune(folder: Path, sweep: Sweep, keep: Collection[str]) -> int:
    """Delete the weights of finished runs that are not in `keep`; the bytes that this frees.

    Records and settings stay, so that tables do not change. A Φ that runs share goes once no
    unfinished run needs it; a kept run has its own in its model.
    """
    freed, here = 0, SweepFolder(folder)
    needed = set()
    for job in sweep.jobs:
        if here.job_state(job.id) != "done":
            needed.add(job.needs)
        elif job.id not in keep:
            freed += here.run(job.id).prune()
    for phi in sweep.embeddings:
        if phi.id not in needed:
            freed += here.embedding(phi.id).prune()
    return freed


def _card(run: RunFolder, sweep: Sweep, choices: Sequence[Choice], rule: str) -> str:
    try:
        identity = run.identity()
    except (OSError, RunError):
        raise SweepError(
            f"{run.identity_file} is missing or damaged; restore it, or delete the run's folder "
            f"and repeat the sweep"
        ) from None
    records, stored, config = run.records(), run.rehearsal(), identity["config"]
    starts = [record for record in records.all if isinstance(record, Started)]
    finished = records.finished
    if finished is None or not starts:
        raise SweepError(f"{run.path}: the run is not finished; repeat the sweep to resume it")
    rehearsal = None if stored is None else Rehearsal.from_dict(stored, where=REHEARSAL)
    adapts = AlgorithmName.of(config["algorithm"]).adaptive or rehearsal is not None
    final = [score for score in records.scores if score.moment == "final"]
    kept = f"step {finished.kept_step}"
    if finished.kept_from is not None:
        kept = f"steps {finished.kept_from} to {finished.kept_step}, averaged"
    sections = {
        "Model and data": _data(identity),
        "How it was chosen": _choices(choices, sweep, rule),
        "Scores on unseen domains": _scores([score for score in final if score.role != "train"]),
        "Rehearsal": [] if rehearsal is None else _rehearsal(rehearsal),
        "Use": _use(run.path, adapts=adapts),
        "Settings that differ from the defaults": _settings(config),
        "Made": [
            f"- acclimate {_listed(dict.fromkeys(start.version for start in starts))}, on "
            f"{_listed(dict.fromkeys(start.device for start in starts))}, from {starts[0].time}: "
            f"{finished.seconds:.0f} s in {len(starts)} sessions",
            f"- Weights of {kept}, kept by {finished.kept_by}",
            f"- Unreadable images that were left out: {finished.quarantined}",
        ],
    }
    parts = [f"# {config['algorithm']} on {markdown(choices[0].dataset)}"]
    parts += ["\n".join([f"## {title}", "", *lines]) for title, lines in sections.items() if lines]
    return "\n\n".join(parts) + "\n"


def _data(identity: dict[str, Any]) -> Iterable[str]:
    model, classes = identity["config"]["model"], identity["classes"]
    untrained = not model["pretrained"] or model["backbone"] in ("small-cnn", "mlp")
    start = "random" if untrained else "pretrained"
    if model["weights"]:
        start = markdown(Path(model["weights"]).name)
    yield f"- Backbone: {model['backbone']}; first weights: {start}"
    yield f"- Data: {markdown(identity['source'])}, SHA-256 {identity['data']}"
    yield f"- Trained on: {_listed(identity['train_domains'])}"
    for title, role in (("Validation domains", "val"), ("Unseen domains", "test")):
        if identity[f"{role}_domains"]:
            yield f"- {title}: {_listed(identity[f'{role}_domains'])}"
    more = f" and {len(classes) - SHOWN_CLASSES} more" if len(classes) > SHOWN_CLASSES else ""
    yield f"- {len(classes)} classes: {_listed(classes[:SHOWN_CLASSES])}{more}"
    yield "- It knows these classes and no others: any image is given one of them."


def _choices(choices: Sequence[Choice], sweep: Sweep, rule: str) -> Iterable[str]:
    yield f"In the sweep {markdown(sweep.title)}, by {rule} ({RULES[rule]}):"
    yield ""
    for choice in choices:
        variant = f", variant {markdown(choice.variant)}" if choice.variant else ""
        score = "" if choice.score is None else f" at {percent(choice.score)} %"
        yield (
            f"- For {_listed(choice.target)}{variant}, used by {choice.method}, trial "
            f"{choice.trial}: draw {choice.draw} of {choice.candidates}{score}"
        )


def _scores(unseen: Sequence[Score]) -> Iterable[str]:
    if not unseen:
        return ["No domain was held out: how it does on others is not known."]
    table = ["| domain | role | adapted by | images | top-1 | top-5 |", "|---|---|---|--:|--:|--:|"]
    for score in unseen:
        n = "" if score.adapt_n is None else f" ({score.adapt_n} {score.adapted_on})"
        cells = (score.domain, score.role, score.method + n, str(score.n))
        table.append(_row((*cells, percent(score.top1), percent(score.top5))))
    return table


def _rehearsal(rehearsal: Rehearsal) -> Iterable[str]:
    head = "| adapted by (* used) | images | label frequencies | accuracy | gain |"
    sentences = [f"- {sentence}" for sentence in verdict(rehearsal)]
    return [*sentences, "", head, "|---|--:|---|--:|--:|", *map(_row, rows(rehearsal))]


def _use(folder: Path, *, adapts: bool) -> Iterable[str]:
    if is_pruned(folder):
        return ["Its weights were pruned; delete this folder and repeat the sweep to train them."]
    state = "new-domain.safetensors"
    adapt = [f"acclimate adapt {folder.name} new-domain/ --out {state}"] if adapts else []
    domain = f" --domain {state}" if adapts else ""
    predict = f"acclimate predict {folder.name} new-domain/{domain} --out predictions.csv"
    return ["```", *adapt, predict, "```"]


def _settings(config: dict[str, Any]) -> Iterable[str]:
    defaults = flat(as_dict(RunConfig()))
    table = [
        f"| `{key}` | {markdown(json.dumps(value))} |"
        for key, value in sorted(flat(config).items())
        if value != defaults.get(key) and key not in SAID_ELSEWHERE
    ]
    return ["| setting | value |", "|---|---|", *table] if table else []


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(markdown, cells)) + " |"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(markdown, names))
