"""A report in sentences: what a reader with ten seconds should take away, and what else is said.

No sentence claims more than the seeds bear out: its words go by `Difference.verdict`, which goes by
the p of the tables.
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


def first_sentence(report: Report) -> str:
    """Of an ablation what every algorithm scores; otherwise the first method and the baseline."""
    return _course(report) or headline(report)


def _course(report: Report) -> str:
    """An ablation, value by value; "" for anything else, or where there is one value alone."""
    axis = report.axis
    if axis is None or len(report.tables) != 1:
        return ""
    order = sorted(axis.places, key=lambda name: axis.places[name] or 0.0)
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in report.tables[0].lines:
        if row.average is not None and row.key == Key.usual(row.key.algorithm, row.key.variant):
            rows[row.key.algorithm].append(row)
    if len({row.key.variant for own in rows.values() for row in own}) < 2:
        return ""
    parts = []
    for name in sorted(rows, key=lambda name: (not AlgorithmName.of(name).adaptive, name)):
        known = {row.key.variant: in_percent(row.average) for row in rows[name]}
        values = [f"{known[variant]} % ({variant})" for variant in order if variant in known]
        values += [f"{known['']} %"] if "" in known else []  # it is not varied
        parts.append(f"{Key.usual(name).label} {', '.join(values)}")
    return f"Accuracy on domains never seen in training, by {axis.label}: {'; '.join(parts)}."


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
    first = next(iter(found.contenders), found.lines[0])
    if first.difference is not None and found.row(first.difference.against) is not None:
        return compared(first.difference)
    alone = f"No trial of {first.key.label} has all of its unseen domains yet."
    if first.average is not None:
        alone = (
            f"On {count(first.domains, 'domain')} never seen in training, {first.key.label} scores "
            f"{percent(first.average.mean)} % over {count(first.average.n, 'seed')}."
        )
    other = "" if first.key == found.baseline else f"{found.baseline.label} "
    return f"{alone} There is no finished {other}run to compare it with."


def compared(difference: Difference) -> str:
    """`On 20 domains never seen in training, DA-ERM scores …`, worded by the verdict."""
    line, other = difference.line.label, difference.against.label
    if difference.gain is None:
        return f"{line} and {other} cannot be compared in pairs: {difference.remark}."
    ending = _ending(difference, worse=f", so {line} is worse here")
    return (
        f"On {count(len(difference.changes), 'domain')} never seen in training, {line} scores "
        f"{percent(difference.after)} % and {other} {percent(difference.before)} %: "
        f"{in_points(difference.gain)} points over {count(difference.gain.n, 'seed')}{ending}."
    )


def _ending(difference: Difference, *, better: str = "", worse: str = "") -> str:
    """The words for the verdict, or that seeds are too few for one."""
    seeds = count(difference.gain.n if difference.gain else 0, "seed")
    endings = {"better": better, "worse": worse, "noise": ", no difference beyond noise"}
    return endings.get(difference.verdict, f"; {seeds} cannot tell it from noise")


def findings(found: Comparison) -> list[str]:
    """What else the page should say: other contenders, controls and ceilings."""
    others = [row.difference for row in found.contenders[1:] if row.difference]
    ceilings = [
        row.difference
        for row in found.lines
        # A ceiling of another algorithm is none of the baseline's.
        if row.key.kind == "ceiling"
        and row.difference is not None
        and row.difference.against == replace(row.key, method="none")
    ]
    return [
        *(compared(one) for one in others if one.gain),
        *(_control(one) for one in found.controls if one.gain),
        *(_ceiling(found, one) for one in ceilings if one.gain),
    ]


def _control(difference: Difference) -> str:
    ending = _ending(
        difference,
        better=": it does better with the wrong one, which speaks against the method here",
        worse=": what it gets from the embedding is about the domain",
    )
    return (
        f"Control: given another domain's embedding, {difference.against.label} scores "
        f"{percent(difference.after)} % ({in_points(difference.gain)} points){ending}."
    )


def _ceiling(found: Comparison, ceiling: Difference) -> str:
    gain = ceiling.gain
    assert gain is not None  # it has been compared
    prior = ceiling.line.method == "oracle-prior"
    truth = "each domain's true label frequencies" if prior else "all that is true of each domain"
    sentence = (
        f"Ceiling: told {truth}, which no method may know, {ceiling.against.label} scores "
        f"{percent(ceiling.after)} % ({in_points(gain)} points)"
    )
    if signed(gain.mean).startswith("−"):
        return f"{sentence}: less than without, so that it is no ceiling here."
    rivals = [
        (row.gain.mean, row.difference)
        for row in found.contenders
        if row.difference and row.gain and row.difference.against == ceiling.against
    ]
    if rivals and rivals[0][1].verdict == ceiling.verdict == "better":
        share = 100 * rivals[0][0] / gain.mean
        sentence += f"; {rivals[0][1].line.label} gains {share:.0f} % of that without labels"
    above = ", ".join(one.line.label for mean, one in rivals if mean > gain.mean)
    if above:
        sentence += f"; {above} is above it, for frequencies are not all that a domain tells"
    return sentence + "."


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


def _heads(runs: Sequence[RunView]) -> Iterable[str]:
    """An adaptive predictor has hidden layers on its features, which a linear head has not."""
    heads = {run.algorithm: run.config.get("model", {}).get("head") for run in runs}
    adaptive = {name for name in heads if AlgorithmName.of(name).adaptive}
    plain = sorted(name for name in heads.keys() - adaptive if heads[name] == "linear")
    if plain and adaptive:
        listed = ", ".join(Key.usual(name).label for name in plain)
        yield (
            f"{listed}: a linear head, where adaptive algorithms have hidden layers; with "
            "model.head=mlp both have the same."
        )


def _unplanned(families: Mapping[Key, Sequence[RunView]]) -> Iterable[str]:
    """In what runs that nobody planned differ, or do not differ."""
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
    values: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for path, value in flat(run.config).items():
            if path not in NAMES:
                values[path].add(json.dumps(value))
    return dict(sorted(values.items()))
