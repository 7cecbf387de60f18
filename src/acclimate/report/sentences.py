"""A report in sentences: what a reader with ten seconds should take away, and what else is said.

No sentence claims more than the seeds bear out: its words go by `Difference.verdict`, which goes by
the p of the tables.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from acclimate.config import AlgorithmName
from acclimate.core.text import count
from acclimate.records.metrics import METRICS, TOP_1
from acclimate.records.records import shared_notes
from acclimate.results.comparison import Comparison, Difference, against
from acclimate.results.material import Report
from acclimate.results.runs import Key, RunView, varied_settings
from acclimate.results.statistics import in_points


def headline(report: Report) -> str:
    """The main result in a sentence that claims no more than the seeds bear out."""
    results = report.overall
    if not results.lines:
        if any(run.rehearsal is not None for run in report.finished):
            return (
                "No domain was kept unseen to be scored; what to expect at a new one, rehearsal "
                "tells below."
            )
        if report.finished:
            return "No finished run has scores on unseen test domains."
        return "No run is finished, so there is nothing to compare yet."
    first = next(iter(results.contenders), results.lines[0])
    if first.difference is not None and results.row(first.difference.against) is not None:
        return compared(first.difference)
    alone = f"No trial of {first.key.label} has all of its unseen domains yet."
    if first.average is not None:
        alone = (
            f"On {count(first.domains, 'domain')} never seen in training, {first.key.label} scores "
            f"{_score(first.average.mean, results.metric)} over {count(first.average.n, 'seed')}."
        )
    other = "" if first.key == results.baseline else f"{results.baseline.label} "
    return f"{alone} There is no finished {other}run to compare it with."


def compared(difference: Difference) -> str:
    """`On 20 domains never seen in training, DA-ERM scores …`, worded by the verdict."""
    line, other = difference.line.label, difference.against.label
    if difference.gain is None:
        return f"{line} and {other} cannot be compared in pairs: {difference.remark}."
    ending = _ending(difference, worse=f", so {line} is worse here")
    metric = METRICS[difference.metric]
    return (
        f"On {count(len(difference.changes), 'domain')} never seen in training, {line} scores "
        f"{_score(difference.after, difference.metric)} and {other} "
        f"{metric.write(difference.before)}{metric.unit}: "
        f"{_gain(difference)} over {count(difference.gain.n, 'seed')}{ending}."
    )


def _score(value: float | None, name: str) -> str:
    """`61.5 %`; of another metric than the accuracy with its name."""
    metric = METRICS[name]
    return metric.write(value) + metric.unit + ("" if name == TOP_1 else f" {name}")


def _gain(difference: Difference) -> str:
    """`+5.9 ± 0.4 points`"""
    metric = METRICS[difference.metric]
    return in_points(difference.gain, metric) + " points" * metric.percent


def _ending(difference: Difference, *, better: str = "", worse: str = "") -> str:
    """The words for the verdict, or that seeds are too few for one."""
    seeds = count(difference.gain.n if difference.gain else 0, "seed")
    endings = {"better": better, "worse": worse, "noise": ", no difference beyond noise"}
    return endings.get(difference.verdict, f"; {seeds} cannot tell it from noise")


def findings(results: Comparison) -> list[str]:
    """What else the page should say: other contenders, controls and ceilings."""
    contenders = [row.difference for row in results.contenders[1:] if row.difference]
    ceilings = [
        row.difference
        for row in results.lines
        # A ceiling of another algorithm is none of the baseline's.
        if row.key.kind == "ceiling"
        and row.difference is not None
        and row.difference.against == replace(row.key, method="none")
    ]
    return [
        *(compared(one) for one in contenders if one.gain),
        *(_control(one) for one in results.controls if one.gain),
        *(_ceiling(one) for one in ceilings if one.gain),
    ]


def _control(difference: Difference) -> str:
    ending = _ending(
        difference,
        better=": it does better with the wrong one, which speaks against the method here",
        worse=": what it gets from the embedding is about the domain",
    )
    return (
        f"Control: given another domain's embedding, {difference.against.label} scores "
        f"{_score(difference.after, difference.metric)} ({_gain(difference)}){ending}."
    )


def _ceiling(difference: Difference) -> str:
    assert difference.gain is not None  # it has been compared
    prior = difference.line.method == "oracle-prior"
    truth = "each domain's true label frequencies" if prior else "all that is true of each domain"
    metric = METRICS[difference.metric]
    below = metric.write_gap(metric.sign * difference.gain.mean).startswith("−")
    ending = ": less than without, so that it is no ceiling here" if below else ""
    return (
        f"Ceiling: told {truth}, which no method may know, {difference.against.label} scores "
        f"{_score(difference.after, difference.metric)} ({_gain(difference)}){ending}."
    )


def notes(report: Report) -> Iterable[str]:
    """What a careful reader must know before trusting the means."""
    yield from (
        f"{row.difference.remark}."
        for row in report.overall.lines
        # Controls and ceilings only repeat it.
        if row.difference and row.difference.remark and row.gain and row.key.kind == "method"
    )
    shared = shared_notes(score for run in report.finished for score in run.final)
    yield from (f"{note}." for note in shared)
    yield from _heads(report.finished)
    families: dict[Key, list[RunView]] = defaultdict(list)
    for run in report.finished:
        families[Key.usual(run.algorithm, run.variant)].append(run)
    if report.sweep is None:  # a sweep says itself what is missing, and draws settings on purpose
        yield from _describe_runs(families)
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


def _describe_runs(families: Mapping[Key, Sequence[RunView]]) -> Iterable[str]:
    """In what runs that nobody planned differ, or do not differ."""
    for key in sorted(families, key=lambda key: key.place):
        alike: dict[tuple[str, int, str], list[str]] = defaultdict(list)
        for run in families[key]:
            for domain in {score.domain for score in run.final if score.role == "test"}:
                alike[run.data, run.seed, domain].append(run.name)
        for names in sorted({tuple(names) for names in alike.values() if len(names) > 1}):
            yield (
                f"{', '.join(names)} have the same algorithm, data, seed and test domains; "
                "they are averaged and count as one."
            )
        if mixed := varied_settings(run.config for run in families[key]):
            yield f"The runs of {key.label} differ in more than the seed: {', '.join(mixed)}."


def _unequal(baseline: Key, families: Mapping[Key, Sequence[RunView]]) -> Iterable[str]:
    """In what the baseline and its adaptive version differ beside the adaptation."""
    for adaptive, runs in families.items():
        plain = against(adaptive, baseline, families)
        version = AlgorithmName.of(plain.algorithm).adaptive_version
        if adaptive.algorithm != version or plain not in families:
            continue
        unequal = [
            path
            for path in varied_settings([runs[0].config, families[plain][0].config])
            # How a model is scored is not how it was trained.
            if not path.startswith("embedding.") and path != "adapt.methods"
        ]
        if unequal:
            yield f"{plain.label} and {adaptive.label} also differ in {', '.join(unequal)}."
