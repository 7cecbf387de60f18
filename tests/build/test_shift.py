"""Families of domains with a known shift: what is asked for is there, and nothing else is."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.build.shift.builder import build_shift
from acclimate.build.shift.draws import ShiftSettings, apportioned
from acclimate.build.shift.images import nearest_pairs
from acclimate.core.errors import AcclimateError
from acclimate.data.images import decode
from acclimate.data.manifest import Manifest
from acclimate.records.folder import RunFolder
from fixtures.errors import refused
from fixtures.settings import TINY, as_flags

CLASSES = ("ant", "bee", "cat", "dog", "elk", "fox")
Made = Callable[..., Manifest]


@pytest.fixture(scope="module")
def base() -> Manifest:
    """Six classes of 60 small photographs: each has a grey of its own, in pairs of near ones."""
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(6), 60)
    grey = np.array([60, 66, 110, 116, 160, 166])[label]
    pixels = rng.normal(grey[:, None, None, None], 15, (360, 6, 6, 3)).clip(0, 255)
    names = np.asarray(CLASSES)[label]
    return Manifest.from_arrays(pixels.astype(np.uint8), names, np.full(360, "all"))


@pytest.fixture(scope="module")
def made(base: Manifest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    def make(**changes: Any) -> Manifest:
        small: dict[str, Any] = {"domains": 4, "val": 2, "test": 2, "per_domain": 40}
        out = tmp_path_factory.mktemp("shift") / "made.parquet"
        return build_shift(base, ShiftSettings(**{**small, **changes}), out)[1]

    return make


def column(manifest: Manifest, name: str, domain: str | None = None) -> list[Any]:
    rows = manifest.rows(domain=domain)
    found: list[Any] = manifest.table[name].take(rows).to_pylist()
    return found


def warmth(manifest: Manifest, domain: str) -> np.ndarray:
    """[n]: how much redder than blue each image of a domain is, on average over its pixels."""
    images = [
        np.asarray(decode(manifest.image_source(row)), dtype=float)
        for row in manifest.rows(domain=domain)
    ]
    return np.asarray([(pixels[..., 0] - pixels[..., 2]).mean() / 255 for pixels in images])


shifts = st.fixed_dictionaries(
    {
        "label": st.sampled_from([1.0, 3.0, 5.0]),
        "heads": st.sampled_from([0.2, 0.5]),
        "covariate": st.sampled_from([0.0, 1.0]),
        "conditional": st.sampled_from([0.0, 0.4, 2.0]),
        "per_domain": st.integers(24, 40),  # so that every class is in every training domain
        "seed": st.integers(0, 5),
    }
)


@settings(max_examples=12)
@given(shifts)
def test_invariants(made: Made, asked: dict[str, Any]) -> None:
    manifest = made(**asked, domains=6, classes=0)
    wanted = ShiftSettings(**asked)
    assert manifest.problems() == []
    assert Counter(manifest.roles().values()) == {"train": 6, "val": 2, "test": 2}
    images: dict[str, set[str]] = {split: set() for split in ("train", "val", "test")}
    for domain, role in manifest.roles().items():
        own = column(manifest, "base_image", domain)
        assert len(set(own)) == len(own)  # no image twice in a domain
        splits = column(manifest, "split", domain)
        assert set(splits) <= ({"train", "val"} if role == "train" else {role})
        for split, image in zip(splits, own, strict=True):
            images[split].add(image)
        _has_its_frequencies(Counter(column(manifest, "true_label", domain)), wanted, role)
        _swaps_by_its_latent(manifest, domain, wanted)
    assert images["train"].isdisjoint(images["val"] | images["test"])
    assert images["val"].isdisjoint(images["test"])


def _has_its_frequencies(counts: Counter[str], wanted: ShiftSettings, role: str) -> None:
    heads = wanted.head_count(len(CLASSES))
    size = sum(counts.values())
    usual = size / (heads * (wanted.label - 1) + len(CLASSES))
    slack = 2 if role == "train" else 1  # each of its splits is rounded
    expected = [wanted.label * usual] * heads + [usual] * (len(CLASSES) - heads)
    found = sorted((counts[name] for name in CLASSES), reverse=True)
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= slack


def _swaps_by_its_latent(manifest: Manifest, domain: str, wanted: ShiftSettings) -> None:
    true, said = column(manifest, "true_label", domain), column(manifest, "label", domain)
    latent = set(column(manifest, "latent", domain))
    if not wanted.conditional:
        assert latent == {None} and said == true
        return
    partner = dict(zip(true, said, strict=True))
    changed = {one: other for one, other in partner.items() if one != other}
    if latent == {0}:
        assert not changed
    else:
        assert latent == {1} and changed
        assert len(changed) <= 2 * wanted.pair_count(len(CLASSES))
        # A function of the class alone, and its own inverse.
        assert said == [partner[name] for name in true]
        assert all(changed.get(other, one) == one for one, other in changed.items())


@settings(max_examples=5)
@given(shifts)
def test_the_same_seed_gives_the_same_data_and_another_gives_others(
    made: Made, asked: dict[str, Any]
) -> None:
    once = made(**asked)
    assert once.digest() == made(**asked).digest()
    assert once.digest() != made(**{**asked, "seed": asked["seed"] + 1}).digest()


@pytest.mark.parametrize("covariate", [0.0, 1.0])
def test_the_latent_shows_in_a_domain_and_not_in_an_image(made: Made, covariate: float) -> None:
    manifest = made(conditional=2, covariate=covariate, domains=20, per_domain=150, encoding="png")
    by_latent: dict[int, list[np.ndarray]] = {0: [], 1: []}
    for domain, role in manifest.roles().items():
        if role == "train":
            latent = column(manifest, "latent", domain)[0]
            by_latent[latent].append(warmth(manifest, domain))
    assert len(by_latent[0]) == len(by_latent[1]) == 10
    averages = {latent: [one.mean() for one in found] for latent, found in by_latent.items()}
    assert max(averages[0]) < 0 < min(averages[1])
    cold, warm = (np.concatenate(found) for found in by_latent.values())
    right = (np.mean(cold < 0) + np.mean(warm > 0)) / 2
    assert 0.5 < right < 0.7  # the best that one image can do


def test_pairs_are_of_look_alikes(base: Manifest, tmp_path: Path) -> None:
    asked = ShiftSettings(conditional=3, domains=2, val=0, test=0, per_domain=12)
    family, _ = build_shift(base, asked, tmp_path / "made.parquet")
    assert family.pairs == [(0, 1), (2, 3), (4, 5)]
    share = ShiftSettings(conditional=0.99)
    assert share.pair_count(6) == 3 and ShiftSettings(conditional=0.1).pair_count(6) == 1


def test_the_nearest_of_the_rest_by_hand() -> None:
    # 0 and 1 are nearest; 2 would rather have 1, which is gone.
    means = np.array([[0.0], [1.0], [2.5], [9.0]])
    assert nearest_pairs(means, 1) == [(0, 1)]
    assert nearest_pairs(means, 2) == [(0, 1), (2, 3)]


def test_covariate_shift_is_what_the_columns_say(made: Made) -> None:
    plain, shifted = made(encoding="png"), made(covariate=1, encoding="png")
    assert column(plain, "base_image") == column(shifted, "base_image")
    assert set(column(plain, "gain")) == {None}
    gains, ratios = [], []
    for domain in plain.domains:
        before, after = (
            np.mean([np.asarray(decode(m.image_source(r))).mean() for r in m.rows(domain=domain)])
            for m in (plain, shifted)
        )
        gains.append(column(shifted, "gain", domain)[0])
        ratios.append(after / before)
    assert np.corrcoef(gains, ratios)[0, 1] > 0.9


def test_unchanged_images_stay_where_they_are(tree: Path, tmp_path: Path) -> None:
    photos = Manifest.open(tree)
    small = {"domains": 2, "val": 0, "test": 1, "per_domain": 10}
    out = tmp_path / "made.parquet"
    _, kept = build_shift(photos, ShiftSettings(label=2, heads=0.5, **small), out)
    assert "bytes" not in kept.table.column_names and kept.problems() == []
    assert column(kept, "image") == column(kept, "base_image")
    _, stored = build_shift(photos, ShiftSettings(covariate=1, **small), out)
    assert "image" not in stored.table.column_names
    assert decode(stored.image_source(0)).size == (16, 16)  # as large as it was


def test_shares_are_rounded_to_the_whole() -> None:
    rng = np.random.default_rng(0)
    assert apportioned(np.array([0.5, 0.3, 0.2]), 10, rng).tolist() == [5, 3, 2]
    assert apportioned(np.array([0.5, 0.26, 0.24]), 10, rng).tolist() == [5, 3, 2]
    thirds = [apportioned(np.full(3, 1 / 3), 4, rng) for _ in range(60)]
    assert {int(np.argmax(one)) for one in thirds} == {0, 1, 2}  # by lot


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"label": 0.5}, ("--label", 1, 0.5)),
        ({"conditional": 2.5}, ("--conditional", 2.5)),
        ({"conditional": 4}, (6, 3, 4, "--conditional")),
        ({"per_domain": 2, "domains": 2}, ("of 6 classes", "--per-domain", "--domains")),
    ],
)
def test_what_cannot_be_asked_for(
    made: Made, changes: dict[str, Any], facts: tuple[object, ...]
) -> None:
    with refused(AcclimateError, *facts):
        made(**changes)


def test_features_and_unreadable_images_are_refused(
    features: Manifest, tree: Path, tmp_path: Path
) -> None:
    with refused(AcclimateError, "arrays", "features"):
        build_shift(features, ShiftSettings(), tmp_path / "made.parquet")
    broken = shutil.copytree(tree, tmp_path / "sites")
    for path in (broken / "north").rglob("*.jpg"):
        path.write_bytes(b"")
    asked = ShiftSettings(covariate=1, domains=2, val=0, test=0, per_domain=6)
    with refused(AcclimateError, "north/", ".jpg"):
        build_shift(Manifest.open(broken), asked, tmp_path / "made.parquet")
    assert not (tmp_path / "made.parquet").exists()


def test_domains_are_as_large_as_the_smallest_class_allows(base: Manifest, tmp_path: Path) -> None:
    asked = ShiftSettings(label=10, heads=0.2, domains=2, val=1, test=1, per_domain=1000)
    _, manifest = build_shift(base, asked, tmp_path / "made.parquet")
    # Pools of 30, 12 and 18 images of each class; a head is 10 of 15 parts.
    sizes = Counter(zip(manifest.domain_names, manifest.splits, strict=True))
    assert sizes[("train-000", "train")] == 45 and sizes[("train-000", "val")] == 18
    assert sizes[("val-000", "val")] == 18 and sizes[("test-000", "test")] == 27


@pytest.mark.slow
def test_the_benchmark_runs_at_a_small_scale(tmp_path: Path) -> None:
    """Families from digits to tables, promises and a curve; what is made is not made again."""
    script = Path(__file__).parents[2] / "benchmarks" / "shift.py"
    sizes = ["--domains=5", "--val=1", "--test=2", "--per-domain=60", "--seeds=1"]
    few = ["--set=adapt.site.steps=5", "--set=adapt.points=10", "--points", "1", "5"]
    command = [sys.executable, script, *sizes, *as_flags(TINY), *few, "--out", tmp_path]
    command += ["--families", "label", "conditional"]
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    told = json.loads((tmp_path / "shift.json").read_text())
    assert list(told["families"]) == ["conditional", "label"]
    for name, family in told["families"].items():
        methods = {(line["algorithm"], line["method"]) for line in family["lines"]}
        plain = {"none", "auto", "prior", "embedding", "embedding+prior", "oracle-prior"}
        plain |= {"rehearsed prior", "rehearsed embedding+prior"}
        plain |= {"oracle-truth"} if name == "conditional" else set()
        adaptive = {("da-erm", "embedding"), ("da-erm", "embedding+prior")}
        assert methods == {("erm", method) for method in plain} | adaptive
        assert {line["domains"] for line in family["lines"]} == {2}  # validation domains are none
    assert [point["n"] for point in told["curves"]["digits: label shift"]] == [1, 5, 10]
    assert (tmp_path / "curve.png").stat().st_size > 1000
    for result in told["results"]:
        _check_promises(result)
        (run,) = (tmp_path / result["family"]).glob("rehearsed-*")
        _check_scores(result, RunFolder(run))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert sum(path.name == "model.safetensors" for path in before) == 5
    again = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    assert again.stdout == done.stdout
    assert before == {path: path.stat().st_mtime_ns for path in before}


def _check_promises(result: dict[str, Any]) -> None:
    """True gains are those of the rows, beside what the run itself had promised."""
    top1 = {(row["algorithm"], row["method"], row["n"], row["domain"]): row["top1"]
            for row in result["rows"]}  # fmt: skip
    assert {(p["chain"], p["n"]) for p in result["promises"]} == {
        (chain, n) for chain in ("prior", "embedding", "embedding+prior", "auto") for n in (5, 10)
    }
    for promise in result["promises"]:
        chain, n = promise["chain"], promise["n"]
        method = f"rehearsed {chain}" if "prior" in chain else chain
        gains = [
            top1["erm", method, n, domain] - plain
            for (algorithm, name, points, domain), plain in top1.items()
            if (algorithm, name, points) == ("erm", "none", n)
        ]
        assert len(gains) == promise["domains"] == 2
        assert promise["true"] == pytest.approx(sum(gains) / 2)


def _check_scores(result: dict[str, Any], run: RunFolder) -> None:
    """What is worked out from features once is what the run ended with."""
    final = {
        (score.method, score.domain): score.top1
        for score in run.records().scores
        if (score.moment, score.role) == ("final", "test")
    }
    assert {method for method, _ in final} == {"none", "auto", "oracle-prior"}
    mine = {
        (row["method"], row["domain"]): row["top1"]
        for row in result["rows"]
        if (row["algorithm"], row["n"]) == ("erm", 10)
    }
    assert {key: mine[key] for key in final} == final
