"""The benchmark of speed runs: how fast it was is not a test's business, what it counted is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "speed.py"
SMALL = [
    *("--device=cpu", "--backbone=resnet18", "--size=32", "--images=16", "--tail=40", "--turns=1"),
    *("--steps=3", "--warm=1", "--validate-every=2", "--per-domain=4"),
]


def measured(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *SMALL, *arguments, "--out", str(out / "speed.json")]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_each_part_says_what_it_measured(tmp_path: Path) -> None:
    parts = ["decoding", "training", "compiled", "long tail", "features", "waits", "adapting"]
    done = measured(tmp_path, "--only", ",".join(parts))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "speed.json").read_text())
    assert found["scale"]["backbone"] == "resnet18"
    assert set(parts) < found.keys()
    rows = {row["steps"]: row for row in found["training"]}
    theirs = rows["incumbent"]["images/s"]
    for way in ("cold", "cached", "packed", "ceiling (one batch)"):
        assert rows[way]["x"] == pytest.approx(rows[way]["images/s"] / theirs)
    theirs = rows["end to end: incumbent"]["seconds"]
    for way in ("ours", "ours, nothing kept"):
        row = rows[f"end to end: {way}"]
        assert row["x"] == pytest.approx(theirs / row["seconds"])
    assert rows["ceiling (one batch)"]["of ceiling"] == 1
    trained, *_ = found["long tail"]
    assert trained["rows"] == 280
    assert trained["images"] == 40
    assert found["compiled"] == [{"steps, compiled": "only on a GPU"}]


@pytest.mark.slow
def test_a_part_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = measured(tmp_path, "--only", "decoding,nothing")
    assert done.returncode == 2
    assert "there is no part 'nothing'; use decoding, training" in done.stderr
    assert not list(tmp_path.iterdir())


def scaled(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT.parent / "scale.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_page_on_scale_is_made_of_what_was_measured() -> None:
    page = SCRIPT.parents[1] / "docs" / "scale.md"
    done = scaled()
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in page.read_text()


def test_what_a_measurement_lacks_for_it_is_named(tmp_path: Path) -> None:
    known = json.loads((SCRIPT.parent / "measured" / "h200.json").read_text())
    (tmp_path / "speed.json").write_text(json.dumps({**known, "compiled": []}))
    done = scaled(str(tmp_path / "speed.json"))
    assert done.returncode == 1
    assert 'lacks "cached": python benchmarks/speed.py --only "training,compiled' in done.stderr
