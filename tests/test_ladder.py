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
    {"watch"},
    {"serve"},
    {"track"},
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


LARGE = {"torch", "numpy", "pyarrow", "PIL", "rich", "sklearn"}


@pytest.mark.parametrize("part", ["config", "build", "results", "report", "cli"])
def test_these_do_not_pay_for_torch(part: str) -> None:
    imports = f"import importlib\nfor name in {names_below(part)}: importlib.import_module(name)\n"
    assert not modules_after(imports) & {"torch"}


@pytest.mark.parametrize(
    ("arguments", "unpaid"),
    [(["--help"], LARGE), (["list", "presets"], {"torch"}), (["list", "ablations"], {"torch"})],
)
def test_commands_that_do_not_pay_for_what_is_large(arguments: list[str], unpaid: set[str]) -> None:
    code = (
        f"import sys\nfrom acclimate.cli import main\nsys.argv = ['acclimate', *{arguments}]\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
    )
    assert not modules_after(code) & unpaid


def modules_after(code: str) -> set[str]:
    """What a fresh process has imported once it ran this."""
    code += "import sys\nprint('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return {*done.stdout.splitlines()[-1].split()}


def test_only_the_command_line_prints() -> None:
    for path in FILES:
        if part_of(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            prints = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
            assert not prints, f"{path}:{node.lineno} prints"
