"""The figures of a report: `FIGURES` is their table, in the order of a page.

A figure is a function from a report to illustrations with heading and caption, or to none where
there is nothing to show; and a row of the table, whose name its files bear. The page, the files and
the command line read the table. `canvas` holds what all share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from acclimate.core.errors import require_known
from acclimate.report.figures import (
    accuracy,
    answers,
    confusion,
    domain_map,
    label_shares,
    learning,
    rehearsal,
)
from acclimate.report.figures.canvas import Format, Illustration, write_figure
from acclimate.results.material import Report

Figures = Mapping[str, Callable[[Report], Iterable[Illustration]]]
FIGURES: Figures = {
    "rehearsal": rehearsal.illustrate,
    "answers": answers.illustrate,
    "methods": accuracy.by_method,
    "domains": accuracy.gains,
    "confusion": confusion.illustrate,
    "map": domain_map.illustrate,
    "labels": label_shares.illustrate,
    "learning": learning.illustrate,
}
FORMATS: tuple[Format, ...] = get_args(Format)


def illustrations(report: Report, figures: Figures = FIGURES) -> list[Illustration]:
    """Those of `figures` that have something to show; a second map is `map-2`."""
    return [
        replace(one, name=name if number == 1 else f"{name}-{number}")
        for name, illustrate in figures.items()
        for number, one in enumerate(illustrate(report), 1)
    ]


def check_formats(formats: Sequence[str]) -> None:
    """Raise `UnknownName` for what is no format of a figure's file."""
    for kind in formats:
        require_known(kind, FORMATS, f"--format: there is no '{kind}'")


def write_figures(
    report: Report, folder: Path, formats: Sequence[Format] = FORMATS, figures: Figures = FIGURES
) -> list[Path]:
    """The report's figures as files for papers, on white; their paths."""
    check_formats(formats)
    paths = []
    for figure in illustrations(report, figures):
        for kind in formats:
            paths.append(folder / f"{figure.name}.{kind}")
            write_figure(figure.drawing, paths[-1], kind)
    return paths
