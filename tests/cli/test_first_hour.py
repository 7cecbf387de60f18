"""The road of somebody with folders of photographs, who names no algorithm."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acclimate.adapt.choice import MethodChoice
from acclimate.data.manifest import Manifest
from acclimate.records.doubt import Answer
from acclimate.records.folder import RunFolder
from acclimate.records.rehearsal import Promise
from fixtures.settings import TINY, as_flags

SITE = {"adapt.site.steps": 5, "adapt.site.width": 8, "adapt.site.dim": 4}
QUICK = as_flags(TINY | SITE)


@pytest.fixture(scope="module")
def quick(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `acclimate train sites` gives, in a second."""
    from acclimate import AdaptiveClassifier

    out = tmp_path_factory.mktemp("quick") / "run"
    settings = TINY | SITE | {"train.steps": 40, "model.dropout": 0.0}
    AdaptiveClassifier(settings=settings, out=out).fit(tree)
    return out


def test_without_an_algorithm_it_is_the_rehearsed_recipe(
    cli: Any, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = cli("train", tree, *QUICK)
    assert code == 0
    config = RunFolder(tmp_path / "runs" / "sites-erm-rehearsed-0").identity()["config"]
    assert (config["algorithm"], config["adapt"]["rehearse"]) == ("erm", True)
    # Two images of a site are none to play a new site with, and no advice leads to an error.
    assert out.splitlines()[-1] == (
        "Nothing was rehearsed: the sites have too few images of their own (a picture that others "
        "have does not count) to hold one out; the plain model is what `predict` uses."
    )
    assert "--test-domains" not in out


def test_an_algorithm_or_a_preset_is_what_it_was(
    cli: Any, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text('algorithm = "da-erm"\n')
    for flags in (["--algorithm", "da-erm"], ["--config", "own.toml"]):
        cli("train", tree, *flags, "--out", "-".join(flags), *QUICK)
        config = RunFolder(tmp_path / "-".join(flags)).identity()["config"]
        assert (config["algorithm"], config["adapt"]["rehearse"]) == ("da-erm", False)


def rows(sites: int) -> Manifest:
    rng = np.random.default_rng(0)
    label = np.tile(["a", "b"], 30 * sites)
    x = rng.normal(size=(len(label), 4)) + 2.0 * (label == "a")[:, None]
    return Manifest.from_arrays(x.astype("f4"), label, np.repeat([*"xyz"][:sites], 60))


@pytest.mark.parametrize(
    ("sites", "said"),
    [(1, "With one site nothing can be rehearsed"), (2, "Only 2 sites could play a new site")],
)
def test_few_sites_train_without_a_second_error(
    cli: Any, tmp_path: Path, sites: int, said: str
) -> None:
    rows(sites).write(tmp_path / "sites.parquet")
    code, out, _ = cli("train", tmp_path / "sites.parquet", "--out", tmp_path / "run", *QUICK)
    assert code == 0
    assert sum(line.startswith(said) for line in out.splitlines()) == 1
    assert "--test-domains" not in out


def test_predict_takes_a_new_folder_without_adapt(
    cli: Any, quick: Path, unlabelled: Path, tmp_path: Path
) -> None:
    table = tmp_path / "p.csv"
    code, out, _ = cli("predict", quick, unlabelled, "--out", table)
    assert code == 0
    assert out.splitlines()[:3] == [f"predictions: {table}", "images: 12", "method: none"]


def test_predict_says_where_adapting_would_pay_and_adapts(
    cli: Any, quick: Path, unlabelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if rehearsal had chosen the prior."""

    def chosen(*_: Any) -> MethodChoice:
        return MethodChoice("prior", ("chosen by rehearsal",))

    monkeypatch.setattr("acclimate.adapt.methods.prior.PER_CLASS", 0.1)
    monkeypatch.setattr("acclimate.adapt.choice.choose_method", chosen)
    table, site = tmp_path / "p.csv", tmp_path / "site.safetensors"
    _, out, _ = cli("predict", quick, unlabelled, "--out", table)
    assert "--adapt" in next(line for line in out.splitlines() if line.startswith("note: "))
    plain = table.read_text().splitlines()
    _, out, _ = cli("predict", quick, unlabelled, "--adapt", "--out", table, "--json")
    adapted, found = table.read_text().splitlines(), json.loads(out)
    moved = sum(a.split(",")[1] != b.split(",")[1] for a, b in zip(plain, adapted, strict=True))
    assert (found["method"], found["changes"]["changed"]) == ("prior", moved)
    assert moved > 0  # of a model that is hardly sure of anything, frequencies take over
    _, out, _ = cli("adapt", quick, unlabelled, "--out", site)
    assert f"adaptation changed {100 * moved / 12:.1f} % of predictions ({moved} of 12): " in out
    _, out, _ = cli("predict", quick, unlabelled, "--domain", site, "--out", table)
    assert f"changes: adaptation changed {100 * moved / 12:.1f} % of predictions ({moved} " in out
    assert table.read_text().splitlines() == adapted


PROMISED: dict[str, Any] = {"chain": "none", "n": 5, "frequencies": "as they are", "gain": 0.0}
PROMISED |= {"error": 0.0, "accuracy": 0.9, "domains": 4}


def test_predict_leaves_what_is_not_sure_without_a_label(
    cli: Any, quick: Path, unlabelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, place = tmp_path / "p.csv", (quick, unlabelled, "--out", tmp_path / "p.csv")
    _, _, _ = cli("predict", *place)
    sure = sorted(float(row["confidence"]) for row in read(table))
    below = (sure[5] + sure[6]) / 2
    code, out, _ = cli("predict", *place, "--unsure-below", below, "--json")
    found = json.loads(out)
    assert (code, found["answered"], found["unsure_below"]) == (0, 0.5, below)
    for row in read(table):
        named, empty = ("label", "unsure")[:: 1 if float(row["confidence"]) >= below else -1]
        assert row[named] in ("red", "blue") and row[empty] == ""
    answers = (Answer(threshold=0.1, share=0.8, right=0.96),)
    promised = Promise(**PROMISED, answers=answers)
    monkeypatch.setattr("acclimate.adapt.choice.promise_for", lambda *_: promised)
    code, out, _ = cli("predict", *place, "--at-least", 0.95)
    assert code == 0 and "note: 100.0 % of images have a label: confidence 0.1 or more" in out
    assert "note: rehearsal promises 96.0 % of them to be right" in out
    code, _, err = cli("predict", *place[:-1], tmp_path / "q.csv", "--at-least", 0.97)
    assert code == 1 and "96.0 % at most" in err and not (tmp_path / "q.csv").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--at-least", 0.99), "was not rehearsed on 3 sites or more"),
        (("--at-least", 98), "between 0 and 1"),
        (("--unsure-below", 90), "between 0 and 1"),
        (("--at-least", 0.5, "--unsure-below", 0.5), "use one"),
    ],
)
def test_predict_promises_nothing_that_it_cannot_keep(
    cli: Any, quick: Path, unlabelled: Path, tmp_path: Path, flags: tuple[Any, ...], said: str
) -> None:
    code, _, err = cli("predict", quick, unlabelled, "--out", tmp_path / "p.csv", *flags)
    assert code == 1 and said in err
    assert not (tmp_path / "p.csv").exists()


def read(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_dry_run_says_what_would_be_and_writes_nothing(
    cli: Any, tree: Path, tmp_path: Path
) -> None:
    command = ("train", tree, "--dry-run", "--out", tmp_path / "run", *QUICK)
    code, out, _ = cli(*command)
    assert code == 0
    for fact in (tmp_path / "run", "erm", "rehearsal: yes", "east, north, south, west", "steps: 6"):
        assert str(fact) in out
    facts = json.loads(cli(*command, "--json")[1])
    assert (facts["algorithm"], facts["rehearsal"], facts["finished"]) == ("erm", True, False)
    assert (facts["steps"], facts["images_per_step"], facts["classes"]) == (6, 16, 2)
    assert not (tmp_path / "run").exists()


def test_the_same_is_said_when_it_starts(cli: Any, tree: Path, tmp_path: Path) -> None:
    command = ("train", tree, "--out", tmp_path / "run", *QUICK)
    _, _, err = cli(*command)
    assert f"run: {tmp_path / 'run'}" in err and "algorithm: erm" in err
    assert "6 of 6" in err  # a log is told of it, too
    code, out, _ = cli(*command, "--dry-run")
    assert code == 0 and "finished: yes" in out
    assert json.loads(cli(*command, "--dry-run", "--json")[1])["finished"]
    code, _, err = cli(*command, "--dry-run", "--seed", 3)
    assert code == 1  # as without --dry-run
    assert str(tmp_path / "run") in err


@pytest.mark.slow
def test_backbones_are_compared_by_their_rehearsals(cli: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=180)
    images = rng.integers(0, 200, (180, 16, 16)).astype(np.uint8)
    images[y == 1, 4:12, 4:12] += 50
    names = np.repeat(["x", "y", "z"], 60)
    data = Manifest.from_arrays(images, np.array(["a", "b"])[y], names, val_share=0.5)
    data.write(tmp_path / "sites.parquet")
    backbones = ["small-cnn", "mobilenetv3_small_050"]
    command = (*("train", tmp_path / "sites.parquet", "--out", tmp_path / "runs", *QUICK),)
    command += ("--set", "model.pretrained=false", "--backbone")
    code, out, _ = cli(*command, ",".join(backbones), "--json")
    assert code == 0
    scores = json.loads(out)["backbones"]
    assert [one["backbone"] for one in scores] == backbones
    for one in scores:
        rehearsal = RunFolder(Path(one["folder"])).rehearsal()
        assert rehearsal is not None and 0 < one["plain"] <= 1 and one["milliseconds"] > 0
        assert one["plain"] in [p["accuracy"] for p in rehearsal["promises"]]
    assert scores[0]["parameters"] < scores[1]["parameters"]
    code, out, _ = cli(*command, ",".join(backbones))  # finished runs are shown again
    assert code == 0 and all(str(tmp_path / "runs" / name) in out for name in backbones)
    code, _, err = cli(*command, "small-cnn,resnet18", "--algorithm", "erm")
    assert code == 1 and "small-cnn,resnet18" in err


def test_help_groups_commands_by_what_people_do(cli: Any) -> None:
    from acclimate.cli import GROUPS, app

    _, out, _ = cli("--help")
    headings = [line.rstrip(":") for line in out.splitlines() if line and not line.startswith(" ")]
    assert [heading for heading in headings if heading in GROUPS] == list(GROUPS)
    shown = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    import typer

    every = typer.main.get_command(app)
    assert [name for name in shown if name in every.commands] == [
        name for names in GROUPS.values() for name in names
    ]
    assert {*every.commands} == {name for names in GROUPS.values() for name in names}
