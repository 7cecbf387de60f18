"""Model cards of the chosen runs, and what may be deleted of the others."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acclimate.adapt.rehearsal import Rehearsal, rows, verdict
from acclimate.config import AlgorithmName, RunConfig, as_dict, flat
from acclimate.core.errors import RunError, SweepError
from acclimate.core.files import write_text
from acclimate.core.layout import REHEARSAL, is_pruned
from acclimate.core.plain_text import markdown
from acclimate.core.wording import percent
from acclimate.results.protocol import RULES, Sweep
from acclimate.results.selection import Choice
from acclimate.results.sweep_folder import SweepFolder
from acclimate.runs.folder import RunFolder
from acclimate.runs.records import Finished, Score, Started

SAID_ELSEWHERE = ("algorithm", "test_domains", "val_domains", "model.weights", "model.backbone")
SHOWN_CLASSES = 20
MEANS = {
    "none": "not adapted",
    "auto": "as rehearsal chose",
    "embedding": "embedding",
    "wrong-embedding": "another domain's embedding (a control)",
    "oracle-prior": "true class frequencies (a ceiling)",
}


def write_cards(folder: Path, sweep: Sweep, choices: Sequence[Choice], rule: str) -> list[Path]:
    """A card in the folder of each chosen run, from what that folder holds."""
    chosen: dict[str, list[Choice]] = {}
    for choice in choices:
        if choice.run is not None:
            chosen.setdefault(choice.run, []).append(choice)
    paths, here = [], SweepFolder(folder)
    for run, reasons in chosen.items():
        facts = _read(here.run(run))
        path = here.run(run).card
        text = _card(facts, sweep, reasons, rule)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
        paths.append(path)
    for job in sweep.jobs:  # what was chosen before more runs were done
        old = here.run(job.id).card
        if job.id not in chosen and old.is_file():
            old.unlink()
    return paths


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


@dataclass(frozen=True)
class _Facts:
    place: Path
    run: dict[str, Any]  # its identity
    starts: list[Started]  # of its sessions
    finished: Finished
    scores: list[Score]  # of the kept weights
    rehearsal: Rehearsal | None = None

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.run["config"]
        return found

    @property
    def adaptive(self) -> bool:
        known = AlgorithmName.of(str(self.config["algorithm"])).adaptive
        return known or self.rehearsal is not None

    @property
    def unseen(self) -> list[Score]:
        return [score for score in self.scores if score.role != "train"]


def _read(folder: RunFolder) -> _Facts:
    place = folder.path
    try:
        run = folder.identity()
    except (OSError, RunError):
        raise SweepError(
            f"{folder.identity_file} is missing or damaged; restore it, or delete the run's folder "
            f"and repeat the sweep"
        ) from None
    records = folder.records()
    started = [record for record in records.all if isinstance(record, Started)]
    if records.finished is None or not started:
        raise SweepError(f"{place}: the run is not finished; repeat the sweep to resume it")
    scores = [score for score in records.scores if score.moment == "final"]
    stored = folder.rehearsal()
    rehearsal = None if stored is None else Rehearsal.from_dict(stored, where=REHEARSAL)
    return _Facts(place, run, started, records.finished, scores, rehearsal)


def _card(facts: _Facts, sweep: Sweep, choices: Sequence[Choice], rule: str) -> str:
    sections = {
        "Data": _data(facts),
        "How it was chosen": _chosen(sweep, choices, rule),
        "Scores on unseen domains": _scores(facts),
        "Rehearsal": _rehearsed(facts),
        "Use": _use(facts),
        "Limits": _limits(facts),
        "Settings that differ from the defaults": _settings(facts),
        "Made": _made(facts, sweep),
    }
    parts = [f"# {facts.config['algorithm']} on {markdown(choices[0].dataset)}", _what(facts)]
    parts += ["\n".join([f"## {title}", "", *lines]) for title, lines in sections.items() if lines]
    return "\n\n".join(parts) + "\n"


def _what(facts: _Facts) -> str:
    model = facts.config["model"]
    weights = "pretrained weights" if model["pretrained"] else "random weights"
    if model["backbone"] in ("small-cnn", "mlp"):
        weights = "random weights"
    if model["weights"]:
        weights = f"the weights in {markdown(Path(model['weights']).name)}"
    kind = "It is the same for every domain."
    if facts.rehearsal is not None:
        kind = "How to adapt it to a new domain was rehearsed on its training domains."
    elif facts.adaptive:
        kind = "It adapts to a new domain from unlabelled images of it, without training."
    return (
        f"A classifier of {len(facts.run['classes'])} classes: backbone {model['backbone']}, "
        f"started from {weights}, trained with {facts.config['algorithm']}. {kind}"
    )


def _data(facts: _Facts) -> Iterable[str]:
    run = facts.run
    yield f"- Source: {markdown(run['source'])}, SHA-256 {run['data']}"
    yield f"- Trained on {_listed(run['train_domains'])}"
    if run["val_domains"]:
        used = facts.finished.kept_by.startswith("validation domains")
        use = (
            "Weights chosen by validation domains"
            if used
            else "Validation domains, not trained on:"
        )
        yield f"- {use} {_listed(run['val_domains'])}"
    if run["test_domains"]:
        yield f"- Never looked at in training: {_listed(run['test_domains'])}"
    classes = run["classes"]
    more = len(classes) - SHOWN_CLASSES
    shown = _listed(classes[:SHOWN_CLASSES]) + (f" and {more} more" if more > 0 else "")
    yield f"- Classes: {shown}"


def _chosen(sweep: Sweep, choices: Sequence[Choice], rule: str) -> Iterable[str]:
    for choice in choices:
        compared = "" if choice.score is None else f" at {percent(choice.score)} %"
        variant = f", variant {markdown(choice.variant)}" if choice.variant else ""
        if choice.method != AlgorithmName.of(choice.algorithm).usual_method:
            variant += f", used by {choice.method}"
        yield (
            f"- For {_listed(choice.target)}{variant}, trial {choice.trial}: draw {choice.draw} of "
            f"the settings, out of {choice.candidates}, by {rule} ({RULES[rule]}){compared}"
        )
    yield f"- Sweep: {markdown(sweep.title)}"


def _scores(facts: _Facts) -> Iterable[str]:
    if not facts.unseen:
        yield "None was held out."
        return
    yield "| domain | role | adapted by | images | top-1 | top-5 |"
    yield "|---|---|---|--:|--:|--:|"
    for score in facts.unseen:
        by = MEANS.get(score.method, score.method)
        if score.adapt_n is not None:
            by += f", from {score.adapt_n} images ({score.adapted_on})"
        cells = (score.domain, score.role, by, str(score.n))
        numbers = (percent(score.top1), percent(score.top5))
        yield "| " + " | ".join(markdown(text) for text in (*cells, *numbers)) + " |"


def _rehearsed(facts: _Facts) -> Sequence[str]:
    if facts.rehearsal is None:
        return []
    said = [f"- {sentence}" for sentence in verdict(facts.rehearsal)]
    head = ["| adapted by (* used) | images | label frequencies | accuracy | gain |"]
    cells = (" | ".join(map(markdown, row)) for row in rows(facts.rehearsal))
    return [*said, "", *head, "|---|--:|---|--:|--:|", *(f"| {row} |" for row in cells)]


def _use(facts: _Facts) -> Iterable[str]:
    if is_pruned(facts.place):
        again = "to have them again, delete this folder and repeat the sweep"
        yield f"Its weights were pruned; {again}."
        return
    name, domain = facts.place.name, ""
    yield "```"
    if facts.adaptive:
        yield f"acclimate adapt {name} new-domain/ --out new-domain.safetensors"
        domain = " --domain new-domain.safetensors"
    yield f"acclimate predict {name} new-domain/{domain} --out predictions.csv"
    yield "```"


def _limits(facts: _Facts) -> Iterable[str]:
    counts = [score.n for score in facts.unseen if score.method in ("none", "embedding")]
    if counts:
        fewest, most = min(counts), max(counts)
        images = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        yield (
            f"- The scores are measured on {images} images a domain, of one data set; a domain "
            f"unlike those in training may fare worse."
        )
    else:
        yield "- Nothing is known of how it fares on domains that it was not trained on."
    if facts.adaptive:
        points = facts.config["adapt"]["points"]
        yield (
            f"- Adaptation needs unlabelled images that are typical of the new domain; up to "
            f"{points} were used above. All of them must come from one domain."
        )
    yield "- It knows the classes above and no others: any image is given one of them."
    if facts.finished.quarantined:
        yield f"- {facts.finished.quarantined} unreadable images were left out."


def _settings(facts: _Facts) -> Iterable[str]:
    usual = flat(as_dict(RunConfig()))
    own = {
        key: value
        for key, value in flat(facts.config).items()
        if value != usual.get(key) and key not in SAID_ELSEWHERE
    }
    if not own:
        return ["None."]
    rows = (f"| `{key}` | {markdown(json.dumps(value))} |" for key, value in sorted(own.items()))
    return ["| setting | value |", "|---|---|", *rows]


def _made(facts: _Facts, sweep: Sweep) -> Iterable[str]:
    finished, starts = facts.finished, facts.starts
    versions = dict.fromkeys(start.version for start in starts)
    devices = dict.fromkeys(start.device for start in starts)
    worked = f"{finished.seconds:.0f} s"
    if any(job.id == facts.place.name and job.needs for job in sweep.jobs):
        worked += " without Step A, which it shares with other runs"
    if len(starts) > 1:
        worked += f", in {len(starts)} sittings"
    yield f"- acclimate {_listed(versions)}, on {_listed(devices)}"
    kept = f"step {finished.kept_step}"
    if finished.kept_from is not None:
        kept = f"steps {finished.kept_from} to {finished.kept_step}, averaged"
    yield f"- Started {starts[0].time}, {worked}; weights of {kept}, kept by {finished.kept_by}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(markdown, names))
