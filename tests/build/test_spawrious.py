"""Spawrious: the authors' combinations of breeds and backgrounds, and what lacks in a folder."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acclimate.build import spawrious
from acclimate.core.errors import ManifestError, UnknownName
from acclimate.data.manifest import Manifest
from fixtures.command_line import command
from fixtures.errors import refused

EACH = 20


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """All 48 folders, with 20 images instead of 3,168."""
    tmp_path = tmp_path_factory.mktemp("spawrious")
    for group in "01":
        for background in ("desert", "jungle", "dirt", "snow", "beach", "mountain"):
            for breed in spawrious.BREEDS:
                folder = tmp_path / "spawrious224" / group / background / breed
                folder.mkdir(parents=True)
                for number in range(EACH):
                    name = f"{group} {background} {breed} {number}"
                    (folder / f"{number:04d}.png").write_bytes(name.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spawrious, "IMAGES", EACH)
        yield tmp_path


def built(root: Path, challenge: str) -> tuple[Manifest, dict[str, Any]]:
    out = root / f"{challenge}.parquet"
    given = ("build", "spawrious", root, "--challenge", challenge, "--out", out)
    said = json.loads(command(*given, "--json"))
    return Manifest.read(out), said


def cells(manifest: Manifest) -> Counter[tuple[str, str, str, str]]:
    """Images of each domain, copy of the data, background and breed."""
    rows = manifest.table.select(["domain", "image"]).to_pylist()
    return Counter((row["domain"], *row["image"].split("/")[:3]) for row in rows)


def test_one_to_one_mixes_in_a_background_that_all_breeds_share(root: Path) -> None:
    manifest, said = built(root, "o2o-easy")
    wanted = {}
    own = {"bulldog": "desert", "dachshund": "jungle", "labrador": "dirt", "corgi": "snow"}
    test = {"bulldog": "dirt", "dachshund": "snow", "labrador": "desert", "corgi": "jungle"}
    for breed in own:
        for copy, many, few in (("0", 19, 1), ("1", 17, 3)):
            domain = f"train-{int(copy) + 1}"
            wanted[domain, copy, own[breed], breed] = many
            wanted[domain, copy, "beach", breed] = few
            wanted["test", copy, test[breed], breed] = 20
    assert cells(manifest) == wanted
    assert manifest.roles() == {"test": "test", "train-1": "train", "train-2": "train"}
    assert said["differences"] == []
    row = manifest.table.slice(0, 1).to_pylist()[0]
    assert row["image"] == f"0/{row['background']}/{row['label']}/0000.png"
    assert set(manifest.splits[manifest.rows(domain="train-1")]) == {"train", "val"}


def test_many_to_many_swaps_the_backgrounds_of_two_breeds(root: Path) -> None:
    manifest, _ = built(root, "m2m-hard")
    wanted = {
        ("train-1", "bulldog"): "dirt", ("train-2", "bulldog"): "jungle",
        ("train-1", "dachshund"): "jungle", ("train-2", "dachshund"): "dirt",
        ("train-1", "labrador"): "snow", ("train-2", "labrador"): "beach",
        ("train-1", "corgi"): "beach", ("train-2", "corgi"): "snow",
    }  # fmt: skip
    swapped = {"dirt": "snow", "jungle": "beach", "snow": "dirt", "beach": "jungle"}
    expected = {(domain, "0", where, breed): 20 for (domain, breed), where in wanted.items()}
    for (_, breed), where in wanted.items():
        expected["test", "0", swapped[where], breed] = 20
    assert cells(manifest) == expected


def test_every_challenge_tests_on_backgrounds_that_a_breed_was_not_trained_on(root: Path) -> None:
    for challenge in spawrious.CHALLENGES:
        manifest, said = built(root, challenge)
        seen = {(breed, where) for domain, _, where, breed in cells(manifest) if domain != "test"}
        unseen = {(breed, where) for domain, _, where, breed in cells(manifest) if domain == "test"}
        assert not seen & unseen, challenge
        assert said["rows"] == 320


def test_what_a_folder_lacks_is_told_last(root: Path) -> None:
    with refused(UnknownName, "o2o-hart", "o2o-hard"):
        built(root, "o2o-hart")
    folder = root / "spawrious224" / "1" / "beach" / "corgi"
    (folder / "0019.png").unlink()
    _, said = built(root, "o2o-easy")
    assert said["differences"] == ["folder '1/beach/corgi' has 19 images, 1 fewer than expected"]
    folder.rename(folder.with_name("poodle"))
    with refused(ManifestError, "'1/beach/corgi'", root / "spawrious224"):
        built(root, "o2o-easy")
    with refused(ManifestError, "'0/", root / "none"):
        built(root / "none", "m2m-easy")
