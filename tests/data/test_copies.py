"""One picture in several files: found, and kept on one side of every split."""

import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from acclimate.data.duplicates import _candidates, joined, perceptual_hash
from acclimate.data.inspection import Copies, find_copies
from acclimate.data.manifest import Manifest


def photo(seed: int, side: int = 48) -> Image.Image:
    """Smooth shapes, as photographs have them."""
    rng = np.random.default_rng(seed)
    rough = Image.fromarray(rng.integers(0, 256, (6, 6, 3)).astype(np.uint8))
    return rough.resize((side, side), Image.Resampling.BICUBIC)


def write(path: Path, image: Image.Image, quality: int = 95) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, quality=quality)
    return path


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    root = tmp_path / "sites"
    for number in range(40):
        site, label = ("north", "south")[number % 2], ("cat", "dog")[number // 2 % 2]
        write(root / site / label / f"{number:02d}.jpg", photo(number))
    return root


def copy(root: Path, name: str, to: str) -> None:
    (root / to).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(root / name, root / to)


def split_of(manifest: Manifest, name: str) -> str:
    row = manifest.table["image"].to_pylist().index(name)
    return str(manifest.table["split"][row])


def test_without_copies_nothing_changes(sites: Path) -> None:
    manifest = Manifest.from_folder(sites)
    assert manifest.picture_ids.tolist() == list(range(40))
    assert find_copies(manifest, np.arange(len(manifest))) == []
    assert Manifest.from_folder(sites, alike=True).digest() == manifest.digest()


def test_copies_are_found_and_stay_together(sites: Path) -> None:
    copy(sites, "north/cat/00.jpg", "north/dog/copy.jpg")  # another label
    copy(sites, "north/cat/04.jpg", "south/cat/copy.jpg")  # another site
    copy(sites, "south/dog/03.jpg", "south/dog/again.jpg")
    pairs = [
        ("north/cat/00.jpg", "north/dog/copy.jpg"),
        ("north/cat/04.jpg", "south/cat/copy.jpg"),
        ("south/dog/03.jpg", "south/dog/again.jpg"),
    ]
    seen = set()
    for seed in range(12):
        manifest = Manifest.from_folder(sites, val_share=0.5, seed=seed)
        for one, two in pairs:
            assert split_of(manifest, one) == split_of(manifest, two)
            seen.add((one, split_of(manifest, one)))
    assert {split for _, split in seen} == {"train", "val"}  # on either side, and not for nothing
    groups = find_copies(manifest, np.arange(len(manifest)))
    assert groups == [
        Copies(("north/cat/00.jpg", "north/dog/copy.jpg"), ("cat", "dog"), ("north",)),
        Copies(("north/cat/04.jpg", "south/cat/copy.jpg"), ("cat",), ("north", "south")),
        Copies(("south/dog/03.jpg", "south/dog/again.jpg"), ("dog",), ("south",)),
    ]


def test_a_picture_in_two_domains_is_on_one_side(tmp_path: Path) -> None:
    rows = ["image,label,domain"]
    for number in range(20):
        write(tmp_path / f"{number}.jpg", photo(number))
        rows += [f"{number}.jpg,cat,a", f"{number}.jpg,cat,b"]
    copy(tmp_path, "3.jpg", "3-again.jpg")
    (tmp_path / "photos.csv").write_text("\n".join([*rows, "3-again.jpg,cat,c"]))
    for seed in range(8):
        splits = Manifest.from_table(tmp_path / "photos.csv", seed=seed).splits
        assert (splits[:40:2] == splits[1:40:2]).all()
        assert (splits[:40] == "val").sum() in (6, 8)
        assert splits[40] == splits[6] == "train"  # something of each domain is trained on


def test_pictures_that_look_the_same(sites: Path) -> None:
    write(sites / "south" / "dog" / "smaller.jpg", photo(0).resize((40, 40)), quality=60)
    brighter = Image.fromarray((np.asarray(photo(1)) * 0.97).astype(np.uint8))
    write(sites / "north" / "dog" / "darker.png", brighter)
    for number in range(2):  # two blank pictures show nothing in common
        blank = Image.new("RGB", (48, 48), (9, 9, 9 + number))
        write(sites / "north" / "cat" / f"blank-{number}.png", blank)
    manifest = Manifest.from_folder(sites, alike=True, val_share=0.5)
    groups = find_copies(manifest, np.arange(len(manifest)))
    both = {"labels": ("cat", "dog"), "domains": ("north", "south"), "alike": True}
    assert groups == [
        Copies(("north/cat/00.jpg", "south/dog/smaller.jpg"), **both),
        Copies(("north/dog/darker.png", "south/cat/01.jpg"), **both),
    ]
    for seed in range(8):
        drawn = Manifest.from_folder(sites, alike=True, val_share=0.5, seed=seed)
        for group in groups:
            one, two = group.images
            assert split_of(drawn, one) == split_of(drawn, two)


def test_the_hash_against_imagehash() -> None:
    """Its pHash takes the same corner, with the mean among the numbers that have a median."""
    from scipy.fft import dct

    grey = np.asarray(photo(5, 32).convert("L"), dtype=np.float64)
    low = dct(dct(grey, axis=0), axis=1)[:8, :8]  # ImageHash's, another scale
    scale = np.outer(*[np.where(np.arange(8) == 0, np.sqrt(0.5), 1.0)] * 2)
    expected = (low * scale).ravel()[1:]
    bits = f"{perceptual_hash(grey):063b}"
    assert bits == "".join("1" if v > np.median(expected) else "0" for v in expected)
    file = BytesIO()
    photo(5, 200).save(file, "JPEG", quality=50)
    again = np.asarray(Image.open(file).convert("L").resize((32, 32)), dtype=np.float64)
    assert (perceptual_hash(again) ^ perceptual_hash(grey)).bit_count() <= 4
    other = np.asarray(photo(6, 32).convert("L"), dtype=np.float64)
    assert (perceptual_hash(other) ^ perceptual_hash(grey)).bit_count() > 12


def test_every_pair_within_four_bits_is_a_candidate() -> None:
    rng = np.random.default_rng(0)
    base = int(rng.integers(0, 2**62))
    flips = [sum(1 << int(b) for b in rng.choice(63, 4, replace=False)) for _ in range(50)]
    found = _candidates([base, *(base ^ flip for flip in flips)])
    assert {(0, place) for place in range(1, 51)} <= found


def test_joining() -> None:
    codes = np.array([0, 1, 2, 3, 1, 5])
    assert joined(codes, [(0, 4), (3, 5)]).tolist() == [0, 0, 2, 3, 0, 3]
