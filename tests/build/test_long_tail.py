"""Long-tailed domains: every invariant of the paper's construction, and its bytes."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.build.long_tail import LT_IMAGENET, LongTailSettings, build_long_tail, facts
from acclimate.build.pools import open_pool
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.data.manifest import Manifest
from fixtures.command_line import command
from fixtures.errors import refused

CLASSES = tuple("abcdefgh")


def base(per_class: int = 60, *, classes: tuple[str, ...] = CLASSES) -> Manifest:
    """`per_class` named images of each class, spread over two domains that should not matter."""
    labels = np.repeat(classes, per_class)
    names = [f"{label}/{number:04d}.png" for number, label in enumerate(labels)]
    table = pa.table(
        {
            "image": names,
            "label": labels.tolist(),
            "domain": [f"old-{number % 2}" for number in range(len(names))],
            "split": ["train"] * len(names),
            "note": [f"note of {name}" for name in names],
        }
    )
    return Manifest(table, classes, Path("/nowhere"), "base")


def small(**changes: Any) -> LongTailSettings:
    values: dict[str, Any] = {
        "domains": 4,
        "heads": 3,
        "per_class": 20,
        "tail": 0.2,
        "val_per_class": 5,
        "test_per_class": 10,
        "val_domains": 2,
        "test_domains": 2,
    }
    return LongTailSettings(**{**values, **changes})


def counts(manifest: Manifest, domain: str, split: str) -> Counter[int]:
    """How many classes of a domain's split have how many images."""
    rows = manifest.rows(domain=domain, split=split)
    per_class = np.bincount(manifest.label_index[rows], minlength=len(manifest.classes))
    return Counter(per_class.tolist())


def images(manifest: Manifest, **where: str) -> list[str]:
    rows = manifest.rows(**where)
    return [manifest.image_name(int(row)) for row in rows]


def test_the_papers_construction() -> None:
    built = build_long_tail(base(), small())
    assert built.domains == (
        *("test-000", "test-001", "train-000", "train-001", "train-002", "train-003"),
        *("val-000", "val-001"),
    )
    assert set(built.roles().values()) == {"train", "val", "test"}
    assert built.classes == CLASSES
    for domain, role in built.roles().items():
        assert domain.startswith(role)
        splits = ("train", "val", "test") if role == "train" else (role,)
        assert len(built.rows(domain=domain)) == sum(
            len(built.rows(domain=domain, split=split)) for split in splits
        )
    # 3 heads of 20 and 5 tails of 20 · 0.2; then A = 5 and its tails of 1, A = 10 and tails of 2.
    for number in range(4):
        assert counts(built, f"train-00{number}", "train") == {20: 3, 4: 5}
        assert counts(built, f"train-00{number}", "val") == {5: 3, 1: 5}
        assert counts(built, f"train-00{number}", "test") == {10: 3, 2: 5}
    assert counts(built, "val-001", "val") == {5: 3, 1: 5}
    assert counts(built, "test-001", "test") == {10: 3, 2: 5}
    assert facts(built)["capped"] == {}
    built.check(check_files=False)


def test_heads_are_the_same_in_a_domains_splits_and_differ_between_domains() -> None:
    built = build_long_tail(base(), small(domains=12))

    def heads(domain: str, split: str) -> frozenset[int]:
        rows = built.rows(domain=domain, split=split)
        return frozenset(np.argsort(-np.bincount(built.label_index[rows], minlength=8))[:3])

    assert all(
        heads(d, "train") == heads(d, "val") == heads(d, "test")
        for d in built.domains
        if d.startswith("train")
    )
    assert len({heads(d, "train") for d in built.domains if d.startswith("train")}) > 6


ANY = {
    "per_class": st.integers(1, 90),
    "tail": st.sampled_from([0.0, 0.01, 0.1, 0.33, 0.5, 1.0]),
    "heads": st.integers(1, 8),
    "domains": st.integers(1, 6),
    "seed": st.integers(0, 1000),
    "size": st.integers(3, 80),
}


@settings(max_examples=60)
@given(**ANY)
def test_invariants_to_the_last_image(
    per_class: int, tail: float, heads: int, domains: int, seed: int, size: int
) -> None:
    asked = small(per_class=per_class, tail=tail, heads=heads, domains=domains, seed=seed)
    built = build_long_tail(base(size), asked)
    built.check(check_files=False)
    # Pools are disjoint; unseen domains hold classes that were trained on.
    train, val, test = (set(images(built, split=split)) for split in ("train", "val", "test"))
    assert not train & val and not train & test and not val & test
    assert set(built.label_index) <= set(built.label_index[built.rows(split="train")])
    pool = {"test": max(round(size * 0.2), 1), "val": max(round(size * 0.1), 1)}
    pool["train"] = size - pool["val"] - pool["test"]
    seen = len(set(built.label_index[built.rows(split="train")]))
    assert seen == 8 if tail else heads <= seen <= min(8, heads * domains)
    short = Counter[str]()
    for domain, role in built.roles().items():
        classes = 8 if role == "train" else seen
        # Without replacement within a domain.
        assert len(set(images(built, domain=domain))) == len(built.rows(domain=domain))
        for split in ("train", "val", "test") if role == "train" else (role,):
            head = {"train": per_class, "val": 5, "test": 10}[split]
            few = max(round(head * tail), 1) if tail else 0
            wanted = Counter({min(head, pool[split]): heads})
            wanted[min(few, pool[split])] += classes - heads
            wanted[0] += 8 - classes
            assert counts(built, domain, split) == +wanted
            short[split] += heads * max(head - pool[split], 0)
            short[split] += (classes - heads) * max(few - pool[split], 0)
    capped = facts(built)["capped"]
    assert {split: cap["missing"] for split, cap in capped.items()} == dict(+short)
    assert all(cap["fewest"] == pool[split] for split, cap in capped.items())


@settings(max_examples=40)
@given(
    only=st.sets(st.sampled_from([*CLASSES, "nowhere"])),
    exclude=st.sets(st.sampled_from([*CLASSES, "nowhere"])),
    wanted=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
def test_classes_come_from_the_lists(
    only: set[str], exclude: set[str], wanted: int, seed: int
) -> None:
    asked = small(
        only=tuple(only), exclude=tuple(exclude), classes=wanted, heads=1, seed=seed, domains=1
    )
    free = (set(only) or set(CLASSES)) & set(CLASSES) - exclude
    if wanted > len(free):
        with pytest.raises(ManifestError):
            build_long_tail(base(10), asked)
        return
    built = build_long_tail(base(10), asked)
    assert set(built.classes) <= free
    assert len(built.classes) == wanted
    assert set(built.table["label"].to_pylist()) == set(built.classes)
    how = facts(built)
    assert set(how["settings"]["only"]) == only
    assert how["offered"] == 8


@settings(max_examples=30)
@given(
    domains=st.integers(1, 12),
    per_class=st.integers(1, 20),
    total=st.integers(1, 12),
    tail=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_constant_total_up_to_rounding(
    domains: int, per_class: int, total: int, tail: float
) -> None:
    asked = small(domains=domains, per_class=per_class, tail=tail, constant_total=total)
    head, few = asked.images_per_class("train")
    built = build_long_tail(base(400), asked)  # pools of 280 hold 20 · 12
    assert len(built.rows(split="train")) == domains * (3 * head + 5 * few)
    exact = per_class * total / domains
    assert abs(head - exact) <= 0.5 or (head == 1 and exact < 1)
    assert facts(built)["capped"] == {}


def test_the_same_seed_gives_the_same_bytes_from_either_kind_of_pools(tmp_path: Path) -> None:
    pool = base()
    splits = ["train", "train", "val", "test"] * (len(pool) // 4)
    pool = replace(pool, table=pool.table.set_column(3, "split", pa.array(splits)))
    before = dict(zip(images(pool), splits, strict=True))
    for pools in ("random", "splits"):
        asked = small(seed=3, pools=pools)
        for name in ("one", "two"):
            build_long_tail(pool, asked).write(tmp_path / f"{name}.parquet")
        assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
        built = Manifest.read(tmp_path / "one.parquet")
        assert build_long_tail(pool, replace(asked, seed=4)).digest() != built.digest()
    pairs = zip(images(built), built.splits, strict=True)
    assert all(before[name] == split for name, split in pairs)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), fewer=st.integers(1, 5), more=st.integers(5, 9))
def test_the_first_domains_do_not_depend_on_how_many_follow(
    seed: int, fewer: int, more: int
) -> None:
    few = build_long_tail(base(), small(domains=fewer, seed=seed))
    many = build_long_tail(base(), small(domains=more, seed=seed))
    for domain in few.domains:  # unseen domains as well
        for split in ("train", "val", "test"):
            assert images(few, domain=domain, split=split) == images(
                many, domain=domain, split=split
            )


def test_a_written_manifest_finds_its_images_and_knows_how_it_was_made(
    tree: Path, tmp_path: Path
) -> None:
    pool = Manifest.from_folder(tree)
    asked = small(heads=1, per_class=4, val_per_class=1, test_per_class=2)
    path = tmp_path / "elsewhere" / "deep" / "lt.parquet"
    build_long_tail(pool, asked).write(path)
    read = Manifest.read(path)
    read.check()
    assert facts(read)["settings"]["heads"] == 1
    assert facts(read)["base"] == pool.digest()
    with refused(ManifestError, "long_tail"):
        facts(pool)
    assert set(read.table["base_domain"].to_pylist()) == {"north", "south", "east", "west"}


def test_other_columns_and_encoded_images_come_along() -> None:
    built = build_long_tail(base(), small())
    row = 17
    assert built.table["note"][row].as_py() == f"note of {built.image_name(row)}"
    pixels = np.arange(240, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8)
    pool = Manifest.from_arrays(pixels, np.tile(["x", "y"], 120), np.repeat("d", 240))
    built = build_long_tail(pool, small(heads=1))
    held = {split: set() for split in ("train", "val", "test")}  # type: ignore[var-annotated]
    for row, split in enumerate(built.splits):
        held[split].add(built.image_source(row))
    assert not held["train"] & held["test"] and not held["train"] & held["val"]


def test_domains_draw_images_of_their_own() -> None:
    """All classes are heads in all domains; the 20 of 42 images they take of each differ."""
    built = build_long_tail(base(), small(heads=8, domains=3, per_class=20))
    drawn = [set(images(built, domain=f"train-00{i}", split="train")) for i in range(3)]
    assert [len(one) for one in drawn] == [160] * 3
    for one, two in ((0, 1), (0, 2), (1, 2)):
        assert 50 < len(drawn[one] & drawn[two]) < 105  # 20/42 of 160 is 76


def test_the_same_encoded_image_twice_is_one_image() -> None:
    pixels = np.repeat(np.arange(60, dtype=np.uint8), 4)[:, None, None] * np.ones(
        (1, 4, 4), np.uint8
    )
    labels = np.repeat([f"c{i}" for i in range(6)], 40)
    pool = Manifest.from_arrays(pixels, labels, np.tile(["d", "e"], 120))
    built = build_long_tail(pool, small(heads=6, domains=1, per_class=40))
    # 10 images of each class, however often they come: 7 to train on.
    assert len(built.rows(domain="train-000", split="train")) == 6 * 7
    train = {built.image_source(int(row)) for row in built.rows(split="train")}
    assert not train & {built.image_source(int(row)) for row in built.rows(split="test")}


def test_an_image_with_two_labels_stays_in_one_pool() -> None:
    """The same 60 images under 'a' and again under 'b': their pools must not cross."""
    names = [f"{number}.png" for number in range(60)] * 2
    table = pa.table(
        {
            "image": names,
            "label": ["a"] * 60 + ["b"] * 60,
            "domain": ["d"] * 120,
            "split": ["train"] * 120,
        }
    )
    pool = Manifest(table, ("a", "b"), Path("/nowhere"), "twice")
    built = build_long_tail(pool, small(heads=1, domains=20, per_class=42, tail=1.0))
    train, test = set(images(built, split="train")), set(images(built, split="test"))
    assert len(train) == 42 and not train & test
    built.check(check_files=False)


def test_an_image_in_many_base_domains_is_drawn_once() -> None:
    once = base(20)
    again = once.table.set_column(2, "domain", pa.array(["again"] * len(once)))
    twice = replace(once, table=pa.concat_tables([once.table, again]))
    assert build_long_tail(twice, small()).digest() == build_long_tail(once, small()).digest()


def test_classes_are_sampled_excluded_and_dropped_when_too_small() -> None:
    pool = base()
    keep = np.setdiff1d(np.arange(len(pool)), np.arange(2, 60))  # two images of class a
    pool = pool.select(keep)
    built = build_long_tail(pool, small(classes=4, exclude=("b", "c", "nothing like it")))
    assert len(built.classes) == 4
    assert not {"a", "b", "c"} & set(built.classes)
    assert facts(built)["too_small"] == ["a"]
    others = {build_long_tail(pool, small(classes=4, seed=s)).classes for s in range(5)}
    assert len(others) > 1


def test_caps_are_recorded_by_hand() -> None:
    # 10 images a class: pools of 7, 1 and 2. Heads want 9, 5 and 10, tails 2, 1 and 2.
    built = build_long_tail(base(10), small(per_class=9, domains=2))
    assert facts(built)["capped"] == {
        "train": {"wanted": 9, "fewest": 7, "times": 6, "missing": 12},
        "val": {"wanted": 5, "fewest": 1, "times": 12, "missing": 48},  # two val domains more
        "test": {"wanted": 10, "fewest": 2, "times": 12, "missing": 96},
    }


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"domains": 0}, ("--domains", 0)),
        ({"tail": 1.5}, ("--tail", "0 to 1", 1.5)),
        ({"val_share": 0.5, "test_share": 0.5}, ("--val-share", "--test-share", 0.5)),
        ({"heads": 9}, (9, 8, "base", "--heads")),
        ({"classes": 8, "exclude": ("a",)}, ("7", "1", "0", "8", "--classes")),
        ({"pools": "splits"}, ("val", "--pools")),
        ({"exclude_ilsvrc12": True}, ("base", "--exclude-ilsvrc12")),
        ({"only": ("x", "y")}, ("base", 2, "--only", "a, b, c")),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], names: tuple[object, ...]) -> None:
    with refused((ConfigError, ManifestError), *names):
        build_long_tail(base(10), small(**changes))


def test_a_pool_of_700_images_is_enough_for_the_papers_numbers() -> None:
    """LT(2, 3, 350, 0.1) with pools in proportion to A: 350, 50 and 300 images."""
    asked = replace(
        LT_IMAGENET,
        exclude_ilsvrc12=False,
        classes=0,
        heads=3,
        domains=2,
        val_domains=1,
        test_domains=1,
    )
    built = build_long_tail(base(700), asked)
    assert facts(built)["capped"] == {}
    assert counts(built, "train-001", "train") == {350: 3, 35: 5}
    assert counts(built, "train-001", "val") == {50: 3, 5: 5}
    assert counts(built, "test-000", "test") == {300: 3, 30: 5}
    assert "test" in facts(build_long_tail(base(690), asked))["capped"]


SYNSETS = ("n01440764", "n02131653", "n02132136", "n04407435", "n07739125")


def image_net(root: Path, synsets: tuple[str, ...] = SYNSETS, each: int = 12) -> Path:
    """synset/image, as ImageNet comes; of SYNSETS the first and third are in ILSVRC12."""
    for synset in synsets:
        (root / synset).mkdir(parents=True)
        for number in range(each):
            (root / synset / f"{synset}_{number}.JPEG").touch()
    return root


def test_a_folder_of_classes_without_domains(tmp_path: Path) -> None:
    root = image_net(tmp_path / "imagenet")
    (root / "README.txt").touch()
    (root / "empty").mkdir()
    pool = open_pool(root)
    assert pool.classes == SYNSETS
    assert (pool.domains, len(pool)) == (("all",), 60)
    assert pool.image_name(0) == "n01440764/n01440764_0.JPEG"
    pool.check()
    fewer = open_pool(root, LongTailSettings(only=SYNSETS[:3], exclude=("n02131653",)).allowed)
    assert fewer.classes == ("n01440764", "n02132136")
    assert open_pool(root, LongTailSettings(exclude_ilsvrc12=True).allowed).classes == (
        *("n02131653", "n04407435", "n07739125"),
    )
    with refused(ManifestError, "imagenet/"):
        open_pool(root, LongTailSettings(only=("empty",)).allowed)
    # With a level more it is a tree of domains, whatever the names and whatever lies about.
    deep = image_net(tmp_path / "deep" / "train").parent
    assert open_pool(deep).domains == ("train",)
    (deep / "train" / "stray.JPEG").touch()
    with refused(ManifestError, "deep", "class folder"):
        open_pool(deep)


def test_the_command(tmp_path: Path) -> None:
    pool, out = tmp_path / "pool.parquet", tmp_path / "lt.parquet"
    classes = np.tile([f"c{i}" for i in range(10)], 40)
    Manifest.from_arrays(np.arange(400.0)[:, None], classes, np.repeat("d", 400)).write(pool)
    (tmp_path / "not-these.txt").write_text("c3\n\n# a comment\nc4\nc10\n")
    flags = ["--domains", 3, "--heads", 2, "--per-class", 30, "--tail", 0.1, "--out", out]
    flags += ["--val-domains", 1, "--test-domains", 2, "--exclude", tmp_path / "not-these.txt"]
    shown = command("build", "long-tail", pool, *flags)
    assert "3 training, 1 validation and 2 test domains" in shown
    assert "capped: train: 30 images of a head class wanted, 28 in the smallest pool" in shown
    built = Manifest.read(out)
    assert len(built.classes) == 8 and "c3" not in built.classes
    (tmp_path / "these.txt").write_text("\n".join(["c1", "c2", "w", "x", "y", "z" * 99]))
    facts = json.loads(
        command("build", "long-tail", pool, *flags, "--only", tmp_path / "these.txt", "--json")
    )
    assert facts["notes"] == ["4 names of --only are not in the data: w, x, y and 1 more"]
    with refused(ManifestError, "pool.parquet", "n01440764", "--preset"):
        command("build", "long-tail", pool, "--preset", "lt-imagenet", "--out", out)


def test_the_command_over_an_imagenet_folder(tmp_path: Path) -> None:
    root, out = image_net(tmp_path / "imagenet", each=20), tmp_path / "lt.parquet"
    names = [{"label_id": n, "label_name": name} for n, name in enumerate(SYNSETS[:4])]
    (tmp_path / "in5k_map.json").write_text(json.dumps(names))
    flags = ["--preset", "lt-imagenet", "--classes", 2, "--heads", 1]
    flags += ["--only", tmp_path / "in5k_map.json", "--out", out]
    shown = command("build", "long-tail", root, *flags)
    assert "note:" not in shown  # synsets that are excluded as well are no surprise
    assert "2 classes of the 2 that were offered" in shown  # no other folder was looked into
    assert "capped: train: 350 images of a head class wanted, 10 in the smallest pool" in shown
    built = Manifest.read(out)
    built.check()
    assert built.classes == ("n02131653", "n04407435")
    asked = facts(built)["settings"]
    assert asked["only"] == list(SYNSETS[:4])
    assert (asked["exclude_ilsvrc12"], asked["per_class"]) == (True, 350)
    capped = json.loads(command("build", "long-tail", root, *flags, "--test-share", 0.1, "--json"))[
        "capped"
    ]
    assert capped["test"]["fewest"] == 2


def test_build_folder_reads_class_folders_as_one_domain(tmp_path: Path) -> None:
    root, out = image_net(tmp_path / "imagenet", each=20), tmp_path / "pool.parquet"
    told = json.loads(command("build", "folder", root, "--out", out, "--val-share", 0.1, "--json"))
    pool = Manifest.read(out)
    assert (told["rows"], pool.classes, pool.domains) == (100, SYNSETS, ("imagenet",))
    assert pool.image_name(0) == "n01440764/n01440764_0.JPEG"
    assert len(pool.rows(split="val")) == 10
    # What a long tail is sampled from it is what is sampled from the folder itself.
    flags = ["--preset", "lt-imagenet", "--classes", 2, "--heads", 1, "--only", tmp_path / "5k"]
    (tmp_path / "5k").write_text("\n".join(SYNSETS[:4]))
    for data in (root, out):
        made = tmp_path / f"{data.stem}-lt.parquet"
        command("build", "long-tail", data, *flags, "--out", made)
        assert Manifest.read(made).classes == ("n02131653", "n04407435")
    # One image at the depth of a domain/class/image tree, and it is none of classes.
    (root / SYNSETS[0] / "more").mkdir()
    (root / SYNSETS[0] / "more" / "1.JPEG").touch()
    with refused(ManifestError, "imagenet/", "n01440764/n01440764_0.JPEG"):
        command("build", "folder", root, "--out", out)
