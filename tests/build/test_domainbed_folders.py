"""DomainBed's folders: names as they really are, every difference told, nothing lost silently."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from acclimate.build.domainbed import (
    BENCHMARKS,
    DomainBed,
    FolderCheck,
    benchmark,
    folded,
)
from acclimate.core.errors import ManifestError, UnknownName
from acclimate.core.progress import unwatched
from acclimate.data.manifest import Manifest
from fixtures.command_line import command
from fixtures.errors import refused


def tree(root: Path, images: Mapping[str, int]) -> Path:
    """`{"photo/dog": 3}`: three files each; nothing here looks into them."""
    for folder, count in images.items():
        (root / folder).mkdir(parents=True)
        for number in range(count):
            (root / folder / f"{number}.jpg").write_bytes(b"x")
    return root


def shrunk(monkeypatch: pytest.MonkeyPatch, name: str, *editions: Mapping[str, int]) -> None:
    """Expect `name` to be as small as a test can make it."""
    sizes = {f"edition {number}": images for number, images in enumerate(editions, 1)}
    monkeypatch.setitem(BENCHMARKS, name, replace(BENCHMARKS[name], editions=sizes))


PACS = {"art_painting": 2, "cartoon": 2, "photo": 2, "sketch": 2}
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def pacs(root: Path, domains: tuple[str, ...] = tuple(PACS)) -> Path:
    return tree(root, {f"{domain}/{label}": 1 for domain in domains for label in CLASSES})


class Made(NamedTuple):
    manifest: Manifest
    check: FolderCheck


def built(root: Path, tmp_path: Path, name: str = "pacs", **options: Any) -> Made:
    builder = DomainBed(root=root, dataset=name, out=tmp_path / "out.parquet", **options)
    builder.build(unwatched)
    return Made(*builder.checked())


@pytest.mark.parametrize(
    ("name", "classes", "totals"),
    [
        ("vlcs", 5, [10729]),
        ("pacs", 7, [9991]),
        ("office-home", 65, [15588]),
        ("domainnet", 345, [586575, 596006]),
        ("terra-incognita", 10, [24330, 24788]),
    ],
)
def test_expectations_add_up_to_the_published_totals(
    name: str, classes: int, totals: list[int]
) -> None:
    known = benchmark(name)
    assert known.classes == classes
    assert [sum(images.values()) for images in known.editions.values()] == totals
    assert all(tuple(images) == known.domains for images in known.editions.values())
    assert set(known.aliases.values()) <= set(known.domains)
    names = [folded(domain) for domain in known.domains]
    assert not set(names) & set(known.aliases)
    assert all(alias == folded(alias) for alias in known.aliases)


def test_duplicates_of_domainnet_are_the_difference_of_its_editions() -> None:
    clean, full = BENCHMARKS["domainnet"].editions.values()
    listed = {"clipart": 704, "infograph": 1596, "painting": 3493, "real": 2380, "sketch": 1258}
    found = {name: full[name] - clean[name] for name in clean}
    assert found == {**listed, "quickdraw": 0}


def test_as_expected_is_the_same_manifest_as_the_plain_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrunk(monkeypatch, "pacs", dict.fromkeys(PACS, 7))
    root = pacs(tmp_path / "PACS")
    result = built(root, tmp_path)
    assert result.check.differences() == []
    assert (result.check.images, result.check.expected) == (28, 28)
    assert result.manifest.digest() == Manifest.from_folder(root).digest()
    assert Manifest.read(tmp_path / "out.parquet").digest() == result.manifest.digest()


def test_other_names_of_folders_give_the_same_domains(tmp_path: Path) -> None:
    root = pacs(tmp_path / "data" / "kfold", ("art", "Cartoon", "photos", "SKETCH"))
    result = built(tmp_path / "data", tmp_path)  # one folder further up
    assert result.manifest.domains == ("art_painting", "cartoon", "photo", "sketch")
    assert result.manifest.root == root
    assert result.manifest.table["image"][0].as_py() == "Cartoon/dog/0.jpg"
    assert [check.folder for check in result.check.domains] == [
        "art",
        "Cartoon",
        "photos",
        "SKETCH",
    ]


@pytest.mark.parametrize("folder", ["Real World", "Real_World", "RealWorld", "real-world", "Real"])
def test_office_home_real_world(tmp_path: Path, folder: str) -> None:
    images = {"Clipart/alarm clock": 1, "Art/Alarm_Clock": 1, "Art/TV": 1}
    root = tree(tmp_path / "x", {f"{folder}/Alarm_Clock": 1, **images})
    manifest = built(root, tmp_path, "office-home").manifest
    assert manifest.domains == ("Art", "Clipart", "Real World")
    assert manifest.classes == ("Alarm_Clock", "TV")


def test_every_difference_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrunk(monkeypatch, "pacs", {"art_painting": 7, "cartoon": 9, "photo": 6, "sketch": 4})
    root = pacs(tmp_path / "x", ("art_painting", "cartoon", "photo"))
    tree(root, {"photo/zebra": 1, "clip/dog": 2, "empty": 0})
    (root / "cartoon" / "house" / "0.jpg").unlink()
    check = built(root, tmp_path).check
    differences = check.differences()
    facts = [
        ("cartoon", "6 images", "3 fewer"), ("cartoon", "6 classes", "7"),
        ("photo", "8 images", "2 more"), ("photo", "8 classes", "7"),
        ("sketch", "missing", "4 images"), ("clip", "2 images", "extra"),
    ]  # fmt: skip
    for line, wanted in zip(differences, facts, strict=True):
        assert all(fact in line for fact in wanted), line
    assert check.images == 23  # extra ones stay


def test_only_expected_leaves_out_what_is_extra_and_says_so(tmp_path: Path) -> None:
    root = pacs(tmp_path / "x")
    tree(root, {"photo/zebra": 1, "clip/dog": 2})
    result = built(root, tmp_path, only_expected=True)
    assert result.check.left_out == {"not a domain of the data set": 2}
    assert result.manifest.domains == tuple(PACS)
    assert result.manifest.classes == (*CLASSES, "zebra")


def test_the_drop_list_drops_and_the_nearest_edition_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"clipart": 1, "infograph": 1, "painting": 1, "quickdraw": 0, "real": 0, "sketch": 0}
    shrunk(monkeypatch, "domainnet", small, {**small, "clipart": 3})
    root = tree(tmp_path / "x", {"clip/ant": 3, "info/ant": 1, "paint/ant": 1})
    assert built(root, tmp_path, "domainnet").check.edition == "edition 2"
    drops = tmp_path / "drops.txt"
    drops.write_text("clipart/ant/0.jpg\nclipart/ant/2.jpg\n\nreal/ant/9.jpg\n")
    result = built(root, tmp_path, "domainnet", drop_list=drops)
    assert result.manifest.table["image"].to_pylist() == [
        *("clip/ant/1.jpg", "info/ant/0.jpg", "paint/ant/0.jpg")
    ]
    assert result.check.edition == "edition 1"
    assert result.check.left_out == {"drop list": 2}
    assert "1 line of the drop list matches no image" in result.check.differences()


def test_what_is_no_such_data_set_is_refused(tmp_path: Path) -> None:
    with refused(UnknownName, "pasc", "pacs"):
        benchmark("pasc")
    assert benchmark("office_home") is benchmark("OfficeHome")
    with refused(ManifestError, tmp_path / "none", "OfficeHome", "officeHomeDataset.html"):
        built(tmp_path / "none", tmp_path, "office-home")
    with refused(ManifestError, tmp_path / "no.txt"):  # before any work
        built(tmp_path / "none", tmp_path, drop_list=tmp_path / "no.txt")
    root = tree(tmp_path / "x", {"north/dog": 1, "south/dog": 1})
    with refused(ManifestError, root, "PACS", "north", "south", "--dataset"):
        built(root, tmp_path)
    with refused(ManifestError, "1 of the 6", "sketch", "--dataset pacs"):
        built(pacs(tmp_path / "PACS"), tmp_path, "domainnet")
    with refused(ManifestError, "1 of the 4", "sketch", "--dataset"):
        built(pacs(tmp_path / "one", ("sketch",)), tmp_path)
    root = tree(tmp_path / "twice", {"art/dog": 1, "art_painting/dog": 1, "photo/dog": 1})
    with refused(ManifestError, "'art'", "'art_painting'"):
        built(root, tmp_path)


def test_a_data_set_without_published_numbers_is_checked_by_names(tmp_path: Path) -> None:
    names = benchmark("sviro").domains
    assert len(names) == 10
    root = tree(tmp_path / "x", {f"{name}/{seat}": 1 for name in names[1:] for seat in range(7)})
    tree(root, {"golf/0": 1})
    check = built(root, tmp_path, "sviro").check
    assert check.expected is None
    assert check.differences() == [
        "domain 'aclass' is missing",
        "domain 'golf' with 1 image is extra",
    ]
    out = tmp_path / "again.parquet"
    shown = command("build", "domainbed", "--dataset", "sviro", root, "--out", out)
    assert "SVIRO, numbers of images are not published\n" in shown
    assert Manifest.read(out).table["source"][0].as_py().startswith("https://sviro.kl.dfki.de")


def test_the_command_shows_a_table_and_json(tmp_path: Path) -> None:
    root, out = pacs(tmp_path / "x"), tmp_path / "out.parquet"
    arguments = ("build", "domainbed", "--dataset", "pacs", root, "--out", out)
    shown = command(*arguments)
    assert "PACS, nearest edition: as given out (9991 images)" in shown
    assert "warning: domain 'photo' has 7 images, 1663 fewer than expected" in shown
    facts = json.loads(command(*arguments, "--json"))
    assert facts["rows"] == 28
    assert facts["check"]["domains"][2]["expected"] == 1670
    assert len(facts["check"]["differences"]) == 4
