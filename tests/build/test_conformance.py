"""Every row of THE table of builders: it builds or refuses, repeats itself, and is documented."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from acclimate.build import builder
from acclimate.cli.build import rows
from acclimate.core.errors import AcclimateError
from acclimate.data.manifest import Manifest
from fixtures.builder_inputs import TINY
from fixtures.command_line import app, command
from fixtures.errors import refused

ROOT = Path(__file__).resolve().parents[2]
BUILDERS = rows()
every_builder = pytest.mark.parametrize("name", list(BUILDERS))


@pytest.fixture
def built(tree: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs `acclimate build NAME` on its tiny input; gives what it says as JSON."""

    def run(name: str, *more: str) -> dict[str, Any]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        given = [*TINY[name](tree, folder), "--out", folder / "made.parquet", *more]
        said: dict[str, Any] = json.loads(command("build", name, *given, "--json"))
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
    with refused(AcclimateError, "'made.csv'", ".parquet"):
        command("build", name, *TINY[name](tree, tmp_path), "--out", tmp_path / "made.csv")


@every_builder
def test_data_that_are_not_there_are_refused(name: str, tree: Path, tmp_path: Path) -> None:
    given = TINY[name](tree, tmp_path)
    if given[0].startswith("--train"):
        return  # the digits come with the library
    given[0] = re.sub(r"[^=]*$", str(tmp_path / "nowhere.parquet"), given[0])
    with refused((AcclimateError, OSError), "nowhere"):
        command("build", name, *given, "--out", "made.parquet")


@every_builder
def test_it_has_help_and_documentation(name: str) -> None:
    told = " ".join(command("build", name, "--help").split())
    assert BUILDERS[name].about in told and f"Example: acclimate build {name}" in told
    for page in ("cli.md", "benchmarks.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert f"build {name}" in text or f"`{name}`" in text, f"docs/{page} lacks {name}"


@every_builder
def test_its_example_parses(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # one of them works anywhere
    cls = builder(name, BUILDERS)
    arguments = shlex.split(cls.example)[2:]
    assert arguments[0] == name
    ended = CliRunner().invoke(app, ["build", *arguments]).exception
    assert not isinstance(ended, SystemExit) or ended.code != 2, ended  # 2: wrong usage


def test_an_unknown_builder_names_the_nearest() -> None:
    with refused(AcclimateError, "digit", "digits"):
        builder("digit")
