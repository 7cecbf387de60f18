"""The report of a folder of runs, on hand-made runs with known answers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from acclimate.core.text import percent
from acclimate.records.folder import write_checksums
from acclimate.records.records import Score
from acclimate.report import sentences, tables, write_page
from acclimate.report.export import to_dict
from acclimate.report.figures import accuracy, domain_map
from acclimate.report.page import page_of
from acclimate.results.comparison import Comparison, Row
from acclimate.results.load import load_report
from acclimate.results.material import Report
from acclimate.results.runs import ERM, Key, RunView, find_runs
from acclimate.results.statistics import Estimate, in_percent, in_points
from fixtures.pages import Page, cells_of
from fixtures.run_folders import make_run, score
from fixtures.sweep_example import write_map

DA = Key("da-erm", "embedding")
WRONG = Key("da-erm", "wrong-embedding")
ORACLE = Key("erm", "oracle-prior")


def both(method: str, a: float, b: float) -> list[Score]:
    return [score("a", a, method), score("b", b, method)]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """ERM 50 and 60 %; DA-ERM 60 and 70 %: seed by seed +10 and +10, less 0 and plus 0."""
    root = tmp_path / "runs"
    train = score("t1", 0.9, role="train")
    scores = {
        ("erm", 0): [*both("none", 0.4, 0.6), *both("oracle-prior", 0.8, 0.8), train],
        ("erm", 1): [*both("none", 0.5, 0.7), *both("oracle-prior", 0.9, 0.9)],
        ("da-erm", 0): [*both("embedding", 0.5, 0.7), *both("wrong-embedding", 0.3, 0.3)],
        ("da-erm", 1): [*both("embedding", 0.7, 0.7), *both("wrong-embedding", 0.4, 0.4)],
    }
    for (algorithm, seed), own in scores.items():
        make_run(root / f"{algorithm.removesuffix('-erm')}-{seed}", algorithm, seed, own)
    return root


@pytest.fixture
def report(runs: Path) -> Report:
    return load_report(runs)


@pytest.fixture
def found(report: Report) -> Comparison:
    return report.overall


def line(found: Comparison, key: Key) -> Row:
    row = found.row(key)
    assert row is not None
    return row


def test_labels() -> None:
    assert ERM.label == "ERM"
    assert DA.label == "DA-ERM"
    assert WRONG.label == "DA-ERM, wrong domain's embedding"
    assert ORACLE.label == "ERM + true label frequencies (oracle)"
    assert Key("da-group-dro", "none").label == "DA-GroupDRO, not adapted"
    assert Key("coral", "tent").label == "CORAL, tent"
    assert (Key("erm", "lame").label, Key("erm", "lame").kind) == ("ERM, lame", "control")


def test_headline_and_findings(report: Report) -> None:
    said = sentences.headline(report)
    assert "DA-ERM scores 65.0 % and ERM 55.0 %: +10.0 ± 0.0 points" in said
    assert "2 domains" in said and "2 seeds cannot" in said
    control, ceiling = sentences.findings(report.overall)
    assert "35.0 % (−30.0 ± 0.0 points); 2 seeds cannot" in control
    assert ceiling.endswith("ERM scores 85.0 % (+30.0 ± 0.0 points).")
    assert list(sentences.notes(report)) == []


def add_third_seed(runs: Path) -> Report:
    make_run(runs / "erm-2", "erm", 2, [*both("none", 0.5, 0.6), *both("oracle-prior", 0.8, 0.9)])
    adapted = [*both("embedding", 0.6, 0.7), *both("wrong-embedding", 0.3, 0.4)]
    make_run(runs / "da-2", "da-erm", 2, adapted)
    return load_report(runs)


def test_three_seeds_that_agree_are_enough(runs: Path) -> None:
    report = add_third_seed(runs)
    assert sentences.headline(report).endswith(": +10.0 ± 0.0 points over 3 seeds.")
    control, ceiling = sentences.findings(report.overall)
    assert control.endswith(": what it gets from the embedding is about the domain.")
    assert ceiling.endswith("(+30.0 ± 0.0 points).")


def test_the_share_of_the_gap_to_the_ceiling(runs: Path, found: Comparison) -> None:
    assert line(found, DA).gap_closed is None  # two seeds are too few to say that there is a gap
    assert tables.GAP_CLOSED not in tables.comparison(found).header
    report = add_third_seed(runs)
    share = Estimate(pytest.approx(1 / 3), pytest.approx(0, abs=1e-9), 3)
    assert line(report.overall, DA).gap_closed == share
    grid = tables.comparison(report.overall)
    column = [row[grid.header.index(tables.GAP_CLOSED)].text for row in grid.rows]
    assert column == ["–", "33.3 ± 0.0", "–", "–"]  # ERM, DA-ERM, the control, the ceiling
    lines = {line["label"]: line for line in to_dict(report)["lines"]}
    assert lines["DA-ERM"]["gap_closed"]["mean"] == pytest.approx(1 / 3)
    assert lines["ERM"]["gap_closed"] is None
    assert "“Gap closed” is the share" in page_of(report)


def test_one_algorithm_has_no_columns_to_compare(runs: Path) -> None:
    for name in ("da-0", "da-1"):
        shutil.rmtree(runs / name)
    alone = load_report(runs)
    names = ("Method", "Unseen domains", "Worst unseen domain", "Training domains", "Runs")
    header = (*names, "Seconds a run")
    assert tables.comparison(alone.overall).header == header  # though the ceiling has a difference
    text = page_of(alone)
    assert "in points" not in text and "improve" not in text and "called noise" not in text


@pytest.mark.parametrize(
    ("gains", "ending"),
    [
        ((0.05, 0.06, 0.07), "+6.0 ± 0.6 points over 3 seeds."),
        ((-0.05, -0.06, -0.07), "−6.0 ± 0.6 points over 3 seeds, so DA-ERM is worse here."),
        ((0.09, -0.03, 0.0), "+2.0 ± 3.6 points over 3 seeds, no difference beyond noise."),
        ((-0.09, 0.03, 0.0), "−2.0 ± 3.6 points over 3 seeds, no difference beyond noise."),
        (
            (-0.07, -0.07),
            "−7.0 ± 0.0 points over 2 seeds; 2 seeds cannot tell it from noise.",
        ),
        ((0.0, 0.0, 0.0), "0.0 ± 0.0 points over 3 seeds, no difference beyond noise."),
        ((0.05,), "+5.0 points over 1 seed; 1 seed cannot tell it from noise."),
    ],
)
def test_the_headline_claims_what_seeds_bear_out(
    tmp_path: Path, gains: tuple[float, ...], ending: str
) -> None:
    for seed, gain in enumerate(gains):
        make_run(tmp_path / f"e{seed}", "erm", seed, [score("a", 0.5)])
        make_run(tmp_path / f"d{seed}", "da-erm", seed, [score("a", 0.5 + gain, "embedding")])
    headline = sentences.headline(load_report(tmp_path))
    assert headline.startswith("On 1 domain never seen in training, DA-ERM scores ")
    assert headline.endswith(f" and ERM 50.0 %: {ending}")


@pytest.mark.parametrize(
    ("data", "seed", "domain"), [("other", 0, "a"), ("d1", 7, "a"), ("d1", 0, "z")]
)
def test_what_cannot_be_paired_is_said(tmp_path: Path, data: str, seed: int, domain: str) -> None:
    make_run(tmp_path / "erm", "erm", 0, [score("a", 0.5)])
    make_run(tmp_path / "da", "da-erm", seed, [score(domain, 0.6, "embedding")], data=data)
    report = load_report(tmp_path)
    assert "have no data, seed and test domain in common" in sentences.headline(report)
    assert "p" not in tables.comparison(report.overall).header


def test_one_side_alone(tmp_path: Path) -> None:
    make_run(tmp_path / "da", "da-erm", 0, [score("a", 0.6, "embedding")])
    said = sentences.headline(load_report(tmp_path))
    assert "DA-ERM scores 60.0 % over 1 seed" in said and "no finished ERM run" in said


def test_partial_pairs_and_other_inequalities_are_noted(tmp_path: Path) -> None:
    fewer = replace(score("a", 0.6, "embedding"), n=50)
    make_run(tmp_path / "erm-0", "erm", 0, both("none", 0.4, 0.6), settings={"train": {"steps": 5}})
    make_run(tmp_path / "erm-1", "erm", 1, both("none", 0.4, 0.6), settings={"train": {"steps": 6}})
    make_run(tmp_path / "da-0", "da-erm", 0, [fewer], settings={"train": {"steps": 7}})
    assert list(sentences.notes(load_report(tmp_path))) == [
        "DA-ERM and ERM: only 1 of 2 seeds could be paired; only the test domains that both "
        "scored are compared; they were scored on different numbers of images.",
        "The runs of ERM differ in more than the seed: train.steps.",
        "ERM and DA-ERM also differ in train.steps.",
    ]


def test_runs_that_leave_one_domain_out_make_one_trial_per_seed(tmp_path: Path) -> None:
    for domain, top1 in (("a", 0.2), ("b", 0.8)):
        make_run(tmp_path / domain, "erm", 0, [score(domain, top1)])
    found = load_report(tmp_path).overall
    (row,) = found.lines
    assert row.average == Estimate(0.5, None, 1)  # not ± 0.3 over two "seeds"
    assert row.worst == Estimate(0.2, None, 1)
    assert (row.runs, row.trials, row.domains) == (2, 1, 2)
    assert "2 (1 seed)" in [cell.text for cell in tables.comparison(found).rows[0]]


def test_the_same_run_twice_counts_once(tmp_path: Path) -> None:
    for name in ("x", "y"):
        make_run(tmp_path / name, "erm", 0, [score("a", 0.5)])
    report = load_report(tmp_path)
    assert report.overall.lines[0].trials == 1
    (note,) = sentences.notes(report)
    assert note.startswith("x, y have the same")


def test_missing_is_not_zero(tmp_path: Path) -> None:
    make_run(tmp_path / "erm", "erm", 0, [score("a", 0.5), score("b", None)])
    (row,) = load_report(tmp_path).overall.lines
    assert row.average == Estimate(0.5, None, 1)
    assert row.domains == 1
    assert percent(None) == "–" and in_points(None) == "–"
    assert in_percent(Estimate(0.6154, 0.0042, 3)) == "61.5 ± 0.4"
    assert in_percent(Estimate(0.6154, None, 1)) == "61.5"
    assert Estimate.of([None]) is None


def test_unfinished_and_damaged_runs_are_kept_apart(runs: Path) -> None:
    make_run(runs / "deep" / "half", "da-erm", 5, both("embedding", 1.0, 1.0), finished=False)
    make_run(runs / "torn", "erm", 6, both("none", 1.0, 1.0))
    with (runs / "torn" / "records.jsonl").open("a") as file:
        file.write("{}\n")
    (runs / "odd").mkdir()
    (runs / "odd" / "run.json").write_text("[]")
    found = {run.name: run for run in find_runs(runs)}
    lines = len((runs / "torn" / "records.jsonl").read_text().splitlines())
    assert (found["torn"].problem or "").startswith(f"records.jsonl, line {lines}: ")
    assert (found["odd"].problem or "").startswith("run.json")
    assert found["deep/half"].problem is None and found["deep/half"].finished is None
    report = load_report(runs)
    assert len(report.runs) == 7 and len(report.finished) == 4
    average = line(report.overall, DA).average
    assert average is not None and average.mean == pytest.approx(0.65)  # without the unfinished


def test_tables(report: Report, found: Comparison) -> None:
    text = tables.results_grid(found).to_text().splitlines()
    assert text[2].split() == ["ERM", "45.0", "±", "5.0", "65.0", "±", "5.0", "55.0", "±", "5.0"]
    assert len(text[1]) == max(map(len, text))
    markdown = tables.comparison(found).to_markdown().splitlines()
    assert markdown[2] == "| ERM | 55.0 ± 5.0 | 45.0 ± 5.0 | 90.0 | – | – | 2 | 61.0 |"
    # As many domains for each are in the first sentence already; otherwise they have a column.
    uneven = replace(found.rows[1], domains=1)
    rows = (found.rows[0], uneven, *found.rows[2:])
    grid = tables.comparison(replace(found, rows=rows))
    assert grid.header[-1] == "Domains" and [row[-1].text for row in grid.rows[:2]] == ["2", "1"]
    erm, da, *_ = json.loads(json.dumps(to_dict(report)))["lines"]
    assert da["difference"]["gain"]["mean"] == pytest.approx(0.1)
    assert da["difference"]["verdict"] == "few seeds" and da["difference"]["interval"] is None
    assert erm["difference"] is None and erm["top5"] is None
    assert erm["average"]["mean"] == pytest.approx(0.55)


def test_a_page_without_a_finished_run(tmp_path: Path) -> None:
    make_run(tmp_path / "erm", "erm", 0, [], finished=False)
    text = write_page(load_report(tmp_path, title="t"), tmp_path / "r.html").read_text(
        encoding="utf-8"
    )
    Page(text)
    assert "No run is finished, so there is nothing to compare yet." in text
    assert text.count("<svg") == 1  # the learning curves so far


def test_flattened() -> None:
    line = np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 2.0], [2.0, 4.0, 4.0]])
    flat = domain_map.flattened(line)
    assert np.allclose(np.abs(flat), [[3, 0], [0, 0], [3, 0]], atol=1e-9)
    assert domain_map.flattened(np.ones((1, 5))).tolist() == [[0.0, 0.0]]
    assert np.isfinite(domain_map.flattened(np.ones((20, 5)))).all()
    mu = np.random.default_rng(0).normal(size=(12, 3))
    mu[6:] += 50
    first = domain_map.flattened(mu)
    assert np.array_equal(first, domain_map.flattened(mu))
    nearest = [np.argsort(np.linalg.norm(first - place, axis=1))[1] for place in first]
    assert all((i < 6) == (near < 6) for i, near in enumerate(nearest))


def test_a_map_that_cannot_be_drawn_is_none(runs: Path) -> None:
    run = next(run for run in find_runs(runs) if run.name == "da-0")
    assert domain_map.read_domain_map(run) is None
    (run.folder / "domains.safetensors").write_bytes(b"junk")
    write_checksums(run.folder, finished=True)
    assert domain_map.read_domain_map(run) is None
    write_map(run.folder, ["a"], ["b"])
    write_checksums(run.folder, finished=True)
    found = domain_map.read_domain_map(run)
    assert found is not None and found.roles == ("train", "test") and found.mu.shape == (2, 4)


def test_methods_are_marked_at_their_means(report: Report) -> None:
    (one,) = accuracy.by_method(report)
    marks = {line.get_gid(): line for line in one.drawing.figure.axes[0].lines if line.get_gid()}
    erm, wrong = marks["mark-0"], marks["mark-2"]
    assert erm.get_xdata() == [pytest.approx(55.0)] and erm.get_fillstyle() == "full"
    assert wrong.get_fillstyle() == "none" and "Hollow" in one.caption
    assert one.drawing.titles["mark-0"] == "ERM: 55.0 ± 5.0 % on 2 domains"


def test_heads_that_differ_are_noted() -> None:
    def run(algorithm: str, head: str) -> RunView:
        config = {"model": {"head": head}}
        where = Path(algorithm)
        return RunView(name=algorithm, folder=where, algorithm=algorithm, config=config)

    adaptive = run("da-erm", "linear")
    (note,) = sentences._heads([run("erm", "linear"), run("coral", "mlp"), adaptive])
    assert note.startswith("ERM: ") and "model.head=mlp" in note
    assert not list(sentences._heads([run("erm", "mlp"), adaptive]))
    assert not list(sentences._heads([run("erm", "linear")]))


def test_a_report_shows_itself(report: Report) -> None:
    table = report._repr_html_()
    assert "accuracy, %</caption>" in table
    erm, da = cells_of(table)[1:3]
    assert erm == ["ERM", "55.0 ± 5.0", "45.0 ± 5.0", "–"]
    assert da == ["DA-ERM", "65.0 ± 5.0", "60.0 ± 10.0", "+10.0 ± 0.0"]
