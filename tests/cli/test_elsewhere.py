"""The commands on a system without what Linux alone has; see fixtures/elsewhere."""

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from acclimate.core.files import read_document
from acclimate.records.folder import RunFolder
from fixtures.pictures import write_sites
from fixtures.settings import TINY, as_flags

ELSEWHERE = Path(__file__).parent.parent / "fixtures" / "elsewhere"
SMALL = shlex.join(as_flags({**TINY, "embedding.domains_per_step": 2, "model.freeze": "none"}))
MISSING = """
import os, signal
try:
    import fcntl
except ImportError:
    print(hasattr(os, "fork"), hasattr(signal, "SIGKILL"), hasattr(os, "pread"))
"""
COMMANDS = """
import shlex, sys
from acclimate.cli import app, load_commands
load_commands()
for line in sys.argv[1:]:
    app(shlex.split(line), standalone_mode=False)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="Linux stands in for other systems"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("elsewhere")
    write_sites(home / "sites", 6, ".jpg")
    return home


def elsewhere(home: Path, code: str, *arguments: str) -> str:
    path = os.pathsep.join([str(ELSEWHERE), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-c", code, *arguments],
        cwd=home, env={**os.environ, "PYTHONPATH": path, "ACCLIMATE_CACHE": str(home / "cache")},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_another_system(home: Path) -> None:
    assert elsewhere(home, MISSING).split() == ["False"] * 3


def test_from_folders_to_a_file(home: Path) -> None:
    """Training from packed images, adapting twice into one file, predicting, exporting."""
    elsewhere(
        home, COMMANDS, "inspect sites", "pack sites --size 16",
        f"train sites --algorithm da-erm --test-domains north --out run {SMALL}",
        "adapt run sites/north/red --out north.safetensors",
        "adapt run sites/north/blue --into north.safetensors --out north.safetensors",
        "predict run sites/north --domain north.safetensors --out predictions.csv",
        "export run --domain north.safetensors --out north.onnx",
    )  # fmt: skip
    run = RunFolder(home / "run")
    assert run.finished is not None and run.records().torn == 0
    assert b"\r" not in (home / "run" / "records.jsonl").read_bytes()
    (about,) = (home / "cache" / "images" / "kept").glob("*/about.json")
    assert read_document(about)["images"] == 48
    with (home / "predictions.csv").open(encoding="utf-8") as file:
        assert len([row for row in csv.DictReader(file) if row["label"]]) == 12
    assert (home / "north.onnx").stat().st_size


def test_a_sweep_with_its_workers(home: Path) -> None:
    flags = f"--algorithms erm --test-domains north --trials 1 --device cpu {SMALL}"
    done = json.loads(elsewhere(home, COMMANDS, f"sweep sites {flags} --out sweep --json"))
    assert (done["runs"], done["done"], done["failures"]) == (1, 1, [])
