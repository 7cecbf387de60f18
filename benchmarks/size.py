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
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TESTS = ROOT / "src" / "acclimate", ROOT / "tests"
BESIDE = {".html", ".css", ".js", ".toml"}  # what counts as code beside Python
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip
LEAST = 6  # equal lines of code that make a duplicate pair
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Size:
    """What one package holds."""

    files: int = 0
    lines: int = 0
    tokens: int = 0  # of Python, without comments and docstrings
    functions: int = 0
    names: int = 0  # public: functions, classes and methods without a leading underscore
    pairs: int = 0  # of places that share `LEAST` lines or more, one of them here

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
    spans = (range(token.start[0], token.end[0] + 1) for token in code_tokens(text))
    numbers = sorted({number for span in spans for number in span})
    return [(number, lines[number - 1].strip()) for number in numbers]


def code_tokens(text: str) -> list[tokenize.TokenInfo]:
    """The tokens of a Python file that are neither comment, docstring nor layout."""
    documentation = _docstring_lines(ast.parse(text))
    return [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in SILENT
        and not (token.type == tokenize.STRING and token.start[0] in documentation)
    ]


def _docstring_lines(tree: ast.Module) -> set[int]:
    numbers: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                numbers |= set(range(value.lineno, (value.end_lineno or 0) + 1))
    return numbers


def measure(path: Path) -> Size:
    size = Size(files=1, lines=len(code_lines(path)))
    if path.suffix == ".py":
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        size.tokens = len(code_tokens(text))
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


def duplicate_pairs(paths: list[Path]) -> list[tuple[Path, Path]]:
    """Pairs of places that share `LEAST` or more lines of code, import lines aside."""
    windows: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for number, path in enumerate(paths):
        lines = [line for _, line in code_lines(path)]
        lines = [line for line in lines if not line.startswith(("import ", "from "))]
        for start in range(len(lines) - LEAST + 1):
            windows[tuple(lines[start : start + LEAST])].append((number, start))
    shared = {pair for places in windows.values() for pair in combinations(places, 2)}
    # A longer run of equal lines is one pair: the windows after its first follow another.
    return [
        (paths[a], paths[b]) for (a, i), (b, j) in shared if ((a, i - 1), (b, j - 1)) not in shared
    ]


def package_of(path: Path) -> str:
    """The row of the table that a file is counted in."""
    if path.is_relative_to(TESTS):
        return "tests/"
    parts = path.relative_to(SOURCE).parts
    return f"{parts[0]}/" if len(parts) > 1 else "modules beside them"


def sizes() -> dict[str, Size]:
    """Every package of the product, the paper kit and the tests."""
    packages: dict[str, Size] = defaultdict(Size)
    for path in (*files_below(SOURCE), *files_below(TESTS)):
        packages[package_of(path)].add(measure(path))
    for pair in duplicate_pairs([path for path in files_below(SOURCE) if path.suffix == ".py"]):
        for package in {package_of(path) for path in pair}:
            packages[package].pairs += 1
    return packages


def table() -> str:
    """The sizes as a Markdown table: packages, the product, the paper kit, tests."""
    packages = sizes()
    apart = ("paper/", "tests/")
    product = Size()
    for name, size in packages.items():
        if name not in apart:
            product.add(size)
    rows = [(name, packages[name]) for name in sorted(packages) if name not in apart]
    rows += [("**the product**", product), *((name, packages[name]) for name in apart)]
    titles = (
        "| | files | lines of code | Python tokens | functions | public names | duplicate pairs |"
    )
    lines = [titles, "|---|---:|---:|---:|---:|---:|---:|"]
    for name, size in rows:
        counts = " | ".join(f"{getattr(size, field.name):,}" for field in fields(size))
        lines.append(f"| {name} | {counts} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
