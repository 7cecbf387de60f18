"""The files of run and sweep folders are named in one place each, and read without torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import acclimate
from acclimate.core import layout

SOURCE = Path(acclimate.__file__).parent
OWNERS = {"core/layout.py", "results/sweep_folder.py"}
# The name that Hugging Face gives to weights happens to be ours too.
OTHERS = {("learn/models/weights.py", layout.WEIGHTS)}
FILES = sorted(name for name in vars(layout) if name.isupper())
SWEEP_FOLDERS = {"runs", "embeddings", "failures", "labels", "logs", "slurm"}


def docstrings(tree: ast.AST) -> set[ast.expr]:
    bodies = (node.body for node in ast.walk(tree) if hasattr(node, "body"))
    first = (body[0] for body in bodies if isinstance(body, list) and body)
    return {node.value for node in first if isinstance(node, ast.Expr)}


def spelt(path: Path) -> Iterator[str]:
    """Names of files that the code itself spells; what is written about them may."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = docstrings(tree)
    names = [getattr(layout, name).partition("{")[0] for name in FILES] + ["sweep.json"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            yield from (name for name in names if name in node.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            right = getattr(node.right, "value", None)
            if isinstance(right, str) and right in SWEEP_FOLDERS:
                yield right


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.stem)
def test_no_other_module_spells_the_name_of_a_file(path: Path) -> None:
    place = path.relative_to(SOURCE).as_posix()
    if place not in OWNERS:
        assert not {(place, name) for name in spelt(path)} - OTHERS


def test_folders_do_not_pay_for_torch() -> None:
    code = "import sys, acclimate.runs.folder\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
