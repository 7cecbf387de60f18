"""Every row of THE table of builders: it builds or refuses, repeats itself, and is documented."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from acclimate.build import BUILDERS, builder
from acclimate.cli import app, load_commands
from acclimate.core.errors import AcclimateError
from acclimate.data.manifest import Manifest
from fixtures.pandas_pickles import frame, saved
from fixtures.pandas_pickles import released as photos

ROOT = Path(__file__).resolve().parents[2]
load_commands()
every_builder = pytest.mark.parametrize("name", list(BUILDERS))


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
        shutil.copytree(tree / own / "red", folder / "PACS" / theirs / "dog")
        shutil.copytree(tree / own / "blue", folder / "PACS" / theirs / "elephant")
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
    return [str(saved(folder / "geoyfcc.pkl", frame(photos())))]


# What each builder is given: the tree of four sites, or what it makes in a folder of its own.
TINY: dict[str, Callable[[Path, Path], list[str]]] = {
    "folder": lambda tree, _: [str(tree)],
    "table": lambda tree, folder: [str(table(tree, folder)), f"--root={tree}"],
    "digits": lambda *_: ["--train-domains=2", "--test-domains=1"],
    "long-tail": lambda tree, _: [
        str(tree), "--domains=2", "--heads=1", "--per-class=4", "--val-domains=1",
        "--test-domains=1", "--val-per-class=2", "--test-per-class=2",
    ],
    "shift": lambda tree, _: [
        str(tree), "--label=2", "--heads=0.5", "--covariate=1", "--conditional=1", "--domains=2",
        "--val=1", "--test=1", "--per-domain=10",
    ],
    "domainbed": pacs,
    "geo-yfcc": geo,
    "geo-yfcc-released": released,
    "fetch": lambda tree, folder: [str(table(tree, folder)), f"--root={tree}", "--check-only"],
}  # fmt: skip


@pytest.fixture
def built(tree: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs `acclimate build NAME` on its tiny input; gives what it says as JSON."""

    def run(name: str, *more: str) -> dict[str, Any]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        given = [*TINY[name](tree, folder), "--out", str(folder / "made.parquet"), *more]
        done = CliRunner().invoke(app, ["build", name, *given, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    return run


@every_builder
def test_it_writes_a_valid_manifest(name: str, built: Callable[..., dict[str, Any]]) -> None:
    said = built(name)
    manifest = Manifest.read(said["manifest"])
    manifest.check(check_files=False)
    assert len(manifest) == said["rows"] > 0
    assert (len(manifest.domains), len(manifest.classes)) == (said["domains"], said["classes"])
    assert manifest.digest() == said["digest"]


@every_builder
def test_the_same_question_gets_the_same_answer(
    name: str, built: Callable[..., dict[str, Any]]
) -> None:
    assert built(name)["digest"] == built(name)["digest"]


@every_builder
def test_a_name_that_is_no_manifest_is_refused(name: str, tree: Path, tmp_path: Path) -> None:
    given = [*TINY[name](tree, tmp_path), "--out", str(tmp_path / "made.csv")]
    refused = CliRunner().invoke(app, ["build", name, *given]).exception
    assert isinstance(refused, AcclimateError)
    assert str(refused) == "'made.csv' is no name for a manifest; end it in .parquet"


@every_builder
def test_data_that_are_not_there_are_refused(name: str, tree: Path, tmp_path: Path) -> None:
    given = TINY[name](tree, tmp_path)
    if given[0].startswith("--train"):
        return  # the digits come with the library
    given[0] = re.sub(r"[^=]*$", str(tmp_path / "nowhere.parquet"), given[0])
    refused = CliRunner().invoke(app, ["build", name, *given, "--out", "made.parquet"]).exception
    assert isinstance(refused, AcclimateError | OSError) and "nowhere" in str(refused)


@every_builder
def test_it_has_help_and_documentation(name: str) -> None:
    shown = CliRunner().invoke(app, ["build", name, "--help"]).output
    told = " ".join(shown.split())
    assert BUILDERS[name].about in told and f"Example: acclimate build {name}" in told
    for page in ("cli.md", "benchmarks.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert f"build {name}" in text or f"`{name}`" in text, f"docs/{page} lacks {name}"


@every_builder
def test_its_example_parses(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # one of them works anywhere
    cls = builder(name)
    arguments = shlex.split(cls.example)[2:]
    assert arguments[0] == name
    refused = CliRunner().invoke(app, ["build", *arguments]).exception
    assert not isinstance(refused, SystemExit) or refused.code != 2, refused  # 2: wrong usage


def test_an_unknown_builder_names_the_nearest() -> None:
    with pytest.raises(AcclimateError) as caught:
        builder("digit")
    assert str(caught.value) == "there is no builder 'digit'; did you mean 'digits'?"


def test_the_table_costs_nothing() -> None:
    code = (
        "import sys, acclimate.build\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'sklearn', 'shapely')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
