"""What came out of an ablation, with errors, in words that claim nothing beyond noise."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from acclimate.results.protocol import Sweep
from acclimate.results.sweep_folder import SweepFolder

USUAL = ("none", "embedding")
CONTROL = "wrong-embedding"
CONFIDENCE = 0.95
ENOUGH_TRIALS = 3  # two may agree by chance, and their interval is then next to nothing


@dataclass(frozen=True)
class Level:
    """Mean accuracy on unseen domains of one algorithm at one value, trial by trial."""

    algorithm: str
    variant: str
    method: str
    by_trial: Mapping[int, float]

    @property
    def mean(self) -> float:
        return fmean(self.by_trial.values())

    @property
    def error(self) -> float | None:
        """Standard error over trials."""
        return _standard_error(list(self.by_trial.values()))


@dataclass(frozen=True)
class Gap:
    """One level less another, paired by trial."""

    mean: float
    error: float | None
    trials: int
    clear: bool  # 0 lies outside the 95 % interval of Student's t over enough trials


def levels(folder: Path, sweep: Sweep) -> list[Level]:
    """Of the finished runs, in the order of the jobs. A trial counts once it has every group."""
    found: dict[tuple[str, str, str], dict[int, list[float]]] = defaultdict(dict)
    groups: dict[tuple[str, str], set[object]] = defaultdict(set)
    for job in sweep.jobs:
        groups[job.algorithm, job.variant].add(job.groups)
        records = SweepFolder(folder).run(job.id).records()
        if records.finished is None:
            continue
        scores: dict[str, list[float]] = defaultdict(list)
        for score in records.scores:
            if score.moment == "final" and score.role == "test" and score.top1 is not None:
                scores[score.method].append(score.top1)
        for method, values in scores.items():
            trials = found[job.algorithm, job.variant, method]
            trials.setdefault(job.trial, []).append(fmean(values))
    complete = {
        key: {t: fmean(v) for t, v in trials.items() if len(v) == len(groups[key[:2]])}
        for key, trials in found.items()
    }
    return [Level(*key, trials) for key, trials in complete.items() if trials]


def level_table(
    found: Sequence[Level], variants: Iterable[str]
) -> tuple[list[str], list[list[str]]]:
    """The columns' names, then a row per variant: a column per algorithm and use, in percent."""
    columns = list(dict.fromkeys((one.algorithm, one.method) for one in found))
    known = {(one.variant, one.algorithm, one.method): one for one in found}
    heads = [name if use in USUAL else f"{name}, {use}" for name, use in columns]
    return heads, [[v, *(_text(known.get((v, *column))) for column in columns)] for v in variants]


def _text(one: Level | None) -> str:
    if one is None:
        return "–"
    error = "" if one.error is None else f" ± {100 * one.error:.1f}"
    return f"{100 * one.mean:.1f}{error}"


def gap(one: Level, other: Level) -> Gap | None:
    """`None` where they have no trial in common."""
    both = sorted(set(one.by_trial) & set(other.by_trial))
    if not both:
        return None
    differences = [one.by_trial[trial] - other.by_trial[trial] for trial in both]
    mean, error = fmean(differences), _standard_error(differences)
    enough = error is not None and len(both) >= ENOUGH_TRIALS
    return Gap(mean, error, len(both), enough and abs(mean) > _t(len(both)) * (error or 0.0))


def _standard_error(values: Sequence[float]) -> float | None:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def _t(trials: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.5 + CONFIDENCE / 2, trials - 1))


def verdict(found: Sequence[Level], baseline: str) -> list[str]:
    """The best value of each algorithm, and how algorithms differ, a sentence each."""
    usual = [level for level in found if level.method in USUAL]
    said = [
        _best([level for level in usual if level.algorithm == name])
        for name in dict.fromkeys(level.algorithm for level in usual)
    ]
    said += _against(usual, baseline)
    said += _controls(found)
    fewest = min((len(level.by_trial) for level in usual), default=ENOUGH_TRIALS)
    if fewest < ENOUGH_TRIALS:
        trials = "one trial" if fewest == 1 else f"{fewest} trials"
        said.append(
            f"With {trials} nothing can be said about noise; use --trials {ENOUGH_TRIALS} or more."
        )
    return [sentence for sentence in said if sentence]


def _best(own: Sequence[Level]) -> str:
    """The best value, the values that noise does not tell from it, and the worst."""
    if len(own) < 2:
        return ""
    best, worst = max(own, key=lambda one: one.mean), min(own, key=lambda one: one.mean)
    gaps = {one.variant: gap(best, one) for one in own if one is not best}
    near = [label for label, found in gaps.items() if found is None or not found.clear]
    text = f"{best.algorithm}: best at {best.variant} ({_percent(best.mean, best.error)})"
    if len(best.by_trial) < ENOUGH_TRIALS:
        return text + "."
    if len(near) == len(gaps):
        return f"{text}, but no value differs from it by more than noise."
    if near:
        text += f", with {', '.join(near)} within noise of it"
    lost = gaps[worst.variant]
    if lost is not None and lost.clear:
        text += f"; worst at {worst.variant}, {_points(-lost.mean, lost.error)}"
    return text + "."


def _against(usual: Sequence[Level], baseline: str) -> list[str]:
    """Each algorithm less the baseline, at the same value or against its only one."""
    base = {level.variant: level for level in usual if level.algorithm == baseline}
    said = []
    for name in dict.fromkeys(level.algorithm for level in usual if level.algorithm != baseline):
        parts = []
        for level in usual:
            other = base.get(level.variant) or (_only(base) if level.algorithm == name else None)
            if level.algorithm != name or other is None:
                continue
            found = gap(level, other)
            if found is not None:
                noise = _noise(found)
                parts.append(f"{_points(found.mean, found.error)} at {level.variant}{noise}")
        if parts:
            said.append(f"{name} against {baseline}: {', '.join(parts)}.")
    return said


def _only(base: Mapping[str, Level]) -> Level | None:
    return next(iter(base.values())) if len(base) == 1 else None


def _controls(found: Sequence[Level]) -> list[str]:
    """How much another domain's embedding (the paper's "random") costs at each value."""
    usual = {(one.algorithm, one.variant): one for one in found if one.method == "embedding"}
    parts: dict[str, list[str]] = defaultdict(list)
    for one in found:
        own = usual.get((one.algorithm, one.variant))
        lost = gap(one, own) if one.method == CONTROL and own is not None else None
        if lost is not None:
            noise = _noise(lost)
            parts[one.algorithm].append(f"{_points(lost.mean, lost.error)} at {one.variant}{noise}")
    return [
        f"{name} with another domain's embedding (random): {', '.join(texts)}."
        for name, texts in parts.items()
    ]


def _noise(found: Gap) -> str:
    return "" if found.clear or found.trials < ENOUGH_TRIALS else " (within noise)"


def _percent(mean: float, error: float | None) -> str:
    return f"{100 * mean:.1f} %" if error is None else f"{100 * mean:.1f} ± {100 * error:.1f} %"


def _points(mean: float, error: float | None) -> str:
    value = f"{100 * mean:+.1f}".replace("-", "−")
    return f"{value} points" if error is None else f"{value} ± {100 * error:.1f} points"
