"""Every recipe runs small, from the command to the page; what it needs and costs is said before."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acclimate.config.settings import PRESETS
from acclimate.core.errors import ConfigError, ManifestError, UnknownName
from acclimate.data.readers import data_name
from acclimate.paper.ablations.table import ABLATIONS
from acclimate.paper.published import TABLES, rows
from acclimate.paper.recipes.data_sets import DATA_SETS, STAND_IN, find_data, stand_in
from acclimate.paper.recipes.plan import RecipeRequest, prepare_recipe
from acclimate.paper.recipes.table import RECIPES, SMALL_SCALE
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep import launchers
from acclimate.sweep.worker import Task, TaskResult, perform
from fixtures.command_line import command
from fixtures.errors import refused
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


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_runs_small(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, out = RECIPES[name], tmp_path / "out"
    monkeypatch.setattr(
        launchers, "chosen_launcher", lambda options: lambda folder: InThisProcess()
    )
    asked: list[object] = ["reproduce", name, "--small", "--json", *FASTER]
    asked += ["--out", out, "--max-parallel", 1]
    fewer = FEWER.get(name, ())
    asked += ["--algorithms", ",".join(fewer)] if fewer else []
    told = json.loads(command(*asked))
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
        command(*asked)
        assert {path: path.stat().st_mtime_ns for path in out.rglob("records.jsonl")} == records
        assert (out / "report.html").read_text() == page


def test_table_1_is_the_papers(tmp_path: Path) -> None:
    (part,) = RECIPES["table-1"].parts
    assert (part.trials, part.rule, part.preset) == (8, "leave-one-out", "small-scale")
    assert {row.algorithm for row in rows("1")} == {*part.algorithms}
    assert {row.dataset for row in rows("1")} == {*part.data, "average"}
    (small,) = prepare_recipe(RecipeRequest(name="table-1", out=tmp_path, small=True, trials=2))
    assert small.plan is not None
    phis = [phi.config["seed"] for phi in small.plan.sweep.embeddings]
    assert sorted(phis) == [0] * 10 + [1] * 10  # Φ is learned anew in each trial
    assert not any(tmp_path.iterdir())


def test_a_dry_run_counts_runs_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = command("reproduce", "table-2", "--small", "--dry-run", "--json", "--out", out)
    runs = {name: facts["runs"] for name, facts in json.loads(shown)["parts"].items()}
    assert runs == {"lt-imagenet": 4, "geo-yfcc": 4}
    assert not out.exists()


def test_under_small_a_model_is_one_whatever_table_it_is_in(tmp_path: Path) -> None:
    """ERM of Table 2 is `none` of Table 4, and DA-ERM its `prototype`."""
    first, second = (
        {
            (part.part.name, job.algorithm): job.config
            for part in prepare_recipe(RecipeRequest(name=name, out=tmp_path, small=True))
            for job in (part.plan.sweep.jobs if part.plan else ())
            if job.variant in ("", "none", "prototype")
        }
        for name in ("table-2", "table-4")
    )
    assert {name for _, name in second} == {"erm", "da-erm"}
    for place, config in second.items():
        assert first[place] == config, place
        assert config["model"]["head"] == "linear"  # as at full scale


def test_figure_4c_says_how_many_images_its_total_is() -> None:
    assert "3,500" in RECIPES["figure-4c"].about
    assert "17,500" in RECIPES["figure-4c"].about


def test_the_list_names_every_recipe_and_its_data() -> None:
    told = json.loads(command("reproduce", "--json"))
    assert [row["name"] for row in told["recipes"]] == list(RECIPES)
    needed = {name for row in told["recipes"] for name in row["needs"].split(", ")}
    assert needed == {*told["data"]} == {*DATA_SETS}


def test_what_cannot_be_reproduced(tmp_path: Path) -> None:
    (tmp_path / "LT_ImageNet.parquet").touch()
    out = {"out": tmp_path / "out"}
    requests: list[tuple[dict[str, Any], tuple[object, ...]]] = [
        ({"name": "table-2"}, ("table-2", "--data ROOT", "--small")),
        ({"name": "table-2", "root": tmp_path, "small": True}, ("--data ROOT", "--small")),
        ({"name": "table-2", "root": tmp_path}, (tmp_path, "geo-yfcc", "geo-yfcc-released")),
        ({"name": "table-2", "root": tmp_path / "none"}, ("--data", tmp_path / "none")),
        ({"name": "table-3", "small": True}, ("table-3", "table-4")),
        ({"name": "table-2", "small": True, "algorithms": ("erm", "irm")}, ("irm", "erm")),
    ]
    for request, facts in requests:
        with refused((ConfigError, UnknownName), *facts):
            prepare_recipe(RecipeRequest(**request, **out))
    # Fig. 4B to D sample LT-ImageNet's 500 classes from what is given, as a folder or a table, and
    # none of them from ILSVRC12's, on which the network is pretrained.
    pool = tmp_path / "imagenet-5k"
    for synset in ("n01440764", "n02131653", "n04407435"):
        (pool / synset).mkdir(parents=True)
        for number in range(12):
            (pool / synset / f"{number}.JPEG").touch()
    for excluded in (0, 1):  # not looked into; left out
        for name in ("figure-4b", "figure-4c", "figure-4d"):
            with refused(ManifestError, "imagenet-5k has 2 classes", f"{excluded} excluded", 500):
                prepare_recipe(RecipeRequest(name=name, root=tmp_path, **out))
        command("build", "folder", pool, "--out", tmp_path / "imagenet-5k.parquet")


def test_data_are_found_however_they_are_spelt(tmp_path: Path) -> None:
    for name in ("VLCS", "PACS", "office_home", "TerraInc"):
        (tmp_path / name).mkdir()
    (tmp_path / "pacs.parquet").touch()
    found = find_data(tmp_path, ["vlcs", "pacs", "office-home", "terra-incognita"])
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
    request = RecipeRequest(name="table-2", out=tmp_path / "out", root=tmp_path, settings=settings)
    for prepared in prepare_recipe(request):
        assert prepared.plan is not None
        preset = PRESETS[prepared.part.preset].settings
        for job in prepared.plan.sweep.jobs:
            assert job.config["train"]["epochs"] == preset["train.epochs"]
            assert job.config["adapt"]["points"] == preset["adapt.points"]
            assert job.config["model"]["head"] == "linear"
        assert {data_name(path) for path in prepared.plan.paths.values()} == {prepared.part.name}


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
