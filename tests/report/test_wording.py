"""The same value is the same number wherever it is shown."""

import re

import pytest

from acclimate.core.grid import Cell, Grid, share
from acclimate.core.text import percent, signed
from acclimate.paper.ablations.verdict import Level, level_table
from acclimate.report.page import environment
from acclimate.results.statistics import Estimate, accuracy, difference
from fixtures.pages import cells_of
from fixtures.sweep_example import HOSTILE

SHARES = [k / 2000 for k in range(2001)]  # every 0.05 points


def test_terminal_and_page_print_the_same_number() -> None:
    said = [percent(value) for value in SHARES for _ in range(2)]
    cells = [made for v in SHARES for made in (accuracy(Estimate(v, None, 1)), share(v))]
    grid = Grid(("x", *map(str, range(len(cells)))), ((Cell("all"), *cells),))
    assert grid.to_text(width=10**6).splitlines()[2].split() == ["all", *said]
    page = environment().get_template("macros.html").module.table("x", grid)
    assert re.findall(r"<td[^>]*>([^<]*)</td>", page) == said
    assert " & ".join(["all", *said]) in grid.to_latex("x", "x")
    levels = [Level(str(value), "v", "none", {0: value}) for value in SHARES]
    assert level_table(levels, ["v"])[1] == [["v", *said[::2]]]


def test_halves_are_rounded_alike_whatever_the_last_bit_of_a_sum() -> None:
    assert percent(0.0385) == percent(0.03849999999999998) == "3.9"
    points = [signed(value) for value in (0.059, -0.0026, 0.0004, -0.0004)]
    assert points == ["+5.9", "−0.3", "0.0", "0.0"]


@pytest.mark.parametrize("value", [None, Estimate(0.1, 0.02, 3)])
def test_a_difference_has_its_sign_and_a_missing_one_a_dash(value: Estimate | None) -> None:
    assert difference(value).text == ("–" if value is None else "+10.0 ± 2.0")


def test_a_table_for_a_notebook_is_short_and_nothing_in_it_acts() -> None:
    rows = [(Cell(f"{HOSTILE}{k}"), Cell("a\u202eb", best=k == 1)) for k in range(70)]
    table = Grid((HOSTILE, "y"), tuple(rows)).to_html(HOSTILE)
    header, first, second, *_, last = cells_of(table)
    shown = "&lt;script&gt;alert(1)&lt;/script&gt;"
    assert header == [shown, "y"] and HOSTILE not in table
    assert first == [f"{shown}0", "a\\u202eb"] and second[1] == "<b>a\\u202eb</b>"
    assert last == ["and 10 more"] and len(cells_of(table)) == 62
    assert f"{shown}</caption>" in table
    assert len(Grid(("x",), ((Cell("x" * 10**6),),)).to_html()) < 1000
