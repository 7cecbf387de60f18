"""An adapted classifier at a glance: a table of what is known of it, and its label frequencies."""

from typing import TYPE_CHECKING

from acclimate.core.errors import ConfigError
from acclimate.core.grid import Cell, Grid
from acclimate.core.plots import INKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from acclimate.adapt.classifier import Adapted


def summary_grid(site: "Adapted") -> Grid:
    """A row for each thing that is known; warnings and notes have rows of their own."""
    lines = [("classes", str(len(site.classes))), ("adapted by", site.method)]
    if site.state is not None:
        lines.append(("images", str(site.state.count)))
    expected = None if site.trust is None else site.trust.expected_accuracy
    if expected is not None and not expected.vague:
        lines.append(("expected accuracy", str(expected)))
    if site.changes is not None:
        lines.append(("changes", str(site.changes)))
    lines += [("warning", text) for text in (site.trust.warnings if site.trust else ())]
    lines += [("note", text) for text in site.notes]
    rows = tuple((Cell(name), Cell(text, long=True)) for name, text in lines)
    return Grid(("", "this site"), rows, frozenset({"this site"}))


def draw_site(site: "Adapted", axes: "Axes") -> None:
    """The site's class frequencies beside those of training, where `prior` has found them;
    otherwise how many predictions moved between which classes."""
    prior, moves = site.label_prior, site.changes.moves if site.changes else {}
    if prior is not None:
        names, places = list(prior), range(len(prior))
        here = [100 * share for share in prior.values()]
        axes.barh(places, here, color=INKS["blue"], label="this site")
        training = [100 * share for share in site.trained.label_prior]
        axes.plot(training, places, "D", color=INKS["orange"], label="training")
        axes.set_xlabel("share of images, %")
        axes.legend()
    elif moves:
        names = [f"{before} → {after}" for before, after in moves]
        axes.barh(range(len(moves)), list(moves.values()), color=INKS["blue"])
        axes.set_xlabel("predictions that adaptation changed")
    else:
        raise ConfigError(
            f"there is nothing to plot: {site.method} found no label frequencies and changed no "
            f"prediction; adapt with method='prior' to find the frequencies"
        )
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.invert_yaxis()
