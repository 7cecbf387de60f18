"""Requests and answers of the Open Inference Protocol, byte by byte."""

import base64
import json
import struct
from typing import Any

import numpy as np
import pytest

from acclimate.core.errors import AcclimateError, ConfigError, OverLimit
from acclimate.serve import protocol

PIXELS = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, 3, 4, 4)
PICTURES = [b"\xff\xd8 one", b""]


def request(tensor: dict[str, Any], **further: Any) -> bytes:
    whole = {"inputs": [{"name": "images", **tensor}], "parameters": {"site": "north"}}
    return json.dumps(whole | further).encode()


def pixels(data: object, shape: object = (2, 3, 4, 4)) -> bytes:
    return request({"datatype": "UINT8", "shape": shape, "data": data})


def behind(raw: bytes, tensor: dict[str, Any]) -> tuple[bytes, str]:
    header = request({**tensor, "parameters": {"binary_data_size": len(raw)}})
    return header + raw, str(len(header))


@pytest.mark.parametrize("data", [PIXELS.tolist(), PIXELS.ravel().tolist()])
def test_pixels_in_json_nested_or_flat(data: object) -> None:
    asked = protocol.read_request(pixels(data), None, 4)
    assert asked.site == "north"
    np.testing.assert_array_equal(asked.images, PIXELS)
    assert asked.outputs == {"probabilities": False, "labels": False}


def test_pixels_as_binary_data() -> None:
    body, length = behind(PIXELS.tobytes(), {"datatype": "UINT8", "shape": [2, 3, 4, 4]})
    np.testing.assert_array_equal(protocol.read_request(body, length, 4).images, PIXELS)


def test_encoded_images_in_base64() -> None:
    data = [base64.b64encode(one).decode() for one in PICTURES]
    body = request({"datatype": "BYTES", "shape": [2], "data": data})
    assert protocol.read_request(body, None, 4).images == PICTURES


def test_encoded_images_as_binary_data() -> None:
    raw = b"".join(struct.pack("<I", len(one)) + one for one in PICTURES)
    body, length = behind(raw, {"datatype": "BYTES", "shape": [2]})
    assert protocol.read_request(body, length, 4).images == PICTURES


BINARY = {"datatype": "UINT8", "shape": [2, 3, 4, 4], "parameters": {"binary_data_size": 96}}
WRONG = {
    "no JSON": b"\xff",
    "deep": b"[" * 100_000,
    "not an object": b"[]",
    "no input": b'{"parameters": {"site": "a"}}',
    "no site": b'{"inputs": [{}]}',
    "site is a number": request({}, parameters={"site": 1}),
    "id is a number": request({}, id=1),
    "parameters are a list": request({}, parameters=[]),
    "two inputs": json.dumps({"parameters": {"site": "a"}, "inputs": [{}, {}]}).encode(),
    "another name": json.dumps({"parameters": {"site": "a"}, "inputs": [{"name": "x"}]}).encode(),
    "another type": request({"datatype": "FP32", "shape": [2, 3, 4, 4], "data": [0.0] * 96}),
    "another size": pixels([0] * 150, [2, 3, 5, 5]),
    "too few": pixels([0] * 95),
    "too many": pixels([0] * 97),
    "too large": pixels([256] * 96),
    "negative": pixels([-1] * 96),
    "fractions": pixels([0.5] * 96),
    "texts": pixels(["0"] * 96),
    "one long text": pixels(["x" * 1000] + [""] * 95),
    "ragged": pixels([[0] * 95, 0]),
    "nothing": pixels(None),
    "an object": pixels({}),
    "shape of texts": pixels([0] * 96, ["2", 3, 4, 4]),
    "shape below zero": pixels([], [-1, 3, 4, 4]),
    "shape beyond all": pixels([], [10**300, 3, 4, 4]),
    "shape of nothing": pixels([], []),
    "no base64": request({"datatype": "BYTES", "shape": [1], "data": ["?"]}),
    "base64 of another length": request({"datatype": "BYTES", "shape": [2], "data": ["aaaa"]}),
    "numbers as bytes": request({"datatype": "BYTES", "shape": [1], "data": [3]}),
    "another output": request(BINARY, outputs=[{"name": "logits"}]),
    "outputs are a number": request(BINARY, outputs=3),
    "outputs are texts": request(BINARY, outputs=["labels"]),
    "binary and nothing follows": request(BINARY),
    "binary size is a text": request({**BINARY, "parameters": {"binary_data_size": "96"}}),
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_wrong_requests(body: bytes) -> None:
    with pytest.raises(AcclimateError):
        protocol.read_request(body, None, 4)


@pytest.mark.parametrize("length", ["", "0", "-1", "x", "٣", "1e3", "99999999"])
def test_wrong_lengths_of_the_json(length: str) -> None:
    body, _ = behind(PIXELS.tobytes(), {"datatype": "UINT8", "shape": [2, 3, 4, 4]})
    with pytest.raises(ConfigError):
        protocol.read_request(body, length, 4)


@pytest.mark.parametrize(
    "raw", [b"", b"\0", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0a\1\0\0\0b\0", b"\3\0\0\0abc"]
)
def test_wrong_elements_of_a_binary_tensor(raw: bytes) -> None:
    body, length = behind(raw, {"datatype": "BYTES", "shape": [2]})
    with pytest.raises(ConfigError):
        protocol.read_request(body, length, 4)


def test_large_json_is_refused_before_it_is_parsed() -> None:
    body = pixels([0] * (protocol.MOST_JSON // 2))
    with pytest.raises(OverLimit, match="MiB"):
        protocol.read_request(body, None, 4)


PROBABILITIES = np.array([[0.25, 0.75], [1, 0]], np.float32)


def answer(**parameters: object) -> tuple[bytes, dict[str, str]]:
    body = request(BINARY, parameters={"site": "north", **parameters}, id="7") + bytes(96)
    asked = protocol.read_request(body, str(len(body) - 96), 4)
    return protocol.write_answer(asked, "digits", PROBABILITIES, ["ä", "b"])


def test_an_answer_in_json() -> None:
    body, headers = answer()
    assert headers == {"content-type": "application/json"}
    assert json.loads(body) == {
        "id": "7",
        "model_name": "digits",
        "outputs": [
            {
                "name": "probabilities",
                "datatype": "FP32",
                "shape": [2, 2],
                "data": [0.25, 0.75, 1, 0],
            },
            {"name": "labels", "datatype": "BYTES", "shape": [2], "data": ["ä", "b"]},
        ],
    }


def test_a_binary_answer() -> None:
    body, headers = answer(binary_data_output=True)
    length = int(headers[protocol.LENGTH_HEADER])
    outputs = json.loads(body[:length])["outputs"]
    assert [one["parameters"]["binary_data_size"] for one in outputs] == [16, 11]
    assert body[length:] == PROBABILITIES.tobytes() + b"\2\0\0\0\xc3\xa4\1\0\0\0b"


def test_one_output_as_binary_data_and_no_other() -> None:
    outputs = [{"name": "labels", "parameters": {"binary_data": True}}]
    body = request(BINARY, outputs=outputs) + bytes(96)
    asked = protocol.read_request(body, str(len(body) - 96), 4)
    assert asked.outputs == {"labels": True}
