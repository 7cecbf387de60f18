"""What others install: the wheel, what describes the project, and the forms of its issues."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import acclimate

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SHIPPED = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff")


def test_one_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert acclimate.__version__ == PROJECT["project"]["version"] == cited["version"]
    assert cited["license"] == PROJECT["project"]["license"]
    (paper,) = cited["references"]
    bibtex = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert all(author["family-names"] in bibtex for author in paper["authors"])
    assert paper["title"] in bibtex and PROJECT["project"]["urls"]["Paper"].endswith(paper["doi"])


def test_groups_are_the_extras_of_their_names() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert PROJECT["dependency-groups"] == {
        name: [f"acclimate[{name}]"] for name in ("dev", "full")
    }
    light = " ".join([*extras["all"], *extras["dev"]])
    assert not re.search("tensorboard|mlflow|wandb|trackio", light)


@pytest.mark.parametrize("name", ["bug", "question", "algorithm"])
def test_forms_of_issues(name: str) -> None:
    path = ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml"
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    ids = [field["id"] for field in form["body"]]
    assert len({*ids}) == len(ids) and all(field["attributes"]["label"] for field in form["body"])
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def run(*command: object, cwd: Path) -> str:
    """A command that sees neither the repository nor what tests put on the path."""
    hidden = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=hidden, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_below(folder: Path) -> list[Path]:
    parts = ("acclimate.egg-info", "__pycache__")
    return [path for path in folder.rglob("*") if path.is_file() and not {*path.parts} & {*parts}]


@pytest.mark.full
@pytest.mark.skipif(not (find_spec("build") and find_spec("twine")), reason="build and twine")
def test_the_wheel_works_without_the_repository(tmp_path: Path) -> None:
    source, dist = tmp_path / "source", tmp_path / "dist"
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=skipped)
    for name in SHIPPED:
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, cwd=source)
    archive, wheel = sorted(dist.iterdir(), key=lambda path: path.suffix)
    run(sys.executable, "-m", "twine", "check", "--strict", archive, wheel, cwd=tmp_path)
    wanted = {path.relative_to(source / "src").as_posix() for path in files_below(source / "src")}
    with zipfile.ZipFile(wheel) as content:
        assert wanted <= {*content.namelist()}
    shutil.rmtree(source)

    home = tmp_path / "venv"
    venv.create(home)
    binaries = home / ("Scripts" if os.name == "nt" else "bin")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    pip = (sys.executable, "-m", "pip", "--python", binaries / "python")
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    # What it depends on is there already. A path file of a folder that a path file names is not
    # read, so that an editable installation stays out.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")

    where = "import acclimate; print(acclimate.__file__)"
    assert Path(run(binaries / "python", "-c", where, cwd=tmp_path)).is_relative_to(packages)
    demo = run(binaries / "acclimate", "demo", "--seeds", "1", "--out", "demo", cwd=tmp_path)
    assert "DA-ERM" in demo
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000
