"""Features by ONNX Runtime: PyTorch's, faster, and only where the two agree."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from acclimate.core.errors import ConfigError
from acclimate.learn import graph
from acclimate.learn.frozen import Extraction
from acclimate.learn.graph import NETWORK
from acclimate.learn.models import Backbone, Preprocess, accelerate, engine_used
from acclimate.learn.models.backbones import _ENGINES, engine_at
from fixtures.errors import refused

pytest.importorskip("onnxscript", reason="onnxscript is not installed: acclimate[onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason="not installed: acclimate[onnx]")
onnx = pytest.importorskip("onnx", reason="not installed: acclimate[onnx]")
NAME = f"onnxruntime {onnxruntime.__version__}"
SIDE = 72


def backbone(seed: int = 0, channels: int = 3) -> Backbone:
    torch.manual_seed(seed)
    body = nn.Sequential(
        nn.Conv2d(3, channels, 3, stride=4), nn.BatchNorm2d(channels), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    )  # fmt: skip
    nn.init.uniform_(body[1].running_var, 0.5, 2)
    made = Backbone(body, 4 * channels, Preprocess((0.5,) * 3, (0.2,) * 3, SIDE))
    return made.requires_grad_(False).eval()


def images(count: int = 5, side: int = SIDE) -> torch.Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(autouse=True)
def cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACCLIMATE_CACHE", str(shared_cache))
    return shared_cache / "graphs"


@pytest.mark.slow
@torch.no_grad()
def test_features_are_pytorchs(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = backbone()
    expected = one(images(70))
    assert engine_used(one) == "torch"
    accelerate(one)
    found = one(images(70))  # in three batches
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert engine_at(one, SIDE).session is not None
    assert engine_used(one).startswith(f"{NAME} (features differ from torch's by at most ")
    assert torch.equal(one(images(70)), found)  # to the last bit, in any company
    assert torch.equal(one(images(70)[40:43]), found[40:43])

    # Another model of the architecture has the graph from the cache, and its own weights.
    monkeypatch.setattr(graph, "_graph", None)
    other = backbone(seed=1)
    accelerate(other)
    torch.testing.assert_close(other(images()), other.in_torch(images()), rtol=1e-5, atol=1e-6)
    assert engine_used(other).startswith(NAME)
    (file,) = cache.iterdir()
    content = file.read_bytes()
    assert b".py" not in content and one.body[0].bias.numpy().tobytes() not in content

    # With a damaged graph PyTorch computes, and whoever comes next makes another.
    file.write_bytes(content[:100])
    monkeypatch.undo()
    monkeypatch.setenv("ACCLIMATE_CACHE", str(cache.parent))
    for engine in ("torch", NAME):
        third = backbone(seed=2)
        accelerate(third)
        third(images())
        assert engine_used(third).startswith(engine)
    assert file.read_bytes() == content


class Rotated(nn.Module):
    """Has a buffer that no state dict holds, as rotary position embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("periods", torch.linspace(1, 2, 4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sin(self.get_buffer("periods"))


@pytest.mark.slow
@torch.no_grad()
def test_buffers_beside_the_state_are_computed_with() -> None:
    one = backbone(channels=1)
    one.body.append(Rotated())
    accelerate(one)
    torch.testing.assert_close(one(images()), one.in_torch(images()), rtol=1e-5, atol=1e-6)
    assert engine_used(one).startswith(NAME)


def test_what_stays_with_pytorch() -> None:
    one = backbone()
    accelerate(one)
    one(images())  # gradients may be wanted
    with torch.no_grad():
        one.train()(images())
        one.eval()(images(side=64))  # small images
    assert engine_used(one) == "torch"


@pytest.mark.slow
@torch.no_grad()
def test_a_graph_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(graph.OnnxSession):
        def __call__(self, inputs):  # type: ignore[no-untyped-def]
            return super().__call__(inputs) * 1.01

    monkeypatch.setattr(graph, "OnnxSession", Wrong)
    one = backbone()
    accelerate(one)
    assert torch.equal(one(images()), one.in_torch(images()))
    assert engine_used(one) == f"torch ({NAME} is off by 0.01 of the largest feature)"


@torch.no_grad()
def test_a_network_without_a_graph_stays_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> bytes:
        raise NotImplementedError("no such\noperator")

    monkeypatch.setattr(graph, "_graph", fails)
    one = backbone(channels=2)  # not in the cache
    accelerate(one)
    assert torch.equal(one(images()), one.in_torch(images()))
    assert engine_used(one) == f"torch ({NAME} cannot compute it: no such operator)"


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCLIMATE_ENGINE", "torch")
    one = backbone()
    accelerate(one)
    assert engine_at(one, SIDE) == graph.Engine()
    monkeypatch.setenv("ACCLIMATE_ENGINE", "onnx")
    with refused(ConfigError, "ACCLIMATE_ENGINE", "onnx", "torch"):
        engine_at(one, SIDE + 1)


def test_copies_may_get_other_weights_and_start_without() -> None:
    one = backbone()
    accelerate(one)
    assert one in _ENGINES
    assert copy.deepcopy(one) not in _ENGINES
    assert pickle.loads(pickle.dumps(one)) not in _ENGINES


@pytest.mark.slow
def test_features_of_engines_are_kept_apart() -> None:
    by_torch = Extraction(backbone(), "mine", SIDE)
    other = Extraction(backbone(), "mine", SIDE)
    other.on(torch.device("cpu"))
    assert (by_torch.engine, other.engine) == ("torch", NAME)
    assert by_torch.key != other.key


@pytest.mark.slow
@torch.no_grad()
def test_nothing_is_made_for_each_batch_that_weights_alone_decide() -> None:
    """Neither zeros for biases nor bounds of activations: then ONNX Runtime joins convolutions with
    the batch norms after them. And no value of a weight stays behind in the graph."""
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
        nn.Conv2d(8, 8, 3, groups=8, bias=False),
        nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    preprocess = Preprocess((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), SIDE)
    made = Backbone(body, 8, preprocess).eval()
    model = onnx.load_from_string(graph._graph(made, SIDE))
    held = {tensor.name for tensor in model.graph.initializer}
    assert {f"{NETWORK}{name}" for name in made.state_dict()} - held <= {
        f"{NETWORK}body.{place}.num_batches_tracked" for place in (1, 4)
    }
    assert not any(t.raw_data for t in model.graph.initializer if t.name.startswith(NETWORK))
    for node in model.graph.node:
        assert node.op_type not in ("CastLike", "Expand")
        if node.op_type == "Conv":
            assert set(node.input[1:]) <= held
    for parameter in (*made.parameters(), *made.buffers()):
        if parameter.is_floating_point():
            parameter.uniform_(0.5, 1.5)
    engine = graph.Engine(NAME, graph._open(made, model.SerializeToString()))
    found = engine.features(images(5))
    torch.testing.assert_close(found, made.in_torch(images(5)), rtol=1e-5, atol=1e-5)
