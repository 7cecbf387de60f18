"""How large each package is: the table in docs/architecture.md, which `make check` compares.

Lines of code are lines that hold a token of code: no blanks, comments or docstrings. Templates,
style sheets, scripts and TOML count by their lines that are neither blank nor comments.

    python benchmarks/size.py
"""

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TESTS = ROOT / "src" / "acclimate", ROOT / "tests"
BESIDE = {".html", ".css", ".js", ".toml"}  # what counts as code beside Python
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
LEAST = 6  # equal lines of code that make a duplicate pair
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Size:
    """What one package holds."""

    files: int = 0
    lines: int = 0
    functions: int = 0
    names: int = 0  # public: functions, classes and methods without a leading underscore

    def add(self, other: "Size") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def code_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a file that are code, with their numbers."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if path.suffix != ".py":
        wanted = (line.strip() for line in lines)
        return [
            (number, line)
            for number, line in enumerate(wanted, 1)
            if line and not line.startswith(("#", "//", "/*", "<!--", "{#"))
        ]
    documentation = _docstring_lines(ast.parse(text))
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in SILENT or token.type == tokenize.ENDMARKER:
            continue
        span = set(range(token.start[0], token.end[0] + 1))
        if token.type != tokenize.STRING or not span <= documentation:
            numbers |= span
    return [(number, lines[number - 1].strip()) for number in sorted(numbers)]


def _docstring_lines(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found |= set(range(value.lineno, (value.end_lineno or 0) + 1))
    return found


def measure(path: Path) -> Size:
    size = Size(files=1, lines=len(code_lines(path)))
    if path.suffix == ".py":
        tree = ast.parse(path.read_text(encoding="utf-8"))
        size.functions = sum(isinstance(node, DEFINITIONS) for node in ast.walk(tree))
        size.names = sum(_public(tree.body))
    return size


def _public(body: list[ast.stmt]) -> Iterator[int]:
    for node in body:
        if isinstance(node, (*DEFINITIONS, ast.ClassDef)) and not node.name.startswith("_"):
            yield 1
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body)


def files_below(folder: Path) -> list[Path]:
    kinds = {".py", *BESIDE}
    return sorted(path for path in folder.rglob("*") if path.suffix in kinds and path.is_file())


def duplicate_pairs(paths: list[Path]) -> int:
    """Pairs of places that share `LEAST` or more lines of code, import lines aside."""
    windows: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for which, path in enumerate(paths):
        lines = [line for _, line in code_lines(path)]
        lines = [line for line in lines if not line.startswith(("import ", "from "))]
        for start in range(len(lines) - LEAST + 1):
            windows[tuple(lines[start : start + LEAST])].append((which, start))
    shared = {
        (one, other)
        for places in windows.values()
        for number, one in enumerate(places)
        for other in places[number + 1 :]
    }
    # A longer run of equal lines is one pair: the windows after its first follow another.
    return sum(((a, i - 1), (b, j - 1)) not in shared for (a, i), (b, j) in shared)


def sizes() -> dict[str, Size]:
    """Every package of the product, the paper kit and the tests."""
    found: dict[str, Size] = defaultdict(Size)
    for path in files_below(SOURCE):
        parts = path.relative_to(SOURCE).parts
        found[f"{parts[0]}/" if len(parts) > 1 else "modules beside them"].add(measure(path))
    for path in files_below(TESTS):
        found["tests/"].add(measure(path))
    return found


def table() -> str:
    """The sizes as a Markdown table: packages, the product, the paper kit, tests."""
    found = sizes()
    product = Size()
    for name, size in found.items():
        if name not in ("paper/", "tests/"):
            product.add(size)
    apart = ("paper/", "tests/")
    rows = [*((name, found[name]) for name in sorted(found) if name not in apart)]
    rows += [("**the product**", product), *((name, found[name]) for name in apart)]
    lines = ["| | files | lines of code | functions | public names |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {name} | {size.files} | {size.lines:,} | {size.functions:,} | {size.names:,} |"
        for name, size in rows
    ]
    pairs = duplicate_pairs([path for path in files_below(SOURCE) if path.suffix == ".py"])
    return "\n".join([*lines, "", f"Pairs of places that share {LEAST} lines or more: {pairs}."])


if __name__ == "__main__":
    print(table())
