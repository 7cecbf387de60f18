"""Files of tensors: any other byte is noticed. And what is found out about tensors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from acclimate.core import tensors as tensors_module
from acclimate.core.errors import DamagedFile, SchemaError
from acclimate.core.files import parse_metadata
from acclimate.core.tensors import Undrawn, all_finite, fill, read_tensors, save_tensors
from acclimate.learn.models import build_backbone
from fixtures.errors import refused

LARGE = torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], True),
        ([0.0, -1.5], True),
        ([LARGE, LARGE], True),  # though their sum is not
        ([LARGE, LARGE, -LARGE], True),
        ([1.0, float("nan")], False),
        ([float("inf"), 0.0], False),
        ([float("inf"), float("-inf")], False),
    ],
)
def test_all_finite(values: list[float], expected: bool) -> None:
    numbers = torch.tensor([0] + [1] * 9)
    assert all_finite([torch.zeros(2), torch.tensor(values), numbers]) is expected


def test_sums_of_half_numbers_overflow() -> None:
    assert all_finite([torch.full((9000,), 60000.0, dtype=torch.float16)])
    assert not all_finite([torch.full((9,), float("inf"), dtype=torch.float16)])


def test_tensors_come_back(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(5.0), "a": torch.ones(2, 3, dtype=torch.int64)}
    facts = {"z": "ü\n", "a": "1"}
    for name in ("one", "two", "three"):  # equal content is equal bytes
        save_tensors(tmp_path / name, tensors, facts)
    assert len({(tmp_path / name).read_bytes() for name in ("one", "two", "three")}) == 1
    found, metadata = read_tensors(tmp_path / "one")
    assert metadata == facts
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_every_byte_of_a_tensor_file_is_guarded(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": torch.arange(6.0)}, {"n": "6"})
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(DamagedFile):
            read_tensors(path)


@pytest.mark.parametrize("length", [0, 5, 8, 40, -1])
def test_a_tensor_file_cut_short(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": torch.arange(6.0)})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedFile):
        read_tensors(path)


def test_a_header_that_claims_to_be_huge(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    with pytest.raises(DamagedFile):
        read_tensors(path)


def test_a_tensor_file_without_a_digest_or_of_another_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "a", {"k": "v"})
    with pytest.raises(DamagedFile):
        read_tensors(tmp_path / "a")
    monkeypatch.setattr(tensors_module, "FORMAT", 99)
    save_tensors(tmp_path / "b", {"a": torch.ones(2)})
    with refused(SchemaError, tmp_path / "b", 99):
        read_tensors(tmp_path / "b")


def test_tensors_that_share_memory_are_saved(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    save_tensors(tmp_path / "a", {"one": whole, "two": whole, "part": whole[2:]})
    assert read_tensors(tmp_path / "a")[0]["part"].tolist() == [2, 3, 4, 5]


def test_other_libraries_read_tensors(tmp_path: Path) -> None:
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)
    kinds += (torch.int16, torch.int8, torch.uint8, torch.bool)
    tensors = {str(kind): torch.arange(6).reshape(2, 3).to(kind) for kind in kinds}
    tensors |= {"ü": torch.zeros(0, 4), "one": torch.tensor(7), "turned": torch.ones(2, 3).T}
    save_tensors(tmp_path / "a", tensors, {"k": "ü"})
    found = load_file(tmp_path / "a")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    with safe_open(tmp_path / "a", "numpy") as file:
        assert parse_metadata(file.metadata())["k"] == "ü"
        assert np.array_equal(file.get_tensor("one"), 7)


@pytest.mark.parametrize(
    "tensors",
    [
        {"weight": torch.ones(1, 2)},
        {"weight": torch.ones(2, 1), "bias": torch.ones(1)},
        {"weight": torch.ones(1, 2).double(), "bias": torch.ones(1)},
        {"weight": torch.ones(1, 2), "bias": torch.ones(1), "more": torch.ones(1)},
        {"weight": torch.tensor([[1.0, float("nan")]]), "bias": torch.ones(1)},
    ],
)
def test_only_what_fits_fills_a_module(tensors: dict[str, torch.Tensor]) -> None:
    module = torch.nn.Linear(2, 1)
    before = module.weight.clone()
    with pytest.raises(DamagedFile):
        fill(module, tensors, Path("a"))
    assert torch.equal(module.weight, before)


@pytest.mark.parametrize(
    "name", ["small-cnn", "resnet18", "efficientnet_b0", "vit_tiny_patch16_224"]
)
def test_networks_that_are_filled_draw_nothing(tmp_path: Path, name: str) -> None:
    whole = build_backbone(name, pretrained=False)
    before = torch.get_rng_state()
    with Undrawn():
        empty = build_backbone(name, pretrained=False)
    assert torch.equal(torch.get_rng_state(), before)
    fill(empty, whole.state_dict(), tmp_path)
    for (key, one), (_, other) in zip(whole.named_buffers(), empty.named_buffers(), strict=True):
        assert torch.equal(one, other), key
    assert torch.nn.Linear(2, 2).weight.isfinite().all()  # outside, layers draw theirs again
    assert not torch.equal(torch.get_rng_state(), before)
