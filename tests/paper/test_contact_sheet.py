"""Sample images by class and domain."""

import numpy as np
import pyarrow as pa

from acclimate.data.manifest import Manifest
from acclimate.paper.figures.contact_sheet import contact_sheet, draw


def pictures() -> Manifest:
    """Class a everywhere, b in two domains, c in one; a pixel's red tells the row."""
    rows = [("x", "a"), ("x", "b"), ("y", "a"), ("y", "b"), ("z", "a"), ("z", "c"), ("z", "a")]
    pixels = np.zeros((len(rows), 8, 8, 3), dtype=np.uint8)
    pixels[..., 0] = np.arange(len(rows))[:, None, None] * 20
    return Manifest.from_arrays(pixels, [r[1] for r in rows], [r[0] for r in rows])


def test_classes_that_most_domains_have_in_domains_that_lack_none() -> None:
    sheet = contact_sheet(pictures())
    assert sheet.classes == ("a", "b", "c")
    assert sheet.domains == ("z", "x", "y")  # none has all three; z has most images
    missing = [[image is None for image in row] for row in sheet.images]
    assert missing == [[False] * 3, [True, False, False], [False, True, True]]
    shown = sheet.images[1][1]
    assert shown is not None
    assert shown.shape == (96, 96, 3)
    assert shown[40, 40].tolist() == [20, 0, 0]  # the one image of b in x


def test_an_image_that_cannot_be_read_leaves_its_place_empty() -> None:
    made = pictures()
    broken = pa.array([b"no image"] * len(made), pa.binary())
    table = made.table.set_column(made.table.column_names.index("bytes"), "bytes", broken)
    sheet = contact_sheet(Manifest(table, made.classes, made.root, made.source))
    assert all(image is None for row in sheet.images for image in row)
    assert len(draw(sheet).figure.axes) == 9


def test_the_sheet_names_classes_and_domains() -> None:
    axes = draw(contact_sheet(pictures())).figure.axes
    assert [ax.get_title() for ax in axes[:3]] == ["z", "x", "y"]
    assert [ax.get_ylabel() for ax in axes[::3]] == ["a", "b", "c"]


def test_groups_of_domains_come_from_the_first_column_that_has_one_for_each() -> None:
    made = pictures()
    assert made.groups() == {}
    split = made.table.append_column("continent", pa.array(list("pqrstuv")))
    north = pa.array(["north" if name == "x" else "south" for name in made.domain_names])
    table = split.append_column("region", north)
    found = Manifest(table, made.classes, made.root, made.source).groups()
    assert found == {"x": "north", "y": "south", "z": "south"}
