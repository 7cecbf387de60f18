"""The set of pictures that a state keeps: a function of what came, in whatever order."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from acclimate.learn.embeddings.pictures import UNLABELLED, Pictures, picture_hashes


def numbers(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def pictures(**labels: int) -> Pictures:
    """`h7=2`: the picture of hash 7 is of class 2, and has the features [7, 14]."""
    hashes = numbers(*(int(name[1:]) for name in labels))
    return Pictures(hashes, hashes[:, None] * torch.tensor([1.0, 2.0]), numbers(*labels.values()))


def same(one: Pictures, two: Pictures) -> bool:
    return all(
        torch.equal(getattr(one, part), getattr(two, part))
        for part in ("hashes", "features", "labels")
    )


def test_a_union_has_every_picture_once_with_its_last_label() -> None:
    one, two = pictures(h2=-1, h5=1, h9=0), pictures(h1=-1, h5=-1, h2=2, h9=1)
    found = Pictures.union([one, Pictures(), two])
    assert same(found, pictures(h1=-1, h2=2, h5=1, h9=1))
    assert same(Pictures.union([two, one]), pictures(h1=-1, h2=2, h5=1, h9=0))
    assert len(Pictures.union([])) == len(Pictures.union([Pictures()])) == 0
    assert Pictures.union([one.halved()]).features.dtype == torch.float32


def test_a_sample_has_the_labelled_and_the_smallest_hashes() -> None:
    every = pictures(h1=-1, h2=2, h3=-1, h4=-1, h8=0)
    assert same(every.sample(3), pictures(h1=-1, h2=2, h8=0))
    assert same(every.sample(1), pictures(h2=2))
    assert same(every.sample(9), every)
    assert len(every.sample(0)) == 0
    assert every.labelled == 2


@settings(max_examples=60)
@given(
    given=st.dictionaries(st.integers(-99, 99), st.integers(-1, 2), min_size=1, max_size=20),
    most=st.integers(0, 12),
    data=st.data(),
)
def test_a_sample_of_samples_is_a_sample_of_all(
    given: dict[int, int], most: int, data: st.DataObject
) -> None:
    """Whatever comes first, and whatever comes twice."""
    every = Pictures.union([pictures(**{f"h{key}": label}) for key, label in given.items()])
    order = data.draw(st.permutations([*given, *list(given)[:3]]))
    kept = Pictures()
    for start in range(0, len(order), 4):
        some = {f"h{key}": given[key] for key in order[start : start + 4]}
        kept = Pictures.union([kept, pictures(**some)]).sample(most)
    assert same(kept, every.sample(most))


def test_what_16_bits_cannot_say_is_their_largest_number() -> None:
    features = torch.tensor([[1e6, -1e6], [0.1, 1.0]])
    found = Pictures(numbers(1, 2), features, numbers(0, 0)).halved().features
    assert found.dtype == torch.half
    assert found.tolist() == [[65504.0, -65504.0], [pytest.approx(0.1, abs=1e-4), 1.0]]


def test_pictures_of_another_model() -> None:
    some = pictures(h1=2, h2=UNLABELLED)
    assert some.fit(2, 3) and not some.fit(2, 2) and not some.fit(3, 3)
    assert Pictures().fit(3, 2)


def keyed(content: bytes) -> int:
    digest = hashlib.blake2b(content, digest_size=8, key=b"pictures of a domain").digest()
    return int.from_bytes(digest, "big", signed=True)


def test_a_hash_is_of_the_pixels_as_a_source_stores_them() -> None:
    images = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2)
    expected = [keyed(bytes(range(*part))) for part in ((0, 12), (12, 24))]
    known = {expected[1]: expected[1]}
    hashes, new = picture_hashes(images, known)
    assert (hashes.dtype, hashes.tolist(), new.tolist()) == (torch.int64, expected, [True, False])
    assert known == {one: one for one in expected}
    again, new = picture_hashes(images[[0, 0]], {})
    assert (again.tolist(), new.tolist()) == (expected[:1] * 2, [True, False])
    assert picture_hashes(images.transpose(2, 3), {})[0].tolist() != expected
    none, new = picture_hashes(images[:0], {})
    assert (len(none), none.dtype, new.dtype) == (0, torch.int64, torch.bool)


def test_equal_rows_of_features_are_pictures_of_their_own() -> None:
    """They differ by their number among equals, also in another order and in another call."""
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    first = keyed(np.float32([1, 2]).tobytes())
    known: dict[int, int] = {}
    hashes, new = picture_hashes(x, known)
    assert new.all() and len(known) == 3
    assert hashes[0] == first
    assert (int(hashes[2]) - first) % 2**64 == 0x9E3779B97F4A7C15
    assert {*picture_hashes(x[[1, 2, 0]], {})[0].tolist()} == known.keys()
    stored = {number: number for number in known}  # as a file has them
    for again in (known, stored):
        more, new = picture_hashes(x[[0, 0]], again)
        assert new.all() and len(again) == 5
        places = [(int(number) - first) % 2**64 for number in more]
        assert places == [place * 0x9E3779B97F4A7C15 % 2**64 for place in (2, 3)]


def test_hashes_are_spread_evenly() -> None:
    """So that the smallest are a uniform sample: a quarter of 4000 in each quarter of the range."""
    x = torch.arange(4000.0)[:, None]
    places = picture_hashes(x, {})[0].double() / 2.0**64 + 0.5
    assert np.histogram(places.numpy(), 4, (0, 1))[0] == pytest.approx(1000, abs=110)
    equal = picture_hashes(torch.zeros(4000, 1), {})[0].double() / 2.0**64 + 0.5
    assert np.histogram(equal.numpy(), 4, (0, 1))[0] == pytest.approx(1000, abs=110)
