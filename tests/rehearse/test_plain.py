"""Which plain head is used: the network, unless a regression is better beyond noise."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from acclimate.learn.models import Predictor
from acclimate.learn.models.predictors import LinearHead, identity_backbone
from acclimate.learn.site import Features
from acclimate.records.rehearsal import NETWORK
from acclimate.rehearse.conclusion import Trial
from acclimate.rehearse.plain import STRENGTHS, accuracies, choose_head, fit_regressions

ONE, TWO = STRENGTHS


def trials(network: list[float], **others: list[float]) -> list[Trial]:
    named = {"none": network, ONE: others.get("one", network), TWO: others.get("two", network)}
    return [
        Trial(
            domain=str(place), chain=name, n=0, frequencies="as they are", accuracy=own, scored=1000
        )
        for name, every in named.items()
        for place, own in enumerate(every)
    ]


@pytest.mark.parametrize(
    ("network", "one", "expected"),
    [
        ([0.80, 0.70, 0.90], [0.82, 0.73, 0.91], ONE),  # +2 ± 0.6 points
        ([0.80, 0.70, 0.90], [0.86, 0.68, 0.90], NETWORK),  # +1.3 ± 2.4
        ([0.80, 0.70, 0.90], [0.78, 0.68, 0.88], NETWORK),
        ([0.80, 0.70], [0.90, 0.80], NETWORK),  # two domains cannot tell
    ],
)
def test_a_regression_must_be_better_beyond_noise(
    network: list[float], one: list[float], expected: str
) -> None:
    name, scores = choose_head(trials(network, one=one))
    assert name == expected
    by_name = {score.chain: score for score in scores}
    assert by_name[ONE].gain == pytest.approx(np.subtract(one, network).mean())


def test_of_two_that_are_better_the_best_is_used() -> None:
    plain = [0.80, 0.70, 0.90]
    better, best = [v + 0.02 for v in plain], [v + 0.04 for v in plain]
    assert choose_head(trials(plain, one=better, two=best))[0] == TWO


def some_features() -> Features:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    x = rng.normal(size=(120, 5)) * [1, 2, 3, 4, 100] + 4 * np.eye(3, 5)[y]
    domains = [np.arange(0, 60), np.arange(60, 120)]
    return Features(torch.from_numpy(x).float(), torch.from_numpy(y), domains, 3)


def test_regressions_are_of_features_as_they_are() -> None:
    """C is about features as they come, whatever they are divided by."""
    rows = some_features()
    heads = fit_regressions(rows.among([0]))
    again = fit_regressions(replace(rows.among([0]), x=rows.x + 7))
    for name in STRENGTHS:
        moved = again[name](rows.x + 7).logits.softmax(1)
        torch.testing.assert_close(heads[name](rows.x).logits.softmax(1), moved, atol=1e-3, rtol=0)
    assert heads[TWO].last.weight.square().sum() < heads[ONE].last.weight.square().sum()


def test_heads_are_scored_on_the_rows_of_each_domain() -> None:
    rows = some_features()
    first = LinearHead(5, 3)
    with torch.no_grad():
        first.last.weight.zero_()
        first.last.bias.copy_(torch.tensor([0.0, 1.0, 0.0]))
    head = Predictor(identity_backbone(5), first)
    (trial,) = accuracies({NETWORK: head}, rows, {"second": rows.domains[1]})
    share = float((rows.y[60:] == 1).double().mean())
    assert (trial.domain, trial.chain, trial.accuracy) == ("second", "none", pytest.approx(share))
    assert trial.scored == 60
