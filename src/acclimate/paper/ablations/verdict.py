"""What came out of an ablation, with errors, in words that claim nothing beyond noise."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from acclimate.core.text import count
from acclimate.results.comparison import (
    by_method,
    complete_trials,
    expected_of_sweep,
    mean_over,
    observations,
)
from acclimate.results.protocol import Sweep
from acclimate.results.runs import sweep_runs
from acclimate.results.statistics import (
    CONFIDENCE,
    ENOUGH_SEEDS,
    Estimate,
    difference_p,
    holm,
    in_percent,
    in_points,
)

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
    def key(self) -> tuple[str, str, str]:
        return self.algorithm, self.variant, self.method

    @property
    def estimate(self) -> Estimate:
        estimate = Estimate.of(self.by_trial.values())
        assert estimate is not None  # a level has a trial
        return estimate


def levels(folder: Path, sweep: Sweep) -> list[Level]:
    """Of the finished runs, in the order of the jobs. A trial counts once it has every group."""
    runs = sweep_runs(folder, sweep)
    expected, scored = expected_of_sweep(sweep, runs), observations(runs)
    data = {one.key: one.dataset for one in scored}  # a variant has one data set
    finished = []
    for key, scores in by_method(scored).items():
        whole = complete_trials(scores, [one for one in expected if one.dataset == data[key]])
        trials = {trial: mean_over(cells) for (_, trial), cells in whole.items()}
        if trials:
            finished.append(Level(key.algorithm, key.variant, key.method, trials))
    return finished


def level_table(
    levels: Sequence[Level], variants: Iterable[str]
) -> tuple[list[str], list[list[str]]]:
    """The columns' names, then a row per variant: a column per algorithm and use, in percent."""
    columns = list(dict.fromkeys((one.algorithm, one.method) for one in levels))
    known = {(one.variant, one.algorithm, one.method): one.estimate for one in levels}
    heads = [name if use in USUAL else f"{name}, {use}" for name, use in columns]
    return heads, [
        [value, *(in_percent(known.get((value, *column))) for column in columns)]
        for value in variants
    ]


def gap(one: Level, other: Level) -> Estimate | None:
    """One level less another, paired by trial; `None` where they have no trial in common."""
    both = sorted(set(one.by_trial) & set(other.by_trial))
    return Estimate.of(one.by_trial[trial] - other.by_trial[trial] for trial in both)


def verdict(scores: Sequence[Level], baseline: str) -> list[str]:
    """The best value of each algorithm, and how algorithms differ, a sentence each."""
    usual = [level for level in scores if level.method in USUAL]
    against, controls = _against(usual, baseline), _controls(scores)
    names = list(dict.fromkeys(level.algorithm for level in usual))
    by_algorithm = {name: [level for level in usual if level.algorithm == name] for name in names}
    clear = _beyond_noise(
        [
            # The best value is found by looking: every two values were in the running.
            *(pair for levels in by_algorithm.values() for pair in combinations(levels, 2)),
            *against,
            *controls,
        ]
    )
    sentences = [_best(by_algorithm[name], clear) for name in names]
    sentences += _sentences(against, clear, "{} against " + baseline)
    sentences += _sentences(controls, clear, "{} with another domain's embedding (random)")
    fewest = min((len(level.by_trial) for level in usual), default=ENOUGH_SEEDS)
    if fewest < ENOUGH_SEEDS:
        trials = "one trial" if fewest == 1 else count(fewest, "trial")
        sentences.append(
            f"With {trials} nothing can be said about noise; use --trials {ENOUGH_SEEDS} or more."
        )
    return [sentence for sentence in sentences if sentence]


Clear = Callable[[Level, Level], bool]  # does noise tell two levels apart?


def _beyond_noise(pairs: Sequence[tuple[Level, Level]]) -> Clear:
    """By Holm's correction over all that the ablation compares: tested one by one at 95 %, of
    twenty gaps that are none one would be called a finding."""
    ps = {}
    for one, other in pairs:
        difference = gap(one, other)
        p = None if difference is None else difference_p(difference)
        if p is not None:
            ps[frozenset((one.key, other.key))] = p
    fixed = dict(zip(ps, holm(list(ps.values())), strict=True))
    return lambda one, other: fixed.get(frozenset((one.key, other.key)), 1.0) < 1 - CONFIDENCE


def _best(levels: Sequence[Level], clear: Clear) -> str:
    """The best value, the values that noise does not tell from it, and the worst."""
    if len(levels) < 2:
        return ""
    best, worst = max(levels, key=_mean), min(levels, key=_mean)
    near = [one.variant for one in levels if one is not best and not clear(best, one)]
    text = f"{best.algorithm}: best at {best.variant} ({in_percent(best.estimate)} %)"
    if len(best.by_trial) < ENOUGH_SEEDS:
        return text + "."
    if len(near) == len(levels) - 1:
        return f"{text}, but no value differs from it by more than noise."
    if near:
        text += f", with {', '.join(near)} within noise of it"
    if clear(worst, best):
        text += f"; worst at {worst.variant}, {in_points(gap(worst, best))} points"
    return text + "."


def _against(usual: Sequence[Level], baseline: str) -> list[tuple[Level, Level]]:
    """Each algorithm and the baseline, at the same value or against its only one."""
    base = {level.variant: level for level in usual if level.algorithm == baseline}
    only = next(iter(base.values())) if len(base) == 1 else None
    pairs = [(level, base.get(level.variant) or only) for level in usual]
    return [(one, other) for one, other in pairs if other and one.algorithm != baseline]


def _controls(levels: Sequence[Level]) -> list[tuple[Level, Level]]:
    """Another domain's embedding (the paper's "random") and a domain's own at the same value."""
    usual = {(one.algorithm, one.variant): one for one in levels if one.method == "embedding"}
    wrong = [one for one in levels if one.method == CONTROL]
    return [
        (one, usual[one.algorithm, one.variant])
        for one in wrong
        if (one.algorithm, one.variant) in usual
    ]


def _sentences(pairs: Sequence[tuple[Level, Level]], clear: Clear, words: str) -> list[str]:
    """One for each algorithm: the gap at each value, and whether it is more than noise."""
    parts: dict[str, list[str]] = defaultdict(list)
    for one, other in pairs:
        difference = gap(one, other)
        if difference is not None:
            certain = difference.n < ENOUGH_SEEDS or clear(one, other)
            noise = "" if certain else " (within noise)"
            parts[one.algorithm].append(f"{in_points(difference)} points at {one.variant}{noise}")
    return [f"{words.format(name)}: {', '.join(texts)}." for name, texts in parts.items()]


def _mean(one: Level) -> float:
    return one.estimate.mean
