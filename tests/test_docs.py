"""The documentation is true: generated parts are current and README commands run."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from fixtures.settings import TINY, as_flags

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """The code block behind `<!-- test: name -->`."""
    found = re.search(rf"<!-- test: {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found, f"README has no block named {name}"
    return found[1]


@pytest.fixture
def home(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `sites` and unlabelled images in `new-site`, as the README says."""
    shutil.copytree(tree, tmp_path / "sites")
    shutil.copytree(tree / "west" / "red", tmp_path / "new-site")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_generated_documentation_is_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_defaults_are_shown_unless_they_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    from generate import describe

    def command(
        seed: int = 0, rate: float = 0.0, base: str = "erm",
        empty: str = "", path: str | None = None, switch: bool = False,
    ) -> None:  # fmt: skip
        """Does nothing."""

    app = typer.Typer(add_completion=False)
    app.command()(command)
    rows = list(describe("acclimate try", typer.main.get_command(app)))
    shown = {row.split()[1].strip("`"): row.partition("Default: ")[2] for row in rows[4:-1]}
    assert shown == {
        "--seed": "`0`. |", "--rate": "`0.0`. |", "--base": "`erm`. |",
        "--empty": "", "--path": "", "--switch": "",
    }  # fmt: skip


def test_readme_commands(home: Path) -> None:
    for line in block("commands").strip().splitlines():
        program, *arguments = shlex.split(line)
        assert program == "acclimate"
        # The same command, made small: the README's own settings train for minutes.
        small = as_flags(TINY) if arguments[0] == "train" else []
        command = [sys.executable, "-m", "acclimate", *arguments, *small]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert len((home / "predictions.csv").read_text().splitlines()) == 13


def test_readme_python(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = block("python").replace('backbone="auto"', 'backbone="auto", settings=TINY')
    assert "settings=TINY" in code
    exec(compile(code, "README.md", "exec"), {"TINY": TINY})
    printed = capsys.readouterr().out
    assert "'red'" in printed or "'blue'" in printed
    assert (home / "new-site.safetensors").exists()


def test_readme_names_every_part() -> None:
    source = ROOT / "src" / "acclimate"
    parts = {path.name for path in source.iterdir() if path.suffix == ".py" or path.is_dir()}
    parts -= {"__init__.py", "__main__.py", "__pycache__", "py.typed"}
    missing = {part for part in parts if f"{part}" not in README}
    assert not missing


def test_links_in_the_documentation_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)|src=\"([^\"]+)\"", text):
            link = "".join(target)
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_example_of_contributing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import torch.nn.functional as F

    from acclimate.config import log10, setting
    from acclimate.data.batches import Batch
    from acclimate.learn.algorithms import ALGORITHMS, Algorithm
    from acclimate.learn.objective import Losses, mean_by
    from fixtures.objectives import batch_for, make_algorithm

    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found
    from dataclasses import dataclass
    from textwrap import dedent

    names = {
        "dataclass": dataclass, "setting": setting, "log10": log10, "Algorithm": Algorithm,
        "Batch": Batch, "Losses": Losses, "mean_by": mean_by, "F": F,
    }  # fmt: skip
    exec(dedent(found[1]), names)
    monkeypatch.setitem(ALGORITHMS, "vrex", (names["VRex"], "variance of risks"))
    for name in ("vrex", "da-vrex"):
        losses = make_algorithm(name)(batch_for(name), 0)
        assert losses.penalty is not None and torch.isfinite(losses.total)
