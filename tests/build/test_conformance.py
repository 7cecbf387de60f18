"""Every row of THE table of builders: it builds or refuses, repeats itself, and is documented."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from typer.testing import CliRunner

from acclimate.build import BUILDERS, Row, builder
from acclimate.cli import app, load_commands
from acclimate.core.errors import AcclimateError
from acclimate.core.watch import unwatched
from acclimate.data.manifest import Manifest

ROOT = Path(__file__).resolve().parents[2]
load_commands()
pytestmark = pytest.mark.parametrize("name", list(BUILDERS))


def table(tree: Path, folder: Path) -> Path:
    rows = [
        f"{path.relative_to(tree)},{path.parent.name},{path.parent.parent.name},http://x.org/1.jpg"
        for path in sorted(tree.rglob("*.jpg"))
    ]
    path = folder / "photos.csv"
    path.write_text("\n".join(["image,label,domain,url", *rows]))
    return path


def pacs(tree: Path, folder: Path) -> list[str]:
    """A folder that could be PACS."""
    names = {"north": "photo", "south": "sketch", "east": "cartoon", "west": "art_painting"}
    for own, theirs in names.items():
        (folder / "PACS" / theirs).mkdir(parents=True)
        (folder / "PACS" / theirs / "dog").symlink_to(tree / own / "red")
        (folder / "PACS" / theirs / "elephant").symlink_to(tree / own / "blue")
    return [str(folder / "PACS"), "--dataset", "pacs"]


def geo(tree: Path, folder: Path) -> list[str]:
    """Photos of dogs and cats in seven square countries that lie side by side."""
    squares = [
        {
            "type": "Feature",
            "properties": {"name": f"land-{i}"},
            "geometry": {
                "type": "Polygon",
                "coordinates": [[[10 * i, 0], [10 * i + 9, 0], [10 * i + 9, 9], [10 * i, 9],
                                 [10 * i, 0]]],
            },
        }
        for i in range(7)
    ]  # fmt: skip
    (folder / "land.geojson").write_text(
        json.dumps({"type": "FeatureCollection", "features": squares})
    )
    (folder / "labels.txt").write_text("dog\tdog\ncat\tcat\n")
    lines = []
    for number in range(140):
        line = [""] * 23
        line[0], line[8] = str(1000 + number), "dog" if number % 2 else "cat"
        line[10], line[11] = str(10 * (number % 7) + 4.5), "4.5"
        line[14], line[22] = f"http://x.org/{number}.jpg", "0"
        lines.append("\t".join(line))
    (folder / "yfcc").write_text("\n".join(lines) + "\n")
    flags = ["--min-images=10", "--max-images=20", "--test-images=3", "--split=4,1,2"]
    files = [f"--labels={folder / 'labels.txt'}", f"--polygons={folder / 'land.geojson'}"]
    return [f"--metadata={folder / 'yfcc'}", *files, *flags, "--no-plots"]


def released(tree: Path, folder: Path) -> list[str]:
    """No table, and so a refusal: tests/build/test_released.py has the tables."""
    (folder / "geoyfcc.pkl").write_bytes(b"no pickle")
    return [str(folder / "geoyfcc.pkl")]


# What each builder is given, in a folder of its own: the tree of four sites, and what it makes of it.
TINY: dict[str, Callable[[Path, Path], list[str]]] = {
    "folder": lambda tree, _: [str(tree)],
    "table": lambda tree, folder: [str(table(tree, folder)), f"--root={tree}"],
    "digits": lambda *_: ["--train-domains=2", "--test-domains=1"],
    "long-tail": lambda tree, _: [
        str(tree), "--domains=2", "--heads=1", "--per-class=4", "--val-domains=1",
        "--test-domains=1", "--val-per-class=2", "--test-per-class=2",
    ],
    "domainbed": pacs,
    "geo-yfcc": geo,
    "geo-yfcc-released": released,
    "fetch": lambda tree, folder: [str(table(tree, folder)), f"--root={tree}", "--check-only"],
}  # fmt: skip
