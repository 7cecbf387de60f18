"""Stored outcomes, end to end: what users see must survive a rewrite of what makes it.

`ACCLIMATE_WRITE_GOLDENS=1 pytest tests/test_goldens.py` writes them anew: only where a change of
numbers is wanted, and in a commit that does nothing else.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acclimate.adapt.classifier import Adapted, adapt
from acclimate.build.digits import DigitsSettings, build_digits
from acclimate.config import RunConfig, SiteConfig
from acclimate.data.manifest import Manifest
from acclimate.demo import SETTINGS
from acclimate.learn.model import Trained
from acclimate.rehearse.training import train
from fixtures.models import make_trained, rows_for
from fixtures.sites import sites_on_a_line

Tiny = Callable[..., RunConfig]
Golden = Callable[[str, Any], None]
STORED = Path(__file__).parent / "fixtures" / "goldens.json"
WRITE = os.environ.get("ACCLIMATE_WRITE_GOLDENS") == "1"
CLOSE = 1e-4  # sums are made in another order on another machine
SMALL = SiteConfig(steps=60, batch=64, lr=0.02, width=16, dim=4, dropout=0.1)
SITE = {f"adapt.site.{key}": value for key, value in asdict(SMALL).items()}
SOFT = {"prior.strength": 60.0}  # random weights would let EM run to one class

HEADS = ("none", "prior", "t3a")
BACKBONES = ("bn", "tent", "bn+prior", "tent+t3a")
EMBEDDED = ("embedding", "embedding+prior", "embedding+t3a")
CHAINS = {
    "linear": (*HEADS, *BACKBONES),
    "mlp": (*HEADS, "bn+prior"),
    "concat": (*HEADS, *BACKBONES, *EMBEDDED, "embedding+bn+prior", "embedding+tent"),
    "film": EMBEDDED,
    "bias": EMBEDDED,
    "low-rank": EMBEDDED,
    "rehearsed": (*HEADS, "bn", *EMBEDDED, "embedding+bn"),
    "frozen": HEADS,
    "frozen rehearsed": (*HEADS, *EMBEDDED),
    "features": HEADS,
    "features concat": (*HEADS, *EMBEDDED),
}


@pytest.fixture(scope="module")
def golden() -> Iterator[Golden]:
    """Compares a value with the stored one of that name, or stores it."""
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}

    def check(name: str, value: Any) -> None:
        value = rounded(value)
        if WRITE:
            stored[name] = value
        else:
            assert_close(value, stored[name], name)

    yield check
    if WRITE:
        lines = ",\n".join(
            f"{json.dumps(key)}: {json.dumps(stored[key])}" for key in sorted(stored)
        )
        STORED.write_text("{\n" + lines + "\n}\n")


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [rounded(part) for part in value]
    return round(float(value), 6) if isinstance(value, float | np.floating) else value


def assert_close(value: Any, stored: Any, where: str) -> None:
    if isinstance(stored, dict):
        assert set(value) == set(stored), where
        for key, part in stored.items():
            assert_close(value[key], part, f"{where}: {key}")
    elif isinstance(stored, list):
        assert len(value) == len(stored), where
        for place, part in enumerate(stored):
            assert_close(value[place], part, f"{where}: {place}")
    elif isinstance(stored, float):
        assert value == pytest.approx(stored, rel=CLOSE, abs=CLOSE), where
    else:
        assert value == stored, where


@pytest.mark.parametrize("kind", CHAINS)
def test_adapted_predictions(kind: str, golden: Golden) -> None:
    trained, rows = make_trained(kind), rows_for(kind)
    for chain in CHAINS[kind]:
        site = adapt(trained, rows[:20], method=chain, settings=SOFT)
        golden(f"{kind} by {chain}", site.predict_proba(rows[18:21]))


def rehearsal_of(run: Path) -> dict[str, Any]:
    """What `train` wrote of its rehearsal, less the words."""
    stored = json.loads((run / "rehearsal.json").read_text())
    numbers = ("chain", "n", "frequencies", "gain", "error", "accuracy", "domains", "settings")
    promises = [
        [*(one[key] for key in numbers), [[*part.values()] for part in one["forecasts"]]]
        for one in stored["promises"]
    ]
    kept = ("chosen", "explained", "plain_scale", "exact", "temperatures")
    return {"promises": promises, **{key: stored[key] for key in kept}}


def adapted(run: Path, images: Any) -> list[Any]:
    """Of a new site by the method that rehearsal chose, for few images and for more."""
    trained, sites = Trained.load(run), []
    for count in (2, 8, 40):
        site: Adapted = adapt(trained, images[:count])
        trust = site.trust
        expected = None if trust is None else trust.expected_accuracy
        ends = None if expected is None else [expected.accuracy, expected.floor, expected.by]
        sites.append([site.method, ends, site.predict_proba(images[40:43])])
    return sites


@pytest.mark.parametrize(("count", "shifted"), [(3, False), (6, False), (12, True)])
def test_rehearsal_of_features(
    count: int, shifted: bool, golden: Golden, tiny: Tiny, tmp_path: Path
) -> None:
    per_site = 240 if shifted else 100
    data = sites_on_a_line(count + 1, per_site, 2, shifted=shifted, swapped=not shifted)
    new = f"site-{count:02}"
    settings = {"test_domains": [new], "adapt.rehearse": True, "adapt.points": 20, **SITE}
    config = tiny("erm", **{"train.steps": 60, "train.per_domain": 16, **settings})
    train(config, data, tmp_path / "run")
    golden(f"rehearsal of {count} sites", rehearsal_of(tmp_path / "run"))
    images = data.features()[data.rows(domain=new)]
    golden(f"auto after {count} sites", adapted(tmp_path / "run", images))


@pytest.mark.parametrize("depth", ["heads", "whole"])
def test_rehearsal_of_a_trained_backbone(
    depth: str, golden: Golden, tiny: Tiny, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=300)
    images = rng.integers(0, 200, (300, 8, 8)).astype(np.uint8)
    images[y == 1, 2:6, 2:6] += 30
    names = np.repeat([f"site-{number}" for number in range(5)], 60)
    data = Manifest.from_arrays(images, np.array(["a", "b"])[y], names, val_share=0.5)
    settings = {"train.steps": 12, "train.optimiser.lr": 0.01, "adapt.rehearse": True, **SITE}
    linear = {"adapt.depth": depth, "model.head": "linear"}
    train(tiny("erm", **linear, **settings), data, tmp_path / "run")
    golden(f"rehearsal of a backbone, {depth}", rehearsal_of(tmp_path / "run"))
    golden(f"auto of a backbone, {depth}", adapted(tmp_path / "run", images[-60:]))


def test_exported_files_agree(golden: Golden, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="not installed: acclimate[onnx]")
    pytest.importorskip("onnxscript", reason="not installed: acclimate[onnx]")
    for kind, chain in (("rehearsed", "embedding+prior"), ("features", "t3a")):
        rows = rows_for(kind)
        site = adapt(make_trained(kind), rows[:20], method=chain, settings=SOFT)
        path = tmp_path / "site.onnx"
        site.export(path)
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        given = session.get_inputs()[0].name
        (found,) = session.run(None, {given: rows[18:21]})
        np.testing.assert_allclose(found, site.predict_proba(rows[18:21]), atol=1e-5)
        golden(f"{kind} exported", found)


@pytest.mark.parametrize("algorithm", ["erm", "da-erm"])
def test_losses(
    algorithm: str, golden: Golden, tiny: Tiny, features: Manifest, tree: Path, tmp_path: Path
) -> None:
    for name, data in (("features", features), ("images", Manifest.from_folder(tree))):
        config = tiny(algorithm, **{"train.steps": 8, "model.head": "linear"})
        train(config, data, tmp_path / name)
        lines = (tmp_path / name / "records.jsonl").read_text().splitlines()
        losses = [entry for entry in map(json.loads, lines) if entry["kind"] == "loss"]
        trace = [[entry["phase"], entry["step"], entry["risk"]] for entry in losses]
        golden(f"losses of {algorithm} on {name}", trace)


def test_demo(golden: Golden, tiny: Tiny, tmp_path: Path) -> None:
    """The benchmark of `acclimate demo`, less of it and fewer steps: accuracy at unseen domains."""
    few = {"embedding.steps": 20, "train.evaluate_every": 60, "train.steps": 30}
    data = build_digits(DigitsSettings(train_domains=6, test_domains=3, train_images=100))
    for algorithm, method in (("erm", "none"), ("erm", "prior"), ("da-erm", "embedding")):
        run = tmp_path / algorithm
        train(tiny(algorithm, **{**SETTINGS, **few}), data, run)
        trained = Trained.load(run)
        right = []
        for domain in [name for name in data.domains if name.startswith("test")]:
            rows = data.rows(domain=domain)
            x, y = [data.image_source(int(row)) for row in rows[:120]], data.label_index[rows[:120]]
            site = adapt(trained, x[:40], method=method)
            right.append(float(np.mean(site.predict_proba(x[40:]).argmax(1) == y[40:])))
        golden(f"demo: {algorithm} by {method}", right)
