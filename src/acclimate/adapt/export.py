"""A classifier as one file that runs without this library: ONNX, or a torch.export program.

Pixels (uint8, RGB, squashed to the square) or features go in, probabilities come out; scaling and
normalisation are inside. Two forms:

- adapted: the classifier of one domain, what was learned of it folded in;
- conditioned: one file for all domains, with what `adapt` learned of one as further inputs: `site`
  (its embedding), `prior` (its class frequencies) and `temperature`. In ONNX each has a default,
  under which the model is not adapted. Chains that change other weights (bn, t3a, tent) have none.

A file is written only after it gave the probabilities that PyTorch gives.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from acclimate.adapt.classifier import Adapted, apply_state
from acclimate.adapt.methods import base_predictor, chain_of
from acclimate.core.errors import ConfigError, ExportError
from acclimate.core.files import write_atomically
from acclimate.core.randomness import stream
from acclimate.data.source import to_float
from acclimate.learn.embeddings import DomainState, Payload
from acclimate.learn.graph import OnnxSession, as_onnx, as_pt2, require, traced
from acclimate.learn.model import Trained
from acclimate.learn.models import Paired, Predictor, takes_features
from acclimate.learn.models.weights import weights_licence

OUTPUT = "probabilities"
TOLERANCE = 1e-4  # in a probability; float32 sums in another order differ by some 1e-7,
ROUNDINGS = 10  # or by as many times what PyTorch's own float32 is off, where that is more
SMALLEST = 1e-30  # of a class frequency: its logarithm stays finite in float32
ENDINGS = (".onnx", ".pt2")
CPU = torch.device("cpu")
Run = Callable[[Mapping[str, np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class Exported:
    path: Path
    form: str  # adapted or conditioned
    inputs: dict[str, str]  # by name: what they hold, and their shape
    difference: float  # the largest to PyTorch, in a probability
    metadata: dict[str, str]


@dataclass(frozen=True)
class _Graph:
    """What is to be exported, and pairs of inputs and probabilities that it must reproduce."""

    form: str
    network: nn.Module
    inputs: dict[str, Tensor]  # an example of each; all but the first are defaults
    cases: "list[_Case]"


@dataclass(frozen=True)
class _Case:
    inputs: dict[str, np.ndarray]
    expected: np.ndarray
    tolerance: float

    @classmethod
    def of(
        cls, predictor: Predictor, rows: dict[str, np.ndarray], about: Mapping[str, np.ndarray]
    ) -> "_Case":
        """What `predictor` gives for `rows`. Where it rounds heavily, as behind batch norms whose
        inputs hardly vary, so may the graph."""
        (given,) = rows.values()
        expected = _reference(predictor, given)
        exact = _reference(copy.deepcopy(predictor).double(), given)
        rounding = float(np.abs(expected - exact).max())
        return cls({**rows, **about}, expected, max(TOLERANCE, ROUNDINGS * rounding))


def export_adapted(site: Adapted, path: str | Path, *, name: str = "") -> Exported:
    """The classifier of one domain as a file, .onnx or .pt2; `name` says which domain it is."""
    path = _checked(path)
    predictor = _on_cpu(site.predictor)
    rows = _examples(predictor, site.size)
    cases = [_Case.of(predictor, {_input(predictor): part}, {}) for part in rows]
    network = _OneDomain(predictor)
    graph = _Graph("adapted", network, {_input(predictor): torch.from_numpy(rows[0])}, cases)
    about = {"name": name or None, "images": None if site.state is None else site.state.count}
    return _write(graph, site.trained, path, {"site": json.dumps(about), "method": site.method})


def export_conditioned(trained: Trained, path: str | Path) -> Exported:
    """One file for all domains; `site_inputs` gives what it takes for one of them."""
    path = _checked(path)
    rows = _examples(trained.predictor, trained.size)
    data = _input(trained.predictor)
    cases = []
    for state in _states(trained):
        predictor = _on_cpu(_as_adapted(trained, state))
        inputs = site_inputs(trained, state)
        cases += [_Case.of(predictor, {data: part}, inputs) for part in rows]
    defaults = {key: torch.from_numpy(value) for key, value in site_inputs(trained, None).items()}
    examples = {data: torch.from_numpy(rows[0]), **defaults}
    graph = _Graph("conditioned", _AnyDomain(trained), examples, cases)
    return _write(graph, trained, path, {"site": json.dumps(None), "method": "conditioned"})


def site_inputs(trained: Trained, state: DomainState | None) -> dict[str, np.ndarray]:
    """What the conditioned form takes for the domain of `state`; None: the defaults.

    Frequencies are said against those of training, whatever they were corrected from: the graph
    knows no others.
    """
    prior, temperature = torch.tensor(trained.label_prior, dtype=torch.float64), 1.0
    embedding = False
    if state is not None:
        state.require(trained.digest())
        chain = chain_of(state)
        stuck = [name for name, method in chain.methods.items() if method.changes != "bias"]
        if stuck:
            raise ConfigError(
                f"'{stuck[0]}' changes weights, which the conditioned form shares between all "
                f"sites; export this site on its own, with --domain and without --conditioned"
            )
        embedding = chain.embedding
        shift = torch.zeros_like(prior)
        for name, method in chain.methods.items():
            own, further = method.shift(state.payloads[name].tensors)
            temperature, shift = temperature * own, shift / own + further
        prior = (prior.log() + shift).softmax(0)  # log 0 stays: no such class in training
    found: dict[str, Any] = {"prior": prior, "temperature": torch.tensor(temperature)}
    if trained.adaptive:
        start = trained.start(embedding=True)
        assert start.table is not None
        mu = start.table.means.mean(0)
        if embedding and state is not None:
            mu = state.mean
        elif trained.table is None:
            mu = torch.full_like(mu, torch.nan)  # a plain model is not adapted by its second path
        found = {"site": mu, **found}
    return {key: value.detach().float().cpu().numpy() for key, value in found.items()}


def write_site_inputs(trained: Trained, state: DomainState, path: Path) -> dict[str, np.ndarray]:
    """The same as a file for `numpy.load`."""
    inputs = site_inputs(trained, state)
    content = BytesIO()
    np.savez(content, **inputs)  # type: ignore[arg-type]
    write_atomically(path, lambda temporary: temporary.write_bytes(content.getvalue()))
    return inputs


class _OneDomain(nn.Module):
    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.predictor(_scaled(rows)).logits
        return logits.float().softmax(1)


class _AnyDomain(nn.Module):
    """Bayes' correction on F(x, μ), or on a plain model with, or without, its second path."""

    log_train: Tensor
    learned: Tensor

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.predictor = _on_cpu(trained.predictor)
        pair = None if trained.site is None else trained.start(embedding=True).predictor
        self.pair: Paired | None = None if pair is None else _on_cpu(pair)
        train = torch.tensor(trained.label_prior)
        self.register_buffer("log_train", train.clamp(min=SMALLEST).log())
        self.register_buffer("learned", train > 0)

    def forward(self, rows: Tensor, *about: Tensor) -> Tensor:
        *site, prior, temperature = about
        logits = self._logits(_scaled(rows), *site)
        ratio = prior.clamp(min=SMALLEST).log() - self.log_train
        shifted = logits.float() / temperature + torch.where(self.learned, ratio, 0.0)
        return shifted.softmax(1)

    def _logits(self, x: Tensor, site: Tensor | None = None) -> Tensor:
        logits: Tensor
        if self.pair is None or site is None:
            logits = self.predictor(x, site).logits
            return logits
        features = self.pair.backbone(x)
        logits = self.pair.on_features(features, site).logits
        # Not adapted by its second path: the plain model.
        return torch.where(site.isnan().any(), self.pair.plain(features).logits, logits)


def _scaled(rows: Tensor) -> Tensor:
    return rows.float() / 255 if rows.dtype == torch.uint8 else rows


def _as_adapted(trained: Trained, state: DomainState | None) -> Predictor:
    if state is None:
        start = trained.start(embedding=False)
        return base_predictor(start.predictor, start.table, None)
    return apply_state(trained, state).predictor


def _states(trained: Trained) -> Iterator[DomainState | None]:
    """No domain, and domains of every chain that the conditioned form serves."""
    yield None
    draw = stream(0, "export", "sites")
    classes = len(trained.classes)
    frequencies = [torch.from_numpy(draw.dirichlet(np.ones(classes))) for _ in range(2)]
    temperature = torch.tensor(1.5, dtype=torch.float64)
    prior = {"prior": frequencies[0], "base": frequencies[1], "temperature": temperature}
    for payloads in ({}, {"prior": Payload(prior, mergeable=False)}):
        if payloads:
            yield _state(trained, torch.zeros(0, dtype=torch.float64), payloads)
        if trained.adaptive:
            table = trained.start(embedding=True).table
            assert table is not None
            noise = torch.from_numpy(draw.normal(size=table.means.shape[1]))
            yield _state(trained, table.means[0] + noise, payloads)


def _state(trained: Trained, mu: Tensor, payloads: Mapping[str, Payload]) -> DomainState:
    return DomainState(trained.digest(), mu, mu.square(), 1, mu, payloads=payloads)


def _input(predictor: Predictor) -> str:
    return "features" if takes_features(predictor) else "images"


def _examples(predictor: Predictor, size: int) -> list[np.ndarray]:
    """A batch and a single row: noise, a ramp, black and white; or features like training's."""
    draw = stream(0, "export", "rows")
    if takes_features(predictor):
        mean, std = (t.detach().cpu().numpy() for t in _statistics(predictor))
        rows = (mean + std * draw.normal(size=(5, size))).astype(np.float32)
    else:
        rows = draw.integers(0, 256, size=(5, 3, size, size)).astype(np.uint8)
        rows[1] = np.linspace(0, 255, size).astype(np.uint8)
        rows[2], rows[3] = 0, 255
    return [rows[:4], rows[4:]]


def _statistics(predictor: Predictor) -> tuple[Tensor, Tensor]:
    return predictor.backbone.mean, predictor.backbone.std


def _on_cpu(network: Any) -> Any:
    copied = copy.deepcopy(network).to(CPU)
    return copied.to(memory_format=torch.contiguous_format).requires_grad_(False).eval()


@torch.no_grad()
def _reference(predictor: Predictor, rows: np.ndarray) -> np.ndarray:
    """As `Adapted.predict_proba` has it, in the predictor's precision."""
    kind = next(predictor.parameters()).dtype
    logits: Tensor = predictor(to_float(torch.from_numpy(rows), CPU).to(kind)).logits
    return logits.softmax(1).numpy()


def _checked(path: str | Path) -> Path:
    """Its ending says what it is; what is missing for that is told of before any work."""
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise ConfigError(
            f"{path}: a model is exported as .onnx, or as .pt2 for torch.export; choose one"
        )
    if path.suffix == ".onnx":
        require("onnx", "onnxscript", "onnxruntime", purpose="to export to ONNX")
    return path


def _write(graph: _Graph, trained: Trained, path: Path, about: Mapping[str, str]) -> Exported:
    first = next(iter(graph.inputs))
    metadata = {**_metadata(trained, first), **about, "form": graph.form}
    program = traced(graph.network, graph.inputs, {first})
    if path.suffix == ".pt2":
        content = as_pt2(program, metadata)
        run = _program(content, list(graph.inputs))
    else:
        model = as_onnx(program, graph.inputs, OUTPUT)
        _name_sizes(model, graph, len(trained.classes))
        _describe(model, metadata)
        content = model.SerializeToString()
        run = OnnxSession(content)
    difference = _compared(run, graph, path)
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
    inputs = {name: _shape(value, free=name == first) for name, value in graph.inputs.items()}
    return Exported(path, graph.form, inputs, difference, metadata)


def _metadata(trained: Trained, first: str) -> dict[str, str]:
    from acclimate import __version__

    size = trained.size
    preprocessing: dict[str, Any] = {"input": first, "shape": ["n", size], "dtype": "float32"}
    if first == "images":
        preprocessing = {
            "input": first,
            "shape": ["n", 3, size, size],
            "dtype": "uint8",
            "colours": "RGB",
            "resize": "the whole upright image squashed to the square; Pillow's BILINEAR",
            "scaling": "in the graph: divided by 255, then the weights' mean and deviation",
        }
    return {
        "classes": json.dumps(list(trained.classes), ensure_ascii=False),
        "preprocessing": json.dumps(preprocessing),
        "digest": trained.digest(),
        "licence": weights_licence(trained.config.model),
        "made_by": f"acclimate {__version__}",
    }


def _describe(model: Any, metadata: Mapping[str, str]) -> None:
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value


def _name_sizes(model: Any, graph: _Graph, classes: int) -> None:
    """Free batches are called `n`, and all inputs but the first have a default, so that whoever
    leaves them out gets the model as it is."""
    (numpy_helper,) = require("onnx.numpy_helper", purpose="to export to ONNX")
    first, *others = graph.inputs
    for value in (*model.graph.input, *model.graph.output):
        if value.name in (first, OUTPUT):
            value.type.tensor_type.shape.dim[0].dim_param = "n"
        if value.name == OUTPUT:
            value.type.tensor_type.shape.dim[1].dim_value = classes
    for name in others:
        model.graph.initializer.append(numpy_helper.from_array(graph.inputs[name].numpy(), name))


def _program(content: bytes, names: list[str]) -> Run:
    module = torch.export.load(BytesIO(content)).module()

    def run(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        with torch.no_grad():
            found: Tensor = module(*(torch.from_numpy(inputs[name]) for name in names))
        return found.numpy()

    return run


def _compared(run: Run, graph: _Graph, path: Path) -> float:
    largest = 0.0
    for case in graph.cases:
        found = run(case.inputs)
        if found.shape != case.expected.shape or not np.isfinite(found).all():
            raise ExportError(
                f"{path} was not written: its probabilities are {list(found.shape)} or not finite, "
                f"where PyTorch's are {list(case.expected.shape)}; try .pt2, or another torch"
            )
        difference = float(np.abs(found - case.expected).max())
        if difference > case.tolerance:
            raise ExportError(
                f"{path} was not written: a probability differs from PyTorch's by "
                f"{difference:.2g}, more than {case.tolerance:.1g}; try .pt2, or another version "
                f"of torch or onnxruntime"
            )
        largest = max(largest, difference)
    return largest


def _shape(value: Tensor, *, free: bool) -> str:
    sizes = ["n" if free and place == 0 else str(size) for place, size in enumerate(value.shape)]
    return f"{str(value.dtype).removeprefix('torch.')} [{', '.join(sizes)}]"
