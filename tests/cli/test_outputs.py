"""Nothing is overwritten that is no earlier output of the same kind."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from acclimate.core.errors import ConfigError
from acclimate.records.folder import check_out
from acclimate.report import write_figures
from acclimate.results.load import load_report
from fixtures.errors import refused
from fixtures.pictures import write_sites


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def place(run: Path, unlabelled_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, photographs, a manifest and a table of somebody's, in one folder."""
    folder = tmp_path_factory.mktemp("outputs")
    shutil.copytree(run, folder / "run")
    shutil.copytree(unlabelled_once, folder / "tree")
    (folder / "mine.csv").write_text("image,label\na.png,red\n")
    (folder / "notes.md").write_text("# Notes\n")
    return folder


@pytest.fixture(scope="module")
def unlabelled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("sites") / "tree", 6, ".png")


def commands(place: Path) -> dict[str, tuple[object, ...]]:
    """Every command that writes a file where it is told to."""
    run, site = place / "run", place / "tree" / "north" / "red"
    state = place / "site.safetensors"
    return {
        "adapt": ("adapt", run, site, "--out"),
        "predict": ("predict", run, site, "--domain", state, "--out"),
        "export": ("export", run, "--domain", state, "--out"),
        "folder": ("build", "folder", place / "tree", "--out"),
        "digits": ("build", "digits", "--out"),
        "page": ("report", run, "--out"),
        "table": ("report", run, "--out", place / "page.html", "--table"),
    }


def test_an_out_never_replaces_what_is_no_output(cli: Any, place: Path) -> None:
    assert cli("adapt", place / "run", place / "tree", "--out", place / "site.safetensors")[0] == 0
    photo = place / "tree" / "north" / "red" / "00.png"
    assert photo.exists()
    targets = [photo, place / "mine.csv", place / "notes.md", *contents(place / "run")]
    before = contents(place)
    for command in commands(place).values():
        for target in (*targets, place, place / "run"):
            code, _, error = cli(*command, target)
            line = error.strip().splitlines()[-1]
            assert (code, line[:7]) == (1, "error: "), (command[0], target, line)
            (place / "page.html").unlink(missing_ok=True)
            assert contents(place) == before, (command, target)


def test_an_out_of_the_same_kind_is_replaced(cli: Any, place: Path, tmp_path: Path) -> None:
    assert cli("adapt", place / "run", place / "tree", "--out", place / "site.safetensors")[0] == 0
    endings = {
        "adapt": "a.safetensors",
        "predict": "a.csv",
        "folder": "a.parquet",
        "page": "a.html",
        "table": "b.csv",
        "export": "a.npz",
    }
    for name, ending in endings.items():
        for _ in range(2):
            code, _, error = cli(*commands(place)[name], tmp_path / ending)
            assert code == 0, (name, error)
    for ending in (".md", ".tex", ".json"):
        for _ in range(2):
            assert cli(*commands(place)["table"], tmp_path / f"t{ending}")[0] == 0, ending
    # And no kind by another.
    for name, own in endings.items():
        for ending in endings.values():
            if ending != own:
                code, _, error = cli(*commands(place)[name], tmp_path / ending)
                assert code == 1, (name, ending, error)


@pytest.mark.slow
def test_exported_models_are_replaced_and_no_others(cli: Any, place: Path, tmp_path: Path) -> None:
    for ending in (".onnx", ".pt2"):
        out = tmp_path / f"model{ending}"
        for _ in range(2):
            assert cli("export", place / "run", "--out", out)[0] == 0
        out.write_bytes(b"PK\x03\x04 of somebody else")
        assert cli("export", place / "run", "--out", out)[0] == 1
        assert out.read_bytes().endswith(b"else")


def test_a_manifest_is_replaced_by_its_own_sample_in_no_case(cli: Any, place: Path) -> None:
    source = place / "source.parquet"
    assert cli("build", "folder", place / "tree", "--out", source)[0] == 0
    link = place / "link.parquet"
    link.symlink_to(source)
    whole = source.read_bytes()
    for out in (source, link):
        code, _, error = cli("build", "long-tail", source, "--out", out)
        assert code == 1
        assert "input" in error
    link.unlink()
    assert source.read_bytes() == whole


def test_figures_do_not_replace_photographs(place: Path, tmp_path: Path) -> None:
    report = load_report(place / "run")
    written = write_figures(report, tmp_path, ["png", "svg", "pdf"])
    assert written
    again = {path: path.read_bytes() for path in written}
    write_figures(report, tmp_path, ["png", "svg", "pdf"])
    assert {path: path.read_bytes() for path in written} == again
    for path in written:
        shutil.copy(place / "tree" / "north" / "red" / "00.png", path)
        with refused(ConfigError, path.name):
            write_figures(report, tmp_path, ["png", "svg", "pdf"])
        path.unlink()


def test_names_of_a_run_are_its_own_though_nothing_is_there(place: Path) -> None:
    for name in ("site.safetensors", "labels.json", "checkpoint-main.safetensors", ".lock"):
        with refused(ConfigError, name):
            check_out(place / "run" / name, "domain state")
    check_out(place / "run" / "new-site.safetensors", "domain state")
    check_out(place / "tree" / "site.safetensors", "domain state")


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    check_out(tmp_path / "a.csv", "table of predictions")
