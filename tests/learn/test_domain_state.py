"""DomainState against one pass over the raw features, whatever the order; its file; μ of rows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from acclimate.config import EmbeddingConfig
from acclimate.core.distributed import World
from acclimate.core.errors import AcclimateError, RunError, StateMismatch
from acclimate.core.files import parse_metadata
from acclimate.core.tensors import read_tensors, save_tensors, tensors_digest
from acclimate.data.batches import Batch
from acclimate.data.manifest import Manifest
from acclimate.data.source import FeatureSource
from acclimate.learn.consistency import mean_radius
from acclimate.learn.embeddings import (
    DomainState,
    DomainTable,
    Embedding,
    embed_rows,
)
from acclimate.learn.embeddings import state as module
from acclimate.learn.embeddings.pictures import Pictures
from acclimate.learn.embeddings.state import (
    load_embedding,
    sample_rows,
    save_domain_map,
    save_embedding,
)
from acclimate.learn.objective import Losses
from fixtures.errors import refused

DIM = 3
QUICK = settings(max_examples=60)
NEAR, FAR = [[0.0], [2.0]], [[10.0], [14.0]]


def features(seed: int, count: int, dim: int = DIM) -> np.ndarray:
    """Skewed, off centre, and on unequal scales."""
    rng = np.random.default_rng(seed)
    return rng.gamma(1.0, [1.0, 5.0, 0.1][:dim], (count, dim)) + rng.normal(size=dim) * 3


def state_of(rows: np.ndarray, model: str = "m" * 64) -> DomainState:
    return DomainState.empty(model, rows.shape[1]).updated(torch.from_numpy(rows))


def assert_matches(state: DomainState, rows: np.ndarray) -> None:
    """The state against NumPy, from the definitions."""
    rows = rows.astype(np.float64)
    mean = rows.mean(0)
    assert state.count == len(rows)
    np.testing.assert_allclose(state.mean.numpy(), mean, rtol=1e-10, atol=1e-10)
    distances = np.linalg.norm(rows - mean, axis=1)
    assert state.variance == pytest.approx((distances**2).mean(), rel=1e-8, abs=1e-9)
    assert state.bound >= distances.max() * (1 - 1e-9) - 1e-9


def test_by_hand() -> None:
    rows = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0]])
    state = DomainState.empty("m", 2).updated(rows)
    assert state.mean.tolist() == [1.0, 1.0]
    assert state.mean.dtype == torch.float64
    assert state.variance == pytest.approx(8 / 3)  # (2 + 2 + 4) / 3
    assert state.bound == pytest.approx(2.0)  # the third lies 2 above the mean
    # Another image at (1, 1): the reference stays, and so does the reach.
    further = state.updated(torch.tensor([[1.0, 5.0]]))
    assert further.mean.tolist() == [1.0, 2.0]
    assert further.bound == pytest.approx(4.0 + 1.0)  # ‖(1,5) − (1,1)‖, and μ moved by 1


def test_an_update_leaves_the_state_it_came_from() -> None:
    first = state_of(features(0, 4))
    before = first.total.clone()
    second = first.updated(torch.ones(2, DIM))
    assert first.count == 4
    assert torch.equal(first.total, before)
    assert second.count == 6
    assert second.updated(torch.empty(0, DIM)) is second


@QUICK
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    seed=st.integers(0, 999),
    data=st.data(),
)
def test_any_order_of_merging_equals_one_pass(
    sizes: list[int], seed: int, data: st.DataObject
) -> None:
    rows = features(seed, sum(sizes) + 1)
    cuts = np.cumsum(sizes)
    states = [state_of(part) for part in np.split(rows, cuts)]  # some of them empty
    while len(states) > 1:
        one = states.pop(data.draw(st.integers(0, len(states) - 1)))
        two = states.pop(data.draw(st.integers(0, len(states) - 1)))
        states.append(one.merged(two))
    assert_matches(states[0], rows)


@QUICK
@given(
    parts=st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=8),
    seed=st.integers(0, 999),
)
def test_updates_and_removals_equal_one_pass_over_the_rest(
    parts: list[tuple[int, bool]], seed: int
) -> None:
    rows = features(seed, sum(count for count, _ in parts) + 1)
    state, kept, start = state_of(rows[:1]), [rows[:1]], 1
    for count, remove_later in parts:
        part = rows[start : start + count]
        state, start = state.updated(torch.from_numpy(part)), start + count
        if remove_later:
            state = state.removed(torch.from_numpy(part))
        else:
            kept.append(part)
    assert_matches(state, np.concatenate(kept))


@QUICK
@given(before=st.integers(0, 4), after=st.integers(1, 4), seed=st.integers(0, 999))
def test_rescaling_equals_rescaled_features(before: int, after: int, seed: int) -> None:
    """Whether they come before or after it."""
    rng, rows = np.random.default_rng(seed), features(seed, before + after)
    centre, spread = torch.from_numpy(rng.normal(size=DIM)), 10 ** rng.uniform(-2, 2)
    scaled = (rows - centre.numpy()) / spread
    state = state_of(rows[:before]).rescaled(centre, spread)
    state = state.updated(torch.from_numpy(scaled[before:]))
    assert_matches(state, scaled)
    # Distances know no centre: the bound is no looser than before.
    assert state.rescaled(centre, spread).bound == pytest.approx(state.bound / spread, rel=1e-9)


def test_no_more_images_come_out_than_went_in() -> None:
    with refused(StateMismatch, "8", "7"):
        state_of(features(1, 7)).removed(torch.zeros(8, DIM))


def test_everything_out_and_new_images_in() -> None:
    rows = features(2, 6)
    state = state_of(rows).removed(torch.from_numpy(rows))
    assert state.count == 0
    fresh = features(3, 5) + 100
    assert_matches(state.updated(torch.from_numpy(fresh)), fresh)
    assert_matches(state.merged(state_of(fresh)), fresh)
    assert_matches(state_of(fresh).merged(state), fresh)


def test_the_reach_of_two_states_by_hand() -> None:
    """Images at 0 and 2 lie within 1 of their mean, those at 10 and 14 within 2 of theirs, which is
    11 away: 13. The other way round it is 12, as the first mean stays the reference."""
    one, two = (DomainState.empty("m", 1).updated(torch.tensor(x)) for x in (NEAR, FAR))
    assert one.merged(two).reach == pytest.approx(2 + 11)
    assert two.merged(one).reach == pytest.approx(1 + 11)
    empty = DomainState.empty("m", 1)
    assert empty.merged(two).reach == two.merged(empty).reach == pytest.approx(2)
    assert empty.merged(two).reference == two.merged(empty).reference == two.reference != 0
    assert empty.holds_mu and not DomainState.empty("m", 0).holds_mu


@pytest.mark.parametrize("read", [lambda s: s.mean, lambda s: s.variance, lambda s: s.radius()])
def test_an_empty_state_has_no_mean(read) -> None:  # type: ignore[no-untyped-def]
    with refused(StateMismatch):
        read(DomainState.empty("m", DIM))


def test_large_offsets_keep_their_digits() -> None:
    """float32 features a million off centre: float32 sums would lose the spread altogether."""
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(20_000, 2)) + 1e6).astype(np.float32)
    state = DomainState.empty("m", 2)
    for part in np.split(rows, 100):
        state = state.updated(torch.from_numpy(part))
    exact = rows.astype(np.float64)
    np.testing.assert_allclose(state.mean.numpy(), exact.mean(0), rtol=1e-14)
    assert state.variance == pytest.approx(exact.var(0).sum(), rel=1e-3)


def test_radius_is_theorem_1s() -> None:
    rows = features(5, 4000)
    state = state_of(rows)
    assert state.sampling_variance == pytest.approx(state.variance * 4000 / 3999)
    assert state.radius() == mean_radius(4000, state.sampling_variance, state.bound)
    assert state_of(rows[:1]).radius() is None  # one image tells nothing about the spread
    # Two that lie 2 and 4 apart: 1 + 4 from their mean, over one degree of freedom.
    assert state_of(np.array([[0.0, 0.0], [2.0, 4.0]])).sampling_variance == pytest.approx(10)
    assert state.radius(0.5) == mean_radius(4000, state.sampling_variance, state.bound, delta=0.5)
    assert state.radius() is not None
    assert state_of(rows[:5]).radius() is None


def test_states_of_two_models_do_not_mix() -> None:
    one, two = state_of(features(0, 2), "a" * 64), state_of(features(1, 2), "b" * 64)
    for mix in (lambda: one.merged(two), lambda: one.require("b" * 64)):
        with refused(StateMismatch, "a" * 12, "b" * 12):
            mix()
    one.require("a" * 64)


def adapted(first: int, *numbers: int, keep: int = 9) -> DomainState:
    """A state that was adapted by its μ and a method, and keeps pictures of these hashes."""
    rows = features(first, len(numbers))
    pictures = Pictures(hashes(*numbers), torch.from_numpy(rows).half(), hashes(*numbers) % 3 - 1)
    payloads: dict[str, dict[str, Tensor]] = {"embedding": {}, "tent": {"weight": torch.ones(2)}}
    state = replace(state_of(rows), pictures=pictures.sample(keep), payloads=payloads)
    return state.note_seen(hashes(*numbers))


def test_merged_states_keep_pictures_of_both_and_no_method() -> None:
    """Those with hashes 3 and 6 have no label. Of a sample of 3 and a sample of all, 3 stay."""
    one, two = adapted(0, 1, 2, 5, 9, keep=3), adapted(1, 3, 4, 6)
    for merged in (one.merged(two), two.merged(one)):
        assert merged.payloads == {"embedding": {}}
        assert merged.seen.tolist() == [1, 2, 3, 4, 5, 6, 9]
        assert (merged.count, merged.whole) == (7, False)
        assert merged.pictures.hashes.tolist() == [1, 2, 4]
        assert merged.pictures.labels.tolist() == [0, 1, 0]
    assert two.whole and not one.whole
    assert len(two.merged(adapted(0, 1, 2, 5)).pictures) == 6


def test_what_is_removed_is_no_longer_kept() -> None:
    state = adapted(0, 1, 2, 5)
    gone = state.removed(torch.from_numpy(features(0, 3)[1:]), hashes(2, 5))
    assert_matches(gone, features(0, 3)[:1])
    assert gone.seen.tolist() == gone.pictures.hashes.tolist() == [1]
    assert gone.payloads == {"embedding": {}} and gone.whole


@pytest.mark.parametrize("width", [1, DIM + 1])
def test_a_state_of_another_width_takes_nothing(width: int) -> None:
    state = DomainState.empty("m" * 64, width)
    for take in (
        lambda: state.updated(torch.from_numpy(features(0, 2))),
        lambda: state.merged(state_of(features(0, 2))),
    ):
        with refused(StateMismatch, width, DIM):
            take()


@pytest.mark.parametrize(
    "changes",
    [
        {"count": module.MOST_IMAGES + 1},
        {"reach": float("inf")},
        {"total": torch.full((DIM,), torch.inf, dtype=torch.float64)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path, changes: dict[str, Any]) -> None:
    state = state_of(features(0, 2))
    replace(state, count=module.MOST_IMAGES).save(tmp_path / "most")
    assert DomainState.load(tmp_path / "most").count == module.MOST_IMAGES
    with refused(StateMismatch):
        replace(state, **changes).save(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def same(one: DomainState, two: DomainState) -> bool:
    """To the last bit."""

    def content(state: DomainState) -> tuple[Any, ...]:
        sums = {name: getattr(state, name) for name in (*module.SUMS, "seen")}
        sums |= {name: getattr(state.pictures, name) for name in module.PARTS}
        payloads = {name: digest(tensors) for name, tensors in state.payloads.items()}
        return state.model, state.count, state.reach, digest(sums), payloads

    return content(one) == content(two)


def digest(tensors: Mapping[str, Tensor]) -> str:
    return tensors_digest(tensors.items())


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    state = replace(
        state_of(features(7, 5)),
        payloads={
            "prior": {"counts": torch.arange(3), "log": torch.ones(2, 2).T},
            "tent": {"weight": torch.rand(4)},
        },
        seen=torch.tensor([-(2**63), 7]),
        pictures=adapted(0, -(2**63), 7).pictures,
    )
    path = tmp_path / "new" / "site.safetensors"
    state.save(path)
    assert same(DomainState.load(path), state)
    assert not same(DomainState.load(path), replace(state, reach=state.reach + 1e-12))


def test_files_that_are_no_state(tmp_path: Path) -> None:
    missing, text, pickled, other = (tmp_path / name for name in ("a", "b", "c", "d"))
    text.write_text("hello")
    torch.save({"total": torch.ones(3)}, pickled)
    save_tensors(other, {"total": torch.ones(3)})
    for path in (missing, text, pickled, other, tmp_path):
        with refused(AcclimateError, path):
            DomainState.load(path)


def hashes(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def test_hashes_are_written_down_once_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    state = DomainState.empty("m", DIM).note_seen(hashes(4, 1, 9))
    assert state.seen.tolist() == [1, 4, 9]
    assert state.note_seen(hashes(9, 2, 2, 1)).seen.tolist() == [1, 2, 4, 9]
    monkeypatch.setattr(module, "MOST_SEEN", 2)
    assert state.note_seen(hashes(2)).seen.tolist() == [1, 2]


FLAT = torch.zeros(DIM, dtype=torch.float64)
WRONG: dict[str, dict[str, Any]] = {
    "a table": {"seen": hashes(1, 2)[None]},
    "no whole numbers": {"seen": torch.ones(2)},
    "too many": {"seen": hashes(1, 2, 3, 4)},
    "not finite": {"total": torch.full((DIM,), torch.nan, dtype=torch.float64)},
    "longer": {"squares": torch.zeros(DIM + 1, dtype=torch.float64)},
    "float32": {"reference": torch.zeros(DIM)},
    "tables": dict.fromkeys(("total", "squares", "reference"), FLAT[None]),
    "numbers": dict.fromkeys(("total", "squares", "reference"), FLAT[0]),
    "pictures twice": {"pictures/hashes": hashes(1, 1, 3)},
    "pictures in no order": {"pictures/hashes": hashes(2, 1, 3)},
    "pictures without features": {"pictures/features": torch.zeros(2, DIM)},
    "features in a row": {"pictures/features": torch.zeros(3)},
    "features that are large": {"pictures/features": torch.zeros(3, DIM, dtype=torch.float64)},
    "features that are not finite": {"pictures/features": torch.full((3, DIM), torch.inf)},
    "too many pictures": {
        "pictures/hashes": hashes(1, 2, 3, 4),
        "pictures/features": torch.zeros(4, DIM),
        "pictures/labels": hashes(0, 0, 0, 0),
    },
    "pictures without labels": {"pictures/labels": hashes(1, 2)},
    "labels of no class": {"pictures/labels": hashes(0, -2, 1)},
    "labels in fractions": {"pictures/labels": torch.ones(3)},
    "an embedding without sums": dict.fromkeys(
        ("total", "squares", "reference"), torch.zeros(0, dtype=torch.float64)
    ),
}
WORDS = {
    "kind": ["model"],
    "payloads": ["[1]", "{}", "[" * 100_000],
    "count": ["-1", "many", "1e999"],
    "reach": ["NaN"],
}
WRONG |= {f"{key} {value:.9}": {key: value} for key in WORDS for value in WORDS[key]}


def save_changed(path: Path, change: dict[str, Any]) -> None:
    """The file at `path` with other tensors or words in it, and without what is None."""
    tensors, metadata = read_tensors(path)
    content = {**metadata, **tensors, **change}
    words = {key: value for key, value in content.items() if isinstance(value, str)}
    save_tensors(path, {k: v for k, v in content.items() if isinstance(v, Tensor)}, words)


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_content_that_no_state_has(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by itself, in a file whose checksum is right."""
    monkeypatch.setattr(module, "MOST_SEEN", 3)
    path, state = tmp_path / "state", adapted(0, 1, 2, 3)
    state.save(path)
    assert same(DomainState.load(path), state)
    save_changed(path, change)
    with refused(StateMismatch, path):
        DomainState.load(path)


def test_a_digest_is_of_names_shapes_types_and_values() -> None:
    weights = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(1, dtype=torch.bfloat16)}
    digest = tensors_digest(weights.items())
    assert len(digest) == 64
    assert tensors_digest(reversed(weights.items())) == digest
    assert tensors_digest({**weights, "a": weights["a"].T.contiguous().T}.items()) == digest
    changed = [
        {"a": weights["a"]},
        {"c": weights["a"], "b": weights["b"]},
        {**weights, "a": weights["a"].reshape(3, 2)},
        {**weights, "a": weights["a"].double()},
        {**weights, "a": torch.nextafter(weights["a"], torch.tensor(9.0))},
    ]
    assert len({digest, *(tensors_digest(other.items()) for other in changed)}) == 6


class Doubled(Embedding):
    """Φ is twice its input, so that μ is known."""

    def raw(self, x: Tensor) -> Tensor:
        return 2 * x

    def forward(self, batch: Batch, step: int) -> Losses:
        return Losses(risk=self.raw(batch.x).mean())


def doubled(dim: int) -> Doubled:
    nothing: Any = torch.nn.Identity()
    config = EmbeddingConfig(dim=dim)
    return Doubled(nothing, config, domains=2, classes=2, world=World(), seed=0)


def test_standardising_centres_and_divides_by_one_spread() -> None:
    embedding = doubled(2)
    x = torch.tensor([[1.0, 2.0]])
    assert torch.equal(embedding.phi(x), 2 * x)
    embedding.standardise(torch.tensor([[1.0, 5.0], [3.0, 5.0]], dtype=torch.float64))
    assert embedding.centre.tolist() == [2.0, 5.0]
    assert float(embedding.spread) == pytest.approx(0.5**0.5)  # of (1, 0, 1, 0)
    assert embedding.phi(x).tolist() == [[0.0, pytest.approx(-(2**0.5))]]
    assert set(embedding.state_dict()) == {"centre", "spread"}


def test_domains_that_are_all_alike_are_only_centred() -> None:
    embedding = doubled(2)
    # The mean of three times 0.1 is not 0.1: rounding is no difference between domains.
    embedding.standardise(torch.tensor([[0.1, 0.2]] * 3, dtype=torch.float64))
    assert float(embedding.spread) == 1.0
    assert torch.allclose(embedding.centre, torch.tensor([0.1, 0.2]))
    # What float32 can tell apart depends on how large the numbers are.
    for middle, gap, spread in ((1e4, 5e-4, 1.0), (1e4, 8e-3, 4e-3), (1e-4, 2e-6, 1e-6)):
        two = [[middle, middle], [middle + gap, middle + gap]]
        embedding.standardise(torch.tensor(two, dtype=torch.float64))
        assert float(embedding.spread) == pytest.approx(spread, rel=1e-4)


@pytest.fixture
def manifest() -> Manifest:
    X = np.arange(1200, dtype=np.float32).reshape(600, 2)
    names = np.array(["a"] * 400 + ["b"] * 200)
    return Manifest.from_arrays(X, ["x"] * 600, names)


def test_rows_are_embedded_in_batches(manifest: Manifest) -> None:
    embedding = doubled(2)
    rows = manifest.rows(domain="a")
    state = embed_rows(embedding.train(), FeatureSource.of(manifest), rows, World())
    assert_matches(state, 2.0 * manifest.features()[rows])
    assert not embedding.training
    backbone: Any = torch.neg
    above = embed_rows(embedding, FeatureSource.of(manifest), rows, World(), below=backbone)
    assert_matches(above, -2.0 * manifest.features()[rows])


class Patchy(FeatureSource):
    """Every third row cannot be read."""

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        stored, _ = super().take(rows)
        return stored, rows % 3 != 0


def test_unreadable_rows_are_left_out(manifest: Manifest) -> None:
    rows = np.arange(50)
    state = embed_rows(doubled(2), Patchy.of(manifest), rows, World())
    assert_matches(state, 2.0 * manifest.features()[rows[rows % 3 != 0]])
    assert embed_rows(doubled(2), Patchy.of(manifest), np.array([3, 6]), World()).count == 0


@dataclass(frozen=True, kw_only=True)
class OneOfTwo(World):
    """A process of two, which is told what the other would say."""

    size: int = 2
    sums: Tensor  # [2 d + 1]: of Φ, of its squares, and the number of images
    reach: float

    def sum(self, tensor: Tensor) -> Tensor:
        assert tensor.dtype == torch.float64
        return tensor + self.sums

    def largest(self, tensor: Tensor) -> Tensor:
        return tensor.clamp(min=self.reach)


def said(rows: np.ndarray, mean: np.ndarray) -> tuple[Tensor, float]:
    """What a process that saw `rows` tells the other, and its reach around the `mean` of all: the
    largest distance from the mean of its own, and from there to that."""
    if not len(rows):
        return torch.zeros(2 * rows.shape[1] + 1, dtype=torch.float64), 0.0
    sums = np.concatenate([rows.sum(0), (rows**2).sum(0), [len(rows)]])
    own = rows.mean(0)
    reach = np.linalg.norm(rows - own, axis=1).max() + np.linalg.norm(own - mean)
    return torch.from_numpy(sums), float(reach)


@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes_make_one_state(rank: int, manifest: Manifest) -> None:
    """Every other row is one's own; both end up with the state of all."""
    rows = np.concatenate([np.arange(3, 26), [40, 90, 41, 97]])
    phi = 2.0 * manifest.features()[rows].astype(np.float64)
    mean = phi.mean(0)
    own, other = (said(phi[part::2], mean) for part in (rank, 1 - rank))
    world = OneOfTwo(rank=rank, sums=other[0], reach=other[1])
    noted: list[np.ndarray] = []
    source = FeatureSource.of(manifest)
    state = embed_rows(doubled(2), source, rows, world, seen=lambda mine, _: noted.append(mine))
    assert np.concatenate(noted).tolist() == rows[rank::2].tolist()
    assert_matches(state, phi)
    assert state.count == 27
    np.testing.assert_allclose(state.reference.numpy(), mean)
    assert state.reach == pytest.approx(max(own[1], other[1]))


def test_a_process_without_images_adds_nothing(manifest: Manifest) -> None:
    rows = np.array([6, 7, 9, 10])  # of which the first process has 6 and 9, which are unreadable
    phi = 2.0 * manifest.features()[[7, 10]].astype(np.float64)
    sums, reach = said(phi, phi.mean(0))
    state = embed_rows(
        doubled(2), Patchy.of(manifest), rows, OneOfTwo(rank=0, sums=sums, reach=reach)
    )
    assert_matches(state, phi)
    assert (state.model, state.reach) == ("", pytest.approx(reach))
    alone = OneOfTwo(rank=0, sums=said(phi[:1], phi[0])[0], reach=0.0)
    one = embed_rows(doubled(2), Patchy.of(manifest), rows, alone)
    assert_matches(one, phi[:1])
    assert one.reference.tolist() == phi[0].tolist()
    nothing = OneOfTwo(rank=0, sums=torch.zeros(5, dtype=torch.float64), reach=0.0)
    empty = embed_rows(doubled(2), Patchy.of(manifest), rows, nothing)
    assert (empty.count, empty.reach, empty.reference.tolist()) == (0, 0.0, [0.0, 0.0])


NAMED = ((0, "c"), (1, "ä"))


def test_step_a_leaves_what_step_b_takes_up(tmp_path: Path) -> None:
    path, table = tmp_path / "phi", DomainTable({n: state_of(features(k, 3), "") for k, n in NAMED})
    embedding = doubled(DIM)
    embedding.standardise(table.means)
    save_embedding(path, embedding, table, "its identity")
    again = doubled(DIM)
    with refused(RunError, "damaged", "Step A"):
        load_embedding(path, again, "another")
    loaded = load_embedding(path, again, "its identity")
    assert list(loaded.states) == ["c", "ä"]
    assert all(same(loaded.states[name], table.states[name]) for name in table.names)
    assert torch.equal(again.centre, embedding.centre) and again.spread == embedding.spread


UNLIKE: dict[str, dict[str, Any]] = {
    "a count too few": {"domains/count": torch.tensor([3])},
    "a reach too many": {"domains/reach": torch.zeros(3, dtype=torch.float64)},
    "another width of phi": {"embedding/centre": torch.zeros(DIM + 1)},
    "wider": {"domains/total": torch.zeros(2, DIM + 1, dtype=torch.float64)},
    "not finite": {"domains/squares": torch.full((2, DIM), torch.inf, dtype=torch.float64)},
    "more": {"domains/more": torch.zeros(2)},
    "a name twice": {"names": '["c", "c"]'},
    "a name too few": {"names": '["c"]'},
    "no list": {"names": "c"},
    "no names": {"names": None},
}


@pytest.mark.parametrize("change", UNLIKE.values(), ids=UNLIKE.keys())
def test_step_a_s_file_is_read_with_care(change: dict[str, Any], tmp_path: Path) -> None:
    path, table = tmp_path / "phi", DomainTable({n: state_of(features(k, 3), "") for k, n in NAMED})
    save_embedding(path, doubled(DIM), table)
    save_changed(path, change)
    with refused(RunError, path):
        load_embedding(path, doubled(DIM))
    path.unlink()
    with refused(RunError, path):
        load_embedding(path, doubled(DIM))


def test_sampled_rows() -> None:
    rows = np.arange(100, 200)
    chosen = sample_rows(rows, 20, 0, "a")
    assert len(set(chosen)) == 20
    assert set(chosen) <= set(rows)
    assert (np.diff(chosen) > 0).all()
    assert np.array_equal(sample_rows(rows, 20, 0, "a"), chosen)
    for other in ((1, "a"), (0, "b")):
        assert not np.array_equal(sample_rows(rows, 20, *other), chosen)
    for points in (0, 100, 1000):
        assert np.array_equal(sample_rows(rows, points, 0, "a"), rows)
    assert len(sample_rows(rows, 99, 0, "a")) == 99
    # As they have always been: a run that is repeated adapts to the same images.
    assert sample_rows(np.arange(20), 6, 3, "ä").tolist() == [1, 2, 3, 8, 14, 15]


def test_the_domain_map_of_a_report(tmp_path: Path) -> None:
    states = {"b": ("test", state_of(features(1, 4))), "ä": ("train", state_of(features(2, 7)))}
    path = tmp_path / "domains.safetensors"
    save_domain_map(path, states)
    tensors = load_file(path)
    assert tensors["count"].tolist() == [4, 7]
    assert torch.equal(tensors["mu"][1], states["ä"][1].mean.float())
    assert tensors["variance"].tolist() == pytest.approx([s.variance for _, s in states.values()])
    with safe_open(path, framework="pt") as file:
        assert json.loads(parse_metadata(file.metadata())["names"]) == ["b", "ä"]
        assert json.loads(parse_metadata(file.metadata())["roles"]) == ["test", "train"]
