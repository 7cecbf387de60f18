"""The page of `inspect`: the images of each site beside each other, and how sites differ."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acclimate.core.grid import Cell, Grid, number
from acclimate.core.randomness import stream
from acclimate.core.text import count, listed, short
from acclimate.data.inspection import LOOKED_AT, Copies, Inspection, Look, domains_grid
from acclimate.data.manifest import Manifest
from acclimate.report.figures import label_shares, looks
from acclimate.report.figures.canvas import Illustration
from acclimate.report.view import Gallery, Picture, Section, write_view
from acclimate.results.sweep_folder import LabelCounts

MOST_SITES, MOST_CLASSES = 12, 20
OF_A_CLASS = 4  # images of a class in a site, at most,
OF_ALL_CLASSES = 200  # and of all of them
MOST_COPIES, OF_A_COPY = 16, 4
EXTREMES = 8
NOTABLE = 0.05  # of a shift, which is from 0 to 1
# What is measured of an image, by the heading of its column.
MEASURES: Mapping[str, Callable[[Look], float]] = {
    "Brightness, %": lambda look: 100 * look.brightness,
    "Sharpness, %": lambda look: 100 * look.sharpness,
    "Width, px": lambda look: look.width,
    "Height, px": lambda look: look.height,
}
# What images are ranked by, the first of them shown.
ENDS: Mapping[str, Callable[[Look], float]] = {
    "Darkest": lambda look: look.brightness,
    "Brightest": lambda look: -look.brightness,
    "Least sharp": lambda look: look.sharpness,
    "Smallest": lambda look: look.width * look.height,
}


@dataclass(frozen=True)
class Findings:
    """What `inspect` says of the files of a manifest."""

    looks: Sequence[Look]
    unreadable: Sequence[Mapping[str, str]]
    copies: Sequence[Copies]
    problems: Sequence[str]


def write_data_page(
    out: Path, manifest: Manifest, inspection: Inspection, findings: Findings
) -> Path:
    """Write the page of a manifest; its path."""
    rows = ("row of features", "rows of features") if manifest.has_features else ("image",)
    lead = (
        f"{count(inspection.images, *rows)} of {count(len(inspection.domains), 'site')} in "
        f"{count(inspection.classes, 'class', 'classes')}."
    )
    labels = LabelCounts.of(manifest.source, manifest)
    unreadable = [f"{one['image']}: {one['reason']}" for one in findings.unreadable]
    sections = [
        _examples(manifest, inspection),
        Section(
            "Labels",
            figures=list(label_shares.illustrate_labels([labels])),
            tables={"Labels of each site": domains_grid(manifest)},
        ),
        _looks(manifest, findings.looks),
        _extremes(manifest, findings.looks),
        _copies(manifest, findings.copies),
        Section("Files that cannot be read", lines=unreadable),
        Section("Problems", lines=findings.problems),
    ]
    return write_view(out, manifest.source, lead, list(_notes(inspection, findings)), sections)


def _notes(inspection: Inspection, findings: Findings) -> Iterable[str]:
    """What to look at first."""
    shift, copies = inspection.pairwise, findings.copies
    if shift is not None and shift.largest_pair is not None and (shift.largest or 0) >= NOTABLE:
        one, two = (short(site, 40) for site in shift.largest_pair)
        yield f"Labels differ most between {one} and {two}: a shift of {shift.largest:.2f}."
    if copies:
        across = sum(len(one.domains) > 1 for one in copies)
        unlike = sum(len(one.labels) > 1 for one in copies)
        yield (
            f"{count(len(copies), 'picture')} in several files: {across} in several sites, "
            f"{unlike} with several labels."
        )
    if findings.unreadable:
        yield f"{count(len(findings.unreadable), 'file')} cannot be read."
    if findings.problems:
        yield f"{count(len(findings.problems), 'problem')}, listed at the end."


def _picture(manifest: Manifest, row: int, caption: str = "", note: str = "") -> Picture:
    return Picture(manifest.image_source(row), manifest.image_name(row), caption, note)


def _examples(manifest: Manifest, inspection: Inspection) -> Section:
    """Images of each class, site by site: the largest sites and classes, images at random."""
    heading = "Sites side by side"
    largest = sorted(inspection.domains, key=lambda one: -one.rows)[:MOST_SITES]
    sites = sorted(one.domain for one in largest if one.rows)
    if manifest.has_features or not sites:
        return Section(heading)
    known = manifest.label_index[manifest.label_index >= 0]
    sizes = np.bincount(known, minlength=len(manifest.classes))
    classes = np.sort(np.argsort(-sizes, kind="stable")[:MOST_CLASSES])
    each = min(max(OF_ALL_CLASSES // (len(sites) * len(classes)), 1), OF_A_CLASS)
    galleries = {}
    for label in classes.tolist():
        rows = {site: _rows(manifest, site, label) for site in sites}
        galleries[manifest.classes[label]] = [
            Gallery(f"{site} ({len(own)})", [_picture(manifest, row) for row in own[:each]])
            for site, own in rows.items()
        ]
    text = ["Images at random; in brackets, how many the site has of the class."]
    if len(sites) < len(inspection.domains):
        text.append(f"The {len(sites)} largest of {len(inspection.domains)} sites.")
    if len(classes) < len(manifest.classes):
        text.append(f"The {len(classes)} largest of {len(manifest.classes)} classes.")
    return Section(heading, text, galleries=galleries)


def _rows(manifest: Manifest, site: str, label: int) -> list[int]:
    """The rows of a class in a site, one for each image, in an order drawn at random."""
    rows = manifest.rows(domain=site)
    rows = manifest.one_row_each(rows[manifest.label_index[rows] == label])
    return [*map(int, stream(0, "examples", site, label).permutation(rows))]


def _looks(manifest: Manifest, every: Sequence[Look]) -> Section:
    """Measures of images by site: which sites stand out, a figure and medians."""
    heading, sites = "How images look", dict[str, list[Look]]()
    for look in every:
        sites.setdefault(str(manifest.domain_names[look.row]), []).append(look)
    if not sites:
        return Section(heading)
    values = {
        name: {site: [of(look) for look in sites[site]] for site in sorted(sites)}
        for name, of in MEASURES.items()
    }
    medians = {
        site: [number(float(np.median(by_site[site])), ".0f") for by_site in values.values()]
        for site in sorted(sites)
    }
    rows = ((Cell(site), number(len(sites[site]), ","), *own) for site, own in medians.items())
    tables = {"Medians of each site": Grid(("Site", "Images", *MEASURES), tuple(rows))}
    largest = sorted(sorted(sites, key=lambda site: (-len(sites[site]), site))[:MOST_SITES])
    boxes = {
        name: {site: by_site[site] for site in largest}
        for name, by_site in values.items()
        if np.ptp(np.concatenate([*by_site.values()])) > 0  # or there is nothing to see
    }
    about = (
        "Boxes have the middle half of a site's images, whiskers 5 to 95 % of them. Brightness is "
        "the mean grey. Sharpness is how much neighbouring pixels differ: the standard deviation "
        f"of the Laplacian. Both are of images shrunk to {LOOKED_AT} × {LOOKED_AT} pixels."
    )
    figures = [Illustration(heading, about, looks.draw(boxes))] if boxes else []
    text = [f"{count(len(every), 'image')} that could be read.", *_outstanding(values)]
    return Section(heading, text, figures, tables)


def _outstanding(values: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterable[str]:
    """Sites whose median is outside of the middle half of all other sites' images."""
    for name, by_site in values.items():
        unusual = []
        for site, own in by_site.items():
            others = [value for other, some in by_site.items() if other != site for value in some]
            low, high = np.quantile(others or own, (0.25, 0.75))
            if not low <= (middle := float(np.median(own))) <= high:
                unusual.append(f"{short(site, 40)} ({middle:.0f}; others {low:.0f} to {high:.0f})")
        if unusual:
            yield f"Sites that stand out by {name.lower()}: {listed(unusual)}."


def _extremes(manifest: Manifest, every: Sequence[Look]) -> Section:
    galleries = {}
    for title, value in ENDS.items():
        ranked = sorted((value(look), look.row) for look in every)
        if ranked and ranked[0][0] < ranked[-1][0]:
            rows = [row for _, row in ranked[:EXTREMES]]
            pictures = [_picture(manifest, row, *_place(manifest, row)) for row in rows]
            galleries[title] = [Gallery("", pictures)]
    return Section("Extremes", galleries=galleries)


def _place(manifest: Manifest, row: int) -> tuple[str, str]:
    """The label and the site of a row."""
    label = manifest.label_index[row]
    return manifest.classes[label] if label >= 0 else "", str(manifest.domain_names[row])


def _copies(manifest: Manifest, copies: Sequence[Copies]) -> Section:
    """Those in several sites and with several labels first."""
    ranked = sorted(copies, key=lambda one: (len(one.domains) < 2, len(one.labels) < 2))
    galleries = [
        Gallery(
            "looks the same" if one.alike else "the same picture",
            [_picture(manifest, row, *_place(manifest, row)) for row in one.rows[:OF_A_COPY]],
        )
        for one in ranked[:MOST_COPIES]
    ]
    text = ["A model that has seen one of them in training looks better on the other than it is."]
    if len(copies) > MOST_COPIES:
        text.append(f"The first {MOST_COPIES} of {len(copies)}.")
    return Section("Copies and look-alikes", text, galleries={"": galleries} if galleries else {})
