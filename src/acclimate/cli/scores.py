"""How the scores of a run are shown."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.cli.output import say, say_json, say_table
from acclimate.config import AlgorithmName
from acclimate.core.text import percent

if TYPE_CHECKING:
    from acclimate.records.folder import RunFolder
    from acclimate.records.records import Score


METRICS = {"top1": "top-1", "top5": "top-5"}  # those shown -> their heading
MEANINGS = {
    "wrong-embedding": "adapted to another domain, a control that is meant to fail",
    "oracle-prior": "told the true label frequencies, a ceiling that no method may know",
}


def show_run(folder: Path, *, already: bool, json: bool) -> None:
    from acclimate.core.errors import RunError
    from acclimate.records.folder import RunFolder

    run_folder = RunFolder(folder)
    records, rehearsed = run_folder.records(), run_folder.rehearsal()
    finished = records.finished
    if finished is None:
        raise RunError(f"{folder}: there is no finished run; train one with `acclimate train`")
    scores = [score for score in records.scores if score.moment == "final"]
    if json:
        run = {"run": str(folder), "already_finished": already, **dataclasses.asdict(finished)}
        say_json({**run, **as_json(scores), "rehearsal": rehearsed})
        return
    show_scores(scores)
    say()
    kept = f"step {finished.kept_step}"
    if finished.kept_from is not None:
        kept = f"the mean of steps {finished.kept_from} to {finished.kept_step}"
    say(f"kept {kept} ({finished.kept_by}); {finished.seconds:.0f} s")
    if finished.quarantined:
        listed = run_folder.quarantine
        say(f"{finished.quarantined} unreadable images were skipped: {listed}")
    say(f"run folder: {folder}")
    _show_outlook(run_folder, rehearsed, tested=any(score.role == "test" for score in scores))


def _show_outlook(run: "RunFolder", rehearsed: dict[str, Any] | None, *, tested: bool) -> None:
    """What to expect at a new site, as far as that is known."""
    from acclimate.records.rehearsal import unrehearsed

    known = run.identity()
    domains = len(known["train_domains"])
    if rehearsed is not None:
        _show_rehearsal(rehearsed, run.path)
    elif known["config"]["adapt"]["rehearse"]:
        say(unrehearsed(domains))
    elif not tested and domains > (2 if AlgorithmName.of(run.algorithm).adaptive else 1):
        # With fewer, there would be nothing left to train on.
        say("no domain was kept unseen: name one with --test-domains to see how a new one fares")


def _show_rehearsal(stored: dict[str, Any], folder: Path) -> None:
    from acclimate.records.rehearsal import Rehearsal, rows, verdict

    found = Rehearsal.from_dict(stored, where=str(folder))
    header = ("adapted by", "images", "label frequencies", "top-1", "gain")
    say()
    say_table(header, rows(found), title="Rehearsal: training sites held out in turn (* chosen)")
    say()
    for sentence in verdict(found):
        say(sentence)
    pays = set(found.chosen.values()) != {"none"}
    say(f"next: acclimate predict {folder} NEW-SITE {'--adapt ' if pays else ''}--out FILE.csv")


def show_scores(scores: list["Score"]) -> None:
    header = ("domain", "role", "adapted by", "images", *METRICS.values())
    rows = [
        (s.domain, s.role, _method(s), str(s.n), *(percent(getattr(s, one)) for one in METRICS))
        for s in scores
    ]
    if len(rows) <= 60:
        say_table(header, rows)
        say()
    summary = as_json(scores)["summary"]
    say_table(
        ("mean over domains", "role", "split", "domains", "top-1", "worst domain"),
        [
            (
                *(str(line[name]) for name in ("method", "role", "split", "domains")),
                *(percent(line[name]) for name in ("top1", "worst")),
            )
            for line in summary
        ],
    )
    shown = {line["method"] for line in summary}
    for method, meaning in MEANINGS.items():
        if method in shown:
            say(f"{method}: {meaning}")


def _method(score: "Score") -> str:
    if score.adapt_n is None:
        return score.method
    return f"{score.method} ({score.adapt_n} {score.adapted_on})"


def as_json(scores: list["Score"]) -> dict[str, Any]:
    """The scores, and a line for each way to score: means over domains never mix two splits."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for score in sorted(scores, key=lambda score: ("train", "val", "test").index(score.role)):
        if score.top1 is not None:
            groups.setdefault((score.role, score.split, score.method), []).append(score.top1)
    lines = [
        {
            "role": role,
            "split": split,
            "method": method,
            "domains": len(known),
            "top1": sum(known) / len(known),
            "worst": min(known),
        }
        for (role, split, method), known in groups.items()
    ]
    return {"summary": lines, "scores": [dataclasses.asdict(score) for score in scores]}
