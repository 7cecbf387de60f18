"""The report of a folder of runs as one HTML file that needs nothing else."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from acclimate.errors import RunError
from acclimate.files import write_text
from acclimate.report import plots, tables
from acclimate.report.summary import RunView, Summary, find_runs, summarise

ADAPTED_ON = {
    "held-out": "of the same domain, kept out of the scoring",
    "test": "of the same domain, the scored ones themselves",
}
_MOST_FILES = 50


def write_report(runs_folder: Path, out: Path, *, title: str, intro: str = "") -> Path:
    """Write the report of all runs below `runs_folder` to the file `out`; its path.

    `intro` is plain text, a blank line between paragraphs. The same runs give the same bytes.
    """
    runs = find_runs(runs_folder)
    if not runs:
        raise RunError(
            f"{runs_folder}: no run in it (no run.json); "
            "give the folder that holds the --out of `acclimate train`"
        )
    write_text(out, page(summarise(runs), title=title, intro=intro))
    return out


def page(summary: Summary, *, title: str, intro: str = "") -> str:
    sections = [
        _opening(summary, title, intro),
        _comparison(summary),
        *_figures(summary),
        _by_domain(summary),
        _measured(summary),
        _trouble(summary),
    ]
    return _PAGE.format(
        title=escape(title),
        style=_STYLE,
        script=_SCRIPT,
        body="\n".join(section for section in sections if section),
    )


def _opening(summary: Summary, title: str, intro: str) -> str:
    paragraphs = "".join(f"<p>{escape(p.strip())}</p>" for p in intro.split("\n\n") if p.strip())
    others = "".join(f"<li>{escape(text)}</li>" for text in tables.findings(summary))
    return (
        f'<header><h1>{escape(title)}</h1>\n<p class="lead">{escape(tables.headline(summary))}</p>'
        + (f"\n<ul>{others}</ul>" if others else "")
        + f"\n{paragraphs}</header>"
    )


def _comparison(summary: Summary) -> str:
    if not summary.lines:
        return ""
    base = escape(summary.baseline.label)
    caution = "".join(f"<li>{escape(note)}</li>" for note in tables.notes(summary))
    return (
        "<section><h2>Comparison</h2>\n"
        + _table(tables.comparison(summary), "Accuracy of each method")
        + '\n<p class="note">Accuracy in percent. Domains count equally. ± is the standard error '
        "over seeds; there is none for a single seed. "
        f"The difference to {base} is in points, taken between runs with the same data and seed; "
        f"“better than {base}” is the share of (domain, seed) pairs that improve. "
        "A difference is called noise where its 95 % interval over seeds (Student’s t) holds 0. "
        "Controls are meant to fail; ceilings use what no method may know.</p>"
        + (f'\n<ul class="note">{caution}</ul>' if caution else "")
        + "</section>"
    )


def _table(grid: tables.Grid, caption: str) -> str:
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{escape(name)}</button></th>'
        for name in grid.header
    )
    body = []
    for key, row in zip(grid.keys, grid.rows, strict=True):
        kind = "" if key is None or key.kind == "method" else f' class="{key.kind}"'
        name = escape(row[0].text if key is None else key.label)
        badge = f' <span class="badge">{key.kind}</span>' if key is not None and kind else ""
        cells = "".join(map(_cell, row[1:]))
        body.append(f'<tr{kind}><th scope="row">{name}{badge}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        "<caption>Choose a heading to sort</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody></table></div>"
    )


def _cell(cell: tables.Cell) -> str:
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    return f"<td{value}>{escape(cell.text)}</td>"


def _figures(summary: Summary) -> Iterable[str]:
    colours = plots.colours_of(summary)
    yield _figure(
        "bars",
        "Unseen domains",
        plots.draw_comparison(summary),
        "Each bar is the mean accuracy over the unseen domains, longer is better; the whisker is "
        "one standard error over seeds. Hatched: a control. Dashed: a ceiling.",
    )
    yield _domain_figure(summary, colours)
    yield _map_figure(summary)
    yield _figure(
        "learning",
        "Learning curves",
        plots.draw_learning([run for run in summary.runs if run.problem is None], colours),
        "One line per run: a loss should fall and level off; a validation accuracy that falls "
        "again late in training is a sign of overfitting. Unfinished runs are drawn as far as "
        "they went.",
    )


def _domain_figure(summary: Summary, colours: dict[str, str]) -> str:
    contender = next(iter(summary.contenders), None)
    difference = contender and summary.difference(contender, summary.baseline)
    if not difference or not difference.changes:
        return ""
    line, base = difference.line.label, difference.against.label
    hidden = len(difference.changes) - plots.MOST_DOMAINS
    some = f" The {hidden} domains in the middle are left out." if hidden > 0 else ""
    return _figure(
        "domains",
        "Domain by domain",
        plots.draw_domains(difference, colours),
        f"Each row is an unseen domain, from {base} (ring) to {line} (diamond), averaged over "
        f"seeds; the largest gain is on top, and a diamond left of its ring has lost.{some}",
    )


def _map_figure(summary: Summary) -> str:
    runs = sorted(summary.finished, key=lambda run: (run.algorithm, run.seed, run.name))
    for run in runs:
        found = plots.read_domain_map(run)
        if found is not None:
            few = len(found.names) < 8
            how = "their two principal components" if few else "t-SNE"
            return _figure(
                "map",
                "Map of the domains",
                plots.draw_map(found),
                f"Each mark is a domain, placed by its embedding with {how} (run {run.name}): "
                "neighbours look alike to the model. Axes, scale and the distance between far "
                "marks have no meaning. Point at a mark to read its name.",
            )
    if any(run.algorithm.startswith("da-") for run in runs):
        return "<section><h2>Map of the domains</h2><p>No run holds a map to draw.</p></section>"
    return ""


def _figure(name: str, heading: str, drawing: plots.Drawing | None, caption: str) -> str:
    if drawing is None:
        return ""
    image = plots.svg(drawing, name).replace(
        "<svg", f'<svg role="img" aria-label="{escape(heading)}"', 1
    )
    return (
        f"<section><h2>{escape(heading)}</h2>\n<figure>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(heading)}">{image}'
        f"</div>\n<figcaption>{escape(caption)}</figcaption></figure></section>"
    )


def _by_domain(summary: Summary) -> str:
    if not summary.domains:
        return ""
    grid = _table(tables.by_domain(summary), "Accuracy on each unseen domain")
    return (
        "<section><h2>Every unseen domain</h2>\n<details><summary>Table of "
        f"{len(summary.domains)} domains, means over seeds, in percent</summary>\n{grid}</details>"
        "</section>"
    )


def _measured(summary: Summary) -> str:
    facts = "".join(
        f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>\n" for term, text in _facts(summary)
    )
    return f"<section><h2>What was measured</h2>\n<dl>\n{facts}</dl></section>"


def _facts(summary: Summary) -> Iterable[tuple[str, str]]:
    runs = [run for run in summary.runs if run.problem is None]
    data = {f"{run.source} {run.data[:16]}".strip() for run in runs}
    yield "Data (digest)", ", ".join(sorted(data)) or tables.DASH
    yield "Classes", _some({len(run.classes) for run in runs})
    roles = {"train": "training", "val": "validation", "test": "unseen test"}
    yield (
        "Domains",
        ", ".join(
            f"{_some({len(run.domains[role]) for run in runs})} {word}"
            for role, word in roles.items()
        ),
    )
    yield "Seeds", ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
    yield "Adapted on", "; ".join(_adapted(summary.finished)) or "no run adapts"
    kept = {run.finished.kept_by for run in runs if run.finished}
    yield "Weights kept by", ", ".join(sorted(kept)) or tables.DASH
    starts = [start for run in runs for start in run.starts]
    machines = {f"{s.device}, {s.processes} process{'es' * (s.processes > 1)}" for s in starts}
    yield "Machine", "; ".join(sorted(machines)) or tables.DASH
    yield "Version", ", ".join(sorted({start.version for start in starts})) or tables.DASH
    seconds = sum(run.finished.seconds for run in runs if run.finished)
    resumed = any(len(run.starts) > 1 for run in summary.finished)
    yield "Wall time", _time(seconds) + (" (last sitting of resumed runs)" if resumed else "")
    yield "Runs", f"{len(summary.finished)} finished of {len(summary.runs)}"


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
    return " or ".join(str(number) for number in sorted(numbers)) or tables.DASH


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"


def _trouble(summary: Summary) -> str:
    """Runs that are not counted and files that were passed over; nothing where all went well."""
    runs = [
        f"<li><code>{escape(run.name)}</code>: {escape(run.problem or _progress(run))}</li>"
        for run in summary.runs
        if run.finished is None
    ]
    # Seeds meet the same damaged files: each is listed once.
    files = sorted({entry for run in summary.runs for entry in run.quarantined})
    listed = [
        f"<li><code>{escape(image)}</code>: {escape(reason)}</li>"
        for image, reason in files[:_MOST_FILES]
    ]
    parts = []
    if runs:
        parts.append(f"<h2>Runs that are not counted</h2>\n<ul>{''.join(runs)}</ul>")
    if files:
        more = len(files) - len(listed)
        rest = f"<p>and {more} more, in each run’s quarantine.jsonl</p>" if more else ""
        parts.append(f"<h2>Files that could not be read</h2>\n<ul>{''.join(listed)}</ul>{rest}")
    return "".join(f"<section>{part}</section>\n" for part in parts)


def _progress(run: RunView) -> str:
    if not run.records.losses:
        return "not finished; no training step was recorded"
    last = run.records.losses[-1]
    return f"not finished; last recorded at step {last.step} of phase {last.phase}"


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --card: #f6f6f4; --line: #d9d9d6;
  --ink: #1b1b1e; --faint: #6b6b70; --orange: #d55e00; --blue: #0072b2; --green: #009e73;
  --purple: #cc79a7; --yellow: #b58900; --sky: #56b4e9; }
@media (prefers-color-scheme: dark) { :root { --page: #17181b; --card: #202226; --line: #3a3c42;
  --ink: #e8e8ea; --faint: #a0a0a8; --orange: #f58442; --blue: #58aee6; --green: #35c79b;
  --purple: #e3a3c6; --yellow: #e0b83a; --sky: #8accf2; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.5rem 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 0.75rem; }
.lead { font-size: 1.2rem; border-left: 0.25rem solid var(--blue); padding-left: 0.9rem; }
p, li, dd, figcaption { max-width: 46rem; overflow-wrap: anywhere; }
.note, figcaption { color: var(--faint); font-size: 0.9rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 0.5rem; }
.scroll:focus-visible, button:focus-visible, summary:focus-visible {
  outline: 2px solid var(--blue); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); font-size: 0.85rem; padding: 0.5rem 0.55rem; }
th, td { padding: 0.45rem 0.55rem; border-top: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
thead th { background: var(--card); vertical-align: bottom; white-space: normal; padding: 0; }
th:first-child { text-align: left; }
tbody th { font-weight: 600; white-space: normal; min-width: 8.5rem; position: sticky; left: 0;
  background: var(--page); }
tr.control, tr.ceiling { color: var(--faint); }
tr.control th, tr.ceiling th { font-weight: 400; }
th button { all: unset; box-sizing: border-box; cursor: pointer; width: 100%; font-weight: 600;
  padding: 0.45rem 0.55rem; }
th[aria-sort=ascending] button::after { content: " ↑"; }
th[aria-sort=descending] button::after { content: " ↓"; }
.badge { border: 1px solid var(--line); border-radius: 1rem; padding: 0 0.5rem;
  font-size: 0.75rem; white-space: nowrap; }
figure { margin: 0; max-width: 44rem; }
figcaption { margin-top: 0.5rem; }
figure .scroll { padding: 0.3rem; }
svg { display: block; width: 100%; height: auto; min-width: 18rem; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans",
  sans-serif !important; }
details .scroll { margin-top: 0.75rem; }
summary { cursor: pointer; }
dl { display: grid; grid-template-columns: minmax(7rem, auto) 1fr; gap: 0.35rem 1rem; margin: 0; }
dt { color: var(--faint); }
dd { margin: 0; }
"""

_SCRIPT = """
document.querySelectorAll("table").forEach(table => {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === (column ? "descending" : "ascending")
      ? !column : !!column;
    const of = row => column ? row.cells[column].dataset.value : row.cells[0].textContent;
    const rows = [...body.rows].sort((a, b) => {
      const x = of(a), y = of(b);
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      const order = column ? x - y : x.localeCompare(y, undefined, { numeric: true });
      return down ? -order : order;
    });
    heads.forEach(other => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  }));
});
"""
