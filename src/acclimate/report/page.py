"""A report as one HTML file that needs nothing else: no network, no library.

templates/ has the page: report.html and its macros, the style and the script. Without the script
the page shows everything, in the order it was written.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from acclimate.core.files import write_text
from acclimate.core.text import DASH, count, duration, printable
from acclimate.records.folder import QUARANTINE, check_out
from acclimate.records.metrics import METRICS, TOP_1, measured
from acclimate.records.rehearsal import verdict
from acclimate.report import sentences, tables
from acclimate.report.figures import FIGURES, Figures, illustrations
from acclimate.report.figures.canvas import Illustration, svg
from acclimate.results.comparison import ALL
from acclimate.results.material import Report, check_promises
from acclimate.results.protocol import RULES
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
    check_out(out, "page")
    write_text(out, page_of(report, intro, figures))
    return out


def page_of(report: Report, intro: str = "", figures: Figures = FIGURES) -> str:
    compared = [one for rule in report.rules for one in report.results[rule] if one.rows]
    drawn = groupby(illustrations(report, figures), key=lambda one: one.heading)
    several = len(report.runs_by_dataset) > 1
    verdicts = [(dataset, verdict(rehearsal)) for dataset, _, rehearsal in report.rehearsals]
    values = {
        "title": report.title,
        "report": report,
        "intro": [part for part in intro.split("\n\n") if part.strip()],
        "lead": sentences.headline(report),
        "findings": sentences.findings(report.overall),
        "caution": list(dict.fromkeys([*sentences.notes(report), *report.notes])),
        "compared": compared,
        "bold": any(keys for one in compared for keys in one.best.values()),
        "tested": any(one.tested for one in compared),
        "badges": {row.badge for one in compared for row in one.rows},
        "figures": {heading: list(group) for heading, group in drawn},
        "verdicts": [
            f"{dataset}: {line}" if several and line is first else line
            for dataset, (first, *rest) in verdicts
            for line in (first, *rest)
        ],
        "promises": list(check_promises(report.finished)),
        "choices": {
            rule: tables.choices_grid(report, rule)
            for rule in report.rules
            if report.choices.get(rule)
        },
        "uncounted": [
            f"{run.name}: {run.problem or _progress(run)}"
            for run in report.runs
            if run.finished is None
        ],
        # Seeds meet the same damaged files: each is listed once.
        "quarantined": sorted(
            {": ".join(entry) for run in report.runs for entry in run.quarantined}
        ),
        "facts": list(facts(report.runs)),
    }
    return environment().get_template("report.html").render(values)


@lru_cache
def environment() -> "Environment":
    """The templates with their filters; all text is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("acclimate.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        # What turns text around or is no character at all is shown as what it is.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    templates.filters |= {
        "contents": _contents,
        "counted": count,
        "measured": measured,
        "prose": prose,
        "rule_name": _rule_name,
        "slug": slug,
        "svg": _svg,
        "sweep_line": sweep_line,
    }
    templates.globals |= {
        "ALL": ALL,
        "CONFIDENCE": CONFIDENCE,
        "ENOUGH_SEEDS": ENOUGH_SEEDS,
        "METRICS": METRICS,
        "MOST_FILES": 50,
        "MOST_ROWS": 12,  # of a table that is not folded away
        "QUARANTINE": QUARANTINE,
        "TOP_1": TOP_1,
        "tables": tables,
    }
    return templates


def prose(text: str) -> Markup:
    """A sentence, with what it has between backticks as code; a number keeps its % in its line."""
    safe = re.sub(r"(?<=\d) %", "\u00a0%", str(escape(printable(text))))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", safe))


def slug(heading: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in heading.lower())


def _contents(sections: str) -> list[tuple[str, Markup]]:
    """(id, heading) of the sections of a page."""
    headings = re.findall(r'<section id="([^"]*)"><h2>(.*?)</h2>', sections)
    return [(name, Markup(heading)) for name, heading in headings]


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
    sizes = {
        "method": len({(job.algorithm, method) for job in jobs for method in job.methods}),
        "variant": len({job.variant for job in jobs if job.variant}),
        "draw": len({job.draw for job in jobs}),
        "trial": len({job.trial for job in jobs}),
    }
    names = ", ".join(data.name for data in sweep.datasets)
    parts = ", ".join(count(size, noun) for noun, size in sizes.items() if size)
    return (
        f"{finished} of {count(len(jobs), 'run')} finished on {names}: {parts}. Settings are "
        f"chosen by {_rule_name(sweep.rule)}."
    )


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
    roles = {"train": "training", "val": "validation", "test": "unseen test"}
    sizes = {role: {len(run.domains.get(role, ())) for run in runs} for role in roles}
    yield "Domains of a run", ", ".join(f"{_some(sizes[role])} {roles[role]}" for role in roles)
    yield "Seeds", ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
    yield from _protocol(runs)
    yield "Adapted on", "; ".join(_adaptation_sizes(finished)) or "no run adapts"
    selectors = {run.finished.kept_by for run in runs if run.finished}
    yield "Weights selected by", ", ".join(sorted(selectors)) or DASH
    starts = [start for run in runs for start in run.starts]
    machines = {f"{s.device}, {count(s.processes, 'process', 'processes')}" for s in starts}
    yield "Machine", "; ".join(sorted(machines)) or DASH
    yield "Version", ", ".join(sorted({start.version for start in starts})) or DASH
    seconds = sum(run.finished.seconds for run in runs if run.finished)
    yield "Time of all runs", duration(seconds)
    yield "Runs", f"{len(finished)} finished of {len(every)}"


HEADS = {
    "mlp": "the same layers for all algorithms",
    "linear": "linear, as in DomainBed, but for adaptive algorithms",
}
SCORED = {
    "held-out": "all images but those set aside to adapt on, for all algorithms alike",
    "test": "all images, as in DomainBed; those adapted on are among them",
}


def _protocol(runs: Sequence[RunView]) -> Iterable[tuple[str, str]]:
    """What decides whether rows can be compared with each other, and with those of others."""
    configs = [run.config for run in runs]
    models, adapt = ([one.get(part, {}) for one in configs] for part in ("model", "adapt"))
    frozen = {True: ", frozen", False: ""}
    nets = {
        f"{model['backbone']}{frozen[model.get('freeze') == 'backbone']}"
        for model in models
        if "backbone" in model
    }
    yield "Backbone", ", ".join(sorted(nets)) or DASH
    names = {
        "Heads": {HEADS.get(model.get("head", ""), "") for model in models},
        "Unseen domains are scored on": {SCORED.get(one.get("source", ""), "") for one in adapt},
    }
    for term, texts in names.items():
        yield term, "; or ".join(sorted(filter(None, texts))) or DASH


def _adaptation_sizes(runs: Sequence[RunView]) -> Iterable[str]:
    numbers: dict[str, set[int]] = defaultdict(set)
    for score in (score for run in runs for score in run.final):
        if score.role == "test" and score.method == "embedding" and score.adapt_n is not None:
            numbers[score.adapted_on or ""].add(score.adapt_n)
    for source, counts in sorted(numbers.items()):
        yield f"{_some(counts)} unlabelled images per domain, {ADAPTED_ON.get(source, source)}"


def _some(numbers: set[int]) -> str:
    """`3`, `3 or 4`; a range where there are many."""
    if len(numbers) > 3:
        return f"{min(numbers)} to {max(numbers)}"
    return " or ".join(str(number) for number in sorted(numbers)) or DASH
