"""The HTML page and the figures of a report, without a browser."""

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acclimate.core.errors import UnknownName
from acclimate.core.files import write_document
from acclimate.data.manifest import Manifest
from acclimate.paper.beside import Measured, beside
from acclimate.paper.figures import FIGURES
from acclimate.paper.figures import ablation as curve
from acclimate.paper.figures import consistency as theory
from acclimate.paper.figures.scales import is_logarithmic
from acclimate.paper.reproduction import beside_grids, figures_of_data
from acclimate.records.records import Loss, Records
from acclimate.report.figures import (
    FORMATS,
    accuracy,
    canvas,
    domain_map,
    illustrations,
    label_shares,
    learning,
    write_figures,
)
from acclimate.report.page import page_of, prose, sweep_line, write_page
from acclimate.results.comparison import AVERAGE, Comparison, Observation, Row
from acclimate.results.load import load_report
from acclimate.results.material import Report
from acclimate.results.protocol import Axis
from acclimate.results.runs import ERM, Key, RunView
from acclimate.results.sweep_folder import DomainLabels, LabelCounts, SweepFolder
from fixtures.errors import refused
from fixtures.pages import Page
from fixtures.sweep_example import HOSTILE, consistency, write_ablation, write_example

COLOURS = dict.fromkeys(("erm", "da-erm", "coral", "da-coral"), "#000000")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return load_report(write_example(tmp_path_factory.mktemp("sweep")))


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    return page_of(report, f"An intro.\n\nWith {HOSTILE}.", FIGURES)


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> Report:
    axis = Axis(label="training domains", places={"3": 3.0, "12": 12.0, "48": 48.0})
    return load_report(write_ablation(tmp_path_factory.mktemp("ablation"), axis))


def headings(text: str) -> list[str]:
    return [heading for level, heading in Page(text).headings if level == 2]


@pytest.mark.slow
def test_a_rich_page_has_every_section(text: str) -> None:
    assert headings(text) == [
        "Results",
        "Unseen domains",
        "Domain by domain",
        "Map of the domains",
        "Label distributions",
        "Learning curves",
        "How many images an embedding needs",
        "What was chosen",
        "Failed jobs",
        "Runs that are not counted",
        "Files that could not be read",
        "What was measured",
    ]
    assert "177 of 180 runs finished on pacs, sensors: 4 methods, 3 draws, 3 trials" in text
    assert "2 jobs are still to run" in text and "1 job failed" in text


def test_it_is_whole_and_loads_nothing(text: str) -> None:
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "form"} & set(page.tags)
    assert not re.search(r"(https?:)?//[a-z]|@import|url\([^#]|fetch\(|XMLHttp", text)
    assert all(link.startswith("#") for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)
    levels = [level for level, _ in page.headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))


def test_hostile_names_are_text(text: str) -> None:
    assert HOSTILE not in text
    assert Page(text).tags.count("script") == 1
    shown = "&lt;script&gt;alert(1)&lt;/script&gt;"
    for place in (
        f"<h1>PACS and sensors {shown}</h1>",
        f"<p>With {shown}.</p>",
        f'<button type="button">{shown}</button>',
        f"ValueError: {shown}</summary>",
        f"<title>{shown} (train), 40 images</title>",
        f"<li>{shown}/1.jpg: truncated</li>",
        "not finished; last recorded at step 250 of phase main",
        "40 unlabelled images per domain, of the same domain, kept out of the scoring",
    ):
        assert place in text


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(ablation: Report, tmp_path: Path) -> None:
    first = write_page(ablation, tmp_path / "a.html", "x", FIGURES).read_bytes()
    assert write_page(ablation, tmp_path / "b.html", "x", FIGURES).read_bytes() == first


@pytest.mark.slow
def test_figures_become_files_for_papers(ablation: Report, tmp_path: Path) -> None:
    paths = write_figures(ablation, tmp_path / "all", ["svg"], FIGURES)
    names = ["ablation.svg", "map.svg", "learning.svg", "consistency.svg"]
    assert [path.name for path in paths] == names
    found = paths[0].read_text(encoding="utf-8")
    assert ">training domains</text>" in found and "<dc:date>" not in found
    drawing = _curve(ablation)
    for kind in FORMATS:
        for name in ("one", "two"):
            canvas.write_figure(drawing, tmp_path / name / f"x.{kind}", kind)
        one = (tmp_path / "one" / f"x.{kind}").read_bytes()
        assert one == (tmp_path / "two" / f"x.{kind}").read_bytes()
    pdf, png = ((tmp_path / "one" / name).read_bytes() for name in ("x.pdf", "x.png"))
    assert pdf.startswith(b"%PDF") and b"/FontFile2" in pdf  # TrueType: text can be selected
    assert png.startswith(b"\x89PNG") and int.from_bytes(png[16:20], "big") > 1200  # 300 dpi


def test_an_unknown_format_writes_nothing(ablation: Report, tmp_path: Path) -> None:
    with refused(UnknownName, "'gif'"):
        write_figures(ablation, tmp_path / "x", formats=["png", "gif"])  # type: ignore[list-item]
    assert not (tmp_path / "x").exists()


@pytest.fixture
def results_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The section of results alone, of these comparisons under the first rule."""
    monkeypatch.setattr("acclimate.report.page.illustrations", lambda report, figures: [])

    def section(report: Report, *found: Comparison, **more: Any) -> str:
        if found:
            report = replace(report, rules=report.rules[:1], results={report.rule: found})
        text = page_of(replace(report, **more))
        return text.split('<section id="results">')[1].split("</section>")[0]

    return section


Section = Callable[..., str]


def test_results_mark_the_best_and_the_published(report: Report, results_of: Section) -> None:
    first = report.results[report.rule][0]
    best = next(row for row in first.rows if row.key in first.best[AVERAGE])
    published = Row(best.key, best.cells, best.average, published=True, note="Table 1 of <it>")
    text = results_of(report, replace(first, rows=(*first.rows, published)))
    rows = [row for row in text.splitlines() if row.startswith("<tr") and best.key.label in row]
    ours = next(row for row in rows if "<strong>" in row)
    theirs = next(row for row in rows if 'class="published"' in row)
    assert "badge" not in ours and "<strong>" not in theirs
    assert 'title="Table 1 of &lt;it&gt;">published</span>' in theirs
    assert "Published rows" in text
    assert "<details" not in text  # one rule: none is folded away


def test_notes_speak_of_what_is_there(report: Report, results_of: Section) -> None:
    first = report.results[report.rule][0]
    alone = replace(first, rows=first.rows[:1])
    text = results_of(report, alone, notes=("Careful.",))
    assert first.rows[0].key == ERM
    for absent in ("Bold", "t-test", "Difference", "Published", "ceilings"):
        assert absent not in text
    assert "<li>Careful.</li>" in text


@pytest.mark.slow
def test_an_ablation_over_data_shows_the_first_and_the_last(ablation: Report) -> None:
    assert ablation.sweep is not None
    names = ("n-3", "n-12", "n-48")
    sets = tuple(replace(ablation.sweep.datasets[0], name=name) for name in names)
    labels = tuple(
        LabelCounts(name, ("x", "y"), {"a": DomainLabels("train", (1, 2))})
        for name in sorted(names)
    )
    runs = [
        replace(run, dataset=name)
        for run, name in zip(ablation.runs, names * len(ablation.runs), strict=False)
    ]
    sweep = replace(ablation.sweep, datasets=sets)
    changed = replace(ablation, sweep=sweep, labels=labels, chosen={ablation.rule: tuple(runs)})
    for name in ("labels", "map"):
        captions = [
            one.caption for one in illustrations(changed, FIGURES) if one.name.startswith(name)
        ]
        assert [caption.split(".")[0] for caption in captions] == ["Data set n-3", "Data set n-48"]


def test_a_missing_value_is_a_dash_without_a_value(report: Report, results_of: Section) -> None:
    first = report.results[report.rule][0]
    gone = replace(first.rows[1], cells={**first.rows[1].cells, "photo": None}, average=None)
    text = results_of(report, replace(first, rows=(first.rows[0], gone)))
    assert text.rpartition("each unseen domain")[2].count("<td>–</td>") == 2


@pytest.mark.slow
def test_an_ablation_shows_its_curve_first(ablation: Report) -> None:
    text = page_of(ablation, figures=FIGURES)
    assert headings(text)[:2] == ["Ablation", "Results"]
    assert "Domain by domain" not in headings(text) and "Label distributions" not in text
    drawing = _curve(ablation)
    (ax,) = drawing.figure.axes
    assert ax.get_xscale() == "log"
    styles = {line.get_label(): line.get_linestyle() for line in ax.get_lines()}
    assert styles["ERM"] == styles["DA-ERM"] == "-"
    assert styles["DA-ERM, wrong domain's embedding"] == "--"
    assert styles["ERM + true label frequencies (oracle)"] == ":"
    line = next(line for line in ax.get_lines() if line.get_label() == "DA-ERM")
    assert list(line.get_xdata()) == [3, 12, 48]
    averages = {r.key: r.average for r in ablation.results["training-domains"][0].rows}
    wanted = [averages[Key("da-erm", "embedding", v)] for v in ("3", "12", "48")]
    assert list(line.get_ydata()) == pytest.approx([100 * a.mean for a in wanted if a])
    assert len(drawing.titles) == 12  # four lines of three points


def test_the_legend_of_an_ablation_has_the_marks_of_its_caption(ablation: Report) -> None:
    (legend,) = _curve(ablation).figure.legends
    marks = {
        text.get_text(): (line.get_linestyle(), line.get_marker(), line.get_markerfacecolor())
        for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)
    }
    assert marks == {
        "ERM": ("-", "o", COLOURS["erm"]),
        "DA-ERM": ("-", "o", COLOURS["da-erm"]),
        "DA-ERM, wrong domain's embedding": ("--", "v", "none"),
        "ERM + true label frequencies (oracle)": (":", "^", "none"),
    }


def test_entries_of_a_later_panel_keep_their_marks(ablation: Report) -> None:
    (both,) = ablation.results["training-domains"]
    erm = replace(both, rows=tuple(row for row in both.rows if row.key.method == "none"))
    assert ablation.axis is not None
    drawing = curve.draw([erm, both], ablation.axis, COLOURS)
    assert drawing is not None
    (legend,) = drawing.figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    control = legend.get_lines()[names.index("DA-ERM, wrong domain's embedding")]
    assert (control.get_marker(), control.get_markerfacecolor()) == ("v", "none")


def test_an_ablation_says_only_what_is_drawn(ablation: Report, tmp_path: Path) -> None:
    assert illustrations(ablation, FIGURES)[0].caption == (
        "Accuracy on unseen domains by training domains. Whiskers are one standard error over "
        "trials. Hollow, pointing down: controls, which are meant to fail. Hollow, pointing up: "
        "ceilings, which use what no method may know."
    )
    assert ablation.axis is not None
    single = load_report(write_ablation(tmp_path / "single", ablation.axis, trials=1))
    rule = single.rules[0]
    (table,) = single.results[rule]
    own = replace(table, rows=tuple(row for row in table.rows if row.key.kind == "method"))
    assert illustrations(replace(single, results={rule: (own,)}), FIGURES)[0].caption == (
        "Accuracy on unseen domains by training domains. A single trial, which has no standard "
        "error."
    )


def test_an_ablation_counts_methods_and_variants_apart(ablation: Report) -> None:
    assert ablation.sweep is not None
    assert sweep_line(ablation).startswith(
        "12 of 12 runs finished on pacs: 2 methods, 3 variants, 1 draw, 2 trials."
    )


def test_labels_stand_in_the_order_of_the_data_sets(tmp_path: Path) -> None:
    axis = Axis(label="training domains", places={"4": 4.0, "16": 16.0})
    folder = SweepFolder(write_ablation(tmp_path, axis))
    sweep = folder.read()
    names = ("n-4", "n-16")
    more = [replace(sweep.datasets[0], name=name) for name in names]
    folder.write(replace(sweep, datasets=(*sweep.datasets, *more)))
    domains = {"a": DomainLabels("train", (1, 2))}
    for name, digest in zip(("lost", *names), "acb", strict=True):  # files are found by digest
        write_document(folder.labels_file(digest), asdict(LabelCounts(name, ("x", "y"), domains)))
    assert [labels.name for labels in load_report(tmp_path).labels] == ["n-4", "n-16", "lost"]


def _curve(report: Report) -> canvas.Drawing:
    assert report.sweep is not None and report.sweep.axis is not None
    results = report.results["training-domains"]
    drawing = curve.draw(results, report.sweep.axis, COLOURS)
    assert drawing is not None
    return drawing


def test_categories_stand_in_the_order_of_the_jobs(tmp_path: Path) -> None:
    names = ("none", "random", "mean", "prototype")
    axis = Axis(label="embedding", places=dict.fromkeys(names))
    report = load_report(write_ablation(tmp_path, axis, plain=True))
    (ax,) = illustrations(report, FIGURES)[0].drawing.figure.axes
    assert [label.get_text() for label in ax.get_xticklabels()] == list(names)
    assert ax.get_xscale() == "linear"
    level = next(line for line in ax.get_lines() if line.get_label() == "ERM")
    assert level.get_ydata()[0] == level.get_ydata()[1]  # it has no variant: a level line
    lines = {line.get_label(): line for line in ax.get_lines()}
    # Nothing lies between categories, so that no line joins them.
    assert lines["DA-ERM"].get_linestyle() == "None" and lines["DA-ERM"].get_marker() == "o"
    assert lines["DA-ERM, wrong domain's embedding"].get_marker() == "v"


def test_a_decade_decides_the_scale() -> None:
    assert is_logarithmic([1.0, 10.1]) and not is_logarithmic([1.0, 10])
    assert not is_logarithmic([0.0, 100.0])


def test_code_in_a_sentence_is_code() -> None:
    assert prose("`predict` uses <it>") == "<code>predict</code> uses &lt;it&gt;"
    assert prose("a ` alone") == "a ` alone"
    assert prose("5 % of 3") == "5\u00a0% of 3"


def test_label_shift_and_shares() -> None:
    domains = {
        "a": DomainLabels("train", (3, 1)),
        "b": DomainLabels("test", (0, 4)),
        "empty": DomainLabels("test", (0, 0)),
    }
    labels = LabelCounts("toy", ("cat", "dog"), domains)
    shifts = label_shares.shifts(labels)
    # a: (¾, ¼) against (0, 1): half of ¾ + ¾. The empty domain has no distribution.
    assert [(s.domain, s.rows, s.distance, s.largest, s.share) for s in shifts] == [
        ("a", 4, 0.75, "cat", 0.75),
        ("b", 4, 0.75, "dog", 1.0),
    ]
    drawing = label_shares.draw(labels)
    assert drawing is not None
    ax = drawing.figure.axes[0]
    # dog is the more frequent class overall, and comes first.
    assert [label.get_text() for label in ax.get_xticklabels()] == ["dog", "cat"]
    assert ax.patches[0].get_data().values.tolist() == [25, 75]
    # As in the paper's Fig. 2A, with the domain's most frequent class.
    titles = [ax.get_title(loc="left") for ax in drawing.figure.axes]
    assert titles == ["a (cat), shift 0.75", "b (dog), shift 0.75"]
    long = {name: DomainLabels("train", (2,)) for name in ("Dominican Republic", "Chad")}
    drawn = label_shares.draw(LabelCounts("long", ("a class of many words",), long))
    assert drawn is not None
    assert all(len(ax.get_title(loc="left")) < 36 for ax in drawn.figure.axes)  # a panel's width
    # Over one domain: in its order, and without a panel for it.
    over = label_shares.draw(labels, "a")
    assert over is not None
    ax = over.figure.axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["cat", "dog"]
    assert [patch.get_data().values.tolist() for patch in ax.patches] == [[0, 100], [75, 25]]
    (legend,) = over.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["test domain", "a"]
    assert label_shares.draw(LabelCounts("none", ("cat",), {})) is None
    alone = label_shares.shifts(LabelCounts("one", ("cat",), {"a": DomainLabels("", (2,))}))
    assert alone[0].distance is None


@pytest.mark.parametrize(
    ("name", "over"),
    [("United States", "United States"), ("USA", "USA"), ("Uganda", "all domains")],
)
def test_figure_2a_is_over_the_united_states(name: str, over: str) -> None:
    X = np.zeros((6, 1), dtype=np.float32)
    data = Manifest.from_arrays(X, ["a", "b"] * 3, [name] * 2 + ["Chad"] * 4)
    (found,) = figures_of_data("labels", "countries", data)
    assert found.caption == (
        f"Share of each class in domains of countries, over those of {over}; in parentheses the "
        "most frequent class."
    )


def test_a_long_legend_takes_no_room_from_the_axes() -> None:
    def height(lines: int) -> float:
        figure = canvas.figure_of(3.0)
        ax = figure.subplots()
        for number in range(lines):
            ax.plot([0, 1], label=f"a method with quite a long name of its own, {number}")
        canvas.legend(figure, ax)
        figure.canvas.draw()
        return float(ax.get_window_extent().height)

    assert height(8) == pytest.approx(height(2), rel=0.1)


PRINTED = (("lt-imagenet", "100 250 500"), ("geo-yfcc", "50 100 250 500 1000 2000"))


def test_numbers_of_points_stand_in_their_order() -> None:
    """The appendix has other numbers of points for each data set, and we have some of our own."""
    key = Key("da-erm", "embedding", "5")
    ours = [Observation("lt-imagenet", key, "", 0, "x", 0.25, {"top-5": 0.5})]
    sets = [Measured("lt-imagenet", "val", ours), Measured("geo-yfcc", "val", [])]
    grids = beside_grids(beside("points", sets))
    assert {grid.header for grid in grids.values()} == {("Row", "top-1", "top-5")}
    names = {
        name: [(row[0].text, row[0].badge) for row in grid.rows] for name, grid in grids.items()
    }
    # A row of which nothing was measured is the printed one alone.
    printed = {name: [(n, "published") for n in numbers.split()] for name, numbers in PRINTED}
    assert names == {**printed, "lt-imagenet": [("5", ""), *printed["lt-imagenet"]]}
    assert [cell.text for cell in grids["lt-imagenet"].rows[0][1:]] == ["25.0", "50.0"]


def test_a_thousand_classes_are_drawn_in_groups() -> None:
    assert [label_shares.groups_of(n) for n in (1, 100, 101, 1000)] == [1, 1, 3, 20]
    counts = tuple(range(1000, 0, -1))
    found = LabelCounts("big", tuple(map(str, range(1000))), {"a": DomainLabels("", counts)})
    drawing = label_shares.draw(found)
    assert drawing is not None
    values = drawing.figure.axes[0].patches[0].get_data().values
    assert len(values) == 50 and values.sum() == pytest.approx(100)
    assert values[0] == pytest.approx(100 * sum(counts[:20]) / sum(counts))


def test_the_consistency_curve_is_grey_where_the_theorem_is_silent() -> None:
    found = theory.parsed(consistency())
    assert found is not None
    assert [point.radius is None for point in found.points] == [True] * 6 + [False] * 2
    drawing = theory.draw(found)
    (ax,) = drawing.figure.axes
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    lines = {line.get_label(): list(line.get_xdata()) for line in ax.get_lines()}
    assert lines["Theorem 1 (95 %)"] == [1000, 3000]
    (grey,) = ax.patches
    assert grey.get_x() + grey.get_width() == pytest.approx((300 * 1000) ** 0.5)
    assert theory.expressivity(found) == (
        "Expressivity: two domains lie 1.9 apart and two halves of one domain 1.2, a ratio of 1.6: "
        "domains differ by more than the choice of images does."
    )


@pytest.mark.parametrize(
    "stored", [None, {}, {"points": []}, {"points": [{"n": 1}]}, {"points": 3}, {"points": [[]]}]
)
def test_a_damaged_consistency_is_left_out(stored: dict[str, object] | None) -> None:
    assert theory.parsed(stored) is None


def test_names_on_the_map_do_not_overlap() -> None:
    rng = np.random.default_rng(1)
    names = tuple(f"a rather long name {i}" for i in range(40))
    roles = ("train",) * 15 + ("test",) * 25
    drawing = domain_map.draw(
        domain_map.DomainMap(names, roles, rng.normal(size=(40, 3)), np.ones(40))
    )
    drawing.figure.draw_without_rendering()
    ax = drawing.figure.axes[0]
    boxes = [text.get_window_extent() for text in ax.texts]
    assert 5 <= len(boxes) < 25
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    frame = drawing.figure.bbox
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes)
    assert len(drawing.titles) == 40


def test_no_text_is_smaller_than_nine(text: str) -> None:
    figures = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(figures) == 9
    for svg in figures:
        sizes = [float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", svg)]
        assert sizes and min(sizes) >= 9
        assert "mathdefault" not in svg


@pytest.mark.slow
def test_many_runs_show_only_chosen_curves(report: Report) -> None:
    learning = next(one for one in illustrations(report, FIGURES) if one.name == "learning")
    assert learning.caption.startswith("One line per chosen run (30 of 60)")
    lines = [line for line in learning.drawing.figure.axes[1].get_lines() if len(line.get_xdata())]
    assert len(lines) == 30 and all(line.get_alpha() < 0.5 for line in lines)


def test_one_point_is_a_mark_beside_curves_and_no_curve_by_itself(report: Report) -> None:
    def cut(run: RunView) -> RunView:
        first = next(record for record in run.records.all if isinstance(record, Loss))
        return replace(run, records=Records((first,)))

    runs = report.runs[1:21]
    assert learning.draw([cut(run) for run in runs], COLOURS) is None
    phase = next(record for record in runs[0].records.all if isinstance(record, Loss)).phase
    same = [run for run in runs if run.records.losses[0].phase == phase]
    drawing = learning.draw([same[0], *map(cut, same[1:])], COLOURS)
    assert drawing is not None
    ax = next(ax for ax in drawing.figure.axes if len(ax.get_lines()) > 1)
    drawn = [line for line in ax.get_lines() if len(line.get_xdata())]
    assert [line.get_marker() == "o" for line in drawn].count(True) == len(same) - 1


def test_domain_by_domain_shows_the_winner_and_says_how_it_was_picked(report: Report) -> None:
    shown = next(iter(accuracy.gains(report)))
    gains = {row.key: row.gain.mean for row in report.overall.contenders if row.gain is not None}
    winner = max(gains, key=lambda key: gains[key])
    assert len(gains) > 1
    assert f"to {winner.label} (diamond)" in shown.caption
    assert f"Of {len(gains)} methods {winner.label} did best" in shown.caption


def test_notes_are_kept_when_nothing_can_be_compared(report: Report) -> None:
    nothing = Comparison("", report.rule, (), (), ERM)
    bare = Report(Path(), "Bare", ("",), {"": (nothing,)}, notes=("Mind the <gap>.",))
    text = page_of(bare)
    assert headings(text) == ["Notes"]
    assert "<li>Mind the &lt;gap&gt;.</li>" in text and "<nav" not in text


def test_the_map_is_coloured_by_groups() -> None:
    mu = np.random.default_rng(0).normal(size=(4, 3))
    names = ("a", "b", "c", "d")
    found = domain_map.DomainMap(names, ("train", "train", "test", "test"), mu, np.full(4, 9))
    groups = {"a": "Asia", "b": "Africa", "c": "Asia"}
    drawing = domain_map.draw(found, groups=groups)
    lines = {line.get_gid(): line for line in drawing.figure.axes[0].lines if line.get_gid()}
    colours = [lines[f"point-{number}"].get_color() for number in range(4)]
    first, second = canvas.INKS[canvas.CYCLE[0]], canvas.INKS[canvas.CYCLE[1]]
    assert colours == [
        first,
        second,
        first,
        canvas.INKS["blue"],
    ]  # d is in no group: its role's colour
    assert drawing.titles["point-0"] == "a (train, Asia), 9 images"
    labels = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert labels == ["training (2)", "unseen test (2)", "Asia", "Africa"]
