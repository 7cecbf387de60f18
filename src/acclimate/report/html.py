"""A report as one HTML file that needs nothing else: no network, no library."""

from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from acclimate.core.files import write_text
from acclimate.core.wording import count
from acclimate.report import sections, sentences, tables
from acclimate.report.assets import PAGE, SCRIPT, STYLE
from acclimate.report.figures import illustrations
from acclimate.report.figures.label_shares import HEADING as LABELS
from acclimate.report.figures.rehearsal import HEADING as REHEARSAL
from acclimate.report.markup import bullets, figure, folded, paragraph, section, slug, table
from acclimate.results.material import Report
from acclimate.results.statistics import ENOUGH_SEEDS
from acclimate.results.summary import Summary

_MANY = 6  # findings that a reader has patience for
_MOST_LINES = 12  # of a table that is not folded away
NOISE = (
    "A difference is called noise where its 95 % interval over seeds (Student’s t) holds 0; fewer "
    f"than {ENOUGH_SEEDS} seeds are too few to call it anything."
)
GAP = (
    "“Gap closed” is the share of the way from the baseline to its highest ceiling, where there is "
    "a way beyond noise."
)
_LONG = 5  # from so many sections on, a page has a table of contents


def write_page(report: Report, out: Path, intro: str = "") -> Path:
    """Write `report` to the file `out`; its path.

    `intro` is plain text, a blank line between paragraphs. The same runs give the same bytes.
    """
    write_text(out, page_of(report, intro))
    return out


def page(summary: Summary, *, title: str, intro: str = "") -> str:
    """The page of runs that belong to no sweep."""
    report = Report(
        folder=Path(),
        title=title,
        runs=summary.runs,
        rules=("",),
        summaries={"": summary},
        results={},
    )
    return page_of(report, intro)


def page_of(report: Report, intro: str = "") -> str:
    summary = report.summary
    drawn = _figures(report)
    caution = list(dict.fromkeys([*sentences.notes(summary), *report.notes]))
    results = sections.results(report, caution)
    # What a table of results has already is not shown a second time.
    parts = [
        drawn.pop("Ablation", ""),
        results,
        _further(summary, report.rules[0]) if results else _comparison(summary, caution),
        *drawn.values(),
        "" if results else _by_domain(summary),
        sections.choices(report),
        sections.failures(report),
        sections.uncounted(report.runs),
        sections.quarantined(report.runs),
        sections.measured(report.runs),
    ]
    parts = [part for part in parts if part]
    return PAGE.format(
        title=escape(report.title),
        style=STYLE,
        script=SCRIPT,
        body="\n".join([_opening(report, summary, intro), _contents(parts), *parts]),
    )


def _opening(report: Report, summary: Summary, intro: str) -> str:
    paragraphs = "".join(f"<p>{escape(p.strip())}</p>" for p in intro.split("\n\n") if p.strip())
    sweep = ""
    if report.sweep is not None:
        finished = sum(run.finished is not None for run in report.runs)
        sweep = f'\n<p class="note">{escape(sections.sweep_line(report.sweep, finished))}</p>'
    first, rest = sentences.first_sentence(report), sentences.findings(summary)
    if summary.contenders and first != (plain := sentences.headline(summary)):
        rest = [plain, *rest]
    return (
        f"<header><h1>{escape(report.title)}</h1>\n"
        f"{paragraph(first, 'lead')}\n"
        f"{_findings(rest)}{sweep}\n{paragraphs}</header>"
    )


def _findings(found: Sequence[str]) -> str:
    if len(found) <= _MANY:
        return bullets(found)
    return folded(f"{len(found)} further comparisons", bullets(found))


def _contents(parts: Sequence[str]) -> str:
    if len(parts) < _LONG:
        return ""
    headings = [part.split("<h2>", 1)[1].split("</h2>", 1)[0] for part in parts]
    links = "".join(f'<li><a href="#{slug(name)}">{name}</a></li>' for name in headings)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _comparison(summary: Summary, caution: Sequence[str]) -> str:
    if not summary.lines:
        return section("Notes", bullets(caution)) if caution else ""
    base = summary.baseline.label
    grid = table("Accuracy of each method", tables.comparison(summary))
    note = (
        "Accuracy in percent. Domains count equally. ± is the standard error over seeds; there is "
        "none for a single seed. "
    )
    if tables.is_compared(summary):
        note += (
            f"The difference to {base} is in points, taken between runs with the same data and "
            f"seed; “better than {base}” is the share of (domain, seed) pairs that improve. "
            f"{NOISE} "
        )
    if summary.gap_closed:
        note += f"{GAP} "
    note += sections.KINDS
    return section("Comparison", f"{grid}\n{paragraph(note)}\n{bullets(caution, 'note')}")


def _further(summary: Summary, rule: str) -> str:
    """Beside the tables of a sweep: what they do not hold, of the runs that were chosen."""
    if not summary.lines:
        return ""
    base = summary.baseline.label
    grid = table("Of each method", tables.further(summary))
    note = (
        f"Accuracy in percent, of the models chosen by {rule}. ± is the standard error over trials."
    )
    if tables.is_compared(summary):
        note += f" “Better than {base}” is the share of (domain, trial) pairs that improve. {NOISE}"
    if summary.gap_closed:
        note += f" {GAP}"
    if len(summary.lines) > _MOST_LINES:
        grid = folded(f"Table of {count(len(summary.lines), 'line')}", grid)
    return section("Worst domains and training domains", f"{grid}\n{paragraph(note)}")


def _figures(report: Report) -> dict[str, str]:
    """Heading -> section, in the order of a page."""
    found = {}
    for heading, group in groupby(illustrations(report), key=lambda one: one.heading):
        body = "\n".join(map(figure, group))
        if heading == LABELS:
            body += sections.label_tables(report.labels)
        if heading == REHEARSAL:
            words, grids = sections.rehearsals(report)
            body = f"{words}\n{body}\n{grids}"
        found[heading] = section(heading, body)
    return found


def _by_domain(summary: Summary) -> str:
    if not summary.domains:
        return ""
    grid = table("Accuracy on each unseen domain", tables.by_domain(summary))
    title = f"Table of {count(len(summary.domains), 'domain')}, means over seeds, in percent"
    return section("Every unseen domain", folded(title, grid))
