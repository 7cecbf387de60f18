"""The command line as a user meets it: three commands, JSON, and one-line errors."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image

from acclimate.cli import adapt as adapt_command
from acclimate.cli.list import Catalogue
from acclimate.data.manifest import Manifest
from acclimate.learn.embeddings import DomainState
from acclimate.records.doubt import Forecast
from fixtures.settings import TINY, as_flags

Result = tuple[int, str, str]


def assert_error(result: Result, *facts: object) -> None:
    """Nothing on stdout, an exit code of 1, and a last line with these facts."""
    code, out, err = result
    line = err.strip().splitlines()[-1]
    assert (code, out, line[:7]) == (1, "", "error: ")
    assert [str(fact) for fact in facts if str(fact) not in line] == [], line


def test_train_adapt_predict_in_three_commands(
    cli: Any, tree: Path, unlabelled: Path, tmp_path: Path
) -> None:
    run, site, table = tmp_path / "run", tmp_path / "site.safetensors", tmp_path / "p.csv"
    code, out, _ = cli(
        "train", tree, "--algorithm", "da-erm", "--test-domains", "west", "--out", run,
        *as_flags(TINY), "--json",
    )  # fmt: skip
    trained = json.loads(out)
    assert code == 0
    assert {line["role"] for line in trained["summary"]} == {"train", "test"}
    assert trained["scores"][-1]["method"] == "wrong-embedding"

    code, out, _ = cli("adapt", run, unlabelled, "--out", site, "--json")
    adapted = json.loads(out)
    assert (code, adapted["n"], adapted["unreadable"]) == (0, 12, [])
    assert adapted["nearest_domain"] in ("north", "south", "east")
    assert site.stat().st_size < 20_000

    code, out, _ = cli(
        "predict", run, unlabelled, "--domain", site, "--out", table, "--probabilities", "--json"
    )
    assert code == 0
    assert json.loads(out)["images"] == 12
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert {row["label"] for row in rows} <= {"red", "blue"}
    for row in rows:
        assert float(row["red"]) + float(row["blue"]) == pytest.approx(1, abs=1e-5)
        assert float(row["confidence"]) == max(float(row["red"]), float(row["blue"]))


@pytest.mark.slow
def test_images_are_added_to_a_state(cli: Any, run: Path, unlabelled: Path, tmp_path: Path) -> None:
    site, table, images = tmp_path / "site", tmp_path / "p.csv", sorted(unlabelled.glob("*/*"))
    adapt = ("adapt", run, "--method", "embedding+prior", "--out", site)
    cli("adapt", run, *images[:7], "--method", "embedding", "--keep", 9, "--out", site)
    assert len(DomainState.load(site).pictures) == 7
    _, out, _ = cli(*adapt, *images[5:], "--into", site, "--keep", 9)
    assert "adapted on 12 images by embedding+prior" in out
    assert "note: 2 images were seen before, or given twice; each counts once" in out
    state = DomainState.load(site)
    assert (state.count, len(state.pictures)) == (12, 9)
    cli("predict", run, unlabelled, "--domain", site, "--out", table)
    assert table.read_text().count("\n") == 13
    cli(*adapt, *images[:7], "--keep", "0")
    assert_error(cli(*adapt, *images[7:], "--into", site), "'prior'", "--keep 0", "anew")
    assert_error(cli(*adapt, *images, "--keep", "-1"), "-1", "50000")


@pytest.mark.slow
def test_the_same_three_commands_speak_to_people(
    cli: Any, run: Path, unlabelled: Path, tmp_path: Path
) -> None:
    (unlabelled / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    site, table = tmp_path / "site.safetensors", tmp_path / "p.csv"
    _, out, _ = cli("adapt", run, unlabelled, "--out", site)
    assert "adapted on 12 images" in out
    assert f"skipped: {unlabelled / 'broken.png'}: " in out
    _, out, _ = cli("predict", run, unlabelled, "--domain", site, "--out", table)
    assert "images: 12\n" in out and f"unreadable: {unlabelled / 'broken.png'}: " in out
    lines = table.read_text().splitlines()
    assert lines[0] == "image,label,confidence,problem"
    assert len(lines) == 14
    assert lines[1].startswith(f"{unlabelled / 'broken.png'},,,")


@pytest.mark.slow
def test_repeating_train_is_a_no_op(cli: Any, tree: Path, run: Path) -> None:
    before = (run / "records.jsonl").read_bytes()
    code, out, _ = cli(
        "train", tree, "--algorithm", "da-erm", "--test-domains", "west", "--out", run,
        *as_flags(TINY), "--json",
    )  # fmt: skip
    assert (code, json.loads(out)["already_finished"]) == (0, True)
    assert (run / "records.jsonl").read_bytes() == before


def test_evaluate(cli: Any, run: Path, tree: Path) -> None:
    code, out, _ = cli("evaluate", run, tree, "--source", "test", "--points", 10, "--json")
    found = json.loads(out)
    assert code == 0
    west = next(s for s in found["scores"] if s["domain"] == "west" and s["method"] == "embedding")
    assert (west["n"], west["adapt_n"], west["adapted_on"]) == (24, 10, "test")
    _, out, _ = cli("evaluate", run)
    assert "kept step: " in out
    assert "wrong-embedding: adapted to another domain, a control that is meant to fail" in out
    assert "oracle-prior" not in out


def test_evaluate_shows_a_metric(cli: Any, run: Path) -> None:
    """Beside the accuracies, with its mean and its worst domain, which has the largest loss."""
    code, out, _ = cli("evaluate", run, "--metric", "nll", "--json")
    found = json.loads(out)
    assert code == 0
    for line in found["summary"]:
        losses = [
            score["metrics"]["nll"]
            for score in found["scores"]
            if all(score[key] == line[key] for key in ("role", "split", "method"))
        ]
        assert line["nll"] == pytest.approx(np.mean(losses)) and line["worst"] == max(losses)
    _, shown, _ = cli("evaluate", run, "--metric", "nll")
    headers = [" ".join(block.splitlines()[0].split()) for block in shown.split("\n\n")[:2]]
    assert headers == [
        "domain role adapted by images top-1 top-5 nll",
        "mean over domains role split domains nll worst domain",
    ]
    code, _, error = cli("evaluate", run, "--metric", "nlll")
    assert code == 1 and "nlll" in error and "nll" in error


def test_evaluate_with_the_run_s_own_settings_gives_the_run_s_own_scores(
    cli: Any, run: Path, tree: Path
) -> None:
    stored, fresh = (json.loads(cli("evaluate", run, *a, "--json")[1]) for a in ((), (tree,)))
    assert stored["summary"] == fresh["summary"]


def test_the_summary_keeps_the_splits_of_training_domains_apart(
    cli: Any, features: Manifest, tmp_path: Path
) -> None:
    """With validation domains, training domains are scored on both of their other splits."""
    place = np.arange(len(features)) % 24
    splits = np.where(place < 16, "train", np.where(place < 20, "val", "test"))
    labels = np.array(features.classes)[features.label_index]
    data = Manifest.from_arrays(features.features(), labels, features.domain_names, splits=splits)
    data.write(tmp_path / "sites.parquet")
    command = ["train", tmp_path / "sites.parquet", "--algorithm", "erm", *as_flags(TINY)]
    command += ["--val-domains", "site-3", "--test-domains", "site-4", "--out", tmp_path / "run"]
    found = json.loads(cli(*command, "--json")[1])
    lines = [(line["role"], line["split"], line["domains"]) for line in found["summary"]]
    assert lines == [
        ("train", "test", 3),
        ("train", "val", 3),
        ("val", "all", 1),
        ("val", "all", 1),
        ("test", "all", 1),
        ("test", "all", 1),
    ]
    for line in found["summary"]:
        scores = [
            score["top1"]
            for score in found["scores"]
            if all(score[key] == line[key] for key in ("role", "split", "method"))
        ]
        assert line["top1"] == pytest.approx(np.mean(scores))
        assert line["worst"] == min(scores)
    _, shown, _ = cli(*command)
    header, train_line = shown.split("\n\n")[1].splitlines()[:2]
    assert " ".join(header.split()) == "mean over domains role split domains top-1 worst domain"
    assert train_line.split()[:4] == ["none", "train", "test", "3"]


def test_inspect_sums_up_what_is_missing(cli: Any, tree: Path, tmp_path: Path) -> None:
    rows = ["image,label,domain,split"]
    rows += [f"gone/{n}.jpg,{'red' if n % 2 else 'blue'},a,train" for n in range(8)]
    table = tmp_path / "photos.csv"
    table.write_text("\n".join(rows))
    listed = "".join(f"file 'gone/{n}.jpg' is missing, " for n in range(3))[:-2]
    _, out, _ = cli("inspect", table)
    told = [line for line in out.splitlines() if line.startswith("problem:")]
    assert told == [f"problem: {listed} and 5 more (restore the files or drop their rows)"]
    assert "unreadable: and 3 more\n" in out
    table.write_text("\n".join([f"{rows[0]},url", *(f"{row},http://x.org" for row in rows[1:])]))
    _, out, _ = cli("inspect", table)
    assert f"problem: {listed} and 5 more (fetch them with `acclimate build fetch`)\n" in out
    _, out, _ = cli("inspect", table, "--json")
    assert len(json.loads(out)["problems"]) == 8


@pytest.mark.parametrize("what", get_args(Catalogue))
def test_list(cli: Any, what: str) -> None:
    code, out, _ = cli("list", what, "--json")
    rows = json.loads(out)[what]
    assert code == 0
    assert rows
    _, text, _ = cli("list", what)
    assert all(row["name"] in text for row in rows)


class TestErrors:
    """One line that says what, where and the remedy."""

    def test_only_broken_images(self, cli: Any, run: Path, tmp_path: Path) -> None:
        (tmp_path / "zero.jpg").touch()
        (tmp_path / "text.png").write_text("hello")
        out = tmp_path / "s.safetensors"
        for name, reason in (("zero.jpg", "empty file"), ("text.png", "not a JPEG")):
            bad = tmp_path / name
            assert_error(cli("adapt", run, bad, "--out", out), "1 images", bad, reason)
        assert not out.exists()

    def test_an_adaptive_model_wants_a_domain(self, cli: Any, run: Path, tree: Path) -> None:
        assert_error(cli("predict", run, tree, "--out", "p.csv"), "--adapt", "--domain FILE")

    def test_state_of_another_model(
        self, cli: Any, run: Path, tree: Path, unlabelled: Path, tmp_path: Path
    ) -> None:
        other, site = tmp_path / "other", tmp_path / "site.safetensors"
        cli(
            "train", tree, "--algorithm", "da-erm", "--seed", 1, "--test-domains", "west",
            "--out", other, *as_flags(TINY),
        )  # fmt: skip
        cli("adapt", other, unlabelled, "--out", site)
        made, used = (
            json.loads((folder / "model.json").read_text())["digest"][:12]
            for folder in (other, run)
        )
        ended = cli("predict", run, unlabelled, "--domain", site, "--out", tmp_path / "p.csv")
        assert_error(ended, made, used)

    def test_plain_models_have_nothing_to_adapt(
        self, cli: Any, tree: Path, unlabelled: Path, tmp_path: Path
    ) -> None:
        plain = tmp_path / "plain"
        cli("train", tree, "--algorithm", "erm", "--out", plain, *as_flags(TINY))
        state = tmp_path / "s.safetensors"
        code, out, _ = cli("adapt", plain, unlabelled, "--out", state)
        assert code == 0
        assert all(fact in out for fact in ("12 images", "none", "adapt.rehearse", str(state)))
        ended = cli("adapt", plain, unlabelled, "--method", "embedding", "--out", state)
        assert_error(ended, "erm", "--method", "prior", "--algorithm da-erm")
        code, _, _ = cli("predict", plain, unlabelled, "--out", tmp_path / "p.csv")
        assert code == 0


def test_every_command_has_help_with_an_example(cli: Any) -> None:
    commands: list[list[str]] = [
        ["adapt"], ["predict"], ["train"], ["evaluate"], ["inspect"], ["list"], ["demo"],
        ["report"], ["build", "folder"], ["build", "table"], ["build", "digits"],
    ]  # fmt: skip
    for command in commands:
        code, out, _ = cli(*command, "--help")
        assert code == 0
        assert "Example: acclimate " + " ".join(command) in " ".join(out.split())
        assert "--json" in out


def test_images_of_every_kind_can_be_adapted_on(run: Path, tmp_path: Path) -> None:
    from acclimate import AdaptiveClassifier

    model = AdaptiveClassifier.load(run, device="cpu")
    array = np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(array).save(tmp_path / "image.png")
    kinds = [array, Image.fromarray(array), tmp_path / "image.png", str(tmp_path / "image.png")]
    sites = [model.adapt([kind, kind]) for kind in kinds]
    probabilities = [site.predict_proba([array]) for site in sites]
    for found in probabilities[1:]:
        np.testing.assert_allclose(found, probabilities[0], rtol=1e-6)


def test_pack_decodes_what_can_be_read(
    cli: Any, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    shutil.copytree(tree, tmp_path / "photos")
    bad = sorted((tmp_path / "photos").rglob("*.jpg"))[0]
    bad.write_bytes(b"nothing")
    images = len(list(tree.rglob("*.jpg")))
    _, out, _ = cli("pack", tmp_path / "photos", "--size", "16")
    (folder,) = (tmp_path / "cache" / "images" / "kept").iterdir()
    name = bad.relative_to(tmp_path / "photos")
    said = out.splitlines()
    assert said[:2] == [f"folder: {folder}", f"images: {images - 1}"]
    assert said[-1] == f"unreadable: {name}: not a JPEG, PNG, WebP, BMP, TIFF or GIF image"
    _, out, _ = cli("pack", tmp_path / "photos", "--size", "16", "--json")
    found = json.loads(out)
    assert found["folder"] == str(folder)
    assert found["images"] == images - 1
    assert found["gib"] == images * 3 * 16**2 / 2**30
    features = tmp_path / "rows.parquet"
    Manifest.from_arrays(np.ones((4, 2)), list("abab"), list("xxyy")).write(features)
    code, _, err = cli("pack", features)
    assert_error((code, "", err), "rows.parquet")


@pytest.mark.slow
def test_names_that_would_break_a_table_or_a_terminal(
    run: Path, tree: Path, tmp_path: Path
) -> None:
    """In a locale that knows ASCII alone."""
    names = [b"=cmd.jpg", b"a\rb.jpg", b"\x1b[31m.jpg", b"caf\xe9.jpg"]
    image = next(tree.rglob("*.jpg")).read_bytes()
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(image)
    (tmp_path / os.fsdecode(b"\x1b]0;bad\xff.jpg")).write_bytes(b"no image")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii:strict"}
    out = tmp_path / "out.csv"
    for command in (
        ["adapt", str(run), ".", "--out", "state.safetensors"],
        ["predict", str(run), ".", "--domain", "state.safetensors", "--out", str(out)],
        ["inspect", os.fsdecode(b"\x1b[2Jmissing\xff")],
    ):
        task = [sys.executable, "-m", "acclimate", *command]
        done = subprocess.run(task, cwd=tmp_path, env=environment, capture_output=True, check=False)
        assert b"Traceback" not in done.stderr, done.stderr
        assert b"\x1b]0;" not in done.stdout + done.stderr
        assert b"\x1b[2J" not in done.stdout + done.stderr
        assert (done.returncode == 0) == (command[0] != "inspect")
    assert done.stderr.startswith(b"error: there is no file or folder '\\x1b[2Jmissing\\udcff'")
    with out.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = {os.fsencode(row["image"]): row for row in csv.DictReader(file)}
    assert rows.keys() == {b"./=cmd.jpg", *names[1:], b"\x1b]0;bad\xff.jpg"}
    assert {row["label"] for name, row in rows.items() if b"bad" not in name} <= {"red", "blue"}


@pytest.mark.parametrize(("floor", "told"), [(0.65, True), (0.55, False)])
def test_adapt_tells_no_floor_that_says_nothing(floor: float, told: bool) -> None:
    line = adapt_command.expected_line(Forecast(accuracy=0.9, floor=floor, by="mean confidence"))
    assert ("90.0 % by mean confidence" in line and "at least 65.0 %" in line) == told
