"""The worked examples of CONTRIBUTING.md: one file and one row each, taken from the page as is."""

import gzip
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from acclimate import AdaptiveClassifier
from acclimate.adapt import export, methods
from acclimate.build import BUILDERS, Row, builder
from acclimate.config import EmbeddingConfig, RunConfig, from_dict
from acclimate.core.errors import AcclimateError, ConfigError, UnknownName
from acclimate.data.manifest import Manifest
from acclimate.learn import embeddings
from acclimate.learn.algorithms import ALGORITHMS
from acclimate.learn.model import Trained
from acclimate.records.folder import RunFolder
from acclimate.records.metrics import METRICS, Metric
from acclimate.rehearse.training import train
from acclimate.report.figures import FIGURES, write_figures
from acclimate.report.page import page_of
from acclimate.report.sentences import headline
from acclimate.report.tables import metrics_grid
from acclimate.results import protocol, selection
from acclimate.results.load import load_report
from acclimate.results.protocol import Job
from acclimate.sweep.launchers import LAUNCHERS
from acclimate.track import TRACKERS, tracked
from fixtures.command_line import command
from fixtures.errors import refused
from fixtures.settings import TINY, as_flags
from fixtures.sweep_example import write_example

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(
    r"`src/(?P<file>acclimate/\S+)\.py`(?:(?!\n## ).)*?"
    r"<!-- example: (?P<name>\w+) -->\n```python\n(?P<code>.*?)```\n\n"
    r"The row, in `(?P<table>\w+)` of `src/(?P<module>\S+?)(?:/__init__)?\.py`.*?:\n\n"
    r"```python\n(?P<row>.*?)```",
    re.DOTALL,
)
LINE = re.compile(
    r"The row, in `\w+` of `src/(?P<file>\S+)`:\n\n"
    r"<!-- example: (?P<name>\w+) -->\n```python\n(?P<row>.*?)```",
    re.DOTALL,
)
LINES = {found["name"]: found for found in LINE.finditer(PAGE)}
EXAMPLES = {found["name"]: found for found in EXAMPLE.finditer(PAGE)}
Tiny = Callable[..., RunConfig]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Put an example where the page says it belongs, and its row into the table."""

    def add(example: str, table: Any, **names: Any) -> ModuleType:
        found = EXAMPLES[example]
        beside = importlib.import_module(found["module"].replace("/", "."))
        assert getattr(beside, found["table"]) is table
        if found["file"] == found["module"]:  # a function beside its row
            module = ModuleType(beside.__name__)
            vars(module).update(vars(beside) | names)
            exec(compile(found["code"], str(tmp_path), "exec"), vars(module))
        else:
            path = tmp_path / f"{Path(found['file']).name}.py"
            path.write_text(found["code"], encoding="utf-8")
            name = found["file"].replace("/", ".")
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, name, module)
            spec.loader.exec_module(module)
        short = module.__name__.rpartition(".")[2]
        row = eval(f"{{{found['row']}}}", {**vars(module), **names, short: module})
        for key, value in row.items():
            assert key not in table
            monkeypatch.setitem(table, key, value)
        return module

    return add


def with_line(example: str, below: str) -> dict[str, Any]:
    """The module that the page names, with the example's line below the line `below`."""
    path = ROOT / "src" / LINES[example]["file"]
    source = path.read_text(encoding="utf-8")
    assert source.count(below) == 1
    module = ModuleType(f"{path.stem} of an example")
    sys.modules[module.__name__] = module  # where dataclasses look for it
    module.__file__ = str(path)  # beside which a module finds its tables
    exec(compile(source.replace(below, below + LINES[example]["row"]), path, "exec"), vars(module))
    return vars(module)


def test_there_is_an_example_of_every_addition() -> None:
    table = PAGE.split("|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    headings = {
        line.lower().replace(" ", "-")[3:] for line in PAGE.splitlines() if line[:2] == "##"
    }
    linked = [re.search(r"\(#([\w-]+)\)", line)[1] for line in table]  # type: ignore[index]
    assert len(linked) == len({*EXAMPLES, *LINES}) == 12 and {*linked} <= headings


@pytest.mark.parametrize("name", ["mm-rex", "da-mm-rex"])
def test_an_algorithm(name: str, add: Any, tiny: Tiny, features: Manifest, tmp_path: Path) -> None:
    add("algorithm", ALGORITHMS)
    config = tiny(name, hparams={"penalty": 2.0}, test_domains=("site-0",))
    train(config, features, tmp_path / "run")
    losses = RunFolder(tmp_path / "run").records().losses
    assert any(loss.penalty for loss in losses if loss.phase == "main")
    with refused(UnknownName, name, "'hparams.penalti'", "'hparams.penalty'"):
        train(tiny(name, hparams={"penalti": 2.0}), features, tmp_path / "other")


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
    shifts = [one.state.payloads["balance"]["shift"] for one in (site, half)]
    np.testing.assert_allclose(shifts[1], shifts[0] / 2, rtol=1e-5)
    again = model.for_domain(site.state)
    np.testing.assert_array_equal(again.predict_proba(images), site.predict_proba(images))
    logits = np.log(site.predict_proba(images))
    # Known up to a constant per image; without it the classes' means are equal.
    means = (logits - logits.mean(1, keepdims=True)).mean(0)
    np.testing.assert_allclose(means, 0, atol=1e-5)


def test_a_metric(add: Any, tiny: Tiny, features: Manifest, tmp_path: Path) -> None:
    add("metric", METRICS, Metric=Metric)
    train(tiny("erm", test_domains=["site-4"]), features, tmp_path / "run")
    scores = RunFolder(tmp_path / "run").records().scores
    assert scores and all(1 / 3 < (s.metrics["confidence"] or 0) <= 1 for s in scores)
    report = load_report(tmp_path, metric="confidence")
    assert report.metric == "confidence" and "% confidence" in headline(report)
    assert "confidence, %" in metrics_grid(report.overall).header


def test_a_builder(add: Any, tmp_path: Path) -> None:
    """The command, its limits and its help come of themselves."""
    add("builder", BUILDERS, Row=Row)
    out = tmp_path / "stripes.parquet"
    facts = json.loads(command("build", "stripes", "--sites=3", f"--out={out}", "--json"))
    assert facts["domains"] == 3 and Manifest.read(out).problems() == []
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


def test_a_launcher(add: Any, features: Manifest, tmp_path: Path) -> None:
    add("launcher", LAUNCHERS)
    features.write(tmp_path / "sites.parquet")
    flags = ["--algorithms", "erm", "--test-domains", "site-0", "--trials", 1, *as_flags(TINY)]
    flags += ["--launcher", "here", "--device", "cpu", "--out", tmp_path / "sweep", "--json"]
    done = json.loads(command("sweep", tmp_path / "sites.parquet", *flags))
    assert (done["runs"], done["done"]) == (1, 1)


def test_a_tracker(add: Any, tiny: Tiny, features: Manifest, tmp_path: Path) -> None:
    add("tracker", TRACKERS)
    with tracked(tmp_path / "run", ["numbers"]) as listen:
        train(tiny("erm"), features, tmp_path / "run", listen=listen)
    lines = (tmp_path / "run" / "numbers.csv").read_text(encoding="utf-8").splitlines()
    losses = RunFolder(tmp_path / "run").records().losses
    assert {f"{loss.step},main/risk,{loss.risk}" for loss in losses} < {*lines}


@pytest.mark.slow
def test_an_export_format(add: Any, features: Manifest, tmp_path: Path) -> None:
    add("format", export.FORMATS, gzip=gzip)
    model = AdaptiveClassifier(algorithm="erm", backbone="mlp", settings=TINY).fit(features)
    site = model.adapt(np.zeros((4, 5), np.float32), method="none")
    packed = export.export_adapted(site, tmp_path / "site.pt2.gz")
    plain = export.export_adapted(site, tmp_path / "site.pt2")
    assert packed.difference == plain.difference and packed.inputs == plain.inputs
    assert gzip.decompress(packed.path.read_bytes())[:2] == plain.path.read_bytes()[:2] == b"PK"


def test_a_selection_rule(add: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add("rule", selection.RULES_BY_NAME)
    assert '`"both": "training and\nvalidation domains alike",`' in PAGE
    monkeypatch.setitem(protocol.RULES, "both", "training and validation domains alike")
    job = Job(id="j", dataset="d", algorithm="erm", groups=(("a",),), draw=0, trial=0, config={})
    scores = {0: (0.9, 0.1, 0.4), 1: (0.6, 0.6, 0.7), 2: (1.0, None, 0.9)}
    runs = [
        selection.Candidate(
            job=replace(job, id=f"j{draw}", draw=draw),
            method="none",
            training=training,
            validation=validation,
            unseen={"a": unseen},
        )
        for draw, (training, validation, unseen) in scores.items()
    ]
    (choice,) = selection.select(runs, "both")
    assert (choice.draw, choice.score) == (1, pytest.approx(0.6))


def test_a_column(tmp_path: Path) -> None:
    tables = with_line("column", "columns: dict[str, Callable[[Row], Cell]] = {\n")
    (found, *_) = load_report(write_example(tmp_path / "sweep")).results["training-domains"]
    grid = tables["comparison"](found)
    at = grid.header.index("Trials")
    assert {row[at].text for row in grid.rows} == {"3"}


def test_a_setting() -> None:
    settings = with_line("setting", "class TrainConfig:\n")
    config = from_dict(settings["RunConfig"], {"train": {"patience": 5}}, where="test")
    assert config.train.patience == 5  # type: ignore[attr-defined]
    with refused(ConfigError, "train.patience", -1, 0):
        from_dict(settings["RunConfig"], {"train": {"patience": -1}}, where="test")
