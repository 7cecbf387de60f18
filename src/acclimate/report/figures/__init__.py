"""The figures of a report: `FIGURES` is their table, in the order of a page.

A figure is a module with a function `illustrate(report)` that yields it with its heading and
caption, or nothing where there is nothing to show; and a row of the table, whose name its files
bear. The page, the files and the command line read the table. `canvas` holds what all share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from acclimate.core.errors import ConfigError
from acclimate.report.figures import (
    bars,
    by_domain,
    domain_map,
    dumbbells,
    label_shares,
    learning,
    rehearsal,
    search,
)
from acclimate.report.figures.canvas import Format, Illustration, write_figure
from acclimate.results.material import Report

Figures = Mapping[str, Callable[[Report], Iterable[Illustration]]]
FIGURES: Figures = {
    "rehearsal": rehearsal.illustrate,
    "bars": bars.illustrate,
    "by-domain": by_domain.illustrate,
    "domains": dumbbells.illustrate,
    "map": domain_map.illustrate,
    "labels": label_shares.illustrate,
    "search": search.illustrate,
    "learning": learning.illustrate,
}
FORMATS: tuple[Format, ...] = get_args(Format)


def illustrations(report: Report, figures: Figures = FIGURES) -> list[Illustration]:
    """Those of `figures` that have something to show; a second map is `map-2`."""
    found, drawn = [], Counter[str]()
    for name, illustrate in figures.items():
        for one in illustrate(report):
            drawn[name] += 1
            number = "" if drawn[name] == 1 else f"-{drawn[name]}"
            found.append(replace(one, name=name + number))
    return found


def write_figures(
    report: Report, folder: Path, formats: Sequence[Format] = FORMATS, figures: Figures = FIGURES
) -> list[Path]:
    """The report's figures as files for papers, on white; their paths."""
    for kind in formats:
        if kind not in FORMATS:
            raise ConfigError(f"figures: there is no format '{kind}'; choose {', '.join(FORMATS)}")
    paths = []
    for figure in illustrations(report, figures):
        for kind in formats:
            path = folder / f"{figure.name}.{kind}"
            write_figure(figure.drawing, path, kind)
            paths.append(path)
    return paths
