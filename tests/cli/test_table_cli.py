"""`acclimate predict --table`: the images of several sites, as `predict` has them one by one."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.mark.slow
def test_as_site_by_site(cli: Any, run: Path, tree: Path, tmp_path: Path) -> None:
    states, table, out = tmp_path / "states", tmp_path / "photos.parquet", tmp_path / "out"
    wanted: dict[str, tuple[str, float]] = {}
    for site in ("north", "west"):
        state, one = states / f"{site}.safetensors", tmp_path / f"{site}.csv"
        assert cli("adapt", run, tree / site, "--out", state)[0] == 0
        assert cli("predict", run, tree / site, "--domain", state, "--out", one)[0] == 0
        with one.open() as file:
            rows = list(csv.DictReader(file))
        wanted |= {row["image"]: (row["label"], float(row["confidence"])) for row in rows}
    images = sorted(wanted, key=lambda name: Path(name).name)
    sites = ["west" if "/west/" in name else "north" for name in images]
    pq.write_table(pa.table({"image": images, "site": sites}), table)
    flags = ["--table", table, "--domains", states, "--out", out]
    code, text, _ = cli("predict", run, *flags)
    assert code == 0
    assert text.splitlines()[:4] == [
        f"predictions: {out}",
        "shards: 1",
        "images: 48",
        "sites: 2",
    ]
    found = pq.read_table(out / "part-000000.parquet").to_pylist()
    assert [row["image"] for row in found] == images
    assert [row["label"] for row in found] == [wanted[name][0] for name in images]
    confidence = [row["confidence"] for row in found]
    np.testing.assert_allclose(confidence, [wanted[name][1] for name in images], atol=2e-6)
    code, text, _ = cli("predict", run, *flags, "--json")
    facts = json.loads(text)
    assert (code, facts["images"], facts["unreadable_images"]) == (0, 48, 0)
    assert sum(facts["classes"].values()) == 48


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (["photos", "--table", "t.parquet"], ["--table", "IMAGES"]),
        (["--table", "t.parquet", "--adapt"], ["--adapt"]),
        (["photos", "--domains", "states"], ["--domains", "--table"]),
        (["photos", "--launcher", "ray"], ["--launcher", "--table"]),
        (["--table", "t.parquet", "--launcher", "slurm"], ["slurm", "ray"]),
        ([], ["--table"]),
    ],
)
def test_what_does_not_go_together(
    cli: Any, tmp_path: Path, flags: list[str], facts: list[str]
) -> None:
    code, out, err = cli("predict", tmp_path / "run", *flags, "--out", tmp_path / "out")
    assert (code, out) == (1, "")
    line = err.strip().splitlines()[-1]
    assert [fact for fact in facts if fact not in line] == [], line
