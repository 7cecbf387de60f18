"""SWAD: the window by hand and by the paper's algorithm, the mean over it, and runs that use it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acclimate.cli.output import show_run
from acclimate.config import AverageConfig, OptimiserConfig, RunConfig
from acclimate.data.manifest import Manifest
from acclimate.learn.objective import Objective
from acclimate.records.folder import RunFolder
from acclimate.records.records import Validated
from acclimate.rehearse.training import train
from acclimate.runs.averages import Swad, Valley, find_valley
from acclimate.runs.loop import Loop, Phase, Position
from fixtures.interruption import Killed, stable, weights
from fixtures.loops import assert_same_state, make_erm, make_loop, state_of

Tiny = Callable[..., RunConfig]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([], None),
        ([1.0, 0.9], None),
        ([1.0, 0.9, 0.8, 0.7], None),  # still falling
        ([1.0, 0.9, 0.8, 0.9, 0.8], Valley(2, 4, open=True)),  # of equals the first
        # From 0.8 on; the limit is 1.5 * (0.8 + 0.9 + 1.0) / 3 = 1.35.
        ([1.0, 0.8, 0.9, 1.0, 1.4], Valley(1, 3, open=True)),
        ([1.0, 0.8, 0.9, 1.0, 1.4, 1.3], Valley(1, 5, open=True)),
        ([1.0, 0.8, 0.9, 1.0, 1.4, 1.3, 1.36, 2.0, 3.0], Valley(1, 5, open=True)),
        ([1.0, 0.8, 0.9, 1.0, 1.4, 1.3, 1.36, 2.0, 3.0, 1.4], Valley(1, 5, open=False)),
        # It is over for good: a lower loss comes too late.
        ([1.0, 0.8, 0.9, 1.0, 2.0, 2.0, 2.0, 2.0, 0.1, 0.1], Valley(1, 3, open=False)),
    ],
)
def test_the_valley_by_hand(losses: list[float], expected: Valley | None) -> None:
    assert find_valley(losses, AverageConfig(patience=3, tolerance=4, ratio=1.5)) == expected


def test_what_is_above_the_limit_in_the_beginning_counts() -> None:
    """The limit is their mean, 3: the last two are above it already."""
    assert find_valley([1, 2, 4, 5], AverageConfig(patience=4, tolerance=3, ratio=1.0)) == Valley(
        0, 1, open=True
    )
    assert find_valley([1, 2, 4, 5, 6], AverageConfig(patience=4, tolerance=3, ratio=1.0)) == (
        Valley(0, 1, open=False)
    )


def algorithm_1(
    losses: Sequence[float], n_s: int, n_e: int, r: float
) -> tuple[int, int | None] | None:
    """Algorithm 1 of Cha et al. 2021 as it is printed, with iterations counted from 1."""
    e_val = dict(enumerate(losses, start=1))
    t_s, t_e, limit = 0, None, None
    for i in range(1, len(losses) + 1):
        if limit is None:
            if i >= n_s and e_val[i - n_s + 1] == min(e_val[i - j] for j in range(n_s)):
                t_s = i - n_s + 1
                limit = r / n_s * sum(e_val[i - j] for j in range(n_s))
        elif i >= n_e and limit < min(e_val[i - j] for j in range(n_e)):
            t_e = i - n_e
            break
    return None if limit is None else (t_s, t_e)


def test_the_valley_is_that_of_the_paper_s_algorithm() -> None:
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(2000):
        n_s = int(rng.integers(1, 5))
        n_e, r = int(rng.integers(n_s, 7)), 1 + 0.4 * float(rng.random())
        along = np.linspace(1, rng.uniform(0.3, 3), int(rng.integers(1, 25)))
        losses = (along * rng.uniform(0.6, 1.4, len(along))).tolist()
        valley = find_valley(losses, AverageConfig(patience=n_s, tolerance=n_e, ratio=r))
        expected = algorithm_1(losses, n_s, n_e, r)
        assert (valley is None) == (expected is None)
        if valley is not None and expected is not None:
            assert (valley.first + 1, None if valley.open else valley.last + 1) == expected
        outcomes.add("none" if valley is None else valley.open)
    assert outcomes == {"none", True, False}


STEPS, EVERY = 20, 2
SWAD = AverageConfig(kind="swad", patience=3, tolerance=2, ratio=1.1)
# The validations are after steps 2, 4, ...; which steps the mean is over.
CURVES: dict[str, tuple[list[float], tuple[int, int] | None]] = {
    "closed": ([5, 4, 2, 2.1, 2.1, 2.4, 2.2, 2.4, 2.4, 1], (5, 14)),
    "open to the end": ([5, 4, 2, 2.1, 2.1, 2.4, 2.2, 2.4, 2.2, 2.4], (5, 20)),
    "from the first step": ([2, 3, 2.4, 2.6, 2.5, 2.6, 2.5, 2.6, 2.8, 2.9], (1, 16)),
    "begins with the last validations": ([9, 8, 7, 6, 5, 4, 3, 2, 2, 2], (15, 20)),
    "falls throughout": ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0.5], None),
}


def swad_loop(folder: Path, curve: str, objective: Objective, **more: Any) -> Loop:
    losses = CURVES[curve][0]

    def validate(step: int) -> Validated:
        return Validated([], step / 100 if step <= 6 else 0.0, losses[(step - 1) // EVERY])

    phase = Phase("main", STEPS, OptimiserConfig(name="sgd", lr=0.1), 3, EVERY, "best", SWAD)
    return make_loop(folder, objective, phase, validate=validate, **more)


@pytest.mark.parametrize("curve", CURVES)
def test_the_mean_is_over_every_step_of_the_window(curve: str, tmp_path: Path) -> None:
    objective, path, held = make_erm(), [], []

    def watch(phase: str, done: int, total: int, note: str) -> None:
        path.append(state_of(objective))
        assert isinstance(training._average, Swad)
        held.append(len(training._average.stretches))

    training = swad_loop(tmp_path / "run", curve, objective, watch=watch)
    end = training.run()
    window = CURVES[curve][1]
    if window is None:  # the best is kept, as without SWAD
        assert end == Position(STEPS, 6, 0.06)
        window = 6, 6
    else:
        assert end == Position(STEPS, window[1], 0.0, window)
    for name, value in state_of(objective).items():
        inside = [weights[name].double() for weights in path[window[0] - 1 : window[1]]]
        mean = torch.stack(inside).mean(0)
        torch.testing.assert_close(value.double(), mean, rtol=0, atol=1e-6)
    assert max(held) <= 2, "few copies of the weights are held"


@pytest.mark.parametrize("curve", ["closed", "open to the end", "falls throughout"])
@pytest.mark.parametrize("stop_at", [4, 11, 17, 20])
def test_it_resumes_bit_by_bit(curve: str, stop_at: int, tmp_path: Path) -> None:
    def stop(phase: str, done: int, total: int, note: str) -> None:
        if done == stop_at:
            raise Killed

    whole, resumed = make_erm(), make_erm()
    end = swad_loop(tmp_path / "whole", curve, whole).run()
    with pytest.raises(Killed):
        swad_loop(tmp_path / "resumed", curve, make_erm(), watch=stop).run()
    assert swad_loop(tmp_path / "resumed", curve, resumed).run() == end
    assert_same_state(whole, resumed)


SWAD_RUN = {
    "train.steps": 12,
    "train.evaluate_every": 1,
    "train.average.kind": "swad",
    "train.average.patience": 2,
    "train.optimiser.lr": 0.3,
}


def test_a_run_is_the_one_without_but_for_the_weights_it_keeps(
    features: Manifest, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, swad = tmp_path / "plain", tmp_path / "swad"
    unseen = {"test_domains": ["site-4"]}
    train(tiny("erm", **unseen, **{**SWAD_RUN, "train.average.kind": "none"}), features, plain)
    train(tiny("erm", **unseen, **SWAD_RUN), features, swad)
    during = [
        [one for one in stable(run) if getattr(one, "moment", "validation") == "validation"]
        for run in (plain, swad)
    ]
    assert during[0] == during[1]
    assert any(not torch.equal(one, weights(swad)[name]) for name, one in weights(plain).items())
    records = RunFolder(swad).records()
    finished = records.finished
    assert finished is not None and finished.kept_from is not None
    assert finished.kept_from < finished.kept_step and finished.kept_by == "validation splits"
    averaged = [score for score in records.scores if score.moment == "averaged"]
    final = {s.domain: s.top1 for s in records.scores if s.moment == "final" and s.split == "val"}
    assert {score.domain: score.top1 for score in averaged} == final
    assert {score.step for score in averaged} == {finished.kept_step}
    assert finished.kept_score == pytest.approx(np.mean(list(final.values())))
    show_run(swad, already=False, json=False)
    said = capsys.readouterr().out
    assert f"kept step: {finished.kept_step}\n" in said
    assert f"kept from: {finished.kept_from}\n" in said
