"""Every setting of a run as frozen dataclasses, and the presets of `presets.toml`.

Each field says its default, its limits, what it is for and, where sweeps draw it, its search range.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from acclimate.config.values import (
    COMPONENTS,
    Search,
    flat,
    from_dict,
    layered,
    log2,
    log10,
    nested,
    parse_range,
    read_toml,
    setting,
)
from acclimate.core.errors import require_known

_ADAPTIVE = "da-"
OVER_MU = ", over a predictor that also sees the domain's embedding"  # what such a name adds
# They learn an embedding of domains with their predictor, which sees it under their own name.
_OWN_EMBEDDING = frozenset({"arm", "mtl"})
_SPELLINGS = {
    "group-dro": "GroupDRO",
    "mixup": "Mixup",
    "cdann": "C-DANN",
    "vrex": "V-REx",
    "selfreg": "SelfReg",
    "sagnet": "SagNet",
    "causirl-coral": "CausIRL-CORAL",
    "causirl-mmd": "CausIRL-MMD",
    "fish": "Fish",
    "fishr": "Fishr",
}


@dataclass(frozen=True)
class AlgorithmName:
    """`str` of it is the whole name. Whether there is such an algorithm, the table knows."""

    base: str
    over_mu: bool = False  # the base's loss, over a predictor that sees an embedding learned before

    @classmethod
    def of(cls, name: str) -> "AlgorithmName":
        return cls(name.removeprefix(_ADAPTIVE), name.startswith(_ADAPTIVE))

    def __str__(self) -> str:
        return f"{_ADAPTIVE}{self.base}" if self.over_mu else self.base

    @property
    def adaptive(self) -> bool:
        """Whether its predictor sees an embedding of domains."""
        return self.over_mu or self.base in _OWN_EMBEDDING

    @property
    def adaptive_version(self) -> str | None:
        """The name of a plain algorithm that adapts; an adaptive one has no other."""
        return None if self.adaptive else f"{_ADAPTIVE}{self.base}"

    @property
    def usual_method(self) -> str:
        """How its models are meant to be used on a new domain: adapted where they can be."""
        return "embedding" if self.adaptive else "none"

    @property
    def label(self) -> str:
        """As papers write it: DA-ERM, C-DANN."""
        spelled = _SPELLINGS.get(self.base, self.base.upper() if self.base.islower() else self.base)
        return f"{_ADAPTIVE.upper()}{spelled}" if self.over_mu else spelled


WIDEST = 65536  # of a layer: a square one then takes 16 GiB


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
    min_images: int = setting(0, "domains with fewer images are left out, by name", at_least=0)
    keep_shared: bool = setting(
        False, "score rows whose pictures (or groups) were trained on, as benchmarks do"
    )
    max_pixels: int = setting(100_000_000, "images with more pixels are refused", at_least=1)
    cache_gib: float = setting(
        4.0, "GiB of images held on a GPU or in memory; frozen features must fit", at_least=0
    )
    pack_gib: float = setting(
        32.0, "GiB of decoded images cached on disk, for all runs; 0: none", at_least=0
    )
    workers: int = setting(
        0, "decoding threads or, beside a GPU, processes; 0: by cores", at_least=0, at_most=1024
    )
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
    class_vectors: str = setting(
        "", "a file of class vectors (text embeddings): one more head for rehearsal to choose"
    )
    freeze: Literal["auto", "none", "backbone"] = setting(
        "auto",
        "backbone: frozen; its features are extracted once and the rest is trained on them; "
        "auto: backbone on a CPU with pretrained weights and images above 64 px, else none",
    )
    head: Literal["linear", "mlp"] = setting(
        "mlp", "head of a plain predictor: mlp, the layers of an adaptive one; linear, DomainBed's"
    )
    condition: Literal["concat", "film", "bias", "low-rank"] = setting(
        "concat", "how μ enters an adaptive predictor; concat is the paper's"
    )
    width: int = setting(1024, "output of the layer after the backbone", at_least=1, at_most=WIDEST)
    hidden: int = setting(1024, "hidden layer of the MLP", at_least=1, at_most=WIDEST)
    dropout: float = setting(0.0, "dropout before the last layer", at_least=0, at_most=0.99)
    freeze_batch_norm: Literal["no", "statistics", "all"] = setting(
        "no", "freeze batch-norm statistics (as DomainBed does), or all of batch norm"
    )


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    name: Literal["adam", "adamw", "sgd"] = setting("adam", "optimiser")
    lr: float | None = setting(
        None,
        "learning rate; unset: 1e-3 from scratch, 1e-4 on frozen features, 5e-5 if pretrained",
        at_least=0,
        search=log10(-5, -3.5),
    )
    weight_decay: float = setting(0.0, "weight decay", at_least=0, search=log10(-6, -2))
    momentum: float = setting(0.9, "momentum of sgd", at_least=0, at_most=0.9999)
    beta1: float = setting(
        0.9, "first moment's decay of adam and adamw", at_least=0, at_most=0.9999
    )
    schedule: Literal["constant", "cosine"] = setting("constant", "learning rate over the run")
    warmup: int = setting(0, "steps over which the learning rate rises from 0", at_least=0)
    layer_decay: float = setting(
        1.0, "factor of the learning rate from a layer of a fine-tuned backbone to the one below",
        at_least=0.01, at_most=1,
    )  # fmt: skip
    clip: float = setting(0.0, "largest gradient norm; 0: not clipped", at_least=0)


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """What Step A offers to every embedding; each says itself what it has no use for."""

    name: str = setting("prototype", "how Φ is learned: see `acclimate list embeddings`")
    dim: int = setting(1024, "dimensions of μ (d_D)", at_least=1, at_most=WIDEST)
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
    components: dict[str, Any] = field(
        default_factory=dict,
        metadata={"about": "what one embedding has alone, by its name", COMPONENTS: True},
    )


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    kind: Literal["none", "ema", "window", "swad"] = setting(
        "none", "mean of the weights: exponential, over the last steps, or over SWAD's window"
    )
    decay: float = setting(0.999, "decay of the exponential average", at_least=0, at_most=1)
    start: float = setting(
        0.5, "share of the steps after which the dense average begins", at_least=0, at_most=1
    )
    patience: int = setting(
        3, "swad: validations over which the loss must not fall for the window to begin (N_s)",
        at_least=1,
    )  # fmt: skip
    tolerance: int = setting(
        6, "swad: validations in a row above the limit that end the window (N_e)", at_least=1
    )
    ratio: float = setting(
        1.3, "swad: the limit, as a multiple of the mean loss at the window's beginning (r)",
        at_least=1,
    )  # fmt: skip


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
        "best", "weights to save: best on validation domains (or validation splits), or last"
    )
    metric: str = setting(
        "top-1", "what steps, draws and tables go by: see `acclimate list metrics`"
    )
    precision: Literal["auto", "fp32", "bf16"] = setting(
        "auto", "auto: bf16 where the device does it natively, fp32 elsewhere"
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto",
        "faster steps on one GPU; auto: as CUDA graphs from 100 steps on, through torch.compile "
        "from 10000; on: compiled; off: neither",
    )
    micro_batches: int = setting(
        0, "micro-batches of a batch, to save memory; the loss is that of the whole; 0: as needed",
        at_least=0,
    )  # fmt: skip
    prior_aware: bool = setting(
        False, "tell training each domain's label frequencies, so that it learns what they leave"
    )
    average: AverageConfig = field(default_factory=AverageConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)


@dataclass(frozen=True, kw_only=True)
class SiteConfig:
    """How heads are fitted on features, in rehearsal and for the model itself."""

    steps: int = setting(200, "optimiser steps of each head", at_least=1)
    batch: int = setting(
        512, "rows in a step at most; few rows are passed over 30 times and no more", at_least=2
    )
    lr: float = setting(3e-3, "learning rate, falling to 0 along a cosine", at_least=0)
    weight_decay: float = setting(1e-2, "weight decay (of AdamW)", at_least=0)
    width: int = setting(256, "layers of the conditioned head", at_least=1, at_most=WIDEST)
    dropout: float = setting(0.5, "dropout before its last layer", at_least=0, at_most=0.99)
    dim: int = setting(64, "dimensions of μ", at_least=1, at_most=WIDEST)


@dataclass(frozen=True, kw_only=True)
class AdaptConfig:
    points: int = setting(200, "unlabelled images of an unseen domain that make its μ", at_least=1)
    source: Literal["held-out", "test"] = setting(
        "held-out", "held-out: they are not scored; test: taken from the scored images"
    )
    score: Literal["all", "test"] = setting(
        "all",
        "rows of an unseen domain that are scored; test: its test split, if it has one, and images "
        "to adapt come from its other splits",
    )
    rehearse: bool = setting(
        False, "at the end, hold out training domains in turn, and choose how to adapt by that"
    )
    rehearse_backbone: tuple[str, ...] = setting(
        (),
        "methods to rehearse beside those that leave the backbone alone (bn, tent); each takes as "
        "long as passing the training domains' images through the backbone once more",
    )
    methods: tuple[str, ...] = setting(
        (), "methods that unseen domains are scored by as well, when training ends"
    )
    depth: Literal["auto", "heads", "whole"] = setting(
        "auto",
        "of rehearsal. heads: refitted without the held-out domains, on features of the "
        "finished backbone; whole: the model is retrained for each fold; auto: whole for a "
        "backbone that is fine-tuned on a GPU with 3 to 5 domains",
    )
    site: SiteConfig = field(default_factory=SiteConfig)
    components: dict[str, Any] = field(
        default_factory=dict,
        metadata={"about": "settings of the adaptation methods, by their names", COMPONENTS: True},
    )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    algorithm: str = setting("da-erm", "see `acclimate list algorithms`")
    seed: int = setting(0, "seed of everything random", at_least=0, at_most=2**63 - 1)
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


def metric_of(config: Mapping[str, Any]) -> str:
    """The metric that a run's stored settings name; the default in those from before it."""
    return str(config.get("train", {}).get("metric", TrainConfig().metric))


@dataclass(frozen=True)
class Preset:
    """A table of `presets.toml`, which says what each part is."""

    about: str
    settings: Mapping[str, Any]
    grids: Mapping[str, Search]
    fixed: Mapping[str, Sequence[str]]


def _read_presets() -> dict[str, Preset]:
    presets: dict[str, Preset] = {}
    for name, row in read_toml(Path(__file__).with_name("presets.toml")).items():
        settings = dict(presets[row["like"]].settings) if "like" in row else {}
        grids = {key: parse_range(text, key) for key, text in flat(row.get("grids", {})).items()}
        settings |= flat(row["settings"])
        presets[name] = Preset(row["about"], settings, grids, row.get("fixed", {}))
    return presets


PRESETS = _read_presets()
RECIPE = "rehearsed"  # for those who name neither a preset nor an algorithm


def preset(name: str) -> dict[str, Any]:
    """The settings of a preset, nested, ready to be merged below the user's own."""
    require_known(name, PRESETS, f"there is no preset '{name}'")
    return nested(PRESETS[name].settings)


def gather(
    name: str | None = None,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    recipe: str | None = None,
    where: str = "settings",
) -> RunConfig:
    """Defaults < preset `name` < file < flags < changes.

    `flags` are by dotted name, and one that is None or empty was not given; `changes` are nested.
    `recipe` is the preset where neither a preset nor an algorithm is named anywhere.
    `where` is what errors call the whole; those of a file name the file.
    """
    written = {} if file is None else read_toml(file)
    from_dict(RunConfig, written, where=str(file))
    flag_values = {key: value for key, value in (flags or {}).items() if value not in (None, ())}
    values = layered(written, nested(flag_values), changes or {})
    if name is None and "algorithm" not in values:
        name = recipe
    return from_dict(RunConfig, layered(preset(name) if name else {}, values), where=where)
