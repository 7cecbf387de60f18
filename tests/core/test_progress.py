"""How far long work is, where nobody sees a bar."""

import sys
from types import SimpleNamespace

import pytest

from acclimate.core import progress
from acclimate.core.progress import Lines, phase_name, shown_by_itself, unwatched


class Log:
    """Lines written at times that a test sets."""

    def __init__(self) -> None:
        self.now, self.lines = 0.0, list[str]()
        self.watch = Lines(self.lines.append, lambda: self.now)

    def at(self, now: float, done: int, total: int = 900, note: str = "") -> None:
        self.now = now
        self.watch("main", done, total, note)


def test_a_line_now_and_then_with_rate_and_time_left() -> None:
    log = Log()
    for second in range(40):
        log.at(second, 2 * second)
    assert log.lines == [
        "predictor: 30 of 900, 2.0 a second, about 7 min 15 s left",
        "predictor: 60 of 900, 2.0 a second, about 7 min 00 s left",
    ]


def test_a_run_that_goes_on_is_not_faster_for_what_was_done_before() -> None:
    log = Log()
    log.at(0, 400)
    log.at(20, 410, note="best validation 80.0%")
    assert log.lines == [
        "predictor: 410 of 900, 2 s each, about 16 min 20 s left, best validation 80.0%"
    ]


def test_the_end_is_told_once_and_a_second_turn_again() -> None:
    log = Log()
    for now, done in ((0, 1), (3, 9), (4, 9), (5, 2), (6, 9)):
        log.at(now, done, 9)
    assert log.lines == ["predictor: 9 of 9, 3 s", "predictor: 9 of 9, 1 s"]


def test_a_long_log_stays_short() -> None:
    log = Log()
    for second in range(0, 86_400, 5):
        log.at(second, second, 100_000)
    assert 50 < len(log.lines) < 200


def test_phases_have_names_for_people() -> None:
    assert phase_name("main") == "predictor"
    assert phase_name("north: embedding") == "north: Step A: embedding"
    assert phase_name("rehearsal") == "rehearsal"
    # True of a network that is trained from scratch, and of a run without Step A.
    assert phase_name("features") == "backbone features"


def test_what_has_nothing_to_do_is_not_announced() -> None:
    """Such as a rehearsal of sites with too few images."""
    log = Log()
    log.at(0, 0, 0)
    log.at(60, 0, 0)
    assert log.lines == []


@pytest.mark.parametrize(("terminal", "notebook"), [(False, False), (True, False), (False, True)])
def test_fit_shows_a_bar_where_a_person_looks_on(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, notebook: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(progress, "in_notebook", lambda: notebook)
    with shown_by_itself() as watch:
        watch("main", 1, 2, "")
        assert (watch is unwatched) == (not terminal and not notebook)


def test_a_notebook_is_told_from_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    class ZMQInteractiveShell:
        pass

    assert not progress.in_notebook()
    kernel = SimpleNamespace(get_ipython=ZMQInteractiveShell)
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setattr(progress, "find_spec", lambda name: object())
    assert progress.in_notebook()
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    assert not progress.in_notebook()
