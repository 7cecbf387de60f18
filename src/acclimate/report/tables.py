"""A summary in words and tables: plain text, Markdown, CSV and values for JSON."""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from acclimate.config import AlgorithmName, flat
from acclimate.results.runs import NAMES, Key, RunView
from acclimate.results.statistics import Estimate
from acclimate.results.summary import Difference, Line, Summary, against

DASH = "–"
MARKS = {"method": "", "control": " [control]", "ceiling": " [ceiling]"}


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | None = None  # what a column is sorted by; `None` is missing, or a name
    best: bool = False  # of its column, which views show in bold


@dataclass(frozen=True)
class Grid:
    """A table before it is drawn. The first column holds names, the others numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    keys: tuple[Key | None, ...]  # of each row


def percent(value: float | None) -> str:
    """Rounded twice, lest the last bit of a sum decide how 3.85 is printed."""
    return DASH if value is None else f"{round(100 * value, 9):.1f}"


def p_value(p: float | None) -> str:
    return DASH if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def estimate(value: Estimate | None) -> str:
    """`61.5 ± 0.4`; without the error for one seed; a dash for none."""
    if value is None:
        return DASH
    return percent(value.mean) + ("" if value.se is None else f" ± {percent(value.se)}")


def points(value: Estimate | None) -> str:
    """A difference with its sign: `+5.9 ± 0.4`, `−0.3`."""
    if value is None:
        return DASH
    return signed(value.mean) + ("" if value.se is None else f" ± {percent(value.se)}")


def signed(value: float) -> str:
    text = percent(abs(value))
    return text if text == "0.0" else ("+" if value > 0 else "−") + text


def comparison(summary: Summary) -> Grid:
    """One row per line: unseen domains, training domains, difference to the baseline."""
    with_top5 = any(line.top5 is not None for line in summary.lines)
    base = summary.baseline.label
    header = ["Method", "Unseen domains", "Worst unseen domain", "Top-5", "Training domains"]
    header += [f"Difference to {base}", f"Better than {base}", "Runs", "Domains"]
    left_out = set() if with_top5 else {"Top-5"}
    if not is_compared(summary):
        left_out |= {f"Difference to {base}", f"Better than {base}"}
    keep = [name for name in header if name not in left_out]
    rows = []
    for line in summary.lines:
        row = dict(zip(header, _cells(summary, line), strict=True))
        rows.append(tuple(row[name] for name in keep))
    return Grid(tuple(keep), tuple(rows), tuple(line.key for line in summary.lines))


def is_compared(summary: Summary) -> bool:
    """Whether any method has its baseline beside it; a ceiling alone is no rival."""
    found = (summary.versus(key) for key in summary.contenders)
    return any(one is not None and summary.line(one.against) is not None for one in found)


def further(summary: Summary) -> Grid:
    """The comparison without what a table of results has as well."""
    whole = comparison(summary)
    twice = {"Unseen domains", f"Difference to {summary.baseline.label}"}
    kept = [place for place, name in enumerate(whole.header) if name not in twice]
    rows = tuple(tuple(row[place] for place in kept) for row in whole.rows)
    return Grid(tuple(whole.header[place] for place in kept), rows, whole.keys)


def _cells(summary: Summary, line: Line) -> Iterable[Cell]:
    yield Cell(line.key.label + MARKS[line.key.kind])
    for value in (line.unseen, line.worst, line.top5, line.seen):
        yield Cell(estimate(value), None if value is None else value.mean)
    difference = summary.versus(line.key)
    gain = difference.gain if difference else None
    yield Cell(points(gain), None if gain is None else gain.mean)
    if difference and difference.pairs:
        share = difference.improved / difference.pairs
        yield Cell(f"{100 * share:.0f} % of {difference.pairs}", share)
    else:
        yield Cell(DASH)
    seeds = f" ({count(line.seeds, 'seed')})" if line.seeds != line.runs else ""
    yield Cell(f"{line.runs}{seeds}", line.runs)
    yield Cell(str(line.domains), line.domains)


def by_domain(summary: Summary) -> Grid:
    """One row per test domain, one column per line: means over seeds."""
    keys = [line.key for line in summary.lines]
    rows = tuple(
        (Cell(row.domain), *(Cell(percent(row.top1[key]), row.top1[key]) for key in keys))
        for row in summary.domains
    )
    header = ("Unseen domain", *(key.label + MARKS[key.kind] for key in keys))
    return Grid(header, rows, tuple(None for _ in rows))


def to_text(grid: Grid) -> str:
    """Aligned columns for a terminal: names to the left, numbers to the right."""
    table = [grid.header, *(tuple(cell.text for cell in row) for row in grid.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in table
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]]) + "\n"


def to_markdown(grid: Grid) -> str:
    """A table with the best of each column in bold."""
    ruler = "|" + "|".join(["---", *["---:"] * (len(grid.header) - 1)]) + "|"
    lines: list[Iterable[str]] = [map(markdown, grid.header)]
    for row in grid.rows:
        texts = ((markdown(cell.text), cell.best) for cell in row)
        lines.append(f"**{text}**" if best else text for text, best in texts)
    first, *body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([first, ruler, *body]) + "\n"


def markdown(text: str) -> str:
    """Escaped, so that names of domains stay what they are."""
    for mark in "\\|*_`[]":
        text = text.replace(mark, "\\" + mark)
    return text.replace("<", "&lt;").replace("\n", " ")


def to_csv(summary: Summary) -> str:
    """One row per line, in full precision and as shares of 1; missing values are empty."""
    rows = [_values(summary, line) for line in summary.lines]
    text = io.StringIO()
    header = list(rows[0]) if rows else ["algorithm", "method"]
    writer = csv.DictWriter(text, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _values(summary: Summary, line: Line) -> dict[str, Any]:
    key = line.key
    difference = summary.versus(key)
    values: dict[str, Any] = {**asdict(key), "label": key.label, "kind": key.kind}
    for name in ("unseen", "worst", "top5", "seen"):
        found: Estimate | None = getattr(line, name)
        values |= {name: found and found.mean, f"{name}_se": found and found.se}
    gain = difference.gain if difference else None
    return values | {
        "gain": gain and gain.mean,
        "gain_se": gain and gain.se,
        "pairs": difference.pairs if difference else None,
        "improved": difference.improved if difference else None,
        "verdict": difference.verdict if difference else None,
        "runs": line.runs,
        "seeds": line.seeds,
        "domains": line.domains,
    }


def to_dict(summary: Summary) -> dict[str, Any]:
    """The whole summary as JSON can hold it; shares of 1, `None` for missing."""
    keys = [line.key for line in summary.lines]
    return {
        "headline": headline(summary),
        "baseline": asdict(summary.baseline),
        "lines": [_values(summary, line) for line in summary.lines],
        "domains": [
            {
                "domain": row.domain,
                "scores": [{**asdict(key), "top1": row.top1[key]} for key in keys],
            }
            for row in summary.domains
        ],
        "runs": [
            {"name": run.name, "finished": run.finished is not None, "problem": run.problem}
            for run in summary.runs
        ],
        "notes": list(notes(summary)),
    }


def headline(summary: Summary) -> str:
    """The main result in a sentence that claims no more than the seeds bear out."""
    if not summary.lines:
        if summary.finished:
            return "No finished run has scores on unseen test domains."
        return "No run is finished, so there is nothing to compare yet."
    contenders = summary.contenders
    if not contenders:
        return f"{_alone(summary.lines[0])} There is no run to compare with it."
    difference = summary.versus(contenders[0])
    assert difference is not None
    if summary.line(difference.against) is None:
        line = summary.line(contenders[0])
        assert line is not None
        wanted = summary.baseline.label
        return f"{_alone(line)} There is no finished {wanted} run to compare it with."
    return compared(summary, difference)


def _alone(line: Line) -> str:
    if line.unseen is None:
        return f"No trial of {line.key.label} has all of its unseen domains yet."
    value = line.unseen.mean
    return (
        f"On {count(line.domains, 'domain')} never seen in training, {line.key.label} scores "
        f"{percent(value)} % over {count(line.unseen.n, 'seed')}."
    )


def compared(summary: Summary, difference: Difference) -> str:
    """`On 20 domains never seen in training, DA-ERM scores …`, worded by the verdict."""
    line, against = difference.line.label, difference.against.label
    if difference.gain is None:
        mine, base = summary.line(difference.line), summary.line(difference.against)
        scores = [
            percent(found.unseen.mean) if found and found.unseen else DASH for found in (mine, base)
        ]
        return (
            f"On domains never seen in training, {line} scores {scores[0]} % and {against} "
            f"{scores[1]} %, but they cannot be compared in pairs: {difference.remark}."
        )
    ending = {
        "better": "",
        "few seeds": f"; {_too_few(difference.gain)}",
        "worse": f", so {line} is worse here",
        "noise": ", no difference beyond noise",
        "one seed": "; more seeds are needed to tell it from noise",
    }[difference.verdict]
    return (
        f"On {count(len(difference.changes), 'domain')} never seen in training, {line} scores "
        f"{percent(difference.after)} % and {against} {percent(difference.before)} %: "
        f"{points(difference.gain)} points over {count(difference.gain.n, 'seed')}{ending}."
    )


def _too_few(gain: Estimate) -> str:
    return f"{count(gain.n, 'seed')} are too few to tell it from noise"


def findings(summary: Summary) -> list[str]:
    """What else the page should say: other contenders, controls and ceilings."""
    found = []
    for key in summary.contenders[1:]:
        difference = summary.versus(key)
        if difference is not None and difference.gain is not None:
            found.append(compared(summary, difference))
    for line in summary.lines:
        if line.key.kind == "control":
            found += _control(summary, line.key)
        elif line.key.kind == "ceiling":
            found += _ceiling(summary, line)
    return found


def _control(summary: Summary, key: Key) -> Iterable[str]:
    difference = summary.difference(key, replace(key, method="embedding"))
    if difference is None or difference.gain is None:
        return
    ending = {
        "better": "it does better with the wrong one, which speaks against the method here",
        "worse": "what it gets from the embedding is about the domain",
        "noise": "no difference beyond noise, so nothing shows that it uses the domain's own",
        "one seed": "more seeds are needed to tell it from noise",
        "few seeds": _too_few(difference.gain),
    }[difference.verdict]
    yield (
        f"Control: given another domain's embedding, {difference.against.label} scores "
        f"{percent(difference.after)} % ({points(difference.gain)} points): {ending}."
    )


def _ceiling(summary: Summary, line: Line) -> Iterable[str]:
    base = replace(line.key, method="none")
    difference = summary.difference(line.key, base)
    if difference is None or difference.gain is None:
        return
    sentence = (
        f"Ceiling: told each domain's true label frequencies, which no method may know, "
        f"{base.label} scores {percent(difference.after)} % ({points(difference.gain)} points)"
    )
    contender = next(iter(summary.contenders), None)
    rival = contender and summary.difference(contender, base)
    if rival and rival.gain and rival.verdict == "better" and difference.verdict == "better":
        share = rival.gain.mean / difference.gain.mean
        sentence += f"; {rival.line.label} gains {100 * share:.0f} % of that without labels"
    yield sentence + "."


def notes(summary: Summary) -> Iterable[str]:
    """What a careful reader must know before trusting the means."""
    yield from (
        f"{found.remark}."
        for found in summary.differences
        if found.remark and found.gain and found.line.kind == "method"  # others only repeat it
    )
    families: dict[Key, list[RunView]] = defaultdict(list)
    for run in summary.finished:
        families[Key.usual(run.algorithm, run.variant)].append(run)
    covered = [sorted((run.data, run.replicate) for run in runs) for runs in families.values()]
    paired = len(covered) > 1 and all(one == covered[0] for one in covered)
    swept = any(run.trial is not None for run in summary.finished)
    if paired and not swept and len({data for data, _ in covered[0]}) > 1:
        yield "Each seed has a data set of its own, the same for every algorithm."
    for key in sorted(families, key=lambda key: key.place):
        runs = families[key]
        # A sweep says itself which runs are missing, and draws settings on purpose.
        if not swept:
            yield from _coverage(key.label, runs, paired=paired)
        mixed = [path for path, values in _settings(runs).items() if len(values) > 1]
        if mixed and not swept:
            listed = ", ".join(mixed)
            yield f"The runs of {key.label} differ in more than the seed: {listed}."
    if all(run.draw == 0 for run in summary.finished):
        yield from _unequal(summary.baseline, families)


def _unequal(baseline: Key, families: Mapping[Key, Sequence[RunView]]) -> Iterable[str]:
    """In what the baseline and its adaptive version differ beside the adaptation."""
    for adaptive, runs in families.items():
        plain = against(adaptive, baseline, families)
        version = AlgorithmName.of(plain.algorithm).adaptive_version
        if adaptive.algorithm != version or plain not in families:
            continue
        mine, theirs = _settings(runs), _settings(families[plain])
        unequal = [
            path
            for path in mine
            if mine[path] != theirs.get(path) and not path.startswith("embedding.")
        ]
        if unequal:
            yield f"{plain.label} and {adaptive.label} also differ in {', '.join(unequal)}."


def _coverage(label: str, runs: Sequence[RunView], *, paired: bool) -> Iterable[str]:
    """`paired`: every algorithm was run on the same data sets, so that their means compare."""
    if len({run.data for run in runs}) > 1 and not paired:
        yield f"{label} was run on more than one data set; its means are over all of them."
    trials: dict[tuple[str, int], dict[str, list[str]]] = {}
    for run in runs:
        domains = trials.setdefault((run.data, run.replicate), {})
        for domain in sorted({score.domain for score in run.final if score.role == "test"}):
            domains.setdefault(domain, []).append(run.name)
    if len({frozenset(domains) for domains in trials.values()}) > 1 and not paired:
        yield f"The seeds of {label} were not scored on the same test domains."
    together = {tuple(names) for domains in trials.values() for names in domains.values()}
    for names in sorted(names for names in together if len(names) > 1):
        yield (
            f"{', '.join(names)} have the same algorithm, data, seed and test domains; "
            "they are averaged and count as one."
        )


def _settings(runs: Iterable[RunView]) -> dict[str, set[str]]:
    """Each setting's values over `runs`, as JSON; without those that name a run."""
    found: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for path, value in flat(run.config).items():
            if path not in NAMES:
                found[path].add(json.dumps(value))
    return dict(sorted(found.items()))


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
