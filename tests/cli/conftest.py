"""The command line in this process, and a small run that it trained."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from acclimate.cli import main
from fixtures.settings import TINY, as_flags

Result = tuple[int, str, str]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`cli("train", ...)` -> (exit code, stdout, stderr), in this process."""

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["acclimate", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        code = stop.value.code
        # `sys.exit("text")` prints the text to stderr and exits with 1.
        if isinstance(code, str):
            return 1, captured.out, captured.err + code
        return int(code or 0), captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def run(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished da-erm run on the tree, `west` unseen, trained by the command line."""
    out = tmp_path_factory.mktemp("runs") / "sites"
    command = [sys.executable, "-m", "acclimate", "train", str(tree), "--algorithm", "da-erm"]
    flags = ["--test-domains", "west", "--out", str(out), *as_flags(TINY)]
    subprocess.run([*command, *flags], check=True, capture_output=True)
    return out


@pytest.fixture
def unlabelled(tree: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "new-site"
    for label in ("red", "blue"):
        for path in sorted((tree / "west" / label).iterdir())[:6]:
            target = folder / "camera" / f"{label}-{path.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return folder
