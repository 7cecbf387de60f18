"""Every recipe runs small, from the command to the page; what it needs and costs is said before."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acclimate.cli import main
from acclimate.config.presets import PRESETS
from acclimate.core.errors import ConfigError, ManifestError, UnknownName
from acclimate.data.readers import data_name
from acclimate.paper.ablations.table import ABLATIONS
from acclimate.paper.published import TABLES, rows
from acclimate.paper.recipes.data_sets import DATA_SETS, STAND_IN, find, stand_in
from acclimate.paper.recipes.plan import Wanted, ready
from acclimate.paper.recipes.table import RECIPES, SMALL_SCALE
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep import launchers
from acclimate.sweep.worker import Task, TaskResult, perform
from fixtures.settings import TINY, as_flags

# The recipes' own small runs take minutes; the same in seconds, without draws and all algorithms.
VARIED = ("adapt.points", "embedding.domains_per_step")  # by ablations, which refuse them
FASTER = [*as_flags({k: v for k, v in TINY.items() if k not in VARIED}), "--draws", "1"]
FEWER = {
    "table-1": ("erm", "mmd", "da-coral"),
    "figure-4b": ("erm", "da-erm"),
    "figure-4c": ("coral", "da-erm"),
    "figure-4d": ("mmd", "da-erm"),
}
ROOT = Path(__file__).resolve().parents[2]


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["acclimate", *map(str, arguments)])
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code


class InThisProcess:
    """A launcher without workers, which would spend most of these seconds on imports."""

    slots, patience = 1, 0.0

    def __init__(self) -> None:
        self.ends: list[tuple[str, TaskResult]] = []

    def start(self, task: Task) -> None:
        self.ends.append((task.id, perform(replace(task, device="cpu"))))

    def finished(self, wait: float) -> list[tuple[str, TaskResult]]:
        ends, self.ends = self.ends, []
        return ends

    def close(self) -> None:
        pass


def message(error: type[Exception], **wanted: Any) -> str:
    with pytest.raises(error) as caught:
        ready(Wanted(**wanted))
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_runs_small(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe, out = RECIPES[name], tmp_path / "out"
    monkeypatch.setattr(
        launchers, "chosen_launcher", lambda options: lambda folder: InThisProcess()
    )
    asked: list[object] = ["reproduce", name, "--small", "--json", *FASTER]
    asked += ["--out", out, "--max-parallel", 1]
    fewer = FEWER.get(name, ())
    asked += ["--algorithms", ",".join(fewer)] if fewer else []
    command(monkeypatch, *asked)
    told = json.loads(capsys.readouterr().out)
    page = (out / "report.html").read_text()
    assert told["left"] == 0
    assert (told["runs"] > 0) == any(part.algorithms for part in recipe.parts)
    assert told["title"] in page
    assert "cannot be compared" in page
    assert page.count("<figure>") == len(told["written"]) / 2
    assert bool(told["written"]) == bool(recipe.figures)
    for path in told["written"]:
        assert Path(path).stat().st_size > 1000
    compared = [pair for pair in told["beside"] if pair["ours"] and pair["printed"]]
    assert bool(compared) == bool(recipe.published)
    for pair in told["beside"]:
        assert pair["ours"] is None or 0 <= pair["ours"]["mean"] <= 1
    for part in recipe.parts:
        if part.algorithms:
            sweep = SweepFolder(out / part.name).read()
            assert {job.algorithm for job in sweep.jobs} == {*(fewer or part.algorithms)}
            assert f'href="{part.name}/report.html"' in page
    if name == "figure-4a":
        assert "strong sensors" in page  # the map is coloured by the data's groups
        # Once more: nothing is run again, and the page is the same.
        records = {path: path.stat().st_mtime_ns for path in out.rglob("records.jsonl")}
        command(monkeypatch, *asked)
        assert {path: path.stat().st_mtime_ns for path in out.rglob("records.jsonl")} == records
        assert (out / "report.html").read_text() == page


def test_table_1_is_the_papers(tmp_path: Path) -> None:
    (part,) = RECIPES["table-1"].parts
    assert (part.trials, part.rule, part.preset) == (8, "leave-one-out", "small-scale")
    assert {row.algorithm for row in rows("1")} == {*part.algorithms}
    assert {row.dataset for row in rows("1")} == {*part.data, "average"}
    (small,) = ready(Wanted(name="table-1", out=tmp_path, small=True, trials=2))
    assert small.plan is not None
    phis = [phi.config["seed"] for phi in small.plan.sweep.embeddings]
    assert sorted(phis) == [0] * 10 + [1] * 10  # Φ is learned anew in each trial
    assert not any(tmp_path.iterdir())


def test_a_dry_run_counts_runs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command(monkeypatch, "reproduce", "table-2", "--small", "--dry-run", "--json", "--out", out)
    told = json.loads(capsys.readouterr().out)["parts"]
    assert {name: facts["runs"] for name, facts in told.items()} == {
        "lt-imagenet": 4,
        "geo-yfcc": 4,
    }
    assert not out.exists()


def test_the_list_names_every_recipe_and_its_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command(monkeypatch, "reproduce", "--json")
    told = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in told["recipes"]] == list(RECIPES)
    needed = {name for row in told["recipes"] for name in row["needs"].split(", ")}
    assert needed == {*told["data"]} == {*DATA_SETS}


def test_wanting_both_or_neither_of_data_and_small(tmp_path: Path) -> None:
    expected = (
        "'table-2' needs the paper's data or stand-ins for them; give either --data ROOT or --small"
    )
    for given in ({}, {"root": tmp_path, "small": True}):
        assert message(ConfigError, name="table-2", out=tmp_path, **given) == expected


def test_data_that_are_missing_are_named_with_what_makes_them(tmp_path: Path) -> None:
    (tmp_path / "LT_ImageNet.parquet").touch()
    assert message(ConfigError, name="table-2", out=tmp_path / "out", root=tmp_path) == (
        f"{tmp_path} lacks geo-yfcc (`acclimate build geo-yfcc-released TABLE --out "
        f"{tmp_path}/geo-yfcc.parquet`); make what is missing, or try the recipe with --small, "
        f"which needs no data"
    )
    nowhere = tmp_path / "nowhere"
    assert message(ConfigError, name="table-2", out=tmp_path / "out", root=nowhere) == (
        f"--data: there is no folder {nowhere}; give the one that holds the data"
    )


def test_an_unknown_recipe(tmp_path: Path) -> None:
    assert message(UnknownName, name="table-3", out=tmp_path, small=True) == (
        "there is no recipe 'table-3'; did you mean 'table-4'?"
    )


def test_data_are_found_however_they_are_spelt(tmp_path: Path) -> None:
    for name in ("VLCS", "PACS", "office_home", "TerraInc"):
        (tmp_path / name).mkdir()
    (tmp_path / "pacs.parquet").touch()
    found = find(tmp_path, ["vlcs", "pacs", "office-home", "terra-incognita"])
    assert {name: path.name for name, path in found.items()} == {
        "vlcs": "VLCS",
        "pacs": "pacs.parquet",  # a table goes before a folder
        "office-home": "office_home",
        "terra-incognita": "TerraInc",
    }


def test_full_scale_runs_with_the_papers_settings(tmp_path: Path) -> None:
    """On the stand-ins, under the names of the real data: what would run, without running it."""
    for needed in ("lt-imagenet", "geo-yfcc"):
        stand_in(needed).write(tmp_path / f"{needed}.parquet")
    settings = {"model": {"backbone": "small-cnn"}}
    wanted = Wanted(name="table-2", out=tmp_path / "out", root=tmp_path, settings=settings)
    for found in ready(wanted):
        assert found.plan is not None
        preset = PRESETS[found.part.preset].settings
        for job in found.plan.sweep.jobs:
            assert job.config["train"]["epochs"] == preset["train.epochs"]
            assert job.config["adapt"]["points"] == preset["adapt.points"]
            assert job.config["model"]["head"] == "linear"
        assert {data_name(path) for path in found.plan.paths.values()} == {found.part.name}


@pytest.mark.parametrize("name", ["figure-4b", "figure-4c", "figure-4d"])
def test_curves_sample_lt_imagenet_from_what_is_given(name: str, tmp_path: Path) -> None:
    stand_in("imagenet-5k").write(tmp_path / "imagenet-5k.parquet")
    assert message(ManifestError, name=name, out=tmp_path / "out", root=tmp_path) == (
        "imagenet-5k has 10 classes with images for training, validation and test (0 excluded, "
        "0 too small), not 500; lower --classes, or add images"
    )


def test_only_some_of_a_recipes_algorithms(tmp_path: Path) -> None:
    given = {"name": "table-2", "out": tmp_path, "small": True, "algorithms": ("erm", "irm")}
    assert message(UnknownName, **given) == ("'table-2' does not run 'irm'; did you mean 'erm'?")


def test_rows_name_what_exists() -> None:
    for recipe in RECIPES.values():
        assert not recipe.published or recipe.published in TABLES
        for part in recipe.parts:
            assert {*part.data} <= {*DATA_SETS}
            assert not part.preset or part.preset in PRESETS
            assert not part.ablation or part.ablation in ABLATIONS
            assert not part.ablation or len(part.data) == 1
    assert {*SMALL_SCALE} < {*DATA_SETS}


@pytest.mark.parametrize("name", DATA_SETS)
def test_stand_ins_say_that_they_are(name: str) -> None:
    made = stand_in(name)
    assert made.source == STAND_IN + name
    assert made.problems() == []
    assert made.digest() == stand_in(name).digest()


def test_docs_name_every_recipe() -> None:
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    missing = [name for name in RECIPES if f"`acclimate reproduce {name}`" not in text]
    assert missing == []
