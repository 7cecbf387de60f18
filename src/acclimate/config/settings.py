"""Every setting of a run as frozen dataclasses, to and from TOML, JSON and `--set key=value`.

Each field says its default, its limits, what it is for and, where sweeps draw it, its search range.
Unknown keys are refused with the nearest valid one.
"""

import dataclasses
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from acclimate.core.errors import ConfigError, unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Search:
    """Where a sweep draws a field: `low`..`high` on a scale, or one of `options`."""

    scale: Literal["log10", "log2", "uniform", "choice"]
    low: float = 0.0
    high: float = 0.0
    options: tuple[Any, ...] = ()


def setting(
    default: T,
    about: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    search: Search | None = None,
) -> T:
    """A dataclass field with its limits, purpose and search range beside its default."""
    metadata = {"about": about, "at_least": at_least, "at_most": at_most, "search": search}
    return field(default=default, metadata=metadata)


def log10(low: float, high: float) -> Search:
    return Search("log10", low, high)


def log2(low: float, high: float) -> Search:
    return Search("log2", low, high)


def choice(*options: Any) -> Search:
    return Search("choice", options=options)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    image_size: int = setting(
        0, "side that images are resized to; 0: the weights' own, or the images' if 64 px or less",
        at_least=0, at_most=4096,
    )  # fmt: skip
    augment: Literal["auto", "domainbed", "none"] = setting(
        "auto", "training augmentation; auto: none at 64 px or less, DomainBed's recipe above"
    )
    max_unreadable: float = setting(
        0.05, "share of unreadable images above which the run stops", at_least=0, at_most=1
    )
    max_pixels: int = setting(100_000_000, "images with more pixels are refused", at_least=1)
    cache_gib: float = setting(
        4.0, "decoded images are kept in memory when all fit in this many GiB", at_least=0
    )
    workers: int = setting(0, "decoding threads; 0: one per core", at_least=0)
    unseen_classes: Literal["refuse", "drop"] = setting(
        "refuse", "rows of an unseen domain whose class no training domain has"
    )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    backbone: str = setting(
        "auto", "auto: mlp for features, small-cnn at 64 px or less, efficientnet-lite0 above"
    )
    pretrained: bool = setting(True, "start from pretrained weights where the backbone has them")
    weights: str = setting("", "a local weights file (safetensors or a torch state dict)")
    head: Literal["linear", "mlp"] = setting(
        "linear", "head of a plain predictor: linear as in DomainBed, mlp to match DA capacity"
    )
    condition: Literal["concat", "film", "bias"] = setting(
        "concat", "how μ enters an adaptive predictor; concat is the paper's"
    )
    width: int = setting(1024, "output of the layer after the backbone", at_least=1)
    hidden: int = setting(1024, "hidden layer of the MLP", at_least=1)
    dropout: float = setting(
        0.0, "dropout before the last layer", at_least=0, at_most=0.99, search=choice(0.0, 0.1, 0.5)
    )
    freeze_batch_norm: Literal["no", "statistics", "all"] = setting(
        "no", "keep batch-norm statistics (as DomainBed does), or its scales and shifts as well"
    )


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    name: Literal["adam", "sgd"] = setting("adam", "optimiser")
    lr: float | None = setting(
        None, "learning rate; unset: 1e-3 from scratch, 5e-5 on pretrained weights",
        at_least=0, search=log10(-5, -3.5),
    )  # fmt: skip
    weight_decay: float = setting(0.0, "weight decay", at_least=0, search=log10(-6, -2))
    momentum: float = setting(0.9, "momentum of sgd", at_least=0, at_most=1)
    beta1: float = setting(0.9, "first moment's decay of adam", at_least=0, at_most=1)
    schedule: Literal["constant", "cosine"] = setting("constant", "learning rate over the run")
    warmup: int = setting(0, "steps over which the learning rate rises from 0", at_least=0)
    clip: float = setting(0.0, "largest gradient norm; 0: not clipped", at_least=0)
    accumulate: int = setting(
        1, "parts a batch is worked off in, to save memory; penalties are then per part", at_least=1
    )


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    name: str = setting("prototype", "how Φ is learned: see `acclimate list embeddings`")
    dim: int = setting(1024, "dimensions of μ (d_D)", at_least=1)
    steps: int = setting(
        0, "iterations of prototype training; 0: 50 passes over the data, from 200 to 1000",
        at_least=0,
    )  # fmt: skip
    domains_per_step: int = setting(
        4, "domains in a round (N_t), at most the training domains", at_least=2
    )
    per_domain: int = setting(32, "images of each domain in a round", at_least=2)
    support: float = setting(0.5, "share of them that makes the prototype", at_least=0, at_most=1)
    mixup: Literal["auto", "on", "off"] = setting(
        "auto", "synthetic domains by mixing two; auto: on below 10 training domains"
    )
    points: int = setting(1000, "training images of a domain in its μ (N_p); 0: all", at_least=0)
    standardise: bool = setting(True, "centre μ on the training domains and divide by one spread")
    optimiser: OptimiserConfig = field(default_factory=lambda: OptimiserConfig(weight_decay=1e-5))


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    kind: Literal["none", "ema", "window"] = setting(
        "none", "average of the weights along the way: exponential, or dense over the last steps"
    )
    decay: float = setting(0.999, "decay of the exponential average", at_least=0, at_most=1)
    start: float = setting(
        0.5, "share of the steps after which the dense average begins", at_least=0, at_most=1
    )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = setting(
        0, "optimiser steps; 0: 50 passes over the data, from 300 to 5000", at_least=0
    )
    epochs: float = setting(
        0.0, "passes over the training rows; above 0 it replaces steps", at_least=0
    )
    per_domain: int = setting(
        32, "images of each domain in a batch", at_least=1, search=log2(3, 5.5)
    )
    domains_per_step: int = setting(0, "domains in a batch; 0: all, at most 64", at_least=0)
    evaluate_every: int = setting(300, "steps between validations; also at the end", at_least=1)
    checkpoint_every: int = setting(100, "steps between checkpoints", at_least=1)
    keep: Literal["best", "last"] = setting(
        "best", "weights kept: best on validation domains (or validation splits), or last"
    )
    precision: Literal["auto", "fp32", "bf16"] = setting(
        "auto", "auto: bf16 where the device does it natively, fp32 elsewhere"
    )
    average: AverageConfig = field(default_factory=AverageConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)


@dataclass(frozen=True, kw_only=True)
class AdaptConfig:
    points: int = setting(200, "unlabelled images of an unseen domain that make its μ", at_least=1)
    source: Literal["held-out", "test"] = setting(
        "held-out", "held-out: they are not scored; test: taken from the scored images"
    )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    algorithm: str = setting("da-erm", "see `acclimate list algorithms`")
    seed: int = setting(0, "seed of everything random", at_least=0)
    test_domains: tuple[str, ...] = setting((), "domains never trained on, scored at the end")
    val_domains: tuple[str, ...] = setting((), "domains never trained on, used to choose weights")
    hparams: dict[str, Any] = field(
        default_factory=dict, metadata={"about": "the algorithm's own settings"}
    )
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    adapt: AdaptConfig = field(default_factory=AdaptConfig)


def as_dict(config: Any) -> dict[str, Any]:
    """Plain nested values, as JSON and TOML hold them."""
    return cast(dict[str, Any], json.loads(json.dumps(dataclasses.asdict(config))))


def from_dict(cls: type[T], values: Mapping[str, Any], *, where: str, prefix: str = "") -> T:
    """Build `cls` from nested values; every unknown key, wrong type or limit is an error."""
    hints = get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cast(Any, cls))}
    checked: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if not fields:
            raise ConfigError(f"{where}: there is no setting '{name}', or any other of its kind")
        if key not in fields:
            raise unknown(f"{where}: there is no setting '{name}'", key, fields, prefix=prefix)
        hint = hints[key]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: '{name}' holds settings of its own, not {value!r}")
            checked[key] = from_dict(hint, value, where=where, prefix=f"{name}.")  # type: ignore[arg-type]
        else:
            checked[key] = _check(value, hint, fields[key].metadata, name, where)
    return cls(**checked)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with nested `changes` laid over it."""
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        nested = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = merged(below, value) if nested else value  # type: ignore[arg-type]
    return result


def nested(assignments: Mapping[str, Any]) -> dict[str, Any]:
    """{"train.steps": 5} -> {"train": {"steps": 5}}"""
    result: dict[str, Any] = {}
    for key, value in assignments.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        result = merged(result, value)
    return result


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The inverse of `nested`: {"train": {"steps": 5}} -> {"train.steps": 5}"""
    result: dict[str, Any] = {}
    for key, value in values.items():
        below = isinstance(value, Mapping)
        result |= flat(value, f"{prefix}{key}.") if below else {f"{prefix}{key}": value}
    return result


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`["train.steps=5", "model.backbone=small-cnn"]` -> nested values."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"--set {assignment}: write it as key=value, e.g. --set train.steps=500"
            )
        values[key.strip()] = _literal(text.strip())
    return nested(values)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such settings file") from None
    except OSError as error:
        reason = error.strerror
        raise ConfigError(f"{path}: cannot be read as a settings file ({reason})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML ({error})") from None


def _literal(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return (
            text  # bare words are strings, so that `--set model.backbone=resnet50` needs no quotes
        )


def _check(value: Any, hint: Any, limits: Mapping[str, Any], name: str, where: str) -> Any:
    value = _typed(value, hint, name, where)
    if isinstance(value, int | float):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where}: '{name}' must be a finite number, not {value!r}")
        low, high = limits.get("at_least"), limits.get("at_most")
        if (low is not None and value < low) or (high is not None and value > high):
            allowed = f"at least {low:g}" if high is None else f"from {low:g} to {high:g}"
            raise ConfigError(f"{where}: '{name}' must be {allowed}, not {value!r}")
    return value


def _typed(value: Any, hint: Any, name: str, where: str) -> Any:
    """`value` as the annotated type; integers pass as floats, nothing else is converted."""
    origin = get_origin(hint)
    if origin is Literal:
        if value not in get_args(hint):
            allowed = ", ".join(map(str, get_args(hint)))
            raise ConfigError(f"{where}: '{name}' must be one of {allowed}, not {value!r}")
        return value
    if origin in (Union, UnionType):
        if value is None:
            return None
        inner = next(arg for arg in get_args(hint) if arg is not type(None))
        return _typed(value, inner, name, where)
    if origin is tuple:
        items = [value] if isinstance(value, str) else value
        if isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
            return tuple(items)
        raise ConfigError(f"{where}: '{name}' must be a list of names, not {value!r}")
    if origin is dict:
        if isinstance(value, Mapping):
            return dict(value)
        raise ConfigError(f"{where}: '{name}' must be a table of settings, not {value!r}")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    kind = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[hint]
    raise ConfigError(f"{where}: '{name}' must be {kind}, not {value!r}")
