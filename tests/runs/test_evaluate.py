"""What decides which rows are scored belongs to the model: `evaluate` repeats what `train` said."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from acclimate.config import RunConfig
from acclimate.core.errors import ManifestError, UnknownName
from acclimate.data.manifest import Manifest
from acclimate.learn.model import Trained
from acclimate.records.folder import RunFolder
from acclimate.records.records import Score
from acclimate.runs.evaluate import evaluate_run
from acclimate.runs.plan import make_plan
from acclimate.runs.scoring import split_domain
from fixtures.errors import refused
from fixtures.roles import with_roles

Tiny = Callable[..., RunConfig]
Fit = Callable[..., Path]
ROLES = {"site-1": "val", "site-2": "test", "site-3": "test"}


def with_splits(manifest: Manifest) -> Manifest:
    """Every training domain has a validation and a test split, and both are scored."""
    place = np.arange(len(manifest)) % 24
    splits = np.where(place < 16, "train", np.where(place < 20, "val", "test"))
    at = manifest.table.column_names.index("split")
    return replace(manifest, table=manifest.table.set_column(at, "split", pa.array(splits)))


def several_labels(tree: Path, path: Path) -> Manifest:
    """Every third image has a second label, and so a second row."""
    rows = []
    for place, file in enumerate(sorted(tree.rglob("*.jpg"))):
        image = file.relative_to(tree)
        domain, label = image.parts[:2]
        rows.append((str(image), label, domain))
        if place % 3 == 0:
            rows.append((str(image), "blue" if label == "red" else "red", domain))
    lines = "\n".join(",".join(row) for row in rows)
    path.write_text(f"image,label,domain\n{lines}\n")
    return Manifest.from_table(path, root=tree)


def with_an_orphan_class(manifest: Manifest) -> Manifest:
    """A third of site-4 is of a class that no other domain has."""
    labels = np.array(manifest.classes)[manifest.label_index]
    labels[(manifest.domain_names == "site-4") & (labels == "cat")] = "yak"
    return Manifest.from_arrays(manifest.features(), labels, manifest.domain_names)


def final_scores(run: Path) -> list[Score]:
    return [score for score in RunFolder(run).records().scores if score.moment == "final"]


def assert_repeated(run: Path, data: Manifest) -> None:
    found = evaluate_run(run, data)
    assert found.same_data
    final = final_scores(run)
    steps = {score.step for score in final}
    assert len(steps) == 1
    (kept,) = steps
    assert [replace(score, moment="final", step=kept) for score in found.scores] == final


@pytest.mark.parametrize("algorithm", ["erm", "da-erm"])
class TestEvaluateRepeatsTheFinalScores:
    def test_where_roles_make_the_domains(
        self, features: Manifest, fit: Fit, algorithm: str
    ) -> None:
        data = with_roles(with_splits(features), ROLES)
        run = fit(algorithm, data)
        assert_repeated(run, data)
        by_role = {score.role: score.domain for score in evaluate_run(run, data).scores}
        assert by_role == {"train": "site-4", "val": "site-1", "test": "site-3"}

    def test_where_a_domain_was_left_out(
        self, features: Manifest, fit: Fit, algorithm: str
    ) -> None:
        """site-3 has the role test, and the run did not ask for it."""
        data = with_roles(features, ROLES)
        assert_repeated(fit(algorithm, data, test_domains=["site-2"]), data)

    def test_where_images_have_several_labels(
        self, tree: Path, fit: Fit, tmp_path: Path, algorithm: str
    ) -> None:
        data = several_labels(tree, tmp_path / "labels.csv")
        assert len(data) == 96 + 32
        run = fit(algorithm, data, test_domains=["west"], val_domains=["east"])
        assert_repeated(run, data)

    def test_where_classes_were_dropped(self, features: Manifest, fit: Fit, algorithm: str) -> None:
        data = with_an_orphan_class(features)
        with refused(ManifestError, "'yak'", "'site-4'", "data.unseen_classes=drop"):
            fit(algorithm, data, test_domains=["site-4"])
        run = fit(algorithm, data, test_domains=["site-4"], **{"data.unseen_classes": "drop"})
        assert_repeated(run, data)
        own = [score for score in final_scores(run) if score.domain == "site-4"]
        assert {score.n for score in own} == {16 - 6}


@pytest.mark.parametrize("source", ["held-out", "test"])
def test_no_image_that_adapted_is_scored_under_another_label(
    tree: Path, tiny: Tiny, tmp_path: Path, source: str
) -> None:
    """west has 24 images with 32 labels; 6 images adapt, whatever their labels."""
    data = several_labels(tree, tmp_path / "labels.csv")
    plan = make_plan(tiny("erm", test_domains=["west"], **{"adapt.source": source}), data)
    adapted, scored = (
        [data.image_name(row) for row in rows] for rows in split_domain(plan, "west")
    )
    assert len(set(adapted)) == len(adapted) == 6
    rows = [data.image_name(row) for row in data.rows(domain="west")]
    if source == "held-out":
        assert scored == [name for name in rows if name not in adapted]
    else:
        assert scored == rows


def test_an_image_of_many_labels_is_one_image(tree: Path, tiny: Tiny, tmp_path: Path) -> None:
    """It cannot both adapt and be scored."""
    lines = ["image,label,domain"]
    for domain in ("north", "south"):
        lines += [
            f"{domain}/{c}/{n:02d}.jpg,{c},{domain}" for c in ("red", "blue") for n in range(9)
        ]
    lines += [f"west/red/00.jpg,{label},west" for label in ("red", "blue")]
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    data = Manifest.from_table(tmp_path / "labels.csv", root=tree)
    with refused(ManifestError, "west", "labels.csv", 1, 2, "adapt.source=test"):
        make_plan(tiny("erm", test_domains=["west"]), data)


def test_a_training_image_counts_once_in_its_domain_s_embedding(
    tree: Path, fit: Fit, tmp_path: Path
) -> None:
    """As at test time, where images come without labels."""
    data = several_labels(tree, tmp_path / "labels.csv")
    table = Trained.load(fit("da-erm", data, test_domains=["west"])).table
    assert table is not None
    for name, state in table.states.items():
        rows = data.rows(domain=name, split="train")
        assert state.count == len({data.image_name(row) for row in rows}) < len(rows)


def test_a_class_that_was_never_learned_is_refused(features: Manifest, fit: Fit) -> None:
    """It is on the model's list of classes, but no training domain showed it."""
    data = with_an_orphan_class(features)
    listed = replace(data, table=data.select(data.rows(domain="site-0")).table)
    run = fit("erm", listed)
    with refused(UnknownName, "'yak'", "arrays", "ant, bee, cat"):
        evaluate_run(run, data)


def test_other_data_are_scored_on_every_domain(features: Manifest, fit: Fit) -> None:
    """Of the run's domains in the run's roles; domains that it never met are test domains."""
    data = with_roles(features, ROLES)
    run = fit("erm", data, test_domains=["site-2"])
    found = evaluate_run(run, data.without_domains("site-0"))
    assert not found.same_data
    roles = {score.domain: score.role for score in found.scores}
    assert roles == {"site-1": "val", "site-2": "test", "site-3": "test", "site-4": "train"}
