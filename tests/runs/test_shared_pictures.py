"""No score goes by a picture that was trained on: copies, shared tables, groups."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from acclimate.build.digits import DigitsSettings, build_digits
from acclimate.config import RunConfig
from acclimate.core.errors import ManifestError
from acclimate.data.manifest import Manifest
from acclimate.records.folder import RunFolder
from acclimate.records.records import Score, shared_notes
from acclimate.rehearse.training import train
from acclimate.runs.evaluate import evaluate_run
from acclimate.runs.plan import make_plan
from acclimate.runs.scoring import split_domain
from fixtures.command_line import command
from fixtures.errors import refused

Tiny = Callable[..., RunConfig]


@pytest.fixture
def copied(tree: Path, tmp_path: Path) -> Path:
    """A fifth site holds ten copies of images of another one, and four images of its own."""
    root = tmp_path / "sites"
    shutil.copytree(tree, root)
    for label in ("red", "blue"):
        (root / "fifth" / label).mkdir(parents=True)
        for number in range(5):
            target = root / "fifth" / label / f"copy-{number}.jpg"
            shutil.copy(root / "north" / label / f"{number:02d}.jpg", target)
        for number in (10, 11):
            (root / "north" / label / f"{number}.jpg").rename(
                root / "fifth" / label / f"own-{number}.jpg"
            )
    return root


def trained_on(manifest: Manifest, row: int, domains: tuple[str, ...]) -> bool:
    """Whether a training row of these domains holds the same bytes."""
    content = Path(manifest.image_source(row)).read_bytes()
    return any(
        Path(manifest.image_source(int(other))).read_bytes() == content
        for name in domains
        for other in manifest.rows(domain=name, split="train")
    )


def by_method(run: Path, domain: str) -> dict[str, Score]:
    scores = RunFolder(run).records().scores
    return {s.method: s for s in scores if s.moment == "final" and s.domain == domain}


@pytest.mark.parametrize("algorithm", ["erm", "da-erm"])
def test_copies_of_training_images_are_not_scored(
    copied: Path, tiny: Tiny, tmp_path: Path, algorithm: str
) -> None:
    manifest = Manifest.open(copied)
    config = tiny(algorithm, test_domains=["fifth"], **{"adapt.points": 2})
    plan = make_plan(config, manifest)
    rows = manifest.rows(domain="fifth")
    leaked = [row for row in rows if trained_on(manifest, int(row), plan.train_domains)]
    assert plan.trained_on[rows].nonzero()[0].tolist() == [list(rows).index(r) for r in leaked]
    assert 4 <= len(leaked) <= 10
    (line,) = [line for line in plan.decided if "fifth" in line]
    assert f"fifth {len(leaked)} of 14" in line
    train(config, manifest, tmp_path / "run")
    predictions = RunFolder(tmp_path / "run").predictions()
    assert predictions is not None
    scored = predictions.row[predictions.domain == "fifth"]
    assert not set(scored.tolist()) & set(leaked)
    for score in by_method(tmp_path / "run", "fifth").values():
        assert score.shared == len(leaked) and score.top1_unshared is None
        assert score.n == 14 - len(leaked) - 2
    again = evaluate_run(tmp_path / "run", manifest)
    assert {s.shared for s in again.scores if s.role == "train"} == {0}  # of their `val` rows
    scores = [s for s in again.scores if s.domain == "fifth"]
    assert {s.n for s in scores} == {14 - len(leaked) - 2}


def test_shared_rows_are_scored_where_asked_and_both_numbers_said(
    copied: Path, tiny: Tiny, tmp_path: Path
) -> None:
    manifest = Manifest.open(copied)
    config = tiny("erm", test_domains=["fifth"], **{"adapt.points": 2, "data.keep_shared": True})
    train(config, manifest, tmp_path / "run")
    score = by_method(tmp_path / "run", "fifth")["none"]
    rows = RunFolder(tmp_path / "run").predictions()
    assert rows is not None and score.n == 12
    plain = rows.where((rows.domain == "fifth") & (rows.method == "none"))
    plan = make_plan(config, manifest)
    own = ~plan.trained_on[plain.row]
    assert score.top1_unshared == pytest.approx(float((plain.rank[own] == 1).mean()))
    (note,) = shared_notes([score])
    assert "fifth" in note and str(score.shared) in note


def test_a_site_of_copies_alone_cannot_be_scored(tree: Path, tiny: Tiny, tmp_path: Path) -> None:
    shutil.copytree(tree, tmp_path / "sites")
    shutil.copytree(tree / "north", tmp_path / "sites" / "again")
    manifest = Manifest.from_folder(tmp_path / "sites", val_share=0)
    with refused(ManifestError, "again", "0 images", "--keep-shared"):
        make_plan(tiny("erm", test_domains=["again"]), manifest)
    make_plan(tiny("erm", test_domains=["again"], **{"data.keep_shared": True}), manifest)


def test_validation_rows_are_not_trained_on_elsewhere(
    tree: Path, tiny: Tiny, tmp_path: Path
) -> None:
    """Splits as a table gives them: `val` of one site is `train` of another."""
    images = [str(path.relative_to(tree)) for path in sorted(tree.rglob("*.jpg"))]
    rows = ["image,label,domain,split"]
    for place, image in enumerate(images):
        label = image.split("/")[1]
        for site in ("one", "two", "three"):
            split = "val" if (place + len(site)) % 4 == 0 else "train"
            rows.append(f"{image},{label},{site},{split}")
        rows.append(f"{image},{label},four,{'val' if place % 4 == 1 else 'train'}")
    (tmp_path / "shared.csv").write_text("\n".join(rows))
    manifest = Manifest.from_table(tmp_path / "shared.csv", root=tree)
    plan = make_plan(tiny("erm"), manifest)
    for name in plan.train_domains:
        trained = np.concatenate([manifest.rows(domain=d, split="train") for d in manifest.domains])
        for row in plan.scorable(name, "val"):
            assert not manifest.same_image(np.array([row]), trained).any()
    drawn = replace(manifest, table=manifest.table.drop_columns(["split"]))
    splits = Manifest.from_rows(drawn.table, tree, "drawn", val_share=0.25, seed=0)
    whole = make_plan(tiny("erm"), splits)
    assert all(len(whole.scorable(name, "val")) == 24 for name in whole.train_domains)


def test_other_data_with_training_pictures(tree: Path, tiny: Tiny, tmp_path: Path) -> None:
    """`evaluate` knows what a run was trained on, under whatever name it comes back."""
    manifest = Manifest.open(tree)
    train(tiny("erm", **{"adapt.points": 2}), manifest, tmp_path / "run")
    for place, row in enumerate(manifest.rows(domain="north")):
        source = Path(manifest.image_source(int(row)))
        target = tmp_path / "new" / "elsewhere" / source.parent.name / f"{place}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    trained = len(manifest.rows(domain="north", split="train"))
    scores = evaluate_run(tmp_path / "run", tmp_path / "new").scores
    assert {(s.domain, s.shared, s.n) for s in scores} == {("elsewhere", trained, 24 - trained - 2)}
    every = evaluate_run(tmp_path / "run", tmp_path / "new", {"data.keep_shared": True}).scores
    assert {(s.shared, s.n) for s in every} == {(trained, 22)}


def test_a_group_that_was_trained_on_is_not_scored(tree: Path, tiny: Tiny) -> None:
    manifest = Manifest.open(tree)
    names = manifest.table["image"].to_pylist()
    patients = ["p1" if name.endswith(("/00.jpg", "/01.jpg")) else None for name in names]
    column = pa.array(patients, pa.string())
    grouped = replace(manifest, table=manifest.table.append_column("group", column))
    plan = make_plan(tiny("erm", test_domains=["north"]), grouped)
    ignored = set(grouped.rows(domain="north").tolist()) - set(plan.scorable("north").tolist())
    assert {names[row] for row in ignored} == {
        f"north/{label}/{number}.jpg" for label in ("red", "blue") for number in ("00", "01")
    }


def test_a_base_image_that_adapts_may_be_scored_as_another_image(tiny: Tiny) -> None:
    """Without labels nothing is learned of it. Set apart by base image, frequent classes, which
    repeat theirs most often, would be missing from the scored half."""
    data = build_digits(
        DigitsSettings(train_domains=4, test_domains=1, test_images=300, concentration=1)
    )
    unseen = data.domains[0]
    plan = make_plan(tiny("erm", test_domains=[unseen], **{"adapt.points": 100}), data)
    adapting, scored = split_domain(plan, unseen)
    assert len(adapting) == 100 and len(scored) == 200
    assert not set(adapting.tolist()) & set(scored.tolist())
    bases = data.table["base_image"].to_numpy()
    assert set(bases[adapting]) & set(bases[scored])


@pytest.mark.slow
def test_what_people_see(copied: Path, tmp_path: Path) -> None:
    settings = ["--set", "train.steps=2", "--set", "model.width=8", "--set", "adapt.points=2"]
    train = ["train", copied, "--algorithm", "erm", "--test-domains", "fifth", *settings]
    (line,) = [line for line in command(*train, "--dry-run").splitlines() if "not scored" in line]
    assert "fifth" in line and "of 14" in line
    assert "--keep-shared" in command(*train, "--out", tmp_path / "run")
    assert "without them" in command("evaluate", tmp_path / "run", copied, "--keep-shared")
    assert "10 pictures in several sites" in command("inspect", copied)
