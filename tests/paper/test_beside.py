"""Ours beside the paper's numbers: which score stands beside which, and what is missing."""

import pytest

from acclimate.paper.beside import Measured, Pair, beside
from acclimate.results.comparison import Observation
from acclimate.results.runs import Key


def score(
    key: Key, domain: str, value: float, top5: float | None = None, trial: int = 0
) -> Observation:
    return Observation("ours", key, "", trial, domain, value, {"top-5": top5})


def at(pairs: list[Pair], row: str, column: str, block: str = "") -> Pair:
    (found,) = [one for one in pairs if (one.block, one.row, one.column) == (block, row, column)]
    return found


def test_table_2_takes_top_1_and_top_5_of_training_and_unseen_domains() -> None:
    erm = Key("erm", "none")
    unseen = [score(erm, "x", 0.2, 0.5), score(erm, "y", 0.4, 0.7)]
    control = score(Key("erm", "oracle-prior"), "x", 0.9, 0.9)
    pairs = beside(
        "2",
        [
            Measured("geo-yfcc", "test", [*unseen, control]),
            Measured("geo-yfcc", "train", [score(erm, "z", 0.6, 0.8)]),
        ],
    )
    means = {one.column: one.ours and one.ours.mean for one in pairs if one.row == "ERM"}
    assert means == {
        "train top-1": 0.6,
        "train top-5": 0.8,
        "test top-1": pytest.approx(0.3),
        "test top-5": pytest.approx(0.6),
    }
    found = at(pairs, "DA-ERM", "test top-1", "geo-yfcc")
    assert found.ours is None
    assert found.printed is not None
    assert found.printed.mean == 23.4
    assert {one.block for one in pairs} == {"geo-yfcc"}  # nothing of data that are not at hand


def test_a_trial_counts_once_it_has_every_domain() -> None:
    erm = Key("erm", "none")
    whole = [score(erm, "x", 0.2), score(erm, "y", 0.4)]
    found = at(
        beside("1", [Measured("pacs", "test", [*whole, score(erm, "x", 0.9, trial=1)])]),
        "ERM",
        "pacs",
    )
    assert found.ours is not None
    assert (found.ours.mean, found.ours.n) == (pytest.approx(0.3), 1)


def test_the_average_of_table_1_is_over_data_sets_trial_by_trial() -> None:
    erm = Key("erm", "none")
    others = dict.fromkeys(("office-home", "domainnet", "terra-incognita"), (0.6, 0.6))
    sets = {"pacs": (0.8, 0.6), "vlcs": (0.4, 0.6), **others}
    measured = [
        Measured(name, "test", [score(erm, "x", top1, trial=t) for t, top1 in enumerate(values)])
        for name, values in sets.items()
    ]
    average = at(beside("1", measured), "ERM", "average")
    assert average.ours is not None
    assert average.ours.mean == pytest.approx(0.6)
    assert average.ours.se == pytest.approx(0)
    assert average.printed is not None
    assert average.printed.mean == 62.9
    assert "average" not in {one.column for one in beside("1", measured[:4])}


def test_table_4_shows_both_measures_and_the_print_beside_the_one_it_is() -> None:
    prototype = Key("da-erm", "embedding", "prototype")
    wrong = Key("da-erm", "wrong-embedding", "prototype")
    scores = [score(prototype, "x", 0.5, 0.8), score(wrong, "x", 0.4, 0.7)]
    pairs = beside("4", [Measured("lt-imagenet", "test", scores)])
    first = at(pairs, "lt-imagenet, top-1", "prototype")
    fifth = at(pairs, "lt-imagenet, top-5", "prototype")
    assert first.ours is not None and fifth.ours is not None
    assert (first.ours.mean, first.printed) == (0.5, None)
    assert fifth.ours.mean == 0.8
    assert fifth.printed is not None and fifth.printed.mean == 80.5
    random = at(pairs, "lt-imagenet, top-1", "random")
    assert random.ours is not None and random.ours.mean == 0.4


def test_points() -> None:
    scores = [score(Key("da-erm", "embedding", "50"), "x", 0.25, 0.5)]
    unseen = [score(Key("da-erm", "embedding", "50"), "y", 0.75, 1.0)]
    pairs = beside(
        "points", [Measured("geo-yfcc", "val", scores), Measured("geo-yfcc", "test", unseen)]
    )
    found = at(pairs, "50", "top-5", "geo-yfcc")
    assert found.ours is not None and found.ours.mean == 0.5
    assert found.printed is not None and found.printed.mean == 49.0
    assert at(pairs, "100", "top-1", "geo-yfcc").ours is None


def test_points_that_only_we_have_are_shown() -> None:
    """`reproduce table-points --small` runs with 5 images, which the paper does not print."""
    own = [score(Key("da-erm", "embedding", "5"), d, 0.25, 0.5) for d in "xy"]
    control = score(Key("da-erm", "wrong-embedding", "5"), "x", 0.9, 0.9)
    pairs = beside("points", [Measured("lt-imagenet", "val", [*own, control])])
    for column, mean in (("top-1", 0.25), ("top-5", 0.5)):
        found = at(pairs, "5", column, "lt-imagenet")
        assert found.ours is not None and found.ours.mean == mean
        assert found.printed is None
    printed = [one for one in pairs if one.printed is not None]
    assert len(pairs) == len(printed) + 2
