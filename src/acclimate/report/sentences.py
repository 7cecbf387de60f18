"""A report in sentences: what a reader with ten seconds should take away, and what else is said.

No sentence claims more than the seeds bear out.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from acclimate.config import AlgorithmName, flat
from acclimate.core.wording import DASH, count, percent, signed
from acclimate.results.material import Report
from acclimate.results.runs import NAMES, Key, RunView
from acclimate.results.statistics import Estimate, in_percent, in_points
from acclimate.results.summary import Difference, Line, Summary, against
from acclimate.results.tabulate import Results, Row

_Rows = Mapping[str, Sequence[Row]]  # algorithm -> its rows in the order of the axis


def first_sentence(report: Report) -> str:
    """Of an ablation what every algorithm scores; otherwise the first method and the baseline."""
    return _course(report) or headline(report.summary)


def _course(report: Report) -> str:
    """An ablation from its first value to its last; "" for anything else, or with too few runs."""
    axis = report.axis
    if axis is None or len(report.tables) != 1:
        return ""
    results, order = report.tables[0], list(axis.places)
    if axis.ordered:
        order.sort(key=lambda name: axis.places[name] or 0.0)
    rows = _by_algorithm(results, order)
    if sum(map(len, rows.values())) < 2:
        return ""
    said = _ends(rows, results.baseline) if axis.ordered else _categories(rows)
    return said and f"Accuracy on domains never seen in training, by {axis.label}{said}"


def _adaptive_first(name: str) -> tuple[bool, str]:
    return not AlgorithmName.of(name).adaptive, name


def _by_algorithm(results: Results, order: Sequence[str]) -> _Rows:
    known = {row.key: row for row in results.rows if row.average is not None and not row.published}
    names = sorted({key.algorithm for key in known}, key=_adaptive_first)
    found = {name: [known.get(Key.usual(name, variant)) for variant in order] for name in names}
    return {name: kept for name, rows in found.items() if (kept := [r for r in rows if r])}


def _categories(rows: _Rows) -> str:
    parts = [
        f"{row.key.variant} {in_percent(row.average)} % ({Key.usual(name).label})"
        for name, found in rows.items()
        for row in found
    ]
    return f": {', '.join(parts)}."


def _ends(rows: _Rows, baseline: Key) -> str:
    """Between the first and the last value that all algorithms have."""
    variants = [[row.key.variant for row in found] for found in rows.values()]
    common = [name for name in variants[0] if all(name in other for other in variants)]
    if len(common) < 2:
        return ""
    first, last = common[0], common[-1]
    scores, gaps = [], []
    for name, found in rows.items():
        low, high = ({row.key.variant: row for row in found}[end] for end in (first, last))
        label = Key.usual(name).label
        scores.append(f"{label} {in_percent(low.average)} to {in_percent(high.average)} %")
        if low.test is not None and high.test is not None:
            gaps.append(
                f" {label} less {baseline.label}: {in_points(low.test.difference)} points at "
                f"{first}, {in_points(high.test.difference)} at {last}."
            )
    return f", from {first} to {last}: {', '.join(scores)}.{''.join(gaps)}"


def headline(summary: Summary) -> str:
    """The main result in a sentence that claims no more than the seeds bear out."""
    if not summary.lines:
        if any(run.rehearsal is not None for run in summary.finished):
            return (
                "No domain was kept unseen to be scored; what to expect at a new one, rehearsal "
                "tells below."
            )
        if summary.finished:
            return "No finished run has scores on unseen test domains."
        return "No run is finished, so there is nothing to compare yet."
    contenders = summary.contenders
    if not contenders:
        return f"{_by_itself(summary.lines[0])} There is no run to compare with it."
    difference = summary.versus(contenders[0])
    assert difference is not None
    if summary.line(difference.against) is None:
        line = summary.line(contenders[0])
        assert line is not None
        wanted = summary.baseline.label
        return f"{_by_itself(line)} There is no finished {wanted} run to compare it with."
    return compared(summary, difference)


def _by_itself(line: Line) -> str:
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
        f"{in_points(difference.gain)} points over {count(difference.gain.n, 'seed')}{ending}."
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
        f"{percent(difference.after)} % ({in_points(difference.gain)} points): {ending}."
    )


def _ceiling(summary: Summary, line: Line) -> Iterable[str]:
    told = {"oracle-prior": "each domain's true label frequencies"}
    base = replace(line.key, method="none")
    difference = summary.difference(line.key, base)
    if difference is None or difference.gain is None:
        return
    sentence = (
        f"Ceiling: told {told.get(line.key.method, 'all that is true of each domain')}, which no "
        "method may know, "
        f"{base.label} scores {percent(difference.after)} % ({in_points(difference.gain)} points)"
    )
    contender = next(iter(summary.contenders), None)
    rival = contender and summary.difference(contender, base)
    if rival and rival.gain and rival.verdict == "better" and difference.verdict == "better":
        share = rival.gain.mean / difference.gain.mean
        sentence += f"; {rival.line.label} gains {100 * share:.0f} % of that without labels"
    above = _above(summary, difference)
    if signed(difference.gain.mean).startswith("−"):
        yield (
            f"{sentence}: less than without, so that it is no ceiling here; a correction by "
            "frequencies needs probabilities that can be trusted."
        )
        return
    if above:
        sentence += f"; {above} is above it, for frequencies are not all that a domain tells"
    yield sentence + "."


def _above(summary: Summary, ceiling: Difference) -> str:
    """Methods that score more than a ceiling does, by name."""
    assert ceiling.gain is not None
    found = (summary.difference(key, ceiling.against) for key in summary.contenders)
    higher = [one for one in found if one and one.gain and one.gain.mean > ceiling.gain.mean]
    return ", ".join(one.line.label for one in higher)


def _heads(runs: Sequence[RunView]) -> Iterable[str]:
    """An adaptive predictor has hidden layers on its features, which a linear head has not."""
    plain = {
        run.algorithm
        for run in runs
        if not AlgorithmName.of(run.algorithm).adaptive
        and run.config.get("model", {}).get("head") == "linear"
    }
    if plain and any(AlgorithmName.of(run.algorithm).adaptive for run in runs):
        listed = ", ".join(Key.usual(name).label for name in sorted(plain))
        yield (
            f"{listed}: a linear head, where adaptive algorithms have hidden layers; with "
            "model.head=mlp both have the same."
        )


def notes(summary: Summary) -> Iterable[str]:
    """What a careful reader must know before trusting the means."""
    yield from (
        f"{found.remark}."
        for found in summary.differences
        if found.remark and found.gain and found.line.kind == "method"  # others only repeat it
    )
    yield from _heads(summary.finished)
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
            if mine[path] != theirs.get(path)
            and not path.startswith("embedding.")
            and path != "adapt.methods"  # which score what was trained, and are not all for both
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
