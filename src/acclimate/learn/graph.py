"""Networks as graphs that run without this library: torch.export's programs, and ONNX."""

import json
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from acclimate.core.errors import ConfigError

NETWORK = "network."  # before the names of its tensors in a graph
FACTS = "metadata.json"  # what a .pt2 file carries beside its graph


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
        made = torch.onnx.export(
            program,
            dynamo=True,
            optimize=optimise,
            verbose=False,
            input_names=list(inputs),
            output_names=[output],
        )
    assert made is not None
    model = made.model_proto
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
    given = [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in weights]
    for tensor in weights:
        tensor.raw_data = b""
    del graph.initializer[:]
    graph.initializer.extend(constants)
    graph.input.extend(given)  # inputs, while constants are folded
    optimizer.fold_constants(model)
    optimizer.remove_unused_nodes(model)
    own = [one for one in model.graph.input if not one.name.startswith(NETWORK)]
    del model.graph.input[:]
    model.graph.input.extend(own)
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
        found: np.ndarray = self._session.run(None, dict(inputs))[0]
        return found


def require(*packages: str, purpose: str) -> list[Any]:
    """The packages of the extra `onnx`, or one line that says how to get them."""
    try:
        return [import_module(package) for package in packages]
    except ImportError as error:
        raise ConfigError(
            f"{purpose}, the package {error.name} is needed and not installed; "
            f'pip install "acclimate[onnx]"'
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    # torch warns of its own deprecated calls while it exports.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
