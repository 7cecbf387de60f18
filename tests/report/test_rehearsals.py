"""A report of rehearsed runs: what was promised, and what happened on unseen domains."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from acclimate.core.files import write_document
from acclimate.records.doubt import THRESHOLDS
from acclimate.records.folder import RunFolder, write_checksums
from acclimate.records.predictions import Predictions
from acclimate.records.rehearsal import Rehearsal
from acclimate.rehearse.conclusion import Trial, conclude
from acclimate.report.figures import answers, illustrations, rehearsal
from acclimate.report.page import page_of
from acclimate.report.sentences import headline
from acclimate.report.tables import checks_grid
from acclimate.results.load import load_report
from acclimate.results.material import check_promises
from acclimate.results.runs import RunView, find_runs
from fixtures.run_folders import make_run, score

PLAIN = {"north": 0.6, "south": 0.7, "east": 0.8}


def found(*, drawn_anew: bool = False, answers: tuple[tuple[int, int], ...] = ()) -> Rehearsal:
    """5 images do nothing; from 20 on, prior gains 4 points give or take one."""
    gains = {"none": (0, 0, 0), "prior": (0.03, 0.04, 0.05), "embedding": (-0.02, 0.0, 0.02)}
    kinds: list[Any] = ["as they are", *["drawn anew"] * drawn_anew]
    trials = [
        Trial(
            domain=site,
            chain=chain,
            n=n,
            frequencies=kind,
            accuracy=plain + gain * (n > 5),
            answers=answers,
        )
        for chain, own in gains.items()
        for n in (5, 20)
        for kind in kinds
        for (site, plain), gain in zip(PLAIN.items(), own, strict=True)
    ]
    return conclude(trials, {"prior": 1.5}, exact=True)


def write_run(place: Path, *, seed: int, what: Rehearsal | None) -> Path:
    """Two unseen domains, adapted to from 25 images: plain 70 and 50 %, auto 75 and 52 %."""
    scored = {("hill", "none"): 0.7, ("hill", "auto"): 0.75, ("dale", "none"): 0.5}
    scored["dale", "auto"] = 0.52
    scores = [score(domain, top1, method) for (domain, method), top1 in scored.items()]
    make_run(place, "erm", seed, scores, settings={"adapt": {"points": 25}})
    if what is not None:
        write_document(place / "rehearsal.json", what.to_dict())
        write_checksums(place, finished=True)
    return place


@pytest.fixture
def run(tmp_path: Path) -> RunView:
    write_run(tmp_path / "sites", seed=0, what=found())
    (view,) = find_runs(tmp_path)
    return view


def test_a_promise_beside_what_happened(run: RunView) -> None:
    (one,) = check_promises([run])
    assert one.domains == ("hill", "dale")
    assert (one.promise.chain, one.promise.n) == ("prior", 20)
    assert one.promise.gain == pytest.approx(0.04)
    assert (one.plain, one.auto, one.gain) == pytest.approx((0.6, 0.635, 0.035))
    (row,) = checks_grid([one]).rows
    assert [cell.text for cell in row] == [
        "sites", "hill, dale", "prior", "+4.0 ± 0.6", "+3.5", "75.1", "44.8", "63.5"
    ]  # fmt: skip


def test_runs_without_rehearsal_or_not_finished_promise_nothing(run: RunView) -> None:
    unfinished = replace(run.records, all=run.records.all[:-1])
    assert (
        list(check_promises([replace(run, rehearsal=None), replace(run, records=unfinished)])) == []
    )


def test_the_table_marks_what_auto_uses() -> None:
    rows = [[cell.text for cell in row] for row in found().grid.rows]
    assert rows == [
        ["none, used by auto", "5", "as they are", "70.0", "0.0 ± 0.0"],
        ["prior", "5", "as they are", "70.0", "0.0 ± 0.1"],
        ["embedding", "5", "as they are", "70.0", "0.0 ± 0.1"],
        ["none", "20", "as they are", "70.0", "0.0 ± 0.0"],
        ["prior, used by auto", "20", "as they are", "74.0", "+4.0 ± 0.6"],
        ["embedding", "20", "as they are", "70.0", "0.0 ± 1.2"],
    ]


def test_the_figure_has_a_panel_for_each_kind_of_frequencies() -> None:
    drawing = rehearsal.draw(found(drawn_anew=True))
    assert [ax.get_title(loc="left") for ax in drawing.figure.axes] == [
        "label frequencies as they are",
        "label frequencies drawn anew",
    ]
    assert drawing.titles["promise-0-0-20"] == "prior, 20 images: +4.0 ± 0.6 points, used by auto"
    assert drawing.titles["promise-1-1-20"] == "embedding, 20 images: 0.0 ± 1.2 points"
    marks = {line.get_gid(): line for ax in drawing.figure.axes for line in ax.lines}
    used, other = marks["promise-0-0-20"], marks["promise-0-1-20"]
    assert used.get_ydata()[0] == pytest.approx(4.0)
    assert used.get_markerfacecolor() == used.get_color()
    assert other.get_fillstyle() == "none"
    labels = drawing.figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["prior", "embedding"]


def test_the_page_of_a_run_has_a_section(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs / "a", seed=0, what=found())
    write_run(runs / "b", seed=1, what=found())
    report = load_report(runs)
    (one,) = (figure for figure in illustrations(report) if figure.name == "rehearsal")
    assert one.caption.endswith("Filled: what auto uses, none with 5, prior with 20 (run a).")
    text = page_of(report)
    section = re.search(r'<section id="rehearsal">.*?</section>', text, flags=re.DOTALL)
    assert section is not None
    said = section[0]
    assert "Rehearsed on 3 sites, prior gained +4.0 ± 0.6 points with 20" in said
    assert "too unlike each other, to say what to expect at a new one." in said
    assert said.count("<figure>") == 1 and said.count("<table>") == 2
    assert said.count(">+3.5</td>") == 2  # both runs, promised and kept


def test_where_auto_leaves_the_model_alone(tmp_path: Path) -> None:
    """And where no domain was kept unseen, the page does not begin with a lack."""
    lost = [replace(promise, gain=-0.01) for promise in found().promises if promise.chain != "none"]
    kept = [promise for promise in found().promises if promise.chain == "none"]
    alone = replace(found(), promises=(*kept, *lost), chosen=dict.fromkeys((5, 20), "none"))
    place = write_run(tmp_path / "a", seed=0, what=alone)
    left = [one for one in RunFolder(place).records().all if getattr(one, "role", "") != "test"]
    for path in place.glob("records.*"):
        path.unlink()
    for record in left:
        RunFolder(place).append(record)
    write_checksums(place, finished=True)
    report = load_report(tmp_path)
    (one,) = (figure for figure in illustrations(report) if figure.name == "rehearsal")
    assert one.caption.endswith("what auto uses, none with 5, none with 20 (run a).")
    assert headline(report) == (
        "No domain was kept unseen to be scored; what to expect at a new one, rehearsal tells "
        "below."
    )
    assert "points at best (embedding)" in page_of(report)
    assert "<code>predict</code> uses." in page_of(report)


def test_a_page_without_rehearsal_has_no_such_section(tmp_path: Path) -> None:
    write_run(tmp_path / "sites", seed=0, what=None)
    assert 'id="rehearsal"' not in page_of(load_report(tmp_path))


def test_a_damaged_rehearsal_is_named(tmp_path: Path) -> None:
    place = write_run(tmp_path / "sites", seed=0, what=found())
    write_document(place / "rehearsal.json", {**found().to_dict(), "promises": [{}]})
    write_checksums(place, finished=True)
    (view,) = find_runs(tmp_path)
    assert view.problem == "rehearsal.json is damaged; delete it and repeat the training"


def answered(place: Path) -> Path:
    """Rows behind the scores of `write_run`: at hill 3 of 4 are right by auto, sure where they
    are; dale has 2 of 2, one of them sure. The plain model is never right."""
    domain = np.array(["hill"] * 4 + ["dale"] * 2 + ["hill"], dtype=object)
    right = np.array([1, 1, 1, 0, 1, 1, 0])
    sure = np.array([0.95, 0.95, 0.95, 0.5, 0.6, 0.95, 0.95], dtype=np.float32)
    blank = np.zeros(7, dtype=np.float32)
    Predictions(
        ("cat", "dog"),
        row=np.arange(7),
        domain=domain,
        split=np.full(7, "all", dtype=object),
        method=np.array(["auto"] * 6 + ["none"], dtype=object),
        label=np.ones(7, dtype=np.int32),
        predicted=right.astype(np.int32),
        rank=(2 - right).astype(np.int32),
        p_predicted=sure,
        p_label=blank,
        p_squares=blank,
        loss=blank,
    ).write(place / "predictions.parquet")
    write_checksums(place, finished=True)
    return place


def test_answers_promised_and_true(tmp_path: Path) -> None:
    counts = ((1000, 750), (900, 800), *[(500, 490)] * (len(THRESHOLDS) - 2))
    place = answered(write_run(tmp_path / "sites", seed=0, what=found(answers=counts)))
    rows = RunFolder(place).predictions()
    assert rows is not None
    auto = rows.where(rows.method == "auto")
    true = {one.threshold: one for one in answers.true_answers(auto, ("hill", "dale"))}
    assert (true[0.0].share, true[0.0].right) == pytest.approx((1.0, (0.75 + 1) / 2))
    assert (true[0.9].share, true[0.9].right) == pytest.approx(((0.75 + 0.5) / 2, 1.0))
    assert max(true) < 0.96 and answers.true_answers(auto, ("nowhere",)) == []
    (one,) = (f for f in illustrations(load_report(tmp_path)) if f.name == "answers")
    assert one.caption.endswith("(prior, run sites).")
    assert one.drawing.titles["true-0"] == "true: 87.5 % right of 100.0 % answered, from 0 on"
    promised = found(answers=counts).promise("prior", 20).answers[1]
    marks = {line.get_gid(): line for line in one.drawing.figure.axes[0].lines}
    assert marks["promised-1"].get_xydata()[0] == pytest.approx([90.0, 100 * promised.right])


def test_without_rows_or_a_promise_there_is_no_figure_of_answers(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0, what=found(answers=((10, 9),) * len(THRESHOLDS)))
    assert "answers" not in [one.name for one in illustrations(load_report(tmp_path))]
    answered(write_run(tmp_path / "b" / "b", seed=0, what=found()))
    assert "answers" not in [one.name for one in illustrations(load_report(tmp_path / "b"))]


def test_a_rehearsal_shows_itself() -> None:
    what = found(drawn_anew=True)
    table = what._repr_html_()
    assert "Rehearsed on 3 sites, prior gained +4.0 ± 0.6 points" in table
    assert table.count("<tr>") == 7 and "drawn anew</td>" not in table
    axes = Figure().subplots()
    assert what.plot(axes, "drawn anew") is axes
    marks = {line.get_gid(): line for line in axes.lines}
    assert marks["promise-0-20"].get_ydata()[0] == pytest.approx(4.0)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["prior", "embedding"]
