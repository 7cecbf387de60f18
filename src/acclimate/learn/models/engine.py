"""What computes a backbone's features on a CPU: ONNX Runtime where it is installed, else PyTorch.

The graph of an architecture is made once and kept in the user's cache, without weights; those are
the backbone's own, put in when it is opened. It is then compared with PyTorch once, and not used
where the two disagree. Images up to 64 px, training, and whatever needs gradients are PyTorch's.
"""

import copy
import hashlib
import json
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from acclimate.core.errors import ConfigError
from acclimate.core.files import write_atomically
from acclimate.data.cache import user_cache
from acclimate.learn import graph
from acclimate.learn.models.backbones import BATCH, SMALL, TORCH, Backbone

VARIABLE = "ACCLIMATE_ENGINE"  # "torch": never ONNX Runtime
FORMAT = 2  # of what is cached
PACKAGES = ("onnxruntime", "onnx", "onnxscript")
TOLERANCE = 1e-4  # of the largest feature; float32 sums in another order differ by some 1e-6
INPUT, OUTPUT = "x", "features"
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Engine:
    """What computes features, once that is known."""

    name: str = TORCH
    session: graph.OnnxSession | None = None
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
    """ONNX Runtime with the graph in the cache, or with one that is made now and cached; PyTorch
    where neither will do."""
    folder = user_cache("graphs")
    path = None if folder is None else folder / f"{_key(backbone, size)}.onnx"
    if path is not None and path.is_file():
        with suppress(OSError):
            cached, _ = _compare(backbone, size, path.read_bytes())
            if cached.session is not None:
                return cached
    engine, content = _compare(backbone, size)
    if path is not None and engine.session is not None:
        with suppress(OSError):  # a full or read-only disk: made again next time
            write_atomically(path, lambda temporary: temporary.write_bytes(content))
    return engine


def _compare(backbone: Backbone, size: int, content: bytes = b"") -> tuple[Engine, bytes]:
    """ONNX Runtime with that graph, or with one that is made here; or PyTorch and why. With the
    graph's content."""
    name = f"onnxruntime {_version('onnxruntime')}"
    try:
        content = content or _graph(backbone, size)
        engine = Engine(name, _open(backbone, content))
        difference = _difference(backbone, engine, size)
    except Exception as error:  # what an exporter or a runtime may stumble over is without end
        reason = " ".join(str(error).split()) or type(error).__name__
        return Engine(why=f"{name} cannot compute it: {reason[:200]}"), content
    if not difference <= TOLERANCE:
        return Engine(why=f"{name} is off by {difference:.1g} of the largest feature"), content
    return replace(engine, difference=difference), content


def _open(backbone: Backbone, content: bytes) -> graph.OnnxSession:
    """A session of the graph with the weights of `backbone`."""
    purpose = "to run a backbone in ONNX"
    onnx, numpy_helper = graph.require("onnx", "onnx.numpy_helper", purpose=purpose)
    model = onnx.ModelProto()
    model.ParseFromString(content)
    state = backbone.state_dict()
    for tensor in model.graph.initializer:
        if tensor.name.startswith(graph.NETWORK):
            value = state[tensor.name.removeprefix(graph.NETWORK)].detach().cpu().contiguous()
            tensor.CopyFrom(numpy_helper.from_array(value.numpy(), tensor.name))
    return graph.OnnxSession(model.SerializeToString())


def _graph(backbone: Backbone, size: int) -> bytes:
    """Without weights, so that it serves every backbone of the architecture."""
    copied = copy.deepcopy(backbone).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    program = graph.traced(copied, {INPUT: torch.zeros(2, 3, size, size)}, {INPUT})
    return graph.without_weights(graph.as_onnx(program, [INPUT], OUTPUT, optimise=False))


def _key(backbone: Backbone, size: int) -> str:
    """Where it agrees, so do the graphs. `repr` has layers with their strides and the like; what
    it leaves out would show in the comparison with PyTorch."""
    versions = {name: _version(name) for name in ("torch", "timm", *PACKAGES)}
    shapes = {name: [str(t.dtype), *t.shape] for name, t in backbone.state_dict().items()}
    known = json.dumps([FORMAT, size, versions, shapes, repr(backbone)])
    return hashlib.sha256(known.encode()).hexdigest()[:32]


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
