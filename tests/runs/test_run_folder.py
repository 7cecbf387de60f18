"""A run folder: files named in one place and read without torch."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import acclimate
from acclimate.core.errors import RunError
from acclimate.core.files import write_document
from acclimate.records import folder as layout
from acclimate.records.folder import RunFolder
from acclimate.records.records import Finished, Loss, Score, Started
from acclimate.results.runs import find_runs
from fixtures.errors import refused

SOURCE = Path(acclimate.__file__).parent
OWNERS = {"records/folder.py", "results/sweep_folder.py"}
# The name that Hugging Face gives to weights happens to be ours too, and a state, a log of a watch,
# a folder of predictions and a file of tokens have locks of their own beside them.
LOCKED = ("cli/adapt.py", "cli/watch.py", "adapt/table.py", "serve/tokens.py")
OTHERS = {("learn/models/weights.py", layout.WEIGHTS), *((name, layout.LOCK) for name in LOCKED)}
NAMES = [value for key, value in vars(layout).items() if key.isupper() and isinstance(value, str)]
FILES = [name.partition("{")[0] for name in NAMES if name != layout.AGAIN]
SWEEP_FOLDERS = {"runs", "embeddings", "failures", "labels", "logs", "slurm"}


def docstrings(tree: ast.AST) -> set[ast.expr]:
    bodies = (node.body for node in ast.walk(tree) if hasattr(node, "body"))
    first = (body[0] for body in bodies if isinstance(body, list) and body)
    return {node.value for node in first if isinstance(node, ast.Expr)}


def spelt(path: Path) -> Iterator[str]:
    """Names of files that the code itself spells; what is written about them may."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            # A name of its own, not the end of another, such as new-site.safetensors.
            yield from (n for n in FILES if re.search(rf"(?<![\w-]){re.escape(n)}", node.value))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            right = getattr(node.right, "value", None)
            if isinstance(right, str) and right in SWEEP_FOLDERS:
                yield right


def test_no_other_module_spells_the_name_of_a_file() -> None:
    modules = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    found = {(place, name) for place in modules.keys() - OWNERS for name in spelt(modules[place])}
    assert not found - OTHERS


IDENTITY = {
    "version": "0.9",
    "config": {"algorithm": "da-erm", "seed": 3, "model": {"weights": ""}},
    "data": "d1",
    "source": "pets",
    "classes": ["cat", "dog"],
    "train_domains": ["photo", "sketch"],
    "val_domains": [],
    "test_domains": ["clip"],
    "weights": "",
}
KINDS = {one.kind: one for one in (Started, Loss, Score, Finished)}
LINES = (
    '{"format": 1, "kind": "started", "time": "t0", "version": "0.9", '
    '"device": "cpu, 1 thread", "processes": 1, "resumed_at": null}',
    '{"format": 1, "kind": "loss", "phase": "main", "step": 5, "risk": 0.5, "penalty": null, '
    '"lr": 0.1, "images_per_second": 9.0}',
    '{"format": 1, "kind": "score", "moment": "final", "step": 5, "domain": "clip", '
    '"role": "test", "split": "all", "n": 4, "top1": 0.75, "top5": null, "method": "embedding", '
    '"adapted_on": "held-out", "adapt_n": 2, "adapt_seed": 3}',
    '{"format": 1, "kind": "finished", "kept_step": 5, "kept_by": "last step", '
    '"kept_score": null, "seconds": 1.5, "quarantined": 1}',
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    write_document(tmp_path / "run.json", IDENTITY)
    for line in LINES:
        values = json.loads(line)
        assert values.pop("format") == 1
        RunFolder(tmp_path).append(KINDS[values.pop("kind")](**values))
    (tmp_path / "quarantine.jsonl").write_text('{"image": "a.jpg", "reason": "cut off"}\n')
    (tmp_path / "consistency.json").write_text('{"points": [], "domains": []}')
    layout.write_checksums(tmp_path, finished=True)
    return RunFolder(tmp_path)


def test_what_a_folder_holds_is_read(run: RunFolder) -> None:
    assert run.exists and run.complete() and run.algorithm == "da-erm"
    assert run.identity() == IDENTITY
    assert [score.top1 for score in run.records().scores] == [0.75]
    assert run.finished is not None and run.finished.seconds == 1.5
    assert run.quarantined() == (("a.jpg", "cut off"),)
    assert run.consistency() == {"points": [], "domains": []}
    run.refuse_others(IDENTITY)  # it is this very run's
    view = find_runs(run.path)[0]
    assert (view.problem, view.seed, view.domains["test"]) == (None, 3, ("clip",))


def test_another_run_is_refused(run: RunFolder) -> None:
    config = {**IDENTITY["config"], "seed": 4}
    with refused(RunError, run.path, "seed is 3, not 4", "--out"):
        run.refuse_others({**IDENTITY, "config": config})


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_identity_is_named(run: RunFolder, text: str) -> None:
    run.identity_file.write_text(text)
    with refused(RunError, run.identity_file):
        run.identity()


@pytest.mark.parametrize("part", ["adapt", "data", "embedding", "model", "train"])
def test_a_part_of_the_settings_that_is_no_table_is_damage(run: RunFolder, part: str) -> None:
    config = {"model": {}, **IDENTITY["config"]}
    run.identity_file.write_text(json.dumps({**IDENTITY, "config": config}))
    assert run.identity()["config"] == config
    for value in (5, None):
        hostile = {**IDENTITY, "config": {**config, part: value}}
        run.identity_file.write_text(json.dumps(hostile))
        with refused(RunError, run.identity_file):
            run.identity()


def test_without_a_checkpoint_what_was_left_behind_is_cleared(run: RunFolder) -> None:
    (run.path / "checksums.json").unlink()
    run.take(IDENTITY | {"version": "1.0"})
    assert run.identity()["version"] == "1.0"
    assert run.records().all == () and run.quarantined() == ()
