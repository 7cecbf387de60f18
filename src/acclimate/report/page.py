"""A report as one HTML file that needs nothing else: no network, no library.

templates/ has the page: report.html and its macros, the style and the script. Without the script
the page shows everything, in the order it was written.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from acclimate.core.files import write_text
from acclimate.core.text import DASH, count, duration
from acclimate.records.folder import QUARANTINE
from acclimate.records.rehearsal import verdict
from acclimate.report import sentences, tables
from acclimate.report.figures import FIGURES, Figures, illustrations
from acclimate.report.figures.canvas import Illustration, svg
from acclimate.report.figures.search import drawn_settings, resolved_settings
from acclimate.report.grid import Grid
from acclimate.results.comparison import ALL
from acclimate.results.material import Report, alike
from acclimate.results.protocol import RULES
from acclimate.results.rehearsals import kept, speaker
from acclimate.results.runs import RunView
from acclimate.results.statistics import CONFIDENCE, ENOUGH_SEEDS

if TYPE_CHECKING:
    from jinja2 import Environment

ADAPTED_ON = {
    "held-out": "of the same domain, kept out of the scoring",
    "test": "of the same domain, the scored ones themselves",
}


def write_page(report: Report, out: Path, intro: str = "", figures: Figures = FIGURES) -> Path:
    """Write `report` to the file `out`; its path.

    `intro` is plain text, a blank line between paragraphs. The same runs give the same bytes.
    """
    write_text(out, page_of(report, intro, figures))
    return out


def page_of(report: Report, intro: str = "", figures: Figures = FIGURES) -> str:
    compared = [one for rule in report.rules for one in report.results[rule] if one.rows]
    lead, findings = sentences.first_sentence(report), sentences.findings(report.overall)
    if report.overall.contenders and lead != (plain := sentences.headline(report)):
        findings = [plain, *findings]
    same = alike(report)
    drawn = groupby(illustrations(report, figures), key=lambda one: one.heading)
    return (
        environment()
        .get_template("report.html")
        .render(
            title=report.title,
            report=report,
            intro=[part for part in intro.split("\n\n") if part.strip()],
            lead=lead,
            findings=findings,
            caution=list(dict.fromkeys([*sentences.notes(report), *report.notes])),
            compared=compared,
            bold=any(keys for one in compared for keys in one.best.values()),
            tested=any(one.tested for one in compared),
            badges={row.badge for one in compared for row in one.rows},
            alike=same,
            distinct_rules=[rule for rule in report.rules if rule not in same],
            figures={heading: list(group) for heading, group in drawn},
            rehearsed=_rehearsed(report),
            choices=_choices(report),
            uncounted=[
                f"{run.name}: {run.problem or _progress(run)}"
                for run in report.runs
                if run.finished is None
            ],
            # Seeds meet the same damaged files: each is listed once.
            quarantined=sorted(
                {": ".join(entry) for run in report.runs for entry in run.quarantined}
            ),
            facts=list(facts(report.runs)),
        )
    )


@lru_cache
def environment() -> "Environment":
    """The templates with their filters; all text is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("acclimate.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters |= {
        "contents": _contents,
        "counted": count,
        "prose": prose,
        "rule_name": _rule_name,
        "slug": _slug,
        "svg": _svg,
        "sweep_line": sweep_line,
    }
    made.globals |= {
        "ALL": ALL,
        "CONFIDENCE": CONFIDENCE,
        "ENOUGH_SEEDS": ENOUGH_SEEDS,
        "MOST_FILES": 50,
        "MOST_ROWS": 12,  # of a table that is not folded away
        "QUARANTINE": QUARANTINE,
        "tables": tables,
    }
    return made


def prose(text: str) -> Markup:
    """A sentence, with what it has between backticks as code; a number keeps its % in its line."""
    safe = re.sub(r"(?<=\d) %", "\u00a0%", str(escape(text)))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", safe))


def _slug(heading: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in heading.lower())


def _contents(sections: str) -> list[tuple[str, Markup]]:
    """(id, heading) of the sections of a page."""
    found = re.findall(r'<section id="([^"]*)"><h2>(.*?)</h2>', sections)
    return [(name, Markup(heading)) for name, heading in found]


def _svg(one: Illustration) -> Markup:
    """An image with its name, for those who hear the page."""
    image = svg(one.drawing, one.name)
    label = f'<svg role="img" aria-label="{escape(one.heading)}"'
    return Markup(image.replace("<svg", label, 1))


def _rule_name(rule: str) -> str:
    """`training-domains (validation splits of the training domains)`"""
    return f"{rule} ({RULES[rule]})" if rule in RULES else rule


def sweep_line(report: Report) -> str:
    """The sweep in a sentence or two."""
    sweep = report.sweep
    assert sweep is not None
    jobs, finished = sweep.jobs, sum(run.finished is not None for run in report.runs)
    methods = {(job.algorithm, method) for job in jobs for method in job.methods}
    variants = {job.variant for job in jobs if job.variant}
    parts = [
        count(len(methods), "method"),
        *([count(len(variants), "variant")] if variants else []),
        count(len({job.draw for job in jobs}), "draw") + " of the settings",
        count(len({job.trial for job in jobs}), "trial"),
    ]
    names = ", ".join(found.name for found in sweep.datasets)
    return (
        f"{finished} of {count(len(jobs), 'run')} finished on {names}: {', '.join(parts)}. "
        f"Settings are chosen by {_rule_name(sweep.rule)}."
    )


def _choices(report: Report) -> Mapping[str, Grid]:
    """Which draw was chosen for each target under each rule, and with what settings."""
    if report.sweep is None:
        return {}
    configs = resolved_settings(report)
    drawn = {one.name: drawn_settings(report.sweep, one.name) for one in report.sweep.datasets}
    found = {rule: report.choices.get(rule, ()) for rule in report.rules}
    return {rule: tables.choices_grid(own, configs, drawn) for rule, own in found.items() if own}


def _rehearsed(report: Report) -> dict[str, Any]:
    """Around the figures of rehearsals: what they say, whose they are, and what came of them."""
    groups = report.runs_by_dataset
    words: list[str] = []
    runs = []
    for dataset, found in groups.items():
        run = speaker(found)
        if run is not None and run.rehearsal is not None:
            first, *rest = verdict(run.rehearsal)
            words += [f"{dataset}: {first}" if len(groups) > 1 else first, *rest]
            runs.append(run)
    return {"words": words, "runs": runs, "kept": list(kept(report.finished))}


def _progress(run: RunView) -> str:
    if not run.records.losses:
        return "not finished; no training step was recorded"
    last = run.records.losses[-1]
    return f"not finished; last recorded at step {last.step} of phase {last.phase}"


def facts(every: Sequence[RunView]) -> Iterable[tuple[str, str]]:
    """(term, text) pairs about the runs that can be read."""
    runs = [run for run in every if run.problem is None]
    finished = [run for run in runs if run.finished is not None]
    data = {f"{run.source} {run.data[:16]}".strip() for run in runs}
    yield "Data (digest)", ", ".join(sorted(data)) or DASH
    yield "Classes", _some({len(run.classes) for run in runs})
    yield "Domains", _domains(runs)
    yield "Seeds", ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
    yield "Adapted on", "; ".join(_adapted(finished)) or "no run adapts"
    kept = {run.finished.kept_by for run in runs if run.finished}
    yield "Weights kept by", ", ".join(sorted(kept)) or DASH
    starts = [start for run in runs for start in run.starts]
    machines = {f"{s.device}, {count(s.processes, 'process', 'processes')}" for s in starts}
    yield "Machine", "; ".join(sorted(machines)) or DASH
    yield "Version", ", ".join(sorted({start.version for start in starts})) or DASH
    seconds = sum(run.finished.seconds for run in runs if run.finished)
    yield "Time of all runs", duration(seconds)
    yield "Runs", f"{len(finished)} finished of {len(every)}"


def _domains(runs: Sequence[RunView]) -> str:
    """`4, each unseen in turn`, by data set where there are several; else how many of each role."""
    names = dict.fromkeys(run.dataset for run in runs if run.trial is not None)
    found = {name: [run for run in runs if run.dataset == name] for name in names}
    turns = {name: _in_turn(mine) for name, mine in found.items()}
    if not any(turns.values()):
        return _by_role(runs)
    if len(turns) == 1:
        return "".join(turns.values())
    return "; ".join(f"{name}: {text or _by_role(found[name])}" for name, text in turns.items())


def _in_turn(runs: Sequence[RunView]) -> str:
    """Of a sweep whose runs leave different domains unseen; "" where all leave the same."""
    unseen = {run.domains.get("test", ()) for run in runs}
    if len(unseen) < 2:
        return ""
    every = {name for run in runs for names in run.domains.values() for name in names}
    turns = {name for names in unseen for name in names}
    if turns == every:
        return f"{len(every)}, each unseen in turn"
    return f"{len(every)}, of which {len(turns)} are unseen in turn"


def _by_role(runs: Sequence[RunView]) -> str:
    roles = {"train": "training", "val": "validation", "test": "unseen test"}
    return ", ".join(
        f"{_some({len(run.domains.get(role, ())) for run in runs})} {word}"
        for role, word in roles.items()
    )


def _adapted(runs: Sequence[RunView]) -> Iterable[str]:
    found: dict[str, set[int]] = {}
    for run in runs:
        for score in run.final:
            if score.role == "test" and score.method == "embedding" and score.adapt_n is not None:
                found.setdefault(score.adapted_on or "", set()).add(score.adapt_n)
    for source, counts in sorted(found.items()):
        low, high = min(counts), max(counts)
        number = str(low) if low == high else f"{low} to {high}"
        yield f"{number} unlabelled images per domain, {ADAPTED_ON.get(source, source)}"


def _some(numbers: set[int]) -> str:
    """`3`, `3 or 4`; a range where there are many."""
    if len(numbers) > 3:
        return f"{min(numbers)} to {max(numbers)}"
    return " or ".join(str(number) for number in sorted(numbers)) or DASH
