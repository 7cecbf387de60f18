"""A report in sentences: what a reader with ten seconds should take away, and what else is said.

No sentence claims more than the seeds bear out.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from acclimate.config import AlgorithmName, flat
from acclimate.core.text import count, percent, signed
from acclimate.results.comparison import Comparison, Difference, Row, against
from acclimate.results.material import Report
from acclimate.results.runs import NAMES, Key, RunView
from acclimate.results.statistics import in_percent, in_points

_Rows = Mapping[str, Sequence[Row]]  # algorithm -> its rows in the order of the axis


def first_sentence(report: Report) -> str:
    """Of an ablation what every algorithm scores; otherwise the first method and the baseline."""
    return _course(report) or headline(report)


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


def _by_algorithm(results: Comparison, order: Sequence[str]) -> _Rows:
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
        if low.gain is not None and high.gain is not None:
            gaps.append(
                f" {label} less {baseline.label}: {in_points(low.gain)} points at {first}, "
                f"{in_points(high.gain)} at {last}."
            )
    return f", from {first} to {last}: {', '.join(scores)}.{''.join(gaps)}"


def headline(report: Report) -> str:
    """The main result in a sentence that claims no more than the seeds bear out."""
    found = report.overall
    if not found.lines:
        if any(run.rehearsal is not None for run in report.finished):
            return (
                "No domain was kept unseen to be scored; what to expect at a new one, rehearsal "
                "tells below."
            )
        if report.finished:
            return "No finished run has scores on unseen test domains."
        return "No run is finished, so there is nothing to compare yet."
    first = next(iter(found.contenders), None)
    if first is None:
        return f"{_by_itself(found.lines[0])} There is no run to compare with it."
    if first.difference is None or found.row(first.difference.against) is None:
        wanted = found.baseline.label
        return f"{_by_itself(first)} There is no finished {wanted} run to compare it with."
    return compared(first.difference)


def _by_itself(row: Row) -> str:
    if row.average is None:
        return f"No trial of {row.key.label} has all of its unseen domains yet."
    return (
        f"On {count(row.domains, 'domain')} never seen in training, {row.key.label} scores "
        f"{percent(row.average.mean)} % over {count(row.average.n, 'seed')}."
    )


def compared(difference: Difference) -> str:
    """`On 20 domains never seen in training, DA-ERM scores …`, worded by the verdict."""
    line, other = difference.line.label, difference.against.label
    if difference.gain is None:
        return f"{line} and {other} cannot be compared in pairs: {difference.remark}."
    ending = _ending(
        difference,
        better="",
        worse=f", so {line} is worse here",
        noise=", no difference beyond noise",
    )
    return (
        f"On {count(len(difference.changes), 'domain')} never seen in training, {line} scores "
        f"{percent(difference.after)} % and {other} {percent(difference.before)} %: "
        f"{in_points(difference.gain)} points over {count(difference.gain.n, 'seed')}{ending}."
    )


def _ending(difference: Difference, *, better: str, worse: str, noise: str) -> str:
    """The words for the verdict, or that seeds are too few for one."""
    endings = {"better": better, "worse": worse, "noise": noise}
    seeds = count(difference.gain.n if difference.gain else 0, "seed")
    few = f"; {seeds} cannot tell it from noise"
    return endings.get(difference.verdict, few)


def findings(found: Comparison) -> list[str]:
    """What else the page should say: other contenders, controls and ceilings."""
    said = [
        compared(row.difference)
        for row in found.contenders[1:]
        if row.difference is not None and row.gain is not None
    ]
    said += [_control(one) for one in found.controls if one.gain is not None]
    said += [
        _ceiling(found, row.difference)
        for row in found.lines
        # A ceiling of another algorithm is none of the baseline's.
        if row.difference is not None
        and row.gain is not None
        and row.key.kind == "ceiling"
        and row.difference.against == replace(row.key, method="none")
    ]
    return said


def _control(difference: Difference) -> str:
    ending = _ending(
        difference,
        better=": it does better with the wrong one, which speaks against the method here",
        worse=": what it gets from the embedding is about the domain",
        noise=": no difference beyond noise, so nothing shows that it uses the domain's own",
    )
    return (
        f"Control: given another domain's embedding, {difference.against.label} scores "
        f"{percent(difference.after)} % ({in_points(difference.gain)} points){ending}."
    )


def _ceiling(found: Comparison, ceiling: Difference) -> str:
    gain = ceiling.gain
    assert gain is not None  # it has been compared
    known = {"oracle-prior": "each domain's true label frequencies"}
    told = known.get(ceiling.line.method, "all that is true of each domain")
    sentence = (
        f"Ceiling: told {told}, which no method may know, {ceiling.against.label} scores "
        f"{percent(ceiling.after)} % ({in_points(gain)} points)"
    )
    if signed(gain.mean).startswith("−"):
        return (
            f"{sentence}: less than without, so that it is no ceiling here; a correction by "
            "frequencies needs probabilities that can be trusted."
        )
    rivals = [
        one.difference
        for one in found.contenders
        if one.difference is not None and one.difference.against == ceiling.against
    ]
    first = next(iter(rivals), None)
    if first and first.gain and first.verdict == ceiling.verdict == "better":
        share = 100 * first.gain.mean / gain.mean
        sentence += f"; {first.line.label} gains {share:.0f} % of that without labels"
    above = ", ".join(one.line.label for one in rivals if one.gain and one.gain.mean > gain.mean)
    if above:
        sentence += f"; {above} is above it, for frequencies are not all that a domain tells"
    return sentence + "."


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


def notes(report: Report) -> Iterable[str]:
    """What a careful reader must know before trusting the means."""
    yield from (
        f"{row.difference.remark}."
        for row in report.overall.lines
        # Controls and ceilings only repeat it.
        if row.difference and row.difference.remark and row.gain and row.key.kind == "method"
    )
    yield from _heads(report.finished)
    families: dict[Key, list[RunView]] = defaultdict(list)
    for run in report.finished:
        families[Key.usual(run.algorithm, run.variant)].append(run)
    if report.sweep is None:  # a sweep says itself what is missing, and draws settings on purpose
        yield from _unplanned(families)
    if all(run.draw == 0 for run in report.finished):
        yield from _unequal(report.overall.baseline, families)


def _unplanned(families: Mapping[Key, Sequence[RunView]]) -> Iterable[str]:
    """In what runs that nobody planned differ, or do not differ."""
    covered = [sorted((run.data, run.seed) for run in runs) for runs in families.values()]
    alike = len(covered) > 1 and all(one == covered[0] for one in covered)
    if alike and len({data for data, _ in covered[0]}) > 1:
        yield "Each seed has a data set of its own, the same for every algorithm."
    for key in sorted(families, key=lambda key: key.place):
        same: dict[tuple[str, int, str], list[str]] = defaultdict(list)
        for run in families[key]:
            for domain in {score.domain for score in run.final if score.role == "test"}:
                same[run.data, run.seed, domain].append(run.name)
        for names in sorted({tuple(names) for names in same.values() if len(names) > 1}):
            yield (
                f"{', '.join(names)} have the same algorithm, data, seed and test domains; "
                "they are averaged and count as one."
            )
        mixed = [name for name, values in _settings(families[key]).items() if len(values) > 1]
        if mixed:
            yield f"The runs of {key.label} differ in more than the seed: {', '.join(mixed)}."


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


def _settings(runs: Iterable[RunView]) -> dict[str, set[str]]:
    """Each setting's values over `runs`, as JSON; without those that name a run."""
    found: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for path, value in flat(run.config).items():
            if path not in NAMES:
                found[path].add(json.dumps(value))
    return dict(sorted(found.items()))
