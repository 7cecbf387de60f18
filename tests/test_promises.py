"""Benchmarks of rehearsal: promises beside what happened, and what follows from them."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from acclimate.config import RunConfig
from acclimate.core.tensors import save_tensors
from acclimate.data.manifest import Manifest
from acclimate.learn.models import build_backbone
from acclimate.rehearse.training import train
from acclimate.runs.evaluate import evaluate_run
from fixtures.settings import TINY, as_flags

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def promises(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("promises")


def result(
    data: str, seed: int, gains: dict[str, tuple[float, float]], *, auto: str
) -> dict[str, Any]:
    """A run with two unseen domains: chain -> (promised, true) gain; plain scores 0.6."""
    true = {chain: gain for chain, (_, gain) in gains.items()} | {"none": 0.0}
    promised = {chain: gain for chain, (gain, _) in gains.items()} | {"none": 0.0}
    scored = {
        "none": 0.0,
        "auto": true[auto],
        "rehearsed prior": true["prior"],
        "oracle-prior": 0.1,
    }
    kept = {**{chain: chain for chain in gains}, "auto": auto}
    return {
        "data": data,
        "seed": seed,
        "n": 100,
        "digest": f"drawn for {seed}",
        "rows": [
            {
                "algorithm": "erm",
                "method": method,
                "domain": domain,
                "n": 100,
                "images": 100,
                "top1": 0.6 + gain + seed / 100 + off,
                "top5": None,
                "scored": 50,
            }
            for method, gain in scored.items()
            for domain, off in (("hill", -0.05), ("dale", 0.05))
        ],
        "promises": [
            {
                "chain": name,
                "n": 100,
                "chosen": chain == auto,
                "gain": promised[chain],
                "error": 0.01,
                "low": promised[chain] - 0.02,
                "high": promised[chain] + 0.02,
                "true": true[chain],
                "inside": 0.5,
                "domains": 2,
                "expected": 0.7,
                "floor": 0.6,
            }
            for name, chain in kept.items()
        ],
    }


def stored(path: Path, *results: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"results": results}))
    return path


FIRST = {"prior": (0.04, 0.05), "embedding": (0.01, -0.02)}
SECOND = {"prior": (0.02, 0.01), "embedding": (-0.03, 0.02)}


def test_points_are_means_over_seeds(promises: ModuleType) -> None:
    other = {"prior": (0.06, 0.03), "embedding": (0.01, 0.0)}
    found = [result("label", 0, FIRST, auto="prior"), result("label", 1, other, auto="prior")]
    prior, embedding = promises.points(found)
    assert (prior.data, prior.chain, prior.chosen) == ("label", "prior", True)
    assert prior.promised == pytest.approx(0.05) and prior.true.mean == pytest.approx(0.04)
    assert prior.true.se == pytest.approx(0.01)
    assert embedding.chosen is False and embedding.true.mean == pytest.approx(-0.01)


def test_domains_left_out_in_turn_count_once_a_seed(promises: ModuleType) -> None:
    found = [result("PACS", 0, gains, auto="none") for gains in (FIRST, SECOND)]
    prior, _ = promises.points(found)
    assert prior.true.mean == pytest.approx(0.03) and prior.true.se is None


def test_rank_correlation_by_hand(promises: ModuleType) -> None:
    """Promised 0.04, 0.01, 0.02, −0.03; true 0.05, −0.02, 0.01, 0.02: ranks differ by 0, 1, 1, 2
    places, so that it is 1 − 6 · 6 / (4 · 15)."""
    found = [result("a", 0, FIRST, auto="prior"), result("b", 0, SECOND, auto="none")]
    assert promises.spearman(promises.points(found)) == pytest.approx(0.4)
    assert promises.spearman(promises.points(found[:1])) is None


def test_shares_inside_what_was_promised(promises: ModuleType) -> None:
    """Gains: 0.05 and 0.01 lie within 0.02 of what was promised, −0.02 and 0.02 do not. Accuracies
    by auto: 0.60 and 0.70; 0.55 and 0.65. The floor is 0.6."""
    found = [result("a", 0, FIRST, auto="prior"), result("b", 0, SECOND, auto="none")]
    assert promises.inside(found) == pytest.approx((0.5, 0.5, 0.75))


def test_the_table_of_results(promises: ModuleType) -> None:
    gains = [{"prior": (0.04, gain), "embedding": (0.0, 0.0)} for gain in (0.04, 0.05, 0.06)]
    found = [result("label", seed, one, auto="prior") for seed, one in enumerate(gains)]
    (row,) = promises.table(found).rows
    assert [cell.text for cell in row] == [
        "label",
        "100",
        "61.0 ± 0.6",
        "66.0 ± 1.2 (ERM, rehearsed prior)",
        "66.0 ± 1.2",
        "+5.0 ± 0.6",
        "0.0",
        "71.0 ± 0.6",
        "50.0 ± 5.8",
    ]
    (over,) = promises.over_images(found).rows
    assert [cell.text for cell in over] == ["label", "+5.0 ± 0.6"]


def test_files_become_a_picture_and_lines(
    promises: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = [
        stored(tmp_path / "shift.json", result("photographs: label", 0, FIRST, auto="prior")),
        stored(tmp_path / "rehearsed.json", result("PACS", 0, SECOND, auto="none")),
    ]
    picture = tmp_path / "promises.png"
    arguments = ["promises.py", *map(str, files), "--out", str(picture)]
    monkeypatch.setattr(sys, "argv", arguments)
    promises.main()
    said = capsys.readouterr().out
    assert "over 4 pairs of data set and chain: 0.40." in said
    assert "50.0 % of the mean gains, 50.0 % of the gains at single domains, 75.0 %" in said
    assert "at worst, over data sets and numbers of images: 0.0 (PACS, 100)." in said
    assert 10_000 < picture.stat().st_size < 150_000


@pytest.mark.slow
def test_every_domain_unseen_in_turn(
    features: Manifest,
    promises: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From data to promises; what is trained is not trained again."""
    rehearsed = importlib.import_module("rehearsed")
    features.write(tmp_path / "sites.parquet")
    few = ["--seeds", "1", "--set", "adapt.site.steps=5"]
    arguments = [str(tmp_path / "sites.parquet"), *few, *as_flags(TINY), "--points", "1", "5"]
    command = ["rehearsed.py", *arguments, "--out", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", command)
    rehearsed.main()
    said = capsys.readouterr().out
    told = json.loads((tmp_path / "runs" / "rehearsed.json").read_text())
    assert [one["unseen"] for one in told["results"]] == [[f"site-{i}"] for i in range(5)]
    assert [point["n"] for point in told["curves"]["sites"]] == [1, 5, TINY["adapt.points"]]
    for one in told["results"]:
        assert {row["domain"] for row in one["rows"]} == set(one["unseen"])
        assert {(p["chain"], p["n"]) for p in one["promises"]} >= {("prior", 5), ("auto", 6)}
    (point,) = promises.points(
        told["results"]
    )  # three sites are too few to learn an embedding from
    assert (point.data, point.chain) == ("sites", "prior")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    assert len(before) == 5
    rehearsed.main()
    assert capsys.readouterr().out == said
    assert before == {path: path.stat().st_mtime_ns for path in before}


@pytest.mark.slow
def test_scores_on_features_of_a_frozen_backbone_are_those_of_the_run(
    promises: ModuleType, tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """Each chain's too, as `evaluate` has it from images."""
    unseen = importlib.import_module("unseen")
    weights = build_backbone("small-cnn").body.state_dict()
    save_tensors(tmp_path / "weights.safetensors", weights)
    rng = np.random.default_rng(0)
    domains, labels = np.repeat([f"site-{i}" for i in range(6)], 24), np.tile(["ant", "bee"], 72)
    pixels = rng.integers(0, 128, (144, 8, 8, 3)) + 100 * (labels == "bee")[:, None, None, None]
    manifest = Manifest.from_arrays(pixels.astype(np.uint8), labels, domains)
    config = tiny(
        "erm",
        **{
            "test_domains": "site-5",
            "adapt.rehearse": True,
            "adapt.site.steps": 5,
            "model.backbone": "small-cnn",
            "model.freeze": "backbone",
            "model.weights": str(tmp_path / "weights.safetensors"),
        },
    )
    train(config, manifest, tmp_path / "run")
    asked = ["prior", "embedding", "embedding+prior"]
    wanted = {
        score.method: score.top1
        for score in evaluate_run(tmp_path / "run", manifest, methods=asked).scores
        if score.role == "test"
    }
    found = unseen.measure(tmp_path / "run", manifest, [config.adapt.points])
    mine = {row["method"]: row["top1"] for row in found["rows"]}
    assert {method: mine[unseen.as_rehearsed(method)] for method in wanted} == wanted
    assert {*wanted} == {"none", "auto", "auto-neutral", "auto-other", "oracle-prior", *asked}
