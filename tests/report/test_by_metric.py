"""Reports by another metric than the accuracy, and class by class."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from acclimate.core.errors import RunError, UnknownName
from acclimate.records.folder import write_checksums
from acclimate.records.metrics import METRICS
from acclimate.records.predictions import Predictions
from acclimate.report import export, tables
from acclimate.report.figures import FIGURES, accuracy, confusion, learning
from acclimate.report.page import page_of
from acclimate.report.sentences import headline
from acclimate.results.load import load_report
from acclimate.results.runs import ERM, Key
from fixtures.errors import refused
from fixtures.run_folders import make_run, score

DA = Key("da-erm", "embedding")
CLASSES = ("cat", "dog", "owl")


def losses(folder: Path, *, own: str = "top-1") -> Path:
    """DA-ERM has the smaller loss (0.4 to 0.5) and the lower accuracy (60 to 70 %)."""
    for name, top1, loss in (("erm", 0.7, 0.5), ("da-erm", 0.6, 0.4)):
        for seed in range(3):
            method = "embedding" if name == "da-erm" else "none"
            scores = [
                replace(
                    score(domain, top1 + seed / 100, method),
                    loss=(nll := loss + seed / 100 + 0.2 * (domain == "b")),
                    metrics={"macro-f1": 0.3, "nll": nll, "old": 1.0},
                )
                for domain in "ab"
            ]
            settings: dict[str, object] = {"train": {"metric": own}}
            make_run(folder / f"{name}-{seed}", name, seed, scores, settings=settings)
    return folder


def test_everything_is_by_the_metric_that_is_asked_for(tmp_path: Path) -> None:
    report = load_report(losses(tmp_path), metric="nll")
    assert report.metric == "nll"
    assert headline(report) == (
        "On 2 domains never seen in training, DA-ERM scores 0.510 nll and ERM 0.610: "
        "−0.100 ± 0.000 over 3 seeds."
    )
    (found,) = report.results[""]
    texts = tables.comparison(found).texts
    assert texts[0][:4] == ("Method", "Unseen domains", "Worst unseen domain", "Difference to ERM")
    assert texts[2][:4] == ("DA-ERM", "0.510 ± 0.006", "0.610 ± 0.006", "−0.100 ± 0.000")
    assert [row[-1] for row in tables.results_grid(found).texts] == [
        "Average", "0.610 ± 0.006", "*0.510 ± 0.006"
    ]  # fmt: skip
    assert export.caption(found).startswith("On unseen domains: nll (lower is better).")
    assert export.heading(found) == "toy, nll (lower is better)"
    assert "in points" not in export.tests_caption(found)
    rows = list(csv.DictReader(io.StringIO(export.to_csv(report))))
    assert {row["metric"] for row in rows} == {"nll"}
    assert [row["column"] for row in rows[:4]] == ["a", "b", "average", "top-1"]
    page = page_of(report, "")
    assert "toy: nll (lower is better) on each unseen domain" in page
    assert "The difference is between runs" in page and "farther left is better" in page
    (by_method,) = accuracy.by_method(report)
    assert by_method.drawing.figure.axes[0].get_xlabel() == "nll (lower is better)"
    assert by_method.drawing.titles["mark-0"] == "ERM: 0.610 ± 0.006 on 2 domains"
    (gains,) = accuracy.gains(report)
    assert gains.drawing.titles["mark-0"] == "a: 0.510 to 0.410"
    assert {line.get_linestyle() for line in gains.drawing.figure.axes[0].lines[:1]} == {"-"}


def test_by_default_it_is_the_runs_own_and_accuracy_where_they_differ(tmp_path: Path) -> None:
    folder = losses(tmp_path / "runs", own="macro-f1")
    assert load_report(folder).metric == "macro-f1"
    assert "scores 30.0 % macro-f1" in headline(load_report(folder))
    assert "in points" in export.tests_caption(load_report(folder).overall)
    make_run(folder / "other", "erm", 7, [score("a", 0.5)])
    assert load_report(folder).metric == "top-1"


def test_what_no_run_has_is_refused(tmp_path: Path) -> None:
    folder = losses(tmp_path)
    with refused(RunError, folder, "auroc"):
        load_report(folder, metric="auroc")
    with refused(UnknownName, "nlll", "nll"):
        load_report(folder, metric="nlll")


def test_the_other_metrics_are_a_table(tmp_path: Path) -> None:
    """Those that any row has, in the order of their table; one that is gone is left out."""
    (found,) = load_report(losses(tmp_path)).results[""]
    assert tables.metrics_grid(found).texts == [
        ("Method", "accuracy, %", "macro-f1, %", "nll (lower is better)"),
        ("ERM", "*71.0 ± 0.6", "*30.0 ± 0.0", "0.610 ± 0.006"),
        ("DA-ERM", "61.0 ± 0.6", "*30.0 ± 0.0", "*0.510 ± 0.006"),
    ]


def test_learning_curves_show_the_metric(tmp_path: Path) -> None:
    report = load_report(losses(tmp_path), metric="nll")
    validated = [
        replace(score("t1", 0.5, role="train"), moment="validation", step=step, loss=1 / step)
        for step in (10, 20)
    ]
    records = replace(report.runs[0].records, all=tuple(validated))
    drawing = learning.draw([replace(report.runs[0], records=records)], {"da-erm": "k"}, "nll")
    assert drawing is not None
    (panel,) = drawing.figure.axes
    assert panel.get_title(loc="left") == "classifier: validation nll (lower is better)"
    assert list(panel.lines[0].get_ydata()) == [0.1, 0.05]


def predictions(folder: Path, domain: str, label: list[int], predicted: list[int]) -> None:
    """Rows of a run by the plain model; by another method everything is an owl."""
    n = len(label)
    numbers = np.full(2 * n, 0.5, dtype=np.float32)
    both = np.array([*predicted, *[2] * n], dtype=np.int32)
    labels = np.array(label * 2, dtype=np.int32)
    methods = np.array(["none"] * n + ["oracle-prior"] * n, dtype=object)
    Predictions(
        CLASSES,
        row=np.arange(2 * n),
        domain=np.full(2 * n, domain, dtype=object),
        split=np.full(2 * n, "all", dtype=object),
        method=methods,
        label=labels,
        predicted=both,
        rank=np.where(both == labels, 1, 2).astype(np.int32),
        p_predicted=numbers,
        p_label=numbers,
        p_squares=numbers,
        loss=numbers,
    ).write(folder / "predictions.parquet")
    write_checksums(folder, finished=True)


def test_class_by_class(tmp_path: Path) -> None:
    """The unseen domains of the first trial together: cat 2 of 3, dog 1 of 2 with a cat taken for
    it; an owl neither occurs nor is predicted."""
    for domain, seed, rows in (
        ("a", 0, ([0, 0, 1], [0, 1, 1])),
        ("b", 0, ([0, 1], [0, 0])),
        ("a", 1, ([2], [2])),
    ):
        folder = make_run(tmp_path / f"{domain}{seed}", "erm", seed, [score(domain, 0.5)])
        predictions(folder, domain, *rows)
    report = load_report(tmp_path)
    (found,) = report.by_class
    assert (found.dataset, found.label, found.where) == ("", "ERM", "unseen domains")
    assert tables.classes_grid(found.rows).texts == [
        ("Class", "Rows", "Precision, %", "Recall, %", "F1, %"),
        ("cat", "3", "66.7", "66.7", "66.7"),
        ("dog", "2", "50.0", "50.0", "50.0"),
    ]
    (figure,) = confusion.illustrate(report)
    assert figure.drawing.titles == {
        "pair-0-0": "cat as cat: 66.7 % of 3",
        "pair-0-1": "cat as dog: 33.3 % of 3",
        "pair-1-0": "dog as cat: 50.0 % of 2",
        "pair-1-1": "dog as dog: 50.0 % of 2",
    }
    page = page_of(report, "", {"confusion": FIGURES["confusion"]})
    assert "Table of 2 classes" in page and "ERM on unseen domains" in page


def test_without_unseen_domains_the_held_out_rows_of_training_domains(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "erm", 0, [score("t1", 0.5, role="train")])
    predictions(folder, "t1", [0, 1], [0, 1])
    (found,) = load_report(tmp_path).by_class
    assert (found.where, len(found.rows)) == ("held-out rows of training domains", 2)
    assert METRICS["top-1"].of(found.rows) == 1.0


def test_a_run_without_predictions_has_no_classes(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "erm", 0, [score("a", 0.5)])
    report = load_report(tmp_path)
    assert report.by_class == [] and list(confusion.illustrate(report)) == []


def test_of_many_classes_the_largest_are_drawn() -> None:
    """Class 3 has the fewest rows of 31; shares are of all rows of a class, drawn or not."""
    counts = np.diag(np.arange(31) + 5)
    counts[3, 3], counts[4, 3], counts[4, 4] = 1, 2, 2
    shown = np.array([one for one in range(31) if one != 3])
    drawing = confusion.draw(counts, tuple(map(str, range(31))), shown)
    assert drawing.titles["pair-3-3"] == "4 as 4: 50.0 % of 4"
    assert len(drawing.titles) == 30
    assert [text.get_text() for text in drawing.figure.axes[0].get_xticklabels()][3] == "4"


def test_a_control_s_baseline_is_worded_by_the_metric(tmp_path: Path) -> None:
    """A better end that is lower turns the verdict, not the number."""
    report = load_report(losses(tmp_path), metric="nll")
    row = report.overall.row(DA)
    assert row is not None and row.difference is not None
    assert row.difference.verdict == "better" and row.difference.against == ERM
    assert export.to_dict(report)["metric"] == "nll"
    values = next(one for one in export.to_dict(report)["lines"] if one["algorithm"] == "da-erm")
    assert values["metrics"]["macro-f1"]["mean"] == pytest.approx(0.3)
