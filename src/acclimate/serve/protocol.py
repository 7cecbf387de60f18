"""Open Inference Protocol v2 over REST, with its binary tensor extension: bytes in, bytes out.

A request names its site in `parameters` and has one input, `images`: pixels (UINT8 [n,3,s,s], as
in an exported file) or encoded images (BYTES [n]; base64 where they are in JSON). The answers are
`probabilities` (FP32 [n,C]) and `labels` (BYTES [n]).
"""

import base64
import binascii
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from acclimate.core.errors import ConfigError, OverLimit, require_known
from acclimate.core.files import parse_json

INPUT, PROBABILITIES, LABELS = "images", "probabilities", "labels"
EXTENSIONS = ("binary_tensor_data",)
LENGTH_HEADER = "Inference-Header-Content-Length"  # bytes of JSON before the binary tensors
MOST_JSON = 8 << 20  # bytes
MOST = 1 << 31  # along a dimension of a tensor
DATATYPES = {PROBABILITIES: "FP32", LABELS: "BYTES"}

DESCRIPTION: dict[str, Any] = {  # of a request's body, for OpenAPI
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs", "parameters"],
                    "properties": {
                        "id": {"type": "string"},
                        "parameters": {
                            "type": "object",
                            "required": ["site"],
                            "properties": {"site": {"type": "string"}},
                        },
                        "inputs": {"type": "array", "items": {"type": "object"}},
                        "outputs": {"type": "array", "items": {"type": "object"}},
                    },
                }
            },
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@dataclass(frozen=True)
class InferRequest:
    site: str
    images: Sequence[bytes] | np.ndarray  # encoded, or uint8 [n,3,s,s]
    id: str | None
    outputs: Mapping[str, bool]  # those that are wanted, and whether as binary data


def describe_model(name: str, classes: Sequence[str], size: int) -> dict[str, Any]:
    """The metadata of a model; `classes` are in the order of the probabilities."""
    shapes = {PROBABILITIES: [-1, len(classes)], LABELS: [-1]}
    return {
        "name": name,
        "platform": "acclimate",
        "inputs": [{"name": INPUT, "datatype": "UINT8", "shape": [-1, 3, size, size]}],
        "outputs": [
            {"name": output, "datatype": kind, "shape": shapes[output]}
            for output, kind in DATATYPES.items()
        ],
        "parameters": {"classes": list(classes), "encoded_images": "BYTES [-1]"},
    }


def read_request(body: bytes, header_length: str | None, size: int) -> InferRequest:
    """Parse an inference request for a model of images of `size` px; a ConfigError says what is
    wrong with it."""
    header, binary = _split(body, header_length)
    request = _object(parse_object(header), "the request")
    parameters = _object(request.get("parameters", {}), "parameters")
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1:
        raise ConfigError(f"inputs: give a list of one tensor, '{INPUT}'")
    site, identity = parameters.get("site"), request.get("id")
    if not isinstance(site, str):
        raise ConfigError("parameters.site: give the name of a site")
    if not isinstance(identity, str | None):
        raise ConfigError("id is not a text; give one, or leave it out")
    images = _read_tensor(_object(inputs[0], "inputs[0]"), binary, size)
    return InferRequest(site, images, identity, _wanted(request, parameters))


def parse_object(text: bytes) -> Any:
    """JSON that a client sent. Parsed, it may take twenty times its bytes."""
    if len(text) > MOST_JSON:
        raise OverLimit(f"the JSON has more than {MOST_JSON >> 20} MiB; send images as files")
    try:
        return parse_json(text)
    except ValueError as error:  # of which UnicodeDecodeError is one
        raise ConfigError(f"the body is not JSON ({error}); send a JSON object") from None


def _split(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    """The JSON of a body, and the binary tensors behind it."""
    if header_length is None:
        return body, memoryview(b"")
    length = int(header_length) if header_length.isascii() and header_length.isdigit() else -1
    if not 0 < length <= len(body):
        raise ConfigError(
            f"{LENGTH_HEADER} is '{header_length[:20]}' and the body has {len(body)} bytes; "
            f"give the bytes of its JSON"
        )
    return body[:length], memoryview(body)[length:]


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: not an object; send a JSON object")
    return value


def _wanted(request: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, bool]:
    """Names of outputs, and whether each is sent as binary data."""
    binary = parameters.get("binary_data_output") is True
    outputs = request.get("outputs") or [{"name": name} for name in DATATYPES]
    if not isinstance(outputs, list):
        raise ConfigError("outputs: not a list; leave it out for all of them")
    wanted = {}
    for output in outputs:
        name = str(_object(output, "outputs").get("name"))[:50]
        require_known(name, DATATYPES, f"there is no output '{name}'")
        own = _object(output.get("parameters", {}), f"parameters of '{name}'")
        wanted[name] = own.get("binary_data", binary) is True
    return wanted


def _read_tensor(
    tensor: Mapping[str, Any], binary: memoryview, size: int
) -> Sequence[bytes] | np.ndarray:
    name, kind, shape = (tensor.get(key) for key in ("name", "datatype", "shape"))
    if name != INPUT:
        raise ConfigError(f"there is no input '{str(name)[:50]}'; there is {INPUT}")
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < MOST for n in shape):
        raise ConfigError(f"shape of '{INPUT}': give a list of whole numbers")
    expected = {"UINT8": [3, size, size], "BYTES": []}.get(str(kind))
    if expected is None or shape[1:] != expected or not shape:
        raise ConfigError(
            f"'{INPUT}' is {str(kind)[:20]} {str(shape)[:50]}; give pixels, UINT8 "
            f"[n, 3, {size}, {size}], or encoded images, BYTES [n]"
        )
    length = _object(tensor.get("parameters", {}), f"parameters of '{INPUT}'").get(
        "binary_data_size"
    )
    if length is None:
        data = tensor.get("data")
        return _decoded(data, shape[0]) if kind == "BYTES" else _pixels_of(data, shape)
    if type(length) is not int or length != len(binary):
        raise ConfigError(
            f"binary_data_size of '{INPUT}' is {str(length)[:20]} and {len(binary)} bytes follow "
            f"the JSON; give their number"
        )
    return _elements(binary, shape[0]) if kind == "BYTES" else _pixels(binary, shape)


def _decoded(data: Any, count: int) -> list[bytes]:
    """Elements of a BYTES tensor in JSON, which has no form for bytes but base64."""
    if not isinstance(data, list) or len(data) != count:
        raise ConfigError(f"data of '{INPUT}': give a list of {count} images in base64")
    try:
        return [base64.b64decode(one, validate=True) for one in data]
    except (TypeError, ValueError, binascii.Error):
        raise ConfigError(f"data of '{INPUT}' is not base64; encode each image") from None


def _pixels_of(data: Any, shape: Sequence[int]) -> np.ndarray:
    """Pixels in JSON, flat or nested."""
    try:
        for _ in shape[1:]:
            if data and isinstance(data[0], list):
                data = list(chain.from_iterable(data))
        values = bytes(data) if isinstance(data, list) else b""  # refuses all but 0 to 255
    except (TypeError, ValueError):
        values = b""
    if len(values) != math.prod(shape):
        raise ConfigError(
            f"data of '{INPUT}': give {math.prod(shape)} whole numbers from 0 to 255, row by row"
        )
    return _pixels(memoryview(values), shape)


def _elements(binary: memoryview, count: int) -> list[bytes]:
    """Elements of a binary BYTES tensor: each behind its length in four bytes."""
    elements, place = list[bytes](), 0
    while place + 4 <= len(binary) and len(elements) < count:
        (length,) = struct.unpack_from("<I", binary, place)
        elements.append(bytes(binary[place + 4 : place + 4 + length]))
        place += 4 + length
    if place != len(binary) or len(elements) != count:
        raise ConfigError(
            f"the binary data of '{INPUT}' is not {count} elements, each behind its length in four "
            f"bytes; serialise them anew"
        )
    return elements


def _pixels(binary: memoryview, shape: Sequence[int]) -> np.ndarray:
    if len(binary) != math.prod(shape):
        raise ConfigError(
            f"'{INPUT}' has {len(binary)} bytes and its shape {shape} means {math.prod(shape)}; "
            f"give as many"
        )
    return np.frombuffer(binary, np.uint8).reshape(shape)


def write_answer(
    request: InferRequest, model: str, probabilities: np.ndarray, labels: Sequence[str]
) -> tuple[bytes, dict[str, str]]:
    """The body of an answer and its headers: probabilities [n,C], labels [n]."""
    outputs, binary = [], b""
    for name, as_binary in request.outputs.items():
        if name == PROBABILITIES:
            values = np.ascontiguousarray(probabilities, "<f4")
            shape, data, raw = list(values.shape), values.ravel().tolist(), values.tobytes()
        else:
            texts = [label.encode(errors="surrogateescape") for label in labels]
            shape, data = [len(labels)], list(labels)
            raw = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        output: dict[str, Any] = {"name": name, "datatype": DATATYPES[name], "shape": shape}
        outputs.append(
            output
            | ({"parameters": {"binary_data_size": len(raw)}} if as_binary else {"data": data})
        )
        binary += raw if as_binary else b""
    answer: dict[str, Any] = {"model_name": model, "outputs": outputs}
    if request.id is not None:
        answer["id"] = request.id
    header = json.dumps(answer).encode()
    if not any(request.outputs.values()):
        return header, {"content-type": "application/json"}
    return header + binary, {
        "content-type": "application/octet-stream",
        LENGTH_HEADER: str(len(header)),
    }
