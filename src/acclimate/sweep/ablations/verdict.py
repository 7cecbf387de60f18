"""What came out of an ablation, with errors, in words that claim nothing beyond noise."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from acclimate.core.wording import count
from acclimate.results.observations import by_method, observations, planned_frames, without_rows
from acclimate.results.protocol import Sweep
from acclimate.results.runs import sweep_runs
from acclimate.results.statistics import ENOUGH_SEEDS, Estimate, in_percent, in_points

USUAL = ("none", "embedding")
CONTROL = "wrong-embedding"


@dataclass(frozen=True)
class Level:
    """Mean accuracy on unseen domains of one algorithm at one value, trial by trial."""

    algorithm: str
    variant: str
    method: str
    by_trial: Mapping[int, float]

    @property
    def estimate(self) -> Estimate:
        found = Estimate.of(self.by_trial.values())
        assert found is not None  # a level has a trial
        return found


def levels(folder: Path, sweep: Sweep) -> list[Level]:
    """Of the finished runs, in the order of the jobs. A trial counts once it has every group."""
    runs = sweep_runs(folder, sweep)
    frames = planned_frames(sweep, without_rows(runs))
    scored = observations(runs)
    data = {one.key: one.dataset for one in scored}  # a variant has one data set
    found = []
    for key, scores in by_method(scored).items():
        averages = frames[data[key]].averages(scores)
        trials = {trial: mean for (_, trial), mean in averages.items()}
        if trials:
            found.append(Level(key.algorithm, key.variant, key.method, trials))
    return found


def level_table(
    found: Sequence[Level], variants: Iterable[str]
) -> tuple[list[str], list[list[str]]]:
    """The columns' names, then a row per variant: a column per algorithm and use, in percent."""
    columns = list(dict.fromkeys((one.algorithm, one.method) for one in found))
    known = {(one.variant, one.algorithm, one.method): one.estimate for one in found}
    heads = [name if use in USUAL else f"{name}, {use}" for name, use in columns]
    return heads, [
        [value, *(in_percent(known.get((value, *column))) for column in columns)]
        for value in variants
    ]


def gap(one: Level, other: Level) -> Estimate | None:
    """One level less another, paired by trial; `None` where they have no trial in common."""
    both = sorted(set(one.by_trial) & set(other.by_trial))
    return Estimate.of(one.by_trial[trial] - other.by_trial[trial] for trial in both)


def verdict(found: Sequence[Level], baseline: str) -> list[str]:
    """The best value of each algorithm, and how algorithms differ, a sentence each."""
    usual = [level for level in found if level.method in USUAL]
    said = [
        _best([level for level in usual if level.algorithm == name])
        for name in dict.fromkeys(level.algorithm for level in usual)
    ]
    said += _against(usual, baseline)
    said += _controls(found)
    fewest = min((len(level.by_trial) for level in usual), default=ENOUGH_SEEDS)
    if fewest < ENOUGH_SEEDS:
        trials = "one trial" if fewest == 1 else count(fewest, "trial")
        said.append(
            f"With {trials} nothing can be said about noise; use --trials {ENOUGH_SEEDS} or more."
        )
    return [sentence for sentence in said if sentence]


def _best(own: Sequence[Level]) -> str:
    """The best value, the values that noise does not tell from it, and the worst."""
    if len(own) < 2:
        return ""
    best, worst = max(own, key=_mean), min(own, key=_mean)
    gaps = {one.variant: gap(best, one) for one in own if one is not best}
    near = [label for label, found in gaps.items() if found is None or not found.clear]
    text = f"{best.algorithm}: best at {best.variant} ({in_percent(best.estimate)} %)"
    if len(best.by_trial) < ENOUGH_SEEDS:
        return text + "."
    if len(near) == len(gaps):
        return f"{text}, but no value differs from it by more than noise."
    if near:
        text += f", with {', '.join(near)} within noise of it"
    lost = gap(worst, best)
    if lost is not None and lost.clear:
        text += f"; worst at {worst.variant}, {in_points(lost)} points"
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
                parts.append(_at(level.variant, found))
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
            parts[one.algorithm].append(_at(one.variant, lost))
    return [
        f"{name} with another domain's embedding (random): {', '.join(texts)}."
        for name, texts in parts.items()
    ]


def _at(variant: str, found: Estimate) -> str:
    noise = " (within noise)" if found.verdict == "noise" else ""
    return f"{in_points(found)} points at {variant}{noise}"


def _mean(one: Level) -> float:
    return one.estimate.mean
