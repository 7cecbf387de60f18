"""`acclimate export`, and its file in a process that has no other library of ours."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed: acclimate[onnx]")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: acclimate[onnx]")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: acclimate[onnx]")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "deploy.md"
ALONE = "\nassert not {'torch', 'acclimate', 'onnx', 'scipy'} & {*sys.modules}\n"


@pytest.mark.slow
def test_a_copied_file_predicts_what_predict_does(
    cli: Any, run: Path, unlabelled: Path, tmp_path: Path
) -> None:
    site, table, model = (tmp_path / name for name in ("s.safetensors", "p.csv", "s.onnx"))
    cli("adapt", run, unlabelled, "--method", "embedding+prior", "--out", site)
    cli("predict", run, unlabelled, "--domain", site, "--probabilities", "--out", table)
    code, out, _ = cli("export", run, "--domain", site, "--out", model)
    assert code == 0
    assert out.splitlines()[:5] == [
        f"model: {model}",
        "form: adapted",
        "method: embedding+prior",
        "inputs: images uint8 [n, 3, 16, 16]",
        "output: probabilities float32 [n, 2]",
    ]

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    model.rename(elsewhere / "m.onnx")
    found = re.search(r"<!-- test: deploy -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    (elsewhere / "predict.py").write_text(found[1] + ALONE)
    with table.open() as file:
        expected = list(csv.DictReader(file))
    images = [line["image"] for line in expected]
    done = subprocess.run(
        [sys.executable, "-I", "predict.py", "m.onnx", *images],
        cwd=elsewhere, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines] == [[row["image"], row["label"]] for row in expected]
    given = np.array([line[2:] for line in lines], dtype=float)
    wanted = np.array([[row["blue"], row["red"]] for row in expected], dtype=float)
    np.testing.assert_allclose(given, wanted, atol=2e-6)  # both are written with six digits


@pytest.mark.slow
def test_a_file_for_all_sites(cli: Any, run: Path, unlabelled: Path, tmp_path: Path) -> None:
    code, out, _ = cli("export", run, "--out", tmp_path / "all.onnx", "--json")
    made = json.loads(out)
    assert code == 0
    assert made["form"] == "conditioned"
    assert made["inputs"] == {
        "images": "uint8 [n, 3, 16, 16]", "site": "float32 [4]",
        "prior": "float32 [2]", "temperature": "float32 []",
    }  # fmt: skip
    cli("adapt", run, unlabelled, "--out", tmp_path / "site.safetensors")
    state = ["--domain", tmp_path / "site.safetensors"]
    code, out, _ = cli("export", run, *state, "--out", tmp_path / "site.npz")
    assert (code, out.splitlines()[-1]) == (0, "names: site, prior, temperature")
    with np.load(tmp_path / "site.npz") as inputs:
        assert {name: value.shape for name, value in inputs.items()} == {
            "site": (4,), "prior": (2,), "temperature": (),
        }  # fmt: skip


@pytest.mark.slow
def test_a_folder_for_triton_in_16_bits(
    cli: Any, run: Path, unlabelled: Path, tmp_path: Path
) -> None:
    site, model = tmp_path / "site.safetensors", tmp_path / "models" / "new-site"
    cli("adapt", run, unlabelled, "--out", site)
    flags = ["--domain", site, "--triton", model, "--half"]
    code, out, _ = cli("export", run, *flags, "--json")
    made = json.loads(out)
    assert (code, made["model"], made["precision"]) == (
        0,
        str(model / "1" / "model.onnx"),
        "float16",
    )
    assert 'name: "new-site"' in (model / "config.pbtxt").read_text()
    assert cli("export", run, *flags)[0] == 0  # an earlier one is replaced
    (model / "config.pbtxt").write_text('name: "mine"')
    code, _, err = cli("export", run, *flags)
    assert (code, "config.pbtxt" in err) == (1, True)
    for wrong, fact in (
        (["--triton", model, "--out", "a.onnx"], "--out"),
        ([], "--triton"),
        (["--triton", tmp_path / "all"], "--domain"),
    ):
        code, _, err = cli("export", run, *wrong)
        assert (code, fact in err.splitlines()[-1]) == (1, True), err
