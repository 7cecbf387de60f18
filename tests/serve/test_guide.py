"""docs/serve.md does what it says."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures.models import CLASSES
from fixtures.servers import pictures

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "serve.md"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_life_of_a_site_by_curl(start: Any, tmp_path: Path) -> None:
    running = start(timeout=300)
    found = re.search(r"<!-- test: life -->\n```bash\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found
    script = found[1].replace("http://127.0.0.1:8000", running.url)
    script = script.replace("curl ", "curl --silent --show-error --fail-with-body ")
    for name, image in zip("abcd", pictures(4), strict=True):
        (tmp_path / f"{name}.jpg").write_bytes(image)
    first, *rest = re.split(r"(?=# Which)", script, maxsplit=1)
    words = {"red": CLASSES[0], "blue": CLASSES[1]}
    said = run(f"set -e\n{first}", tmp_path)
    ids = re.findall(r'"([0-9a-f]{16})"', said)
    words |= {"ID-OF-A": ids[0], "ID-OF-B": ids[1]}
    for word, own in words.items():
        rest = [part.replace(word, own) for part in rest]
    here = re.search(r"^HERE=.*$", script, re.MULTILINE)
    assert here
    # Four images are too few to watch a site by.
    lines = [line for line in "".join(rest).splitlines() if "/drift" not in line]
    said = run("\n".join(["set -e", here[0], *lines]), tmp_path)
    assert '"labelled": 2' in said
    assert (tmp_path / "north.onnx").stat().st_size > 1000
    assert running.client.get("/v1/sites").json()["sites"] == []


def run(script: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
