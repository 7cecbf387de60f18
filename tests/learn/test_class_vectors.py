"""The zero-shot head: cosines with class vectors of a file; rehearsed, kept and exported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from acclimate.adapt.classifier import adapt
from acclimate.adapt.export import export_adapted, export_conditioned
from acclimate.config import RunConfig
from acclimate.core.errors import ConfigError, WeightsError
from acclimate.data.manifest import Manifest
from acclimate.learn.model import Trained
from acclimate.learn.models.class_vectors import class_vector_head, read_class_vectors
from acclimate.records.rehearsal import CLASS_VECTORS
from acclimate.rehearse.training import train
from fixtures.errors import refused

NAMES = ["cat", "ant", "bee", "dog"]  # a file may have more classes, in an order of its own
CLASSES = ("ant", "bee", "cat")


def written(path: Path, names: Any = NAMES, scale: str | None = None, **tensors: Tensor) -> str:
    facts = {"classes": json.dumps(names)} | ({"logit_scale": scale} if scale else {})
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, facts)
    return str(path)


def test_logits_are_scaled_cosines(tmp_path: Path) -> None:
    """Whatever the lengths of features and vectors are."""
    rng = np.random.default_rng(0)
    vectors, x = rng.normal(size=(4, 5)), rng.normal(size=(7, 5)) * rng.uniform(0.1, 90, (7, 1))
    file = written(tmp_path / "v", scale="20", class_vectors=torch.from_numpy(vectors))
    before = torch.get_rng_state()
    head = class_vector_head(file, CLASSES, 5)
    assert torch.equal(torch.get_rng_state(), before), "which others may be drawing from"
    cosines = (x @ vectors.T) / np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(vectors, axis=1))
    expected = 20 * cosines[:, [1, 2, 0]]
    with torch.no_grad():
        output = head(torch.from_numpy(x).float())
    np.testing.assert_allclose(output.logits.numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(output.hidden.norm(dim=1).numpy(), 1, rtol=1e-6)


def test_a_projection_comes_first(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    vectors, projection = rng.normal(size=(4, 3)), rng.normal(size=(3, 6))
    tensors = {
        "class_vectors": torch.from_numpy(vectors),
        "projection": torch.from_numpy(projection),
    }
    file = written(tmp_path / "v", **tensors)
    x = rng.normal(size=(8, 6))
    z, units = x @ projection.T, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = 100 * (z / np.linalg.norm(z, axis=1, keepdims=True)) @ units.T
    with torch.no_grad():
        logits = class_vector_head(file, CLASSES, 6)(torch.from_numpy(x).float()).logits
    np.testing.assert_allclose(logits.numpy(), expected[:, [1, 2, 0]], rtol=1e-3, atol=1e-3)


def test_files_that_are_none(tmp_path: Path) -> None:
    eye, path = torch.eye(4, 5), tmp_path / "v"
    with refused(WeightsError, "nowhere"):
        read_class_vectors("nowhere", CLASSES)
    path.write_bytes(b"not a header")
    with refused(WeightsError, path):
        read_class_vectors(str(path), CLASSES)
    broken: list[dict[str, Any]] = [
        {"class_vectors": torch.ones(4)},
        {"class_vectors": torch.eye(4, 5) / 0},
        {"class_vectors": torch.zeros(4, 5)},
        {"class_vectors": eye, "names": ["ant", "bee", "cat"]},
        {"class_vectors": eye, "names": ["ant", "bee", "cat", "cat"]},
        {"class_vectors": eye, "names": 3},
        {"class_vectors": eye, "scale": "-1"},
        {"class_vectors": eye, "scale": "much"},
        {"vectors": eye},
    ]
    for one in broken:
        with refused(WeightsError, path, "class_vectors", "classes"):
            read_class_vectors(written(path, **one), CLASSES)


def test_classes_without_a_vector_are_named(tmp_path: Path) -> None:
    file = written(tmp_path / "v", class_vectors=torch.eye(4, 5))
    with refused(WeightsError, file, "'cow'", "'owl'"):
        read_class_vectors(file, ("ant", "cow", "owl"))
    with refused(WeightsError, "'x0'", "'x4'", "and 3 more"):
        read_class_vectors(file, [f"x{i}" for i in range(8)])


def test_vectors_of_another_backbone(tmp_path: Path) -> None:
    file = written(tmp_path / "v", class_vectors=torch.eye(4, 5))
    with refused(WeightsError, file, "5 numbers", "7 features", "[5, 7]"):
        class_vector_head(file, CLASSES, 7)
    tensors = {"class_vectors": torch.eye(4, 5), "projection": torch.ones(5, 6)}
    with refused(WeightsError, "[5, 6]", "7 features", "[5, 7]"):
        class_vector_head(written(tmp_path / "p", **tensors), CLASSES, 7)


# In a run


def by_direction() -> tuple[Manifest, np.ndarray]:
    """Class i lies along axis i, at a distance that says nothing. Another axis tells the class in
    each site, which misleads whoever learns from the other sites."""
    rng, rows = np.random.default_rng(0), np.arange(4 * 24)
    y, site = rows % 3, rows // 24
    x = rng.normal(size=(len(rows), 8)) * 0.4
    x[rows, y] += 1.0
    x[rows, 3 + (y + site) % 3] += 3.0
    x = (x * rng.uniform(0.2, 5.0, (len(rows), 1))).astype("f4")
    names = [f"site-{number}" for number in site]
    return Manifest.from_arrays(x, np.array(CLASSES)[y], names), x


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Any]:
    """Rehearsal, and a file that knows the axes."""
    vectors = torch.zeros(4, 8)
    vectors[[1, 2, 0], [0, 1, 2]] = 2.0
    vectors[3, 7] = 1.0
    file = written(tmp_path / "vectors.safetensors", class_vectors=vectors)
    return {
        "model.class_vectors": file,
        "adapt.rehearse": True,
        "adapt.site.steps": 5,
        "adapt.site.dim": 4,
        "adapt.site.width": 8,
    }


@pytest.mark.slow
@pytest.mark.parametrize("projected", [False, True])
def test_rehearsal_chooses_it_and_the_run_keeps_and_exports_it(
    projected: bool, own: dict[str, Any], tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    data, x = by_direction()
    if projected:
        vectors = torch.zeros(4, 3)
        vectors[[1, 2, 0], [0, 1, 2]] = 2.0
        vectors[3] = 1.0
        tensors = {"class_vectors": vectors, "projection": torch.eye(3, 8)}
        own["model.class_vectors"] = written(tmp_path / "projected", **tensors)
    train(tiny("erm", **own), data, tmp_path / "run", device="cpu")
    Path(own["model.class_vectors"]).unlink()
    trained = Trained.load(tmp_path / "run")
    rehearsal = trained.rehearsal
    assert rehearsal is not None and rehearsal.head == CLASS_VECTORS
    assert CLASS_VECTORS in {promise.chain for promise in rehearsal.heads}
    with torch.no_grad():
        logits = trained.predictor(torch.from_numpy(x)).logits.numpy()
    axes = x[:, :3] / np.linalg.norm(x[:, : 3 if projected else 8], axis=1, keepdims=True)
    np.testing.assert_allclose(logits, 100 * axes, rtol=1e-3, atol=1e-3)
    site = adapt(trained, x[:12], method="prior")
    assert np.isfinite(site.predict_proba(x[12:20])).all()
    export_adapted(site, tmp_path / "site.pt2")
    export_conditioned(trained, tmp_path / "all.onnx")


def test_where_it_has_no_place_it_is_refused(
    own: dict[str, Any], tiny: Callable[..., RunConfig], tree: Path, tmp_path: Path
) -> None:
    data, _ = by_direction()
    with refused(ConfigError, "model.class_vectors", "adapt.rehearse=true"):
        train(tiny("erm", **{**own, "adapt.rehearse": False}), data, tmp_path / "run")
    with refused(ConfigError, "model.class_vectors", "model.freeze=backbone"):
        images = {"model.backbone": "small-cnn", "test_domains": "west"}
        train(tiny("erm", **own, **images), Manifest.from_folder(tree), tmp_path / "run")
    other = Manifest.from_arrays(np.ones((8, 8), "f4"), ["ant", "cow"] * 4, ["p", "q"] * 4)
    with refused(WeightsError, "'cow'"):
        train(tiny("erm", **own), other, tmp_path / "run")
    narrow = Manifest.from_arrays(
        np.ones((8, 3), "f4"), ["ant", "bee"] * 4, ["p", "p", "q", "q"] * 2
    )
    with refused(WeightsError, "8 numbers", "3 features"):
        train(tiny("erm", **own), narrow, tmp_path / "run")
