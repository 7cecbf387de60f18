"""Networks as graphs: torch.export's programs, ONNX, and ONNX Runtime as an engine of backbones.

On a CPU, ONNX Runtime computes a backbone's features where it is installed. The graph of an
architecture is made once and kept in the user's cache, without weights; those are the backbone's
own, put in when it is opened. It is then compared with PyTorch once, and not used where the two
disagree. Images up to 64 px, training, and whatever needs gradients are PyTorch's.
"""

import copy
import json
import os
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from acclimate.core.errors import ConfigError
from acclimate.core.exports import require
from acclimate.core.files import json_digest, user_cache, write_atomically
from acclimate.core.text import reason_of
from acclimate.learn.models.backbones import BATCH, SMALL, TORCH, Backbone

NETWORK = "network."  # before the names of its tensors in a graph
FACTS = "metadata.json"  # what a .pt2 file carries beside its graph
VARIABLE = "ACCLIMATE_ENGINE"  # "torch": never ONNX Runtime
FORMAT = 2  # of what is cached
PACKAGES = ("onnxruntime", "onnx", "onnxscript")
TOLERANCE = 1e-4  # of the largest feature; float32 sums in another order differ by some 1e-6
INPUT, OUTPUT = "x", "features"
_LOCK = threading.Lock()


def traced(network: nn.Module, inputs: Mapping[str, Tensor], batched: Collection[str]) -> Any:
    """`network`, in eval mode and called with `inputs` in their order, as a `torch.export` program.

    The first dimension of the `batched` is free; give at least two rows of each.
    """
    rows = torch.export.Dim("n", min=1)
    shapes = tuple({0: rows} if name in batched else None for name in inputs)
    called = _Called(network).eval()
    with _quiet(), torch.no_grad():
        return torch.export.export(
            called, tuple(inputs.values()), dynamic_shapes={"inputs": shapes}, strict=False
        )


class _Called(nn.Module):
    """One signature for all: shapes are then given by place, whatever the inputs are called."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> Tensor:
        output: Tensor = self.network(*inputs)
        return output


def as_onnx(program: Any, inputs: Collection[str], output: str, *, optimise: bool = True) -> Any:
    """A program of `traced` as an ONNX model. Without `optimise` every tensor of the network's
    state keeps its name in the graph."""
    require("onnx", "onnxscript", purpose="to make an ONNX graph")
    with _quiet():
        exported = torch.onnx.export(
            program,
            dynamo=True,
            optimize=optimise,
            verbose=False,
            input_names=list(inputs),
            output_names=[output],
        )
    assert exported is not None
    model = exported.model_proto
    parts = (model, model.graph, *model.graph.node, *model.graph.value_info)
    for part in (*parts, *model.graph.input, *model.graph.output, *model.graph.initializer):
        part.ClearField("metadata_props")  # where in which file each node was traced
        part.ClearField("doc_string")
    return model


def without_weights(model: Any) -> bytes:
    """A model of `as_onnx`, not optimised, without the values of the network's state, and without
    what does not depend on those or on its inputs: the exporter leaves biases of zero to be made
    for each batch, and ONNX Runtime then does not join convolutions and batch norms.
    """
    helper, optimizer = require(
        "onnx.helper", "onnxscript.optimizer", purpose="to make an ONNX graph"
    )
    graph = model.graph
    weights = [tensor for tensor in graph.initializer if tensor.name.startswith(NETWORK)]
    constants = [tensor for tensor in graph.initializer if not tensor.name.startswith(NETWORK)]
    weight_inputs = [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in weights]
    for tensor in weights:
        tensor.raw_data = b""
    del graph.initializer[:]
    graph.initializer.extend(constants)
    graph.input.extend(weight_inputs)  # inputs, while constants are folded
    optimizer.fold_constants(model)
    optimizer.remove_unused_nodes(model)
    inputs = [one for one in model.graph.input if not one.name.startswith(NETWORK)]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(weights)
    content: bytes = model.SerializeToString()
    return content


def as_pt2(program: Any, facts: Mapping[str, str]) -> bytes:
    """A program of `traced` as the content of a .pt2 file."""
    content = BytesIO()
    with _quiet():
        torch.export.save(program, content, extra_files={FACTS: json.dumps(dict(facts))})
    return content.getvalue()


class OnnxSession:
    """A graph in ONNX Runtime on the CPU, with as many threads as torch has. Threads may share it.

    Its threads do not spin while they wait: images are decoded beside it, on the same cores.
    """

    def __init__(self, model: bytes) -> None:
        (runtime,) = require("onnxruntime", purpose="to run an ONNX graph")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # warnings about optimisations are of no use to anybody
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The first output."""
        return np.asarray(self._session.run(None, dict(inputs))[0])


@contextmanager
def _quiet() -> Iterator[None]:
    # torch warns of its own deprecated calls while it exports.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True)
class Engine:
    """What computes features, once that is known."""

    name: str = TORCH
    session: OnnxSession | None = None
    difference: float | None = None  # the largest to PyTorch, as a share of the largest feature
    why: str = ""  # it is PyTorch although ONNX Runtime is there

    def __str__(self) -> str:
        if self.difference is None:
            return f"{self.name} ({self.why})" if self.why else self.name
        return f"{self.name} (features differ from torch's by at most {self.difference:.0e})"

    def features(self, x: Tensor) -> Tensor:
        """[b, 3, h, w] -> [b, f] by ONNX Runtime."""
        assert self.session is not None
        parts = torch.split(x.detach().contiguous(), BATCH)
        return torch.cat([torch.from_numpy(self.session({INPUT: p.numpy()})) for p in parts])


def choose_engine(backbone: Backbone, size: int, known: dict[int, Engine]) -> Engine:
    """The engine of `backbone` for images of `size` px, one of those `known` or added to them."""
    with _LOCK:
        if size not in known:
            known[size] = _choose(backbone, size) if size > SMALL and available() else Engine()
        return known[size]


def available() -> bool:
    """Whether ONNX Runtime is there, with what makes graphs, and not switched off."""
    choice = os.environ.get(VARIABLE, "").lower()
    if choice not in ("", TORCH):
        raise ConfigError(f"{VARIABLE} is '{choice}'; set it to {TORCH}, or leave it out")
    return choice != TORCH and all(map(_version, PACKAGES))


def _choose(backbone: Backbone, size: int) -> Engine:
    """ONNX Runtime where it gives what PyTorch gives; else PyTorch, and why."""
    name = f"onnxruntime {_version('onnxruntime')}"
    folder = user_cache("graphs")
    path = None if folder is None else folder / f"{_key(backbone, size)}.onnx"
    try:
        content = path.read_bytes() if path is not None and path.is_file() else None
        engine = Engine(name, _open(backbone, content or _make(backbone, size, path)))
        difference = _difference(backbone, engine, size)
    except Exception as error:  # what an exporter or a runtime may stumble over is without end
        if path is not None:
            path.unlink(missing_ok=True)  # a damaged graph is made again next time
        return Engine(why=f"{name} cannot compute it: {reason_of(error)}")
    if not difference <= TOLERANCE:
        return Engine(why=f"{name} is off by {difference:.1g} of the largest feature")
    return replace(engine, difference=difference)


def _make(backbone: Backbone, size: int, path: Path | None) -> bytes:
    """The graph of a backbone, kept at `path`."""
    content = _graph(backbone, size)
    if path is not None:
        with suppress(OSError):  # a full or read-only disk: made again next time
            write_atomically(path, lambda temporary: temporary.write_bytes(content))
    return content


def _open(backbone: Backbone, content: bytes) -> OnnxSession:
    """A session of the graph with the weights of `backbone`."""
    purpose = "to run a backbone in ONNX"
    onnx, numpy_helper = require("onnx", "onnx.numpy_helper", purpose=purpose)
    model = onnx.ModelProto()
    model.ParseFromString(content)
    # Rotary frequencies and the like are buffers that a state dict leaves out.
    state = {**dict(backbone.named_buffers()), **backbone.state_dict()}
    for tensor in model.graph.initializer:
        if tensor.name.startswith(NETWORK):
            value = state[tensor.name.removeprefix(NETWORK)].detach().cpu().contiguous()
            tensor.CopyFrom(numpy_helper.from_array(value.numpy(), tensor.name))
    return OnnxSession(model.SerializeToString())


def _graph(backbone: Backbone, size: int) -> bytes:
    """Without weights, so that it serves every backbone of the architecture."""
    copied = copy.deepcopy(backbone).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    program = traced(copied, {INPUT: torch.zeros(2, 3, size, size)}, {INPUT})
    return without_weights(as_onnx(program, [INPUT], OUTPUT, optimise=False))


def _key(backbone: Backbone, size: int) -> str:
    """Where it agrees, so do the graphs. `repr` has layers with their strides and the like; what
    it leaves out would show in the comparison with PyTorch."""
    versions = {name: _version(name) for name in ("torch", "timm", *PACKAGES)}
    shapes = {name: [str(t.dtype), *t.shape] for name, t in backbone.state_dict().items()}
    return json_digest([FORMAT, size, versions, shapes, repr(backbone)])[:32]


@torch.no_grad()
def _difference(backbone: Backbone, engine: Engine, size: int) -> float:
    """The largest to PyTorch as a share of the largest feature, on noise, a ramp and a white
    image."""
    x = torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    x[1], x[2] = torch.linspace(0, 1, size), 1.0
    expected = backbone.in_torch(x.contiguous(memory_format=torch.channels_last))
    largest = expected.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    return float((engine.features(x) - expected).abs().max() / largest)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
