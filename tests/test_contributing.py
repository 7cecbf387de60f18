"""The worked examples of CONTRIBUTING.md: one file and one row each, taken from the page as is."""

import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from acclimate import AdaptiveClassifier
from acclimate.adapt import methods
from acclimate.build import BUILDERS, Row, builder
from acclimate.cli import app, load_commands
from acclimate.config import EmbeddingConfig, RunConfig
from acclimate.core.errors import AcclimateError, UnknownName
from acclimate.data.manifest import Manifest
from acclimate.learn import embeddings
from acclimate.learn.algorithms import ALGORITHMS
from acclimate.learn.model import Trained
from acclimate.records.folder import RunFolder
from acclimate.records.metrics import METRICS, Metric
from acclimate.rehearse.training import train
from acclimate.report.figures import FIGURES, write_figures
from acclimate.report.page import page_of
from acclimate.results.load import load_report
from fixtures.errors import refused
from fixtures.settings import TINY
from fixtures.sweep_example import write_example

PAGE = (Path(__file__).resolve().parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(
    r"`src/(?P<file>acclimate/\S+)\.py`(?:(?!\n## ).)*?"
    r"<!-- example: (?P<name>\w+) -->\n```python\n(?P<code>.*?)```\n\n"
    r"The row, in `(?P<table>\w+)` of `src/(?P<package>\S+)/__init__\.py`.*?:\n\n"
    r"```python\n(?P<row>.*?)```",
    re.DOTALL,
)
EXAMPLES = {found["name"]: found for found in EXAMPLE.finditer(PAGE)}
Tiny = Callable[..., RunConfig]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Put an example where the page says it belongs, and its row into the table."""

    def add(example: str, table: Any, **names: Any) -> ModuleType:
        found = EXAMPLES[example]
        path = tmp_path / f"{Path(found['file']).name}.py"
        path.write_text(found["code"], encoding="utf-8")
        name = found["file"].replace("/", ".")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        package = importlib.import_module(found["package"].replace("/", "."))
        assert getattr(package, found["table"]) is table
        row = eval(f"{{{found['row']}}}", {**vars(module), **names, path.stem: module})
        for key, value in row.items():
            assert key not in table
            monkeypatch.setitem(table, key, value)
        return module

    return add


def test_there_is_an_example_of_every_addition() -> None:
    assert [*EXAMPLES] == ["algorithm", "embedding", "method", "metric", "builder", "figure"]


@pytest.mark.parametrize("name", ["vrex", "da-vrex"])
def test_an_algorithm(name: str, add: Any, tiny: Tiny, features: Manifest, tmp_path: Path) -> None:
    add("algorithm", ALGORITHMS)
    config = tiny(name, hparams={"penalty": 2.0}, test_domains=("site-0",))
    train(config, features, tmp_path / "run")
    losses = RunFolder(tmp_path / "run").records().losses
    assert any(loss.penalty for loss in losses if loss.phase == "main")
    with pytest.raises(UnknownName) as caught:
        train(tiny(name, hparams={"penalti": 2.0}), features, tmp_path / "other")
    wanted = f"{name}: there is no setting 'hparams.penalti'; did you mean 'hparams.penalty'?"
    assert str(caught.value) == wanted


def test_an_embedding(add: Any, tiny: Tiny, features: Manifest, tmp_path: Path) -> None:
    kind = add("embedding", embeddings.EMBEDDINGS, Row=embeddings.Row).Smoothed
    settings = {"embedding.name": "smoothed", "embedding.smoothed.smoothing": 0.2}
    config = tiny("da-erm", test_domains=("site-0",), **settings)
    train(config, features, tmp_path / "run")
    trained = Trained.load(tmp_path / "run")
    assert isinstance(trained.embedding, kind) and trained.embedding.own.smoothing == 0.2
    usual = EmbeddingConfig(name="smoothed")
    assert kind.identity(config.embedding)["smoothed"] != kind.identity(usual)["smoothed"]


def test_a_method(add: Any, features: Manifest) -> None:
    add("method", methods.METHODS, Row=methods.Row)
    model = AdaptiveClassifier(algorithm="da-erm", backbone="mlp", settings=TINY).fit(features)
    images = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    site = model.adapt(images, method="embedding+balance")
    assert site.method == "embedding+balance"
    half = model.adapt(images, method="embedding+balance", settings={"balance.strength": 0.5})
    shifts = [one.state.payloads["balance"].tensors["shift"] for one in (site, half)]
    np.testing.assert_allclose(shifts[1], shifts[0] / 2, rtol=1e-5)
    again = model.for_domain(site.state)
    np.testing.assert_array_equal(again.predict_proba(images), site.predict_proba(images))
    logits = np.log(site.predict_proba(images))
    # Known up to a constant per image; without it the classes' means are equal.
    means = (logits - logits.mean(1, keepdims=True)).mean(0)
    np.testing.assert_allclose(means, 0, atol=1e-5)


def test_a_metric(add: Any, tiny: Tiny, features: Manifest, tmp_path: Path) -> None:
    add("metric", METRICS, Metric=Metric)
    train(tiny("erm"), features, tmp_path / "run")
    scores = RunFolder(tmp_path / "run").records().scores
    assert scores and all(1 / 3 < (s.metrics["confidence"] or 0) <= 1 for s in scores)


def test_a_builder(add: Any, tmp_path: Path) -> None:
    """The command, its limits and its help come of themselves."""
    add("builder", BUILDERS, Row=Row)
    load_commands()
    out = tmp_path / "stripes.parquet"
    done = CliRunner().invoke(app, ["build", "stripes", "--sites=3", f"--out={out}", "--json"])
    assert json.loads(done.stdout)["domains"] == 3 and Manifest.read(out).problems() == []
    with refused(AcclimateError, "--sites", "2", "1"):
        builder("stripes")(out=out, sites=1)  # type: ignore[call-arg]


def test_a_figure(add: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(FIGURES):  # a page with this figure alone takes no time
        monkeypatch.delitem(FIGURES, name)  # type: ignore[arg-type]
    add("figure", FIGURES)
    report = load_report(write_example(tmp_path / "sweep"))
    assert [path.name for path in write_figures(report, tmp_path, ["svg"])] == ["worst.svg"]
    page = page_of(report, "")
    assert "Each bar is the mean over seeds of the lowest accuracy on an unseen domain." in page
    assert page.count("<svg") == 1
