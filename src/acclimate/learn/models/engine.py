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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from acclimate.core.errors import ConfigError
from acclimate.core.files import write_atomically
from acclimate.data.cache import user_cache
from acclimate.learn.models.micro_batches import BATCH, SMALL

if TYPE_CHECKING:
    from acclimate.learn.graph import OnnxSession
    from acclimate.learn.models.backbones import Backbone

VARIABLE = "ACCLIMATE_ENGINE"  # "torch": never ONNX Runtime
FORMAT = 2  # of what is cached
PACKAGES = ("onnxruntime", "onnx", "onnxscript")
TOLERANCE = 1e-4  # of the largest feature; float32 sums in another order differ by some 1e-6
INPUT, OUTPUT = "x", "features"
TORCH = "torch"


@dataclass(frozen=True)
class Engine:
    """What computes features, once that is known."""

    name: str = TORCH
    session: "OnnxSession | None" = None
    difference: float | None = None  # the largest to PyTorch, as a share of the largest feature
    why: str = ""  # it is PyTorch although ONNX Runtime is there

    def __str__(self) -> str:
        if self.difference is None:
            return f"{self.name} ({self.why})" if self.why else self.name
        return f"{self.name} (features differ from torch's by at most {self.difference:.0e})"


class Engines:
    """Of one backbone, by the size of images. Copies of a backbone may get other weights, so that
    they start without."""

    def __init__(self) -> None:
        self._known: dict[int, Engine] = {}
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    @property
    def used(self) -> str:
        """In words, of what has been computed so far."""
        return ", ".join(dict.fromkeys(str(engine) for engine in self._known.values())) or TORCH

    def at(self, backbone: "Backbone", size: int) -> Engine:
        """The one for images of `size` px, made and compared when it is first asked for."""
        with self._lock:
            if size not in self._known:
                self._known[size] = _chosen(backbone, size)
            return self._known[size]

    def features(self, backbone: "Backbone", x: Tensor) -> Tensor | None:
        """[b, 3, h, w] -> [b, f]; None: PyTorch shall compute them."""
        if backbone.training or torch.is_grad_enabled() or not _is_image_batch(x):
            return None
        session = self.at(backbone, x.shape[-1]).session
        if session is None:
            return None
        return _passed(session, x)


def accelerate(*backbones: "Backbone | None") -> None:
    """Let backbones that are on a CPU, and stay as they are, use the faster engine."""
    for backbone in backbones:
        if backbone is None or not backbone.size:
            continue
        lowest = backbone.extractor or backbone
        if lowest.engines is None and lowest.mean.device.type == "cpu" and available():
            lowest.engines = Engines()


def engine_used(backbone: "Backbone") -> str:
    """What has computed the features of images, in words."""
    lowest = backbone.extractor or backbone
    return TORCH if lowest.engines is None else lowest.engines.used


def available() -> bool:
    """Whether ONNX Runtime is there, with what makes graphs, and not switched off."""
    asked = os.environ.get(VARIABLE, "").lower()
    if asked not in ("", TORCH):
        raise ConfigError(f"{VARIABLE} is '{asked}'; set it to {TORCH}, or leave it out")
    if asked == TORCH:
        return False
    return all(_version(package) for package in PACKAGES)


def _chosen(backbone: "Backbone", size: int) -> Engine:
    if size <= SMALL:
        return Engine()
    folder = user_cache("graphs")
    path = None if folder is None else folder / f"{_key(backbone, size)}.onnx"
    if path is not None and path.is_file():
        with suppress(OSError):
            found = _compared(backbone, size, path.read_bytes)
            if found.session is not None:
                return found
    made: list[bytes] = []

    def make() -> bytes:
        made.append(_graph(backbone, size))
        return made[0]

    found = _compared(backbone, size, make)
    if path is not None and found.session is not None:
        with suppress(OSError):  # a full or read-only disk: made again next time
            write_atomically(path, lambda temporary: temporary.write_bytes(made[0]))
    return found


def _compared(backbone: "Backbone", size: int, graph: Callable[[], bytes]) -> Engine:
    """ONNX Runtime with that graph, or PyTorch and why."""
    name = f"onnxruntime {_version('onnxruntime')}"
    try:
        session = _opened(backbone, graph())
        difference = _difference(backbone, session, size)
    except OSError:
        raise
    except Exception as error:  # what an exporter or a runtime may stumble over is without end
        reason = " ".join(str(error).split()) or type(error).__name__
        return Engine(why=f"{name} cannot compute it: {reason[:200]}")
    if not difference <= TOLERANCE:
        return Engine(why=f"{name} is off by {difference:.1g} of the largest feature")
    return Engine(name, session, difference)


def _opened(backbone: "Backbone", graph: bytes) -> "OnnxSession":
    """With the weights of `backbone`."""
    from acclimate.learn.graph import NETWORK, OnnxSession, require

    onnx, numpy_helper = require("onnx", "onnx.numpy_helper", purpose="to run a backbone in ONNX")
    model = onnx.ModelProto()
    model.ParseFromString(graph)
    state = backbone.state_dict()
    for tensor in model.graph.initializer:
        if tensor.name.startswith(NETWORK):
            value = state[tensor.name.removeprefix(NETWORK)].detach().cpu().contiguous()
            tensor.CopyFrom(numpy_helper.from_array(value.numpy(), tensor.name))
    return OnnxSession(model.SerializeToString())


def _graph(backbone: "Backbone", size: int) -> bytes:
    """Without weights, so that it serves every backbone of the architecture."""
    from acclimate.learn.graph import as_onnx, traced, without_weights

    copied = copy.deepcopy(backbone).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    program = traced(copied, {INPUT: torch.zeros(2, 3, size, size)}, {INPUT})
    return without_weights(as_onnx(program, [INPUT], OUTPUT, optimise=False))


def _key(backbone: "Backbone", size: int) -> str:
    """Where it agrees, so do the graphs. `repr` has layers with their strides and the like; what
    it leaves out would show in the comparison with PyTorch."""
    versions = {name: _version(name) for name in ("torch", "timm", *PACKAGES)}
    shapes = {name: [str(t.dtype), *t.shape] for name, t in backbone.state_dict().items()}
    known = json.dumps([FORMAT, size, versions, shapes, repr(backbone)])
    return hashlib.sha256(known.encode()).hexdigest()[:32]


@torch.no_grad()
def _difference(backbone: "Backbone", session: "OnnxSession", size: int) -> float:
    """The largest between the two, on noise, a ramp and a white image."""
    x = torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    x[1], x[2] = torch.linspace(0, 1, size), 1.0
    expected = backbone.in_torch(x.contiguous(memory_format=torch.channels_last))
    largest = expected.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    return float((_passed(session, x) - expected).abs().max() / largest)


def _passed(session: "OnnxSession", x: Tensor) -> Tensor:
    rows = x.detach().contiguous()
    parts = (rows[start : start + BATCH] for start in range(0, len(rows), BATCH))
    return torch.cat([torch.from_numpy(session({INPUT: part.numpy()})) for part in parts])


def _is_image_batch(x: Tensor) -> bool:
    shaped = x.ndim == 4 and len(x) > 0 and x.shape[-1] == x.shape[-2]
    return shaped and x.device.type == "cpu" and x.dtype == torch.float32


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
