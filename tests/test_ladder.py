"""Imports point one way, builders and reports stay free of torch, and only the CLI prints."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import acclimate

SOURCE = Path(acclimate.__file__).parent
LADDER = (
    {"core"},
    {"config"},
    {"records"},
    {"data"},
    {"build", "learn"},
    {"adapt"},
    {"runs"},
    {"rehearse"},
    {"results"},
    {"sweep"},
    {"report"},
    {"estimator", "demo"},
    {"cli"},
    {"paper"},  # found by name, through the command line's table
)
RUNG = {name: number for number, names in enumerate(LADDER) for name in names}
FILES = sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def names_below(part: str) -> list[str]:
    """The modules of a package, and of `cli` the front door that every command goes through."""
    paths = [SOURCE / "cli" / "__init__.py"] if part == "cli" else (SOURCE / part).rglob("*.py")
    dotted = (".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in paths)
    return sorted(f"acclimate.{name.removesuffix('.__init__')}" for name in dotted)


def imported(path: Path) -> set[str]:
    """The parts of acclimate that a file imports anywhere, lazily or not."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
            continue
        parts |= {name.split(".")[1] for name in names if name.startswith("acclimate.")}
    return parts - {"__version__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part in ("__init__", "__main__"):
        return
    assert part in RUNG, f"{part} has no rung; give it one in LADDER and in docs/architecture.md"
    above = {name for name in imported(path) if RUNG[name] > RUNG[part]}
    assert not above, f"{path.name} ({part}) imports {above}, which stand above it"


@pytest.mark.parametrize("name", sorted({*RUNG} - {"demo", "estimator"}))
def test_what_a_package_says_it_offers_is_there(name: str) -> None:
    package = importlib.import_module(f"acclimate.{name}")
    for offered in package.__all__ if name not in ("cli", "paper") else ():
        assert getattr(package, offered) is not None
    with pytest.raises(AttributeError, match=f"acclimate.{name}.*nothing_of_the_kind"):
        getattr(package, "nothing_of_the_kind")  # noqa: B009


def test_nothing_imports_the_paper_kit() -> None:
    for path in FILES:
        assert part_of(path) == "paper" or "paper" not in imported(path), path


def test_reports_see_only_what_a_run_folder_holds() -> None:
    for path in FILES:
        if part_of(path) == "report":
            further = imported(path) - {"report", "results", "core", "config", "records", "data"}
            assert not further, path


def test_core_imports_nothing_of_ours() -> None:
    for path in (SOURCE / "core").glob("*.py"):
        assert imported(path) <= {"core"}, path


@pytest.mark.parametrize("part", ["config", "build", "results", "report", "cli"])
def test_these_do_not_pay_for_torch(part: str) -> None:
    code = (
        "import importlib, sys\n"
        f"for name in {names_below(part)}: importlib.import_module(name)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_pays_for_nothing_large() -> None:
    code = (
        "import sys\nfrom acclimate.cli import main\nsys.argv = ['acclimate', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "sys.exit(bool({'torch', 'numpy', 'pyarrow', 'PIL', 'rich', 'sklearn'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == 0


def test_only_the_command_line_prints() -> None:
    for path in FILES:
        if part_of(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            prints = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
            assert not prints, f"{path}:{node.lineno} prints"


@pytest.mark.parametrize("what", ["presets", "ablations"])
def test_lists_do_not_pay_for_torch(what: str) -> None:
    code = (
        "import sys\nfrom acclimate.cli import main\n"
        f"sys.argv = ['acclimate', 'list', '{what}']\n"
        "try: main()\nexcept SystemExit: pass\nsys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == 0
    assert done.stdout
