"""The tutorial, command by command, as somebody who follows it."""

import csv
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fixtures.processes import run_line
from fixtures.settings import TINY, as_flags

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorial.md"
BLOCK = re.compile(r"<!-- test: (\S+) -->\n```(\w+)\n(.*?)```", re.DOTALL)
SMALL = as_flags(TINY | {"adapt.site.steps": 5})  # the page's own settings train for minutes


@pytest.mark.slow
def test_from_folders_to_an_onnx_file(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    for site in ("north", "south", "east"):
        shutil.copytree(tree / site, tmp_path / "sites" / site)
    shutil.copytree(tree / "west" / "red", tmp_path / "new-site")
    monkeypatch.chdir(tmp_path)
    said, known = {}, dict[str, Any]()
    for name, language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), known)
            continue
        for line in text.strip().splitlines():
            said[name] = run_line(line, SMALL)
            if name == "dry-run":
                assert not Path("runs").exists()
    assert list(said) == ["inspect", "dry-run", "train", "adapt", "export"]
    assert "algorithm: erm" in said["dry-run"] and "rehearsal: yes" in said["dry-run"]
    assert "the plain model is what `predict` uses." in said["train"]
    with Path("predictions.csv").open(newline="") as file:
        assert known["labels"] == [row["label"] for row in csv.DictReader(file)]
