"""Files with their checksum inside: any other byte is noticed, and old files without one open."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from acclimate.core.errors import AcclimateError, DamagedFile
from acclimate.core.sealed import Fields, parse_json, read_sealed, write_sealed
from acclimate.core.tensors import fill, read_tensors, save_tensors

VALUES = {"name": "Zürich", "n": 3, "shares": [0.25, 0.75], "inner": {"2": None}}


def test_a_document_comes_back_without_its_seal(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_sealed(path, VALUES)
    assert read_sealed(path) == VALUES
    assert len(json.loads(path.read_text())["seal"]) == 64


def test_numbers_as_keys(tmp_path: Path) -> None:
    write_sealed(tmp_path / "a.json", {"at": {10: 1, 9: 2}})
    assert read_sealed(tmp_path / "a.json") == {"at": {"10": 1, "9": 2}}


@pytest.mark.parametrize(
    ("old", "new"), [('"n": 3', '"n": 4'), ("0.25", "0.26"), ("Zürich", "Zurich"), ("null", "0")]
)
def test_an_edited_document_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "a.json"
    write_sealed(path, VALUES)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DamagedFile) as error:
        read_sealed(path)
    assert str(error.value) == f"{path} is damaged; restore it, or make it again"


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\xff", "[" * 100_000, "9" * 5000])
def test_what_is_no_object(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedFile):
        read_sealed(path)


def test_a_document_of_an_earlier_version(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(VALUES))
    assert read_sealed(tmp_path / "a.json") == VALUES


def test_nesting_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)


def test_tensors_come_back_and_equal_content_is_equal_bytes(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(5.0), "a": torch.ones(2, 3, dtype=torch.int64)}
    facts = {"seal-like": '"seal":"' + "0" * 64 + '"', "z": "ü\n", "a": "1"}
    for name in ("one", "two", "three"):
        save_tensors(tmp_path / name, tensors, facts)
    found, metadata = read_tensors(tmp_path / "one")
    assert metadata == facts
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert len({(tmp_path / name).read_bytes() for name in ("one", "two", "three")}) == 1


def test_every_byte_of_a_tensor_file_is_guarded(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": torch.arange(6.0)}, {"n": "6"})
    whole = path.read_bytes()
    seal = whole.index(b'"seal"')
    for place in range(len(whole)):
        if seal <= place < seal + len(b'"seal":"'):
            continue  # without its name a checksum is none, and the rest is as it was
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


def test_a_tensor_file_of_an_earlier_version(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "a", {"k": "v"})
    tensors, metadata = read_tensors(tmp_path / "a")
    assert tensors["a"].tolist() == [1, 1] and metadata == {"k": "v"}


def test_other_libraries_read_sealed_tensors(tmp_path: Path) -> None:
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)
    kinds += (torch.int16, torch.int8, torch.uint8, torch.bool)
    tensors = {str(kind): torch.arange(6).reshape(2, 3).to(kind) for kind in kinds}
    tensors |= {"ü": torch.zeros(0, 4), "one": torch.tensor(7), "turned": torch.ones(2, 3).T}
    save_tensors(tmp_path / "a", tensors, {"k": "ü"})
    found = load_file(tmp_path / "a")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    with safe_open(tmp_path / "a", "numpy") as file:
        assert file.metadata()["k"] == "ü"
        assert np.array_equal(file.get_tensor("one"), 7)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    for read in (read_sealed, read_tensors):
        with pytest.raises(AcclimateError) as error:
            read(tmp_path / "a")
        assert str(error.value) == f"{tmp_path / 'a'} is a pipe, not a file; give a file"


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
    ("method", "value"),
    [
        ("text", 1), ("texts", ["a", 1]), ("texts", "ab"), ("table", []), ("whole", 1.0),
        ("whole", True), ("whole", -1), ("whole", 1 << 60), ("number", "1"), ("number", True),
        ("number", float("inf")), ("number", 10**400), ("numbers", [0.5, None]), ("tables", [[]]),
    ],
)  # fmt: skip
def test_fields_are_of_their_kind(method: str, value: object) -> None:
    with pytest.raises(DamagedFile):
        getattr(Fields({"x": value}, Path("a")), method)("x")
    with pytest.raises(DamagedFile):
        getattr(Fields({}, Path("a")), method)("x")


def test_fields() -> None:
    fields = Fields({"t": "x", "l": ["a"], "d": {"k": 1}, "i": 3, "f": [1, 2.5]}, Path("a"))
    assert (fields.text("t"), fields.texts("l"), fields.table("d")) == ("x", ("a",), {"k": 1})
    assert (fields.whole("i"), fields.number("i"), fields.numbers("f")) == (3, 3.0, (1.0, 2.5))
    assert "t" in fields and "none" not in fields
