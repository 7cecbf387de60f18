"""The parts of a page: results by rule, choices, what went wrong, and what was measured."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from acclimate.adapt.rehearsal import verdict
from acclimate.core.layout import QUARANTINE
from acclimate.core.wording import DASH, count, duration
from acclimate.report.figures.search import drawn_settings, resolved_settings
from acclimate.report.markup import bullets, folded, paragraph, section, table
from acclimate.report.tables import (
    choices_grid,
    kept_grid,
    labels_grid,
    promises_grid,
    whole_grid,
)
from acclimate.results.material import Labels, Report, alike
from acclimate.results.protocol import RULES, Sweep
from acclimate.results.rehearsals import kept, speaker
from acclimate.results.runs import RunView
from acclimate.results.tabulate import ALL, Results

_MOST_FILES = 50
_MOST_KEPT = 12  # rows of a table that is not folded away
KINDS = "Controls are meant to fail; ceilings use what no method may know."
ADAPTED_ON = {
    "held-out": "of the same domain, kept out of the scoring",
    "test": "of the same domain, the scored ones themselves",
}


def sweep_line(sweep: Sweep, finished: int) -> str:
    """The sweep in a sentence or two."""
    jobs = sweep.jobs
    methods = {(job.algorithm, method) for job in jobs for method in job.methods}
    variants = {job.variant for job in jobs if job.variant}
    parts = [
        count(len(methods), "method"),
        *([count(len(variants), "variant")] if variants else []),
        count(len({job.draw for job in jobs}), "draw") + " of the settings",
        count(len({job.trial for job in jobs}), "trial"),
    ]
    names = ", ".join(found.name for found in sweep.datasets)
    on = f" on {names}" if names else ""
    return (
        f"{finished} of {count(len(jobs), 'run')} finished{on}: {', '.join(parts)}. "
        f"Settings are chosen by {rule_name(sweep.rule)}."
    )


def rule_name(rule: str) -> str:
    """`training-domains (validation splits of the training domains)`"""
    return f"{rule} ({RULES[rule]})" if rule in RULES else rule


def results(report: Report, caution: Sequence[str] = ()) -> str:
    """A table per data set, under each rule, with what a reader should be wary of; nothing for a
    folder of runs without rules."""
    found = [one for rule in report.rules if rule for one in report.results.get(rule, ())]
    if not found:
        return ""
    said = [
        "Accuracy in percent, mean ± standard error over trials (sample standard deviation / √n; "
        "none for a single trial); a dash is missing, never zero.",
        "Bold: the best of our own methods." * any(any(one.best.values()) for one in found),
        "The difference is in points, paired over domains and trials; p is of a two-sided paired "
        "t-test, corrected for the number of methods compared (Holm). Trials of one domain are "
        "not independent, so with few domains a small p is optimistic. Words go by the 95 % "
        "interval over seeds, which needs no independence of domains, and p by (domain, trial) "
        "pairs, so that the two may disagree."
        * any(row.test is not None for one in found for row in one.rows),
        "Published rows are numbers from papers, on other machines and draws."
        * any(row.published for one in found for row in one.rows),
        KINDS * any(row.key.kind != "method" for one in found for row in one.rows),
    ]
    same = alike(report)
    body = by_rule(
        report,
        lambda rule: "\n".join(map(_results, report.results.get(rule, ()))) * (rule not in same),
    )
    if same:
        body += "\n" + paragraph(f"Selection by {' or '.join(same)} chooses the same runs.")
    note = paragraph(" ".join(filter(None, said)))
    return section("Results", f"{body}\n{note}\n{bullets(caution, 'note')}")


def by_rule(report: Report, part: Callable[[str], str]) -> str:
    """The same part for every rule, with a switch between them where there are several."""
    found = {rule: body for rule in report.rules if (body := part(rule))}
    if len(found) < 2:
        return "".join(found.values())
    options = "".join(f'<option value="{escape(rule)}">{escape(rule)}</option>' for rule in found)
    return (
        f'<p class="switch" hidden><label>Settings chosen by <select>{options}</select></label></p>'
        + "".join(
            f'\n<div data-rule="{escape(rule)}"><h3>Chosen by {escape(rule_name(rule))}</h3>\n'
            f"{body}</div>"
            for rule, body in found.items()
        )
    )


def _results(found: Results) -> str:
    name = "All data sets" if found.dataset == ALL else found.dataset
    what = "average of each data set" if found.dataset == ALL else "accuracy on each unseen domain"
    return table(f"{name or 'Results'}: {what}", whole_grid(found))


def choices(report: Report) -> str:
    """Which draw was chosen for each target, and with what settings."""
    sweep = report.sweep
    if sweep is None or not any(report.choices.values()):
        return ""
    configs = resolved_settings(report)
    drawn = {found.name: drawn_settings(sweep, found.name) for found in sweep.datasets}

    def part(rule: str) -> str:
        found = report.choices.get(rule, ())
        grid = choices_grid(found, configs, drawn)
        return table("The draw chosen for each target", grid) if found else ""

    chosen = report.choices.get(report.rules[0], ())
    title = f"Table of {count(len(chosen), 'choice')}"
    return section("What was chosen", folded(title, by_rule(report, part)))


def failures(report: Report) -> str:
    if not report.failures and not report.waiting:
        return ""
    parts = []
    if report.waiting:
        verb = "is" if report.waiting == 1 else "are"
        parts.append(
            f"<p>{count(report.waiting, 'job')} {verb} still to run; "
            "repeat the sweep command to go on.</p>"
        )
    if report.failures:
        parts.append(
            f"<p>{count(len(report.failures), 'job')} failed; repeat the sweep command with "
            "<code>--retry-failed</code> once the cause is mended.</p>"
        )
    for failure in report.failures:
        tries = f", {count(failure.attempts, 'attempt')}"
        time = f", last at {failure.time}" if failure.time else ""
        trace = f"<pre>{escape(failure.traceback)}</pre>" if failure.traceback else ""
        parts.append(
            f"<details><summary><code>{escape(failure.job)}</code>: {escape(failure.error)}"
            f"</summary>\n{paragraph((tries + time).removeprefix(', '))}{trace}</details>"
        )
    heading = "Failed jobs" if report.failures else "Jobs still to run"
    return section(heading, "\n".join(parts))


def rehearsals(report: Report) -> tuple[str, str]:
    """Around the figures of rehearsals: what they say, and their tables."""
    groups = report.runs_by_dataset
    words, grids = [], []
    for dataset, runs in groups.items():
        run = speaker(runs)
        if run is not None and run.rehearsal is not None:
            said = verdict(run.rehearsal)
            words += [f"{dataset}: {said[0]}", *said[1:]] if len(groups) > 1 else said
            name = f"Rehearsal of {run.name}"
            grids.append(table(name, promises_grid(run.rehearsal)))
    found = list(kept(report.summary.finished))
    if found:
        grid = table("What was promised, and what happened", kept_grid(found))
        title = f"Table of {count(len(found), 'run')}: promised, and what happened"
        grids.append(grid if len(found) <= _MOST_KEPT else folded(title, grid))
        grids.append(
            paragraph(
                "On unseen test domains, means over them. The true gain is that of auto over the "
                "plain model in points; accuracies are in percent, expected in nine cases of ten "
                "at a single new domain."
            )
        )
    return bullets(words), "\n".join(grids)


def label_tables(found: Sequence[Labels]) -> str:
    """Every domain of each data set, folded away."""
    grids = {labels.name: labels_grid(labels) for labels in found}
    return "\n".join(
        folded(
            f"Table of {count(len(grid.rows), 'domain')} of {name}",
            table(f"Labels of {name}", grid),
        )
        for name, grid in grids.items()
        if grid.rows
    )


def uncounted(runs: Sequence[RunView]) -> str:
    found = [run for run in runs if run.finished is None]
    texts = [f"{run.name}: {run.problem or _progress(run)}" for run in found]
    return section("Runs that are not counted", bullets(texts)) if texts else ""


def _progress(run: RunView) -> str:
    if not run.records.losses:
        return "not finished; no training step was recorded"
    last = run.records.losses[-1]
    return f"not finished; last recorded at step {last.step} of phase {last.phase}"


def quarantined(runs: Sequence[RunView]) -> str:
    # Seeds meet the same damaged files: each is listed once.
    files = sorted({entry for run in runs for entry in run.quarantined})
    if not files:
        return ""
    body = bullets(f"{image}: {reason}" for image, reason in files[:_MOST_FILES])
    more = len(files) - _MOST_FILES
    rest = f"<p>and {more} more, in each run’s {QUARANTINE}</p>" if more > 0 else ""
    return section("Files that could not be read", body + rest)


def measured(runs: Sequence[RunView]) -> str:
    """Data, machine and time: the facts at the end of a page."""
    listed = "".join(
        f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>\n" for term, text in facts(runs)
    )
    return section("What was measured", f"<dl>\n{listed}</dl>") if runs else ""


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
