"""Bets and what they come to, by hand and by enumeration of all that can happen."""

from itertools import permutations, product

import numpy as np
import pytest

from acclimate.watch.evidence import HALF_LIVES, PATIENCE, Ranked, Rare, p_value


def test_a_p_value_by_hand() -> None:
    """Earlier images: two at level 0, one at 1, one at 2. Of five with the new one at level 1, one
    is above and two are level with it, of which half count."""
    counts = np.array([2.0, 1.0, 1.0])
    assert p_value(counts, np.array([1]), np.array(0.5)) == pytest.approx((1 + 0.5 * 2) / 5)


def test_p_values_are_independent_and_uniform() -> None:
    """Of a sample of one image and four more, in any order, with ties broken at a quarter and three
    quarters: above or below one half, all 16 patterns are equally frequent."""
    patterns: dict[tuple[bool, ...], int] = {}
    for order in permutations(range(5)):
        for ties in product((0.25, 0.75), repeat=4):
            counts, below = np.bincount([order[0]], minlength=5).astype(float), []
            for level, tie in zip(order[1:], ties, strict=True):
                below.append(bool(p_value(counts, np.array([level]), np.array(tie)) < 0.5))
                counts[level] += 1
            patterns[tuple(below)] = patterns.get(tuple(below), 0) + 1
    assert sorted(patterns.values()) == [120] * 16


def test_bets_on_ranks_by_hand() -> None:
    """With two bins: nothing seen pays 1. A second p value in the same bin pays 2 · (1 + 1)/(2 + 1)
    = 4/3, and then one in the other 2 · 1/(2 + what is left of two)."""
    start = Ranked.start(np.array([1.0, 0.0, 0.0]), bins=2)
    # Levels 1, 2 are the highest so far, and 0 with the tie 0.999 the lowest.
    after, path = start.after(np.array([1, 2, 0]), np.array([0.5, 0.5, 0.999]))
    left = 1 + 0.5 ** (1 / HALF_LIVES)
    one, two = 1.0, (1 + 1) * 4 / 3
    three = (two + 1) * 2 / (2 + left)
    assert path == pytest.approx([one, two, three.mean()])
    assert after.value == pytest.approx(three.mean())
    assert after.counts.tolist() == [2, 1, 1]


def test_bets_on_rare_things_by_hand() -> None:
    """Usually a quarter: bettors bet on 1/2, 5/8 and 5/8, for 2 and 2.5 times as much if it
    happens, and 2/3 and 1/2 as much if not."""
    after, path = Rare.start(0.25).after(np.array([True, False]))
    assert path == pytest.approx([7 / 3, (3 * 2 / 3 + 3.5 / 2 + 3.5 / 2) / 3])
    assert after.value == path[-1]


@pytest.mark.parametrize("threshold", [3.0, 6.0])
def test_false_alarms_are_as_rare_as_promised_by_enumeration(threshold: float) -> None:
    """Of eight images, each poor with the usual probability 1/4: 8/h false alarms at most, where
    the evidence goes back to 0 after each."""
    expected, ever = 0.0, 0.0
    for happened in product((False, True), repeat=8):
        probability = 0.25 ** sum(happened) * 0.75 ** (8 - sum(happened))
        rare, alarms = Rare.start(0.25), 0
        for one in happened:
            rare, _ = rare.after(np.array([one]))
            if rare.value >= threshold:
                rare, alarms = Rare.start(0.25), alarms + 1
        expected, ever = expected + probability * alarms, ever + probability * (alarms > 0)
    assert 0 < ever <= expected <= 8 / threshold


def test_false_alarms_on_ranks_are_as_rare_as_promised() -> None:
    """Of 1,000 sites with 20 images each to begin with and 300 more, one in ten at most alarms at
    3,000."""
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 12, (1000, 320))
    counts = (levels[:, :20, None] == np.arange(12)).sum(1)
    _, path = Ranked.start(counts).after(levels[:, 20:], rng.random((1000, 300)))
    assert 0 < (path >= 3000).any(1).mean() <= 0.1


def test_a_site_year_is_52_looks_of_100_images() -> None:
    assert PATIENCE == 20 * 52 * 100


def test_however_images_are_parted_the_evidence_is_one() -> None:
    rng = np.random.default_rng(0)
    levels, ties = rng.integers(0, 5, 60), rng.random(60)
    once, path = Ranked.start(np.ones(5)).after(levels, ties)
    parts, values = Ranked.start(np.ones(5)), []
    for start in range(0, 60, 7):
        parts, own = parts.after(levels[start : start + 7], ties[start : start + 7])
        values.extend(own)
    assert values == path.tolist()
    assert parts.seen.tolist() == once.seen.tolist()


def test_what_changes_is_noticed_by_some_bettor() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.integers(0, 10, 500), rng.integers(5, 10, 200)
    start = Ranked.start(np.bincount(before[:250], minlength=10))
    _, path = start.after(np.concatenate([before[250:], after]), rng.random(450))
    assert path[:250].max() < 4 * PATIENCE < path[350]
