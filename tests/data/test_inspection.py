import json
import time
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import pyplot
from matplotlib.figure import Figure
from scipy.spatial.distance import jensenshannon

from acclimate.data import inspection as inspection_module
from acclimate.data.inspection import (
    effective_classes,
    imbalance,
    inspect,
    jensen_shannon,
    label_counts,
    mean_distance,
    tail_share,
    total_variation,
)
from acclimate.data.manifest import Manifest
from acclimate.report.figures import label_shares
from acclimate.report.figures.label_shares import draw_counts
from acclimate.results.sweep_folder import LabelCounts


def of(counts: dict[str, list[int]], **columns: list[object]) -> Manifest:
    """A manifest with counts[domain][i] rows of the i-th of the classes a, b, c, d."""
    classes = "abcd"[: len(next(iter(counts.values())))]
    rows = [
        (d, c)
        for d, held in counts.items()
        for c, n in zip(classes, held, strict=True)
        for _ in range(n)
    ]
    table = pa.table(
        {
            "image": [f"{i}.jpg" for i in range(len(rows))],
            "label": pa.array([c for _, c in rows], pa.string()),
            "domain": pa.array([d for d, _ in rows], pa.string()),
            "split": ["train" if i % 4 else "val" for i in range(len(rows))],
            **columns,
        }
    )
    return Manifest(table, tuple(classes), Path("/"), "made up", tuple(counts))


# By hand: x = (6, 2, 0, 0) / 8, the others y + z = (1, 1, 10, 0) / 12.
COUNTS = {"x": [6, 2, 0, 0], "y": [1, 1, 0, 0], "z": [0, 0, 10, 0], "empty": [0, 0, 0, 0]}


def test_a_domain_by_hand() -> None:
    inspection = inspect(of(COUNTS))
    assert [domain.domain for domain in inspection.domains] == ["empty", "x", "y", "z"]
    x = inspection.domains[1]
    assert (x.rows, x.splits) == (8, {"train": 6, "val": 2, "test": 0})
    assert (x.classes, x.missing_classes) == (2, ("c", "d"))
    assert (x.top_class, x.top_share, x.imbalance) == ("a", 0.75, 3.0)
    assert x.effective_classes == pytest.approx((4 / 3) ** 0.75 * 4**0.25)
    assert x.total_variation == pytest.approx((8 / 12 + 2 / 12 + 10 / 12) / 2)
    assert x.jensen_shannon == pytest.approx(
        jensenshannon([6 / 8, 2 / 8, 0], [1 / 12, 1 / 12, 10 / 12], base=2) ** 2
    )
    assert x.role is None
    z = inspection.domains[3]
    assert (z.total_variation, z.jensen_shannon) == (1.0, pytest.approx(1.0))
    assert (z.effective_classes, z.imbalance) == (pytest.approx(1.0), 1.0)


def test_an_empty_domain_has_no_statistics() -> None:
    empty = inspect(of(COUNTS)).domains[0]
    assert (empty.rows, empty.classes) == (0, 0)
    assert empty.missing_classes == ("a", "b", "c", "d")
    assert {
        empty.top_class,
        empty.top_share,
        empty.imbalance,
        empty.effective_classes,
        empty.tail_share,
        empty.total_variation,
        empty.jensen_shannon,
    } == {None}


def test_the_whole_by_hand() -> None:
    manifest = of(COUNTS, role=["train"] * 8 + ["val"] * 2 + [None] * 10)
    inspection = inspect(manifest)
    assert (inspection.rows, inspection.images, inspection.classes) == (20, 20, 4)
    assert inspection.splits == {"train": 15, "val": 5, "test": 0}
    assert inspection.unused_classes == ("d",)
    assert inspection.imbalance == pytest.approx(10 / 3)
    assert inspection.pairwise is not None
    assert inspection.pairwise.mean == pytest.approx((0.25 + 1 + 1) / 3)
    assert inspection.pairwise.largest == pytest.approx(1)
    assert inspection.pairwise.largest_pair == ("x", "z")
    assert [domain.role for domain in inspection.domains] == [None, "train", "val", None]
    assert inspection.digest == manifest.digest()
    told = json.loads(json.dumps(asdict(inspection), allow_nan=False))
    assert told["domains"][1]["top_class"] == "a"
    assert told["pairwise"]["largest_pair"] == ["x", "z"]


def test_images_are_counted_once() -> None:
    manifest = of({"x": [2, 3]}, image=["1", "1", "2", None, None])
    assert inspect(manifest).images == 4


def test_one_domain_has_no_shift() -> None:
    inspection = inspect(of({"x": [2, 1]}))
    assert inspection.pairwise is None
    assert inspection.domains[0].total_variation is None
    assert inspection.domains[0].jensen_shannon is None
    assert inspection.domains[0].top_class == "a"


def test_labels_outside_the_class_list_are_in_no_statistic() -> None:
    manifest = of({"x": [2, 1], "y": [1, 1]}, label=["a", "a", "?", "a", "b"])
    assert label_counts(manifest).tolist() == [[2, 0], [1, 1]]
    assert inspect(manifest).domains[0].rows == 3


@pytest.mark.parametrize(
    ("counts", "share"),
    [
        ([350] * 2 + [35] * 6, 0.75),  # LT-ImageNet's tail is exactly a tenth
        ([350] * 2 + [36] * 6, 0.0),
        ([30, 3, 3, 4], 0.5),
        ([30, 3, 0, 0], 0.5),
        ([5], 0.0),
        ([0, 0], None),
    ],
)
def test_tail_share(counts: list[int], share: float | None) -> None:
    assert tail_share(np.array(counts)) == share


def test_measures_by_hand() -> None:
    assert effective_classes(np.array([5, 5, 5, 0])) == pytest.approx(3)
    assert effective_classes(np.array([0, 0])) is None
    assert imbalance(np.array([12, 0, 3])) == 4
    assert imbalance(np.array([0])) is None
    assert total_variation(np.array([0.5, 0.5]), np.array([0.25, 0.75])) == 0.25


@settings(max_examples=40)
@given(
    st.integers(1, 6).flatmap(
        lambda k: st.tuples(*[st.lists(st.integers(0, 20), min_size=k, max_size=k).filter(any)] * 2)
    )
)
def test_distances_are_distances(pair: tuple[list[int], list[int]]) -> None:
    p, q = (np.array(counts) / sum(counts) for counts in pair)
    tv, js = total_variation(p, q), jensen_shannon(p, q)
    assert (tv, js) == pytest.approx((total_variation(q, p), jensen_shannon(q, p)))
    # Lin (1991): the divergence in bits is at most the total variation distance.
    assert -1e-12 <= js <= tv + 1e-12 <= 1 + 2e-12
    assert js == pytest.approx(np.nan_to_num(jensenshannon(p, q, base=2)) ** 2, abs=1e-9)
    assert (total_variation(p, p), jensen_shannon(p, p)) == (0, 0)


# Plots


def test_most_shifted_domains_are_drawn_first_and_the_rest_left_out() -> None:
    # Domain number i leans by i rows; the middle ones are nearest to the others pooled.
    manifest = of({f"d{i:02d}": [100 + 5 * i, 100] for i in range(70)})
    inspection = inspect(manifest)
    drawing = label_shares.draw(LabelCounts.of("x", manifest))
    assert drawing is not None
    titles = [ax.get_title(loc="left").split(" (")[0] for ax in drawing.figure.axes]
    shift = {domain.domain: domain.total_variation for domain in inspection.domains}
    assert titles == sorted(shift, key=lambda name: -(shift[name] or 0))[:12]
    assert titles[0] == "d00"
    heat = draw_counts(LabelCounts.of("x", manifest)).figure.axes[0]
    assert heat.get_title(loc="left") == "Rows of the 60 most shifted of 70 domains in 2 classes"
    shown = [label.get_text() for label in heat.get_yticklabels()]
    assert len(shown) == 60
    assert shown == sorted(shown)


def test_heat_map_holds_the_counts_and_leaves_empty_cells_empty() -> None:
    manifest = of(COUNTS)
    heat = draw_counts(LabelCounts.of("x", manifest)).figure.axes[0]
    assert [label.get_text() for label in heat.get_xticklabels()] == ["c", "a", "b", "d"]
    cells = heat.images[0].get_array()
    assert isinstance(cells, np.ma.MaskedArray)
    assert cells.filled(0).tolist() == [[0] * 4, [0, 6, 2, 0], [0, 1, 1, 0], [10, 0, 0, 0]]


def test_the_mean_distance_is_that_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    for n, k in ((2, 1), (2, 3), (7, 4), (40, 9)):
        shares = rng.dirichlet(np.full(k, 0.3), size=n)
        shares[0] = shares[-1]  # and ties
        pairs = [total_variation(p, q) for p, q in combinations(shares, 2)]
        assert mean_distance(shares) == pytest.approx(np.mean(pairs), rel=1e-12, abs=1e-15)


def test_of_many_domains_no_pair_is_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = ["a", "b", "c"] * 4
    few = Manifest.from_arrays(np.zeros((12, 2)), labels, [*"xxyyyzzzwwww"])
    whole = inspect(few).pairwise
    monkeypatch.setattr(inspection_module, "MOST_PAIRED", 3)
    many = inspect(few).pairwise
    assert whole is not None and many is not None and whole.largest_pair is not None
    assert (many.mean, many.largest, many.largest_pair) == (whole.mean, None, None)


@pytest.mark.slow
def test_thousands_of_domains_take_seconds() -> None:
    domains = np.repeat([f"d{number}" for number in range(5000)], 20)
    labels = np.random.default_rng(0).integers(0, 1000, len(domains))
    data = Manifest.from_arrays(np.zeros((len(domains), 1), np.float32), labels, domains)
    started = time.process_time()
    assert len(inspect(data).domains) == 5000
    assert time.process_time() - started < 20  # about 3


def test_a_manifest_shows_itself() -> None:
    manifest = of(COUNTS)
    table = manifest._repr_html_()
    assert "made up: 20 rows, 4 classes" in table and table.count("<tr>") == 5
    axes = manifest.plot()
    assert [text.get_text() for text in axes.get_yticklabels()] == list(manifest.all_domains)
    shares = axes.images[0].get_array()
    assert shares is not None and shares[1].tolist() == [75, 25, 0, 0] and not shares[0].any()
    other = Figure().subplots()
    assert of({name: [1, 1] for name in map(str, range(70))}).plot(other) is other
    assert len(other.get_xticklabels()) == 2
    pyplot.close("all")
