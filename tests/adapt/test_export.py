"""Exported files give the probabilities of the models that they were made from."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acclimate.adapt import export as exporting
from acclimate.adapt.classifier import adapt, apply_state
from acclimate.adapt.export import (
    _as_adapted,
    _Conditioned,
    _examples,
    _reference,
    _states,
    export_conditioned,
    site_inputs,
    write_site_inputs,
)
from acclimate.adapt.methods import chain_of
from acclimate.adapt.triton import export_triton
from acclimate.core import exports
from acclimate.core.errors import ConfigError, ExportError
from acclimate.learn import graph
from acclimate.records.rehearsal import NETWORK
from fixtures.errors import refused
from fixtures.models import CLASSES, KINDS, make_trained, rows_for

onnx = pytest.importorskip("onnx", reason="onnx is not installed: acclimate[onnx]")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: acclimate[onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason="not installed: acclimate[onnx]")
SOFT = {"prior.strength": 60.0}  # random weights would let EM run to one class


def opened(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_conditioned_form_is_every_adapted_classifier(kind: str) -> None:
    trained = make_trained(kind)
    network = _Conditioned(trained).eval()
    (rows, _), found = _examples(trained), []
    for state in _states(trained):
        about = [torch.from_numpy(value) for value in site_inputs(trained, state).values()]
        with torch.no_grad():
            given = network(torch.from_numpy(rows), *about).numpy()
        expected = _reference(_as_adapted(trained, state), rows)
        np.testing.assert_allclose(given, expected, atol=2e-6)
        found.append((chain_of(state).name if state else "no domain", expected))
    chains = ["no domain", "prior"]
    if trained.adaptive:
        chains = ["no domain", "embedding", "prior", "embedding+prior"]
    assert [name for name, _ in found] == chains
    for place, (_, one) in enumerate(found):  # or the comparison would show nothing
        assert all(np.abs(one - other).max() > 1e-3 for _, other in found[:place])


def test_a_plain_network_is_calibrated_in_the_conditioned_form_too() -> None:
    """Beside a second path, where it is not a part of the plain model."""
    pair = make_trained("rehearsed pair").rehearsal
    assert pair is not None
    rehearsal = replace(pair, head=NETWORK, temperatures={"none": 5.0, "embedding": 0.8})
    trained = replace(make_trained("frozen rehearsed"), rehearsal=rehearsal)
    network, (rows, _) = _Conditioned(trained).eval(), _examples(trained)
    for state in _states(trained):
        about = [torch.from_numpy(value) for value in site_inputs(trained, state).values()]
        with torch.no_grad():
            given = network(torch.from_numpy(rows), *about).numpy()
        expected = _reference(_as_adapted(trained, state), rows)
        np.testing.assert_allclose(given, expected, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["frozen rehearsed", "features concat"])
def test_one_file_serves_all_sites(kind: str, tmp_path: Path) -> None:
    trained, rows = make_trained(kind), rows_for(kind)
    made = export_conditioned(trained, tmp_path / "model.onnx")
    assert made.difference < 1e-6
    session, name = opened(made.path), next(iter(made.inputs))
    assert [each.name for each in session.get_inputs()] == [name]  # the others have defaults
    for method in ("none", "embedding", "embedding+prior"):
        site = adapt(trained, rows, method=method, settings=SOFT if "prior" in method else {})
        assert site.state is not None
        write_site_inputs(trained, site.state, tmp_path / "site.npz")
        with np.load(tmp_path / "site.npz") as about:
            (given,) = session.run(None, {name: rows, **about})
        np.testing.assert_allclose(given, site.predict_proba(rows), atol=1e-6)
        if method == "none":
            np.testing.assert_allclose(session.run(None, {name: rows})[0], given, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "method"), [("linear", "bn+prior"), ("film", "embedding+t3a")])
def test_a_site_folded_in(kind: str, method: str, tmp_path: Path) -> None:
    trained, rows = make_trained(kind), rows_for(kind)
    site = adapt(trained, rows, method=method, settings=SOFT if "prior" in method else {})
    made = site.export(tmp_path / "site.onnx")
    assert made.form == "adapted"
    session = opened(made.path)
    for count in (1, 24):
        (given,) = session.run(["probabilities"], {"images": rows[:count]})
        assert given.dtype == np.float32
        np.testing.assert_allclose(given, site.predict_proba(rows[:count]), atol=1e-6)


@pytest.mark.slow
def test_what_a_file_says_of_itself(tmp_path: Path) -> None:
    trained = make_trained("concat")
    site = adapt(trained, rows_for("concat"), method="embedding")
    made = exporting.export_adapted(site, tmp_path / "site.onnx", name="new-site")
    session = opened(made.path)
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    assert (taken.name, taken.type, taken.shape) == ("images", "tensor(uint8)", ["n", 3, 8, 8])
    assert (given.name, given.type, given.shape) == ("probabilities", "tensor(float)", ["n", 3])
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == list(CLASSES)
    assert json.loads(facts["site"]) == {"name": "new-site", "images": 24}
    assert json.loads(facts["preprocessing"])["shape"] == ["n", 3, 8, 8]
    assert facts["digest"] == trained.digest()
    assert (facts["method"], facts["form"]) == ("embedding", "adapted")
    assert facts["licence"] == "none: no pretrained weights, so that they are yours"
    assert str(Path(exporting.__file__).parent).encode() not in made.path.read_bytes()
    onnx.checker.check_model(str(made.path))


@pytest.mark.slow
def test_torch_export_as_well(tmp_path: Path) -> None:
    trained, rows = make_trained("rehearsed"), rows_for("rehearsed")
    export_conditioned(trained, tmp_path / "model.pt2")
    carried = {graph.FACTS: ""}
    module = torch.export.load(tmp_path / "model.pt2", extra_files=carried).module()
    assert json.loads(json.loads(carried[graph.FACTS])["classes"]) == list(CLASSES)
    site = adapt(trained, rows, method="embedding+prior", settings=SOFT)
    about = map(torch.from_numpy, site_inputs(trained, site.state).values())
    with torch.no_grad():
        given = module(torch.from_numpy(rows), *about).numpy()
    np.testing.assert_allclose(given, site.predict_proba(rows), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rehearsed", "film", "features concat"])
@pytest.mark.parametrize("ending", [".onnx", ".pt2"])
def test_in_16_bits(kind: str, ending: str, tmp_path: Path) -> None:
    trained, rows = make_trained(kind), rows_for(kind)
    site = adapt(trained, rows, method="embedding+prior", settings=SOFT)
    whole, half = (
        site.export(tmp_path / f"{name}{ending}", half=name == "half") for name in ("whole", "half")
    )
    assert (whole.metadata["precision"], half.metadata["precision"]) == ("float32", "float16")
    assert 1e-6 < half.difference < 5e-3
    assert half.inputs == whole.inputs
    for_all = export_conditioned(trained, tmp_path / f"all{ending}", half=True)
    assert 1e-6 < for_all.difference < 5e-3
    if ending == ".onnx":
        assert half.path.stat().st_size < 0.8 * whole.path.stat().st_size
        (given,) = opened(half.path).run(None, {next(iter(half.inputs)): rows})
        assert given.dtype == np.float32
        np.testing.assert_allclose(given, site.predict_proba(rows), atol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "features"])
def test_a_model_of_triton(kind: str, tmp_path: Path) -> None:
    trained, rows = make_trained(kind), rows_for(kind)
    site = adapt(trained, rows, method="prior", settings=SOFT)
    made = export_triton(site, tmp_path / "models" / "new-site")
    folder = tmp_path / "models" / "new-site"
    assert made.path == folder / "1" / "model.onnx"
    assert (folder / "labels.txt").read_text().splitlines() == list(CLASSES)
    (taken,), (given,) = (opened(made.path).get_inputs(), opened(made.path).get_outputs())
    text = (folder / "config.pbtxt").read_text()
    parser = pytest.importorskip("google.protobuf.text_format", reason="protobuf is not installed")
    messages = pytest.importorskip(
        "tritonclient.grpc.model_config_pb2", reason="tritonclient is not installed"
    )
    config = parser.Parse(text, messages.ModelConfig())
    assert (config.name, config.backend, config.max_batch_size) == ("new-site", "onnxruntime", 64)
    assert [config.input[0].name, *config.input[0].dims] == [taken.name, *taken.shape[1:]]
    assert [config.output[0].name, *config.output[0].dims] == [given.name, *given.shape[1:]]
    kinds = {"tensor(uint8)": messages.TYPE_UINT8, "tensor(float)": messages.TYPE_FP32}
    assert (config.input[0].data_type, config.output[0].data_type) == (
        kinds[taken.type],
        kinds[given.type],
    )
    assert config.HasField("dynamic_batching")


@pytest.mark.slow
def test_a_graph_that_disagrees_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(graph.OnnxSession):
        def __call__(self, inputs: Any) -> np.ndarray:
            found = super().__call__(inputs).copy()
            found[0, 1] += 0.0123
            return found

    monkeypatch.setattr(exporting, "OnnxSession", Wrong)
    site = apply_state(make_trained("features"), None)
    with refused(ExportError, tmp_path / "model.onnx", "0.012", "0.0001"):
        site.export(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    trained = make_trained("linear")
    with refused(ConfigError, tmp_path / "model.h5", "torch.export"):
        apply_state(trained, None).export(tmp_path / "model.h5")
    state = adapt(trained, rows_for("linear"), method="t3a").state
    with refused(ConfigError, "'t3a'", "--domain and", "--conditioned"):
        site_inputs(trained, state)


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(exports, "import_module", missing)
    with refused(ConfigError, "[onnx]"):
        apply_state(make_trained("linear"), None).export(tmp_path / "model.onnx")
