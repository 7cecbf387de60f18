"""A classifier as one file that runs without this library: ONNX, or a torch.export program.

Pixels (uint8, RGB, squashed to the square) or features go in, probabilities come out; scaling and
normalisation are inside. Two forms:

- adapted: the classifier of one domain, what was learned of it folded in;
- conditioned: one file for all domains, with what `adapt` learned of one as further inputs: `site`
  (its embedding), `prior` (its class frequencies) and `temperature`. In ONNX each has a default,
  under which the model is not adapted. Chains that change other weights (bn, t3a, tent) have none.

With `half` the network computes in 16 bits, and Bayes' correction and softmax in 32; inputs and
outputs stay as they are.

A file is written only after it gave the probabilities that PyTorch gives in 32 bits.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from acclimate.adapt.choice import promise_for
from acclimate.adapt.classifier import Adapted, apply_state, unadapted
from acclimate.adapt.methods import METHODS, Chain, Method, chain_of
from acclimate.adapt.methods.chain import adapt_model
from acclimate.core.errors import ConfigError, ExportError
from acclimate.core.exports import require
from acclimate.core.files import write_atomically
from acclimate.core.randomness import stream
from acclimate.data.source import to_float
from acclimate.learn.embeddings import DomainState
from acclimate.learn.graph import OnnxSession, as_onnx, as_pt2, traced
from acclimate.learn.images import Images
from acclimate.learn.model import Trained
from acclimate.learn.models import Predictor, takes_features
from acclimate.learn.models.predictors import PairHead
from acclimate.learn.models.weights import weights_licence
from acclimate.records.doubt import TARGETS, answer_for

OUTPUT = "probabilities"
TOLERANCE = 1e-4  # in a probability; float32 sums in another order differ by some 1e-7,
ROUNDINGS = 10  # or by as many times what PyTorch's own float32 is off, where that is more
HALF_TOLERANCE = 0.02  # with weights and layers in 16 bits
SMALLEST = 1e-30  # of a class frequency: its logarithm stays finite in float32
CPU = torch.device("cpu")
Run = Callable[[Mapping[str, np.ndarray]], np.ndarray]
Inputs = Mapping[str, Tensor]
Facts = Mapping[str, str]


@dataclass(frozen=True)
class Exported:
    path: Path
    form: str  # adapted or conditioned
    inputs: dict[str, str]  # by name: what they hold, and their shape
    difference: float  # the largest to PyTorch, in a probability
    metadata: dict[str, str]


class _Case(NamedTuple):
    """Inputs, and the probabilities that a graph must reproduce for them."""

    inputs: dict[str, np.ndarray]
    expected: np.ndarray
    tolerance: float

    @classmethod
    def of(
        cls,
        predictor: Predictor,
        name: str,
        rows: np.ndarray,
        about: Mapping[str, np.ndarray],
        half: bool,
    ) -> "_Case":
        """What `predictor` gives for `rows`. Where it rounds heavily, as behind batch norms whose
        inputs hardly vary, so may the graph."""
        expected = _reference(predictor, rows)
        exact = _reference(copy.deepcopy(predictor).double(), rows)
        rounding = float(np.abs(expected - exact).max())
        least = HALF_TOLERANCE if half else TOLERANCE
        return cls({name: rows, **about}, expected, max(least, ROUNDINGS * rounding))


def export_adapted(
    site: Adapted, path: str | Path, *, name: str = "", half: bool = False
) -> Exported:
    """The classifier of one domain as a file, .onnx or .pt2; `name` says which domain it is."""
    path = _require_format(path)
    predictor = _on_cpu(site.predictor)
    name_of_rows, examples = _input(predictor), _examples(site.trained)
    cases = [_Case.of(predictor, name_of_rows, rows, {}, half) for rows in examples]
    about = {"name": name or None, "images": None if site.state is None else site.state.count}
    facts = {
        "site": json.dumps(about),
        "method": site.method,
        "form": "adapted",
        "thresholds": json.dumps(_thresholds(site)),
    }
    inputs = {name_of_rows: torch.from_numpy(examples[0])}
    return _write(_Network(predictor, half), inputs, cases, site.trained, path, facts)


def _thresholds(site: Adapted) -> dict[str, Any]:
    """By target ("0.98"): from which confidence on so large a share of answers is right, and the
    share of images answered, as rehearsed; None where nothing is promised."""
    promise = promise_for(site.trained, site.state)
    known = () if promise is None else promise.answers
    found = {target: answer_for(known, target) for target in TARGETS}
    return {f"{target:g}": answer and asdict(answer) for target, answer in found.items()}


def export_conditioned(trained: Trained, path: str | Path, *, half: bool = False) -> Exported:
    """One file for all domains; `site_inputs` gives what it takes for one of them."""
    path = _require_format(path)
    name, examples = _input(trained.predictor), _examples(trained)
    cases = []
    for state in _states(trained):
        predictor, about = _on_cpu(_as_adapted(trained, state)), site_inputs(trained, state)
        cases += [_Case.of(predictor, name, rows, about, half) for rows in examples]
    defaults = {key: torch.from_numpy(value) for key, value in site_inputs(trained, None).items()}
    inputs = {name: torch.from_numpy(examples[0]), **defaults}
    facts = {"site": json.dumps(None), "method": "conditioned", "form": "conditioned"}
    return _write(_Conditioned(trained, half), inputs, cases, trained, path, facts)


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
            own, further = method.shift(state.payloads[name])
            temperature, shift = temperature * own, shift / own + further
        prior = (prior.log() + shift).softmax(0)  # log 0 stays: no such class in training
    inputs = {"prior": prior, "temperature": torch.tensor(temperature)}
    table = trained.start(embedding=True).table
    if table is not None:
        mu = table.means.mean(0)
        if embedding and state is not None:
            mu = state.mean
        elif trained.plain_is_pair:
            inputs["temperature"] *= trained.pair_temperature
        elif trained.table is None:
            mu = torch.full_like(mu, torch.nan)  # a plain model is not adapted by its second path
        inputs = {"site": mu, **inputs}
    return {key: value.detach().float().cpu().numpy() for key, value in inputs.items()}


def write_site_inputs(trained: Trained, state: DomainState, path: Path) -> dict[str, np.ndarray]:
    """Write `site_inputs` as a file for `numpy.load`, and return them."""
    inputs = site_inputs(trained, state)
    content = BytesIO()
    np.savez(content, **inputs)  # type: ignore[arg-type]
    write_atomically(path, lambda temporary: temporary.write_bytes(content.getvalue()))
    return inputs


class _Network(nn.Module):
    """Probabilities of the classifier of one domain."""

    def __init__(self, predictor: Predictor, half: bool = False) -> None:
        super().__init__()
        self.predictor, self.kind = _in_precision(predictor, half)

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.predictor(_scale(rows, self.kind)).logits
        return logits.float().softmax(1)


class _Conditioned(nn.Module):
    """Bayes' correction on F(x, μ), or on a plain model with, or without, its second path."""

    log_train: Tensor
    learned: Tensor

    def __init__(self, trained: Trained, half: bool = False) -> None:
        super().__init__()
        predictor = _on_cpu(trained.start(embedding=True).predictor)
        self.predictor, self.kind = _in_precision(predictor, half)
        self.plain_temperature = trained.plain_temperature
        train = torch.tensor(trained.label_prior)
        self.register_buffer("log_train", train.clamp(min=SMALLEST).log())
        self.register_buffer("learned", train > 0)

    def forward(self, rows: Tensor, *about: Tensor) -> Tensor:
        *site, prior, temperature = about
        head = self.predictor.head
        features = self.predictor.backbone(_scale(rows, self.kind))
        logits = head(features, *site).logits
        if isinstance(head, PairHead):  # without μ it is the plain model
            plain = head.plain(features).logits / self.plain_temperature
            logits = torch.where(site[0].isnan().any(), plain, logits)
        ratio = prior.clamp(min=SMALLEST).log() - self.log_train
        shifted: Tensor = logits.float() / temperature + torch.where(self.learned, ratio, 0.0)
        return shifted.softmax(1)


def _scale(rows: Tensor, kind: torch.dtype) -> Tensor:
    return (rows.float() / 255 if rows.dtype == torch.uint8 else rows).to(kind)


def _in_precision(predictor: Predictor, half: bool) -> tuple[Predictor, torch.dtype]:
    """A copy of a predictor that computes in that type."""
    kind = torch.float16 if half else torch.float32
    return copy.deepcopy(predictor).to(kind), kind


def _as_adapted(trained: Trained, state: DomainState | None) -> Predictor:
    return (unadapted(trained) if state is None else apply_state(trained, state)).predictor


def _states(trained: Trained) -> Iterator[DomainState | None]:
    """No domain, and domains adapted to by every chain that the conditioned form serves."""
    yield None
    rows = torch.from_numpy(_examples(trained)[0])
    images = Images(rows, trained.device)
    steps: list[dict[str, Method]] = [{}]
    for name, (kind, _) in METHODS.items():
        if (
            kind is not None
            and kind.changes == "bias"
            and kind.able(trained.start(embedding=False))
        ):
            # As rehearsal sets it, or a handful of images might leave one class alone.
            settings = dict([{}, *kind.rehearsed(many_domains=False)][-1])
            warm = {"temperature": 1.5} if hasattr(kind.Config, "temperature") else {}
            steps.append({name: kind(kind.Config(**settings, **warm))})
    for methods in steps:
        for embedding in (False, True) if trained.adaptive else (False,):
            if methods or embedding:
                start, chain = trained.start(embedding=embedding), Chain(embedding, methods)
                state = adapt_model(start, images, chain)[1]
                yield replace(state, model=trained.digest())


def _input(predictor: Predictor) -> str:
    return "features" if takes_features(predictor) else "images"


def _examples(trained: Trained) -> list[np.ndarray]:
    """A batch and a single row: noise, a ramp, black and white; or features like training's."""
    draw, size, layers = stream(0, "export", "rows"), trained.size, trained.predictor.head
    if takes_features(trained.predictor):
        assert isinstance(layers, Predictor)
        statistics = layers.backbone.mean, layers.backbone.std
        mean, std = (value.detach().cpu().numpy() for value in statistics)
        rows = (mean + std * draw.normal(size=(5, size))).astype(np.float32)
    else:
        rows = draw.integers(0, 256, size=(5, 3, size, size)).astype(np.uint8)
        rows[1] = np.linspace(0, 255, size).astype(np.uint8)
        rows[2], rows[3] = 0, 255
    return [rows[:4], rows[4:]]


def _on_cpu(network: Any) -> Any:
    copied = copy.deepcopy(network).to(CPU)
    return copied.to(memory_format=torch.contiguous_format).requires_grad_(False).eval()


@torch.no_grad()
def _reference(predictor: Predictor, rows: np.ndarray) -> np.ndarray:
    """Class probabilities as `Adapted.predict_proba` gives them, in the predictor's precision."""
    kind = next(predictor.parameters()).dtype
    logits: Tensor = predictor(to_float(torch.from_numpy(rows), CPU).to(kind)).logits
    return logits.softmax(1).numpy()


def onnx(program: Any, inputs: Inputs, classes: int, metadata: Facts) -> tuple[bytes, Run]:
    model = as_onnx(program, inputs, OUTPUT)
    _describe(model, inputs, classes, metadata)
    content = model.SerializeToString()
    return content, OnnxSession(content)


def pt2(program: Any, inputs: Inputs, classes: int, metadata: Facts) -> tuple[bytes, Run]:
    content = as_pt2(program, metadata)
    return content, _load_program(content, list(inputs))


# By the ending of a file: what a traced network becomes, and what runs that content again.
FORMATS: dict[str, Callable[[Any, Inputs, int, Facts], tuple[bytes, Run]]] = {
    ".onnx": onnx,
    ".pt2": pt2,
}


def _require_format(path: str | Path) -> Path:
    """The ending says the format; what is missing for it is reported before any work."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"{path}: a model is exported as .onnx, or as .pt2 for torch.export; choose one"
        )
    if path.suffix == ".onnx":
        require("onnx", "onnxscript", "onnxruntime", purpose="to export to ONNX")
    return path


def _write(
    network: nn.Module,
    inputs: Mapping[str, Tensor],
    cases: Sequence[_Case],
    trained: Trained,
    path: Path,
    about: Mapping[str, str],
) -> Exported:
    """Trace `network`, compare the file's content with PyTorch in all `cases`, and write it.

    `inputs` holds an example of each input; those after the first are defaults.
    """
    first = next(iter(inputs))
    kinds = {value.dtype for value in network.parameters()}
    precision = "float16" if torch.float16 in kinds else "float32"
    metadata = {**_metadata(trained, first), "precision": precision, **about}
    program = traced(network, inputs, {first})
    content, run = FORMATS[path.suffix](program, inputs, len(trained.classes), metadata)
    difference = _compare(run, cases, path)
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
    shapes = {name: _shape(value, free=name == first) for name, value in inputs.items()}
    return Exported(path, metadata["form"], shapes, difference, metadata)


def _metadata(trained: Trained, first: str) -> dict[str, str]:
    """What a file says of itself."""
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


def _describe(
    model: Any, inputs: Mapping[str, Tensor], classes: int, metadata: Mapping[str, str]
) -> None:
    """Free batches are called `n`, all inputs but the first have a default, so that whoever leaves
    them out gets the model as it is; and the metadata."""
    (numpy_helper,) = require("onnx.numpy_helper", purpose="to export to ONNX")
    first, *others = inputs
    for value in (*model.graph.input, *model.graph.output):
        if value.name in (first, OUTPUT):
            value.type.tensor_type.shape.dim[0].dim_param = "n"
        if value.name == OUTPUT:
            value.type.tensor_type.shape.dim[1].dim_value = classes
    for name in others:
        model.graph.initializer.append(numpy_helper.from_array(inputs[name].numpy(), name))
    for key, text in metadata.items():
        model.metadata_props.add(key=key, value=text)


def _load_program(content: bytes, names: Sequence[str]) -> Run:
    module = torch.export.load(BytesIO(content)).module()

    @torch.no_grad()
    def run(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        probabilities: Tensor = module(*(torch.from_numpy(inputs[name]) for name in names))
        return probabilities.numpy()

    return run


def _compare(run: Run, cases: Sequence[_Case], path: Path) -> float:
    """The largest difference to PyTorch; one beyond the tolerance is refused."""
    largest = 0.0
    for case in cases:
        probabilities, difference = run(case.inputs), np.inf
        if probabilities.shape == case.expected.shape and np.isfinite(probabilities).all():
            difference = float(np.abs(probabilities - case.expected).max())
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
