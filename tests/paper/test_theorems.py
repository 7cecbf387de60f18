"""Theorems 1 and 2: by hand, at the edge of validity, and against chance."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.core.errors import ConfigError, RunError
from acclimate.learn.consistency import mean_radius
from acclimate.paper.theorems import best_split, images_needed, risk_terms
from acclimate.records.folder import write_checksums
from fixtures.command_line import command
from fixtures.errors import refused


def test_no_spread_needs_one_image() -> None:
    assert images_needed(1e-3, 0.0, 0.0) == 1


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda: images_needed(0.1, 1.0, 1.0, delta=0.0), ("delta", "0.0")),
        (lambda: images_needed(0.0, 1.0, 1.0), ("radius", "0.0")),
        (lambda: risk_terms(0, 10), ("N=0", "n=10")),
        (lambda: risk_terms(3, 0), ("N=3", "n=0")),
        (lambda: risk_terms(3, 3, variance=-1), ("-1, 0.05 and 1.0",)),
        (lambda: risk_terms(3, 3, delta=1), ("1.0, 1 and 1.0",)),
        (lambda: risk_terms(3, 3, holder=2), ("1.0, 0.05 and 2",)),
        (lambda: best_split(0, ratio=1), ("budget", 0, 1)),
        (lambda: best_split(10, delta=0.5), ("1/e", 0.5)),
    ],
)
def test_arguments_that_mean_nothing(call: Callable[[], object], facts: tuple[object, ...]) -> None:
    with refused(ValueError, *facts):
        call()


def test_images_needed_by_hand() -> None:
    delta = math.exp(-1)
    # 8 · 2 · 5/4 = 20: 20 / n ≤ 1/4 from n = 80 on, and validity, 20 / n < 4/9, from n = 46 on.
    assert images_needed(0.5 + 1e-9, 2.0, 3.0, delta=delta) == 80
    # A generous radius: validity decides.
    assert images_needed(100.0, 2.0, 3.0, delta=delta) == 46


@settings(max_examples=300)
@given(
    radius=st.floats(1e-3, 1e2),
    bound=st.floats(1e-2, 1e2),
    share=st.floats(1e-3, 1.0),
    delta=st.sampled_from([0.01, 0.05, 0.1, 0.5, math.exp(-1)]),
)
def test_images_needed_is_the_least(
    radius: float, bound: float, share: float, delta: float
) -> None:
    variance = share * bound**2  # σ² is at most B²

    def works(n: int) -> bool:
        found = mean_radius(n, variance, bound, delta=delta)
        return found is not None and found <= radius

    n = images_needed(radius, variance, bound, delta=delta)
    assert works(n)
    assert n == 1 or not works(n - 1)


def on_sphere(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    points = rng.normal(size=shape)
    scaled: np.ndarray = points / np.linalg.norm(points, axis=-1, keepdims=True)
    return scaled


def in_cube(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(-1, 1, shape)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Each coordinate 0.8 with probability 1/5, else −0.2."""
    return np.where(rng.random(shape) < 0.2, 0.8, -0.2)


def heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """±1 with probability 1/20 each, else 0: most of the variance in few samples."""
    return rng.choice([-1.0, 0.0, 1.0], size=shape, p=[0.05, 0.9, 0.05])


@pytest.mark.parametrize("dim", [1, 2, 10, 40])
@pytest.mark.parametrize(
    ("draw", "variance", "bound"),
    [
        (on_sphere, lambda d: 1.0, lambda d: 1.0),
        (in_cube, lambda d: d / 3, lambda d: math.sqrt(d)),
        (skewed, lambda d: 0.16 * d, lambda d: 0.8 * math.sqrt(d)),
        (heavy, lambda d: 0.1 * d, lambda d: math.sqrt(d)),
    ],
)
def test_the_theorem_holds(draw, variance, bound, dim) -> None:  # type: ignore[no-untyped-def]
    """All have mean 0, and the given σ² and B are exact. 500 trials for each delta."""
    rng = np.random.default_rng(dim)
    for delta in (0.5, 0.05):
        n = images_needed(1e9, variance(dim), bound(dim), delta=delta)
        radius = mean_radius(n, variance(dim), bound(dim), delta=delta)
        assert radius is not None
        errors = np.linalg.norm(draw(rng, (500, n, dim)).mean(1), axis=1)
        assert np.mean(errors < radius) >= 1 - delta
        # Not by being absurdly wide: the typical error is a tenth of the radius and more.
        assert np.median(errors) > radius / 12


def test_theorem_2_by_hand() -> None:
    # N = 20 and δ = 1/20: log(N/δ) = log 400 = 5.9914645471, log(1/δ) = log 20 = 2.9957322736.
    terms = risk_terms(20, 100, variance=4.0, delta=0.05)
    assert terms.of_points == pytest.approx(math.sqrt(4 * 5.9914645471 / 100), rel=1e-10)
    assert terms.of_domains == pytest.approx(math.sqrt(2.9957322736 / 20), rel=1e-10)
    assert terms.weighted(3.0) == 3 * terms.of_points + terms.of_domains
    # A Hölder exponent of ½ takes one more square root of the first term alone.
    rough = risk_terms(20, 100, variance=4.0, delta=0.05, holder=0.5)
    assert rough.of_points == pytest.approx(math.sqrt(terms.of_points))
    assert rough.of_domains == terms.of_domains


@settings(max_examples=150)
@given(
    total=st.integers(1, 400),
    ratio=st.floats(1e-3, 1e2),
    variance=st.floats(1e-2, 1e2),
    delta=st.floats(1e-6, math.exp(-1)),
    holder=st.floats(0.1, 1.0),
)
def test_the_best_split_is_the_best(
    total: int, ratio: float, variance: float, delta: float, holder: float
) -> None:
    rest = {"variance": variance, "delta": delta, "holder": holder}
    sums = [risk_terms(n, total / n, **rest).weighted(ratio) for n in range(1, total + 1)]
    best = best_split(total, ratio=ratio, **rest)
    assert sums[best - 1] == pytest.approx(min(sums), rel=1e-12)


def test_the_best_split_lies_inside() -> None:
    """Figure 4C's dip: too few domains and too few points are both worse."""
    best = best_split(100_000, variance=1.0)
    assert 50 < best < 1000

    def at(domains: int) -> float:
        return risk_terms(domains, 100_000 / domains).weighted(1.0)

    assert at(best) < min(at(1), at(best // 4), at(best * 4), at(100_000))
    # The more the points' term counts, the fewer domains.
    assert best_split(100_000, ratio=10.0) < best < best_split(100_000, ratio=0.1)
    assert best_split(100_000, ratio=0.0) == 100_000


def theory(*arguments: object) -> str:
    """What the command says, in one line."""
    return " ".join(command("theory", *arguments).split())


MEASURED: dict[str, Any] = {
    "points": [
        {"n": 10, "error": 0.3, "error95": 0.5, "radius": None},
        {"n": 100, "error": 0.1, "error95": 0.15, "radius": 0.5},
    ],
    "domains": [
        {"domain": "north", "n": 200, "variance": 1.0, "bound": 1.2},
        {"domain": "south", "n": 100, "variance": 0.5, "bound": 1.0},
    ],
    "between": 2.0,
    "within": 0.25,
}


def a_run(folder: Path, *, algorithm: str = "da-erm", measured: object = MEASURED) -> Path:
    folder.mkdir()
    identity = {"config": {"algorithm": algorithm, "model": {}}, "data": "", "train_domains": []}
    (folder / "run.json").write_text(json.dumps(identity))
    if measured is not None:
        text = measured if isinstance(measured, str) else json.dumps(measured)
        (folder / "consistency.json").write_text(text)
    write_checksums(folder)
    return folder


def test_the_command_by_hand(tmp_path: Path) -> None:
    """8 · σ² · (log 20 + ¼) is 25.96586 and 12.98293 for the two domains."""
    said = json.loads(theory(a_run(tmp_path / "run"), "--json"))
    north, south = said["domains"]
    assert north["radius"] == pytest.approx(math.sqrt(25.9658582 / 200))
    assert south["radius"] == pytest.approx(math.sqrt(12.9829291 / 100))
    assert said["wanted_radius"] == 1.0  # half of the distance between domains
    assert (north["images"], south["images"]) == (38, 52)  # validity decides: 1.2² and 1/0.5²
    assert said["valid_from"] == 52
    # At 10 images the theorem is silent; at 100 the wider domain's radius holds for both.
    assert [p["radius"] for p in said["points"]] == [None, pytest.approx(math.sqrt(0.259658582))]
    assert said["theorem_2"] == []


def test_the_command_in_words(tmp_path: Path) -> None:
    text = theory(a_run(tmp_path / "run"), "--radius", 0.2, "--budget", 1000)
    assert (
        "With 100 images μ is within 0.51 of the true one in 95 % of cases (Theorem 1); "
        "measured, it is 0.1 away on average. Training domains lie 2 apart."
    ) in text
    assert (
        "Two halves of one domain lie 0.25 apart, a ratio of 8: they differ by more than the "
        "choice of images does."
    ) in text
    assert (
        "For a radius of 0.2 in each of them, Theorem 1 asks for 650 images; measured, 100 images "
        "were enough in 95 % of cases."
    ) in text
    assert text.count("smallest") == 2  # the row, and the sentence below


def test_distances_are_those_of_adapt(tmp_path: Path) -> None:
    """μ of 16 dimensions: `adapt` divides by 4. Numbers of images do not change with the unit."""
    from safetensors.numpy import save_file

    run = a_run(tmp_path / "run")
    save_file({"mu": np.zeros((2, 16), np.float32)}, run / "domains.safetensors")
    write_checksums(run, finished=True)
    text = theory(run, "--radius", 0.05)
    assert (
        "Training domains lie 0.5 apart; distances are those of `adapt`, divided by 4, the root of "
        "μ's dimensions."
    ) in text
    assert (
        "For a radius of 0.05 in each of them, Theorem 1 asks for 650 images; measured, 100 images "
        "were enough in 95 % of cases."
    ) in text
    text = theory(run, "--radius", 0.01)
    assert "100 images, the most measured, were not." in text
    said = json.loads(theory(run, "--json", "--budget", 1000))
    raw = json.loads(theory(a_run(tmp_path / "raw"), "--json", "--budget", 1000))
    assert said["wanted_radius"] == raw["wanted_radius"] / 4 and said["valid_from"] == 52
    for mine, theirs in zip(said["domains"], raw["domains"], strict=True):
        assert mine["images"] == theirs["images"] and mine["n"] == theirs["n"]
        assert mine["radius"] == pytest.approx(theirs["radius"] / 4)
    assert said["points"][0] == {"n": 10, "error": 0.075, "error95": 0.125, "radius": None}
    assert [row["sum"] for row in said["theorem_2"]] == pytest.approx(
        [row["sum"] for row in raw["theorem_2"]]
    )


def test_the_command_where_theorem_1_is_silent(tmp_path: Path) -> None:
    wide = [{**row, "bound": 9.0} for row in MEASURED["domains"]]
    text = theory(a_run(tmp_path / "run", measured={**MEASURED, "domains": wide}))
    assert (
        "With 100 images μ is 0.1 away from the true one on average; Theorem 1 says nothing "
        "below 4207 images."
    ) in text


def test_theorem_2_of_a_run(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    text = theory(run, "--domains", 20, "--points", 50, "--json")
    (row,) = json.loads(text)["theorem_2"]
    # The mean σ² of 0.75 in squared distances between domains, 4.
    assert row["of_points"] == pytest.approx(math.sqrt(0.75 / 4 * math.log(400) / 50))
    assert row["of_domains"] == pytest.approx(math.sqrt(math.log(20) / 20))
    text = theory(run, "--budget", 1000, "--json")
    said = json.loads(text)
    sums = {row["domains"]: row["sum"] for row in said["theorem_2"]}
    assert min(sums, key=sums.__getitem__) == said["best_domains"]
    assert {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000} <= set(sums)
    assert all(row["domains"] * row["points"] == pytest.approx(1000) for row in said["theorem_2"])


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (["--radius", 0], ("--radius", 0)),
        (["--delta", 1], ("--delta", 1)),
        (["--domains", 3], ("--domains", "--points", "--budget")),
        (["--budget", 0], ("--budget", 0)),
        (["--ratio", 0], ("--ratio", 0)),
        (["--budget", 9, "--delta", 0.5], ("--delta", 0.5, "--budget", 0.36)),
        (["--budget", 9, "--domains", 3, "--points", 3], ("--budget", "--domains", "--points")),
    ],
)
def test_nonsense_for_the_command(
    tmp_path: Path, flags: list[object], facts: tuple[object, ...]
) -> None:
    with refused(ConfigError, *facts):
        theory(a_run(tmp_path / "run"), *flags)


def test_runs_that_have_nothing_to_say(tmp_path: Path) -> None:
    plain = a_run(tmp_path / "plain", algorithm="coral", measured=None)
    with refused(RunError, plain, "coral", "da-coral"):
        theory(plain)
    with refused(RunError, tmp_path / "nowhere", "acclimate train"):
        theory(tmp_path / "nowhere")
    unfinished = a_run(tmp_path / "unfinished", measured=None)
    with refused(RunError, unfinished, "consistency.json"):
        theory(unfinished)
    points, (first, *rest) = MEASURED["points"], MEASURED["domains"]
    hostile = (
        *({**first, "n": n} for n in (0, -1, 2.5, "a", None, 10**400)),
        *({**first, "variance": v} for v in (-1.0, math.nan, math.inf, "a", None)),
        *({**first, "bound": -1.0}, {**first, "domain": 7}, 7),
    )
    texts = [json.dumps({**MEASURED, "domains": [row, *rest]}) for row in hostile]
    texts += [
        json.dumps({**MEASURED, "points": [{**points[0], **point}]})
        for point in ({"n": 0}, {"error": "a"}, {"error95": []}, {"error95": math.nan})
    ]
    texts += [json.dumps({**MEASURED, "between": value}) for value in ("a", -1.0, math.inf)]
    texts += ["{", "[]", '{"domains": [], "points": []}']
    for number, text in enumerate(texts):
        damaged = a_run(tmp_path / f"damaged-{number}", measured=text)
        with refused(RunError, damaged / "consistency.json", "is damaged"):
            theory(damaged)
