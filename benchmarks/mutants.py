"""Do the tests notice? `make mutants`: mutmut over the core that decides numbers.

mutmut leaves decorated functions alone. Here those are every penalty, every property and whatever
runs without gradients, so two of its functions are replaced: the copies of a decorated function
are made bare, and its decorators stay on what chooses among them. Nothing inside a `raise`, a
warning or an error that is returned is mutated: tests elsewhere hold the messages. What remains
unmutated is what Python does on import: constants, defaults of fields, decorators themselves.

First mypy looks at all mutants, as it does at the source in `make check`: half of them, such as a
None for a tensor, do not pass. The others face the tests that run their function, of those in the
folder that mirrors its package, the quickest first and MOST_TESTS at most: what decides a number is
to be tested at home, and quickly.

Results are kept in mutants/ and are reused for functions that did not change; survivors are tried
again with --again. The end is a table by module, and the diff of each survivor; docs/mutants.md
says why each may survive.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import libcst as cst
import mutmut.__main__ as command
import mutmut.mutation.file_mutation as mutation
import pytest
from mutmut.configuration import config
from mutmut.mutation.data import MutantLineSpans, SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.type_checking import TypeCheckingError
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import get_mutant_name
from mutmut.workers.isolation import ForkRunner

KEPT = {"staticmethod", "classmethod"}  # which a copy needs, to be called as its original is
NEVER = {"abstractmethod", "overload"}
NOTICED = {"killed", "timeout", "segfault", "caught by type check"}
OPEN = "not checked"
MYPY = [sys.executable, "-m", "mypy", "src", "--output", "json"]
MYPY += ["--disable-error-code", "unused-ignore"]
# What else mypy says of a mutant may come of there being copies, and not of what was changed.
WRONG_TYPES = {
    "arg-type", "assignment", "attr-defined", "call-arg", "call-overload", "dict-item", "index",
    "list-item", "operator", "return-value", "type-var", "union-attr", "unreachable",
}  # fmt: skip
MOST_SURVIVING = 0.05
MOST_TESTS = 120  # not seconds: on a machine that others use, those say little

_usual_skip = mutation.MutationVisitor._skip_node_and_children
_usual_arrangement = mutation.function_trampoline_arrangement
_usual_submit = ForkRunner.submit


def _names(function: cst.FunctionDef) -> set[str]:
    return {
        one.decorator.value for one in function.decorators if isinstance(one.decorator, cst.Name)
    }


def _is_message(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Raise):
        return True
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
        return node.func.value.endswith("Error") or node.func.value == "unknown"
    return isinstance(node, cst.Call) and cst.Module([]).code_for_node(node.func) == "warnings.warn"


def _skip(self: mutation.MutationVisitor, node: cst.CSTNode) -> bool:
    if _is_message(node):
        return True
    if isinstance(node, cst.FunctionDef) and not NEVER & _names(node):
        return node.name.value in mutation.NEVER_MUTATE_FUNCTION_NAMES
    return _usual_skip(self, node)


def _arrangement(function: cst.FunctionDef, mutants, class_name):  # type: ignore[no-untyped-def]
    before, methods, after, names = _usual_arrangement(function, mutants, class_name)
    if function.decorators and not KEPT & _names(function):
        chooser, *copies = methods
        methods = [chooser, *(one.with_changes(decorators=()) for one in copies)]
    return before, methods, after, names


def _submit(self: ForkRunner, name: str, tests: list[str], limit: int, estimated: float) -> None:
    package = name.split(".")[1]
    home = [test for test in tests if test.startswith(f"tests/{package}/")] or tests
    chosen = sorted(home, key=lambda test: state().duration_by_test[test])[:MOST_TESTS]
    if odd := [test for test in chosen if "\\u" in test]:
        sys.exit(f"{odd[0]}: pytest does not find it a second time; write its id in ASCII")
    _usual_submit(self, name, chosen, limit, estimated)


def _caught_by_types() -> dict[str, mutation.FailedTypeCheckMutant]:
    """Mutants that mypy refuses, by name."""
    said = subprocess.run(MYPY, cwd="mutants", capture_output=True, text=True, check=False).stdout
    wrong = defaultdict(list)
    for one in (json.loads(line) for line in said.splitlines() if line.startswith("{")):
        if one["code"] in WRONG_TYPES:
            wrong[Path(one["file"])].append(one)
    caught = {}
    for path, errors in wrong.items():
        spans = MutantLineSpans.load(path)
        for function, span in spans.span_by_function_name.items() if spans else ():
            for one in (one for one in errors if span.start <= one["line"] <= span.end):
                name = get_mutant_name(path, function)
                place = mutation.MutatedMethodLocation(path, function, span.start, span.end)
                error = TypeCheckingError(path, one["line"], one["message"])
                caught[name] = mutation.FailedTypeCheckMutant(place, name, error)
    return caught


def results() -> dict[str, dict[str, str]]:
    """Module -> mutant -> what became of it."""
    found: dict[str, dict[str, str]] = {}
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        states = {name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items()}
        if states:
            found[str(path.relative_to("src/acclimate"))] = states
    return found


def survivors(found: dict[str, dict[str, str]]) -> dict[str, tuple[Path, str]]:
    """Mutant -> its file and what became of it."""
    return {
        name: (Path("src/acclimate") / module, became)
        for module, states in found.items()
        for name, became in states.items()
        if became not in {*NOTICED, OPEN}
    }


def table(found: dict[str, dict[str, str]]) -> list[str]:
    lines = [
        "| module | mutants | noticed by mypy | by tests | survived | not tried |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    total: Counter[str] = Counter()
    for module, states in found.items():
        counts = Counter(states.values())
        total += counts
        lines.append(_line(f"`{module}`", counts))
    return [*lines, _line("**all**", total)]


def _line(name: str, counts: Counter[str]) -> str:
    types = counts["caught by type check"]
    tests = counts["killed"] + counts["segfault"] + counts["timeout"]
    open_ = counts[OPEN]
    left = counts.total() - types - tests - open_
    return f"| {name} | {counts.total()} | {types} | {tests} | {left} | {open_} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="mutants by name, such as 'acclimate.learn.*'")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="try what survived once more")
    parser.add_argument("--report", action="store_true", help="of what is there; run nothing")
    chosen = parser.parse_args()
    mutation.MutationVisitor._skip_node_and_children = _skip  # type: ignore[method-assign]
    mutation.function_trampoline_arrangement = _arrangement
    # mutmut 3.8 reads a private name that pytest 9.2 no longer has.
    pytest.Item._nodeid = property(lambda self: self.nodeid)  # type: ignore[attr-defined]
    command.filter_mutants_with_type_checker = _caught_by_types  # type: ignore[attr-defined]
    config().type_check_command = MYPY
    ForkRunner.submit = _submit  # type: ignore[assignment, method-assign]
    start = time.monotonic()
    if not chosen.report:
        command._run(
            [*chosen.only, *(survivors(results()) if chosen.again else ())], chosen.processes
        )
    found = results()
    left = survivors(found)
    for name, (path, became) in left.items():
        diff = get_diff_for_mutant(name, path=path).splitlines()
        changed = [line for line in diff if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        print(f"\n{name}: {became}", *changed, sep="\n")
    print("", *table(found), sep="\n")
    tried = Counter(became for states in found.values() for became in states.values())
    del tried[OPEN]
    faced = tried.total() - tried["caught by type check"]
    share = len(left) / max(1, tried.total())
    print(
        f"\n{share:.1%} of {tried.total()} survived, {len(left) / max(1, faced):.1%} of {faced} "
        f"that tests faced; {(time.monotonic() - start) / 60:.0f} minutes"
    )
    sys.exit(share >= MOST_SURVIVING)


if __name__ == "__main__":
    main()
