"""How far μ from few images lies from μ of all, against loops, hand-made cases and Theorem 1."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from acclimate.config import RunConfig
from acclimate.core.distributed import World
from acclimate.core.randomness import stream
from acclimate.data.manifest import Manifest
from acclimate.learn.consistency import choose_domains, mean_radius, measure
from acclimate.learn.embeddings import state
from acclimate.learn.embeddings.state import Sample
from acclimate.learn.model import Trained
from acclimate.rehearse.training import train
from fixtures.errors import refused
from fixtures.processes import train_with
from fixtures.settings import TINY, as_flags

Tiny = Callable[..., RunConfig]


def clouds(sizes: dict[str, int], dim: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(i, 1 + i, (n, dim)) for i, (name, n) in enumerate(sizes.items())}


def test_against_a_loop_over_the_drawn_points() -> None:
    phi = clouds({"a": 120, "b": 37})
    found = measure(phi, seed=3)
    assert [point["n"] for point in found["points"]] == [1, 2, 5, 10, 20, 50, 100]
    for point in found["points"]:
        errors = {}
        for name, rows in phi.items():
            drawn = stream(3, "consistency", name, point["n"]).integers(
                len(rows), size=(200, point["n"])
            )
            errors[name] = [math.dist(rows[d].mean(0), rows.mean(0)) for d in drawn]
        assert point["error"] == pytest.approx(np.mean([np.mean(e) for e in errors.values()]))
        assert point["error95"] == pytest.approx(max(np.quantile(e, 0.95) for e in errors.values()))


def test_spreads_and_distances_between_domains() -> None:
    phi = clouds({"a": 120, "b": 37, "c": 9})
    found = measure(phi, seed=0)
    assert [(d["domain"], d["n"]) for d in found["domains"]] == [("a", 120), ("b", 37), ("c", 9)]
    for spread, rows in zip(found["domains"], phi.values(), strict=True):
        distances = np.linalg.norm(rows - rows.mean(0), axis=1)
        assert spread["variance"] == pytest.approx(np.mean(distances**2))
        assert spread["bound"] == pytest.approx(distances.max())
    assert found["between"] == pytest.approx(pdist([rows.mean(0) for rows in phi.values()]).mean())
    assert found["ratio"] == pytest.approx(found["between"] / found["within"])


def test_two_points_by_hand() -> None:
    """At −1 and 1 every mean is a coin's: |mean of 1| is 1, |mean of 2| is 0 or 1."""
    found = measure({"coin": np.array([[-1.0], [1.0]])}, seed=0)
    one, two = found["points"]
    assert (one["n"], one["error"], one["error95"], one["radius"]) == (1, 1.0, 1.0, None)
    assert two["n"] == 2
    assert two["error95"] == 1.0
    assert abs(two["error"] - 0.5) < 4 * 0.5 / math.sqrt(200)
    (spread,) = found["domains"]
    assert (spread["n"], spread["variance"], spread["bound"]) == (2, 1.0, 1.0)
    assert (found["between"], found["within"], found["ratio"]) == (None, 2.0, None)


def test_halves_are_disjoint() -> None:
    """Of five points one is left over."""
    rows = np.array([[0.0, 1.0], [5.0, 0.0], [15.0, 7.0], [20.0, 2.0], [99.0, 50.0]])
    found = measure({"plane": rows}, seed=0)
    rng = stream(0, "halves", "plane")
    order = [rng.permutation(5) for _ in range(20)]
    expected = [math.dist(rows[o[:2]].mean(0), rows[o[2:4]].mean(0)) for o in order]
    assert found["within"] == pytest.approx(np.mean(expected))


def test_float32_far_from_zero_costs_no_digits() -> None:
    rows = (1e6 + np.random.default_rng(0).normal(size=(1000, 3))).astype(np.float32)
    assert measure({"a": rows}, seed=0) == measure({"a": rows.astype(np.float64)}, seed=0)


def test_one_point_has_nothing_to_err_by() -> None:
    found = measure({"dot": np.array([[3.0, 4.0]])}, seed=0)
    (point,) = found["points"]
    assert (point["n"], point["error"], point["error95"], point["radius"]) == (1, 0.0, 0.0, 0.0)
    assert (found["between"], found["within"], found["ratio"]) == (None, None, None)
    nothing = {"points": [], "domains": [], "between": None, "within": None, "ratio": None}
    assert measure({}, seed=0) == measure({"none": np.empty((0, 2))}, seed=0) == nothing


def test_radius_by_hand() -> None:
    # 8 · 2 · (1 + 1/4) / 80 = 1/4
    assert mean_radius(80, 2.0, 3.0, delta=math.exp(-1)) == pytest.approx(0.5, rel=1e-15)
    # The default delta is 5 %, log 20 = 2.9957322736: 8 · 0.5 · 3.2457322736 / 1000
    radius = mean_radius(1000, 0.5, 1.0)
    assert radius is not None
    assert radius**2 == pytest.approx(0.0129829290944, rel=1e-10)


def test_the_theorem_is_silent_where_it_does_not_hold() -> None:
    # The radius of the first case, 1/2, must stay below σ²/B = 2/B.
    delta = math.exp(-1)
    assert mean_radius(80, 2.0, 3.99, delta=delta) is not None
    assert mean_radius(80, 2.0, 4.01, delta=delta) is None
    assert mean_radius(1, 1.0, 1.0) is None


def test_no_spread_no_radius() -> None:
    assert mean_radius(1, 0.0, 0.0) == 0.0


@pytest.mark.parametrize(("n", "delta"), [(0, 0.05), (5, 0.0), (5, 1.0)])
def test_a_radius_of_nothing_is_refused(n: int, delta: float) -> None:
    with refused(ValueError, f"n={n}", f"delta={delta}"):
        mean_radius(n, 1.0, 1.0, delta=delta)


def test_the_radius_is_one_for_every_domain() -> None:
    phi = clouds({"a": 1000, "b": 1000})
    found = measure(phi, seed=0)
    checked = 0
    for point in found["points"]:
        radii = [
            mean_radius(point["n"], d["variance"], d["bound"], delta=0.05) for d in found["domains"]
        ]
        if None in radii:
            assert point["radius"] is None
        else:
            assert point["radius"] == max(radii)
            assert point["error"] < point["error95"] <= point["radius"]
            checked += 1
    assert 0 < checked < len(found["points"])


def test_at_most_so_many_points_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST_POINTS", 7)
    rows = np.arange(100, 200)
    sample = Sample(rows, 0, "a")
    phi = torch.arange(100.0)[:, None]
    for start in range(0, 100, 30):
        sample(rows[start : start + 30], phi[start : start + 30])
    kept = sample.whole(1, World())
    assert kept.dtype == torch.float64
    assert kept.flatten().tolist() == (sample.rows - 100).tolist()
    assert len(kept) == 7
    assert kept.max() > 50  # not the first ones, which would be of one class
    assert Sample(rows, 0, "b").whole(3, World()).shape == (0, 3)
    # As they have always been, so that a run that is repeated says the same.
    assert Sample(rows, 3, "ä").rows.tolist() == [101, 130, 151, 154, 172, 181, 188]


def test_at_most_so_many_domains_are_measured() -> None:
    names = [f"site-{i:02d}" for i in range(40)]
    chosen = choose_domains(names, 0)
    assert len(chosen) == 8
    assert chosen <= set(names)
    assert chosen != choose_domains(names, 1)
    assert choose_domains(["a", "b"], 0) == {"a", "b"}
    # As they have always been, so that a run that is repeated says the same.
    assert chosen == {f"site-{i:02d}" for i in (6, 9, 15, 19, 21, 23, 28, 36)}


@pytest.mark.parametrize("standardise", [True, False])
def test_a_run_measures_what_its_predictor_sees(
    features: Manifest, tiny: Tiny, tmp_path: Path, standardise: bool
) -> None:
    config = tiny(test_domains=["site-4"], **{"embedding.standardise": standardise})
    train(config, features, tmp_path / "run")
    trained = Trained.load(tmp_path / "run")
    inputs = torch.from_numpy(features.features())
    with torch.no_grad():
        phi = {
            name: trained.embedding.phi(inputs[features.rows(domain=name, split="train")]).numpy()
            for name in trained.train_domains
        }
    stored = json.loads((tmp_path / "run" / "consistency.json").read_text())
    assert flat(stored) == pytest.approx(flat(measure(phi, 0)), rel=1e-4)
    means = [state.mean.numpy() for state in trained.table.states.values()]
    assert stored["between"] == pytest.approx(pdist(means).mean(), rel=1e-5)
    assert [d["domain"] for d in stored["domains"]] == [f"site-{i}" for i in range(4)]


def test_the_points_are_those_of_mu(features: Manifest, tiny: Tiny, tmp_path: Path) -> None:
    train(tiny(**{"embedding.points": 5}), features, tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "consistency.json").read_text())
    states = Trained.load(tmp_path / "run").table.states.values()
    assert [d["n"] for d in stored["domains"]] == [state.count for state in states] == [5] * 5


def flat(stored: dict) -> list[float]:
    points = [p[key] for p in stored["points"] for key in ("n", "error", "error95", "radius")]
    spreads = [d[key] for d in stored["domains"] for key in ("n", "variance", "bound")]
    return [-1 if v is None else v for v in (*points, *spreads, stored["between"], stored["ratio"])]


@pytest.mark.slow
def test_two_processes_measure_what_one_does(tmp_path: Path) -> None:
    """Domains of 2 and 3 images: one process then has fewer of them than the other."""
    sizes = {"a": 2, "b": 3, "c": 31, "d": 20}
    rng = np.random.default_rng(0)
    domains = np.repeat(list(sizes), list(sizes.values()))
    X = rng.normal(size=(len(domains), 5)).astype(np.float32)
    splits = np.full(len(domains), "train")
    y = np.resize(["ant", "bee"], len(domains))
    data = tmp_path / "data.parquet"
    Manifest.from_arrays(X, y, domains, splits=splits).write(data)
    # Not Adam: its first steps are the signs of gradients, which blow rounding up.
    sgd = {"embedding.optimiser.name": "sgd", "embedding.optimiser.lr": 0.05}
    flags = ["--test-domains", "d", "--algorithm", "da-erm", *as_flags(TINY | sgd)]
    found = []
    for processes in (1, 2):
        train_with(processes, data, tmp_path / str(processes), *flags)
        stored = tmp_path / str(processes) / "consistency.json"
        found.append(json.loads(stored.read_text()))
    assert [d["n"] for d in found[1]["domains"]] == [2, 3, 31]
    assert flat(found[1]) == pytest.approx(flat(found[0]), rel=1e-3)
