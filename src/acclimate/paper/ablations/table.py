"""THE table of ablations. A new one is a row here.

A value changes the settings of a run, or the data that it trains on. Every row has values for the
embedded digits, small enough for minutes, and a rule that finds values for other data.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from acclimate.build.digits import DigitsSettings
from acclimate.build.long_tail import LongTailSettings, build_long_tail
from acclimate.core.errors import unknown
from acclimate.data.manifest import Manifest
from acclimate.paper.ablations.subsets import first_domains, thinned

Value = float | str
NONE = "none"  # the value under which plain algorithms run
# Plain predictors get a head as large as the adaptive ones have.
SETTINGS: Mapping[str, Any] = {"model.head": "mlp"}
# For the embedded digits: about 10 s (ERM) and 17 s (DA-ERM) of one core for a run.
EMBEDDED_SETTINGS: Mapping[str, Any] = {
    "model.width": 128,
    "model.hidden": 128,
    "embedding.dim": 256,
    "embedding.steps": 200,
    "embedding.domains_per_step": 8,
    "embedding.per_domain": 32,
    "train.steps": 300,
    "train.domains_per_step": 60,
    "train.per_domain": 4,
    "train.evaluate_every": 100,
    "train.optimiser.schedule": "cosine",
    "adapt.points": 100,
}
BATCH, EMBEDDED_BATCH = 96, 240  # images, where an ablation has to fix the number
EMBEDDED_LONG_TAIL = LongTailSettings(
    domains=60, heads=2, per_class=40, val_per_class=40, test_per_class=100, val_domains=5,
    test_domains=20, pools="splits",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Base:
    """What an ablation starts from: the data, and which of their domains are trained on."""

    manifest: Manifest
    training: tuple[str, ...]
    long_tail: LongTailSettings  # for ablations that sample the data
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Ablation:
    about: str
    label: str  # of the axis
    values: Callable[[Base], Sequence[Value]]  # for data of one's own
    embedded: Sequence[Value]  # for the digits
    digits: DigitsSettings = field(
        default_factory=lambda: DigitsSettings(train_domains=60, test_images=300)
    )
    settings: Callable[[Value], Mapping[str, Any]] = lambda value: {}  # what a value changes
    # Settings that go with a value, unless others are asked for; from it and images in a batch.
    along: Callable[[Value, int], Mapping[str, Any]] = lambda value, batch: {}
    data: Callable[[Base, Value, Sequence[Value]], Manifest] | None = None
    limit: Callable[[Base], tuple[float, float]] | None = None  # least and most that data allow
    whole: bool = True  # values are whole numbers
    pool: bool = False  # the base is sampled from, and its domains do not matter
    algorithms: tuple[str, ...] = ("erm", "da-erm")


def _doubling(most: int, least: int = 2) -> list[Value]:
    """2, 4, 8, … and `most` itself."""
    steps = [least * 2**power for power in range(32) if least * 2**power < most]
    return [*steps, most]


def _first(base: Base, value: Value, values: Sequence[Value]) -> Manifest:
    return first_domains(base.manifest, base.training, int(value), base.seed)


def _first_of_the_same_total(base: Base, value: Value, values: Sequence[Value]) -> Manifest:
    fewest = min(int(one) for one in values)
    rows = min(len(base.manifest.rows(domain=d, split="train")) for d in base.training)
    subset = _first(base, value, values)
    chosen = set(base.training) & set(subset.domains)
    return thinned(subset, chosen, fewest * rows, base.seed)


def _same_batches(value: Value, batch: int) -> dict[str, Any]:
    """As many images in a batch however many domains there are."""
    slots = min(int(value), batch // 4)
    return {"train.domains_per_step": slots, "train.per_domain": batch // slots}


def _sampled(key: str) -> Callable[[Base, Value, Sequence[Value]], Manifest]:
    def build(base: Base, value: Value, values: Sequence[Value]) -> Manifest:
        changes: dict[str, Any] = {key: float(value) if key == "tail" else int(value)}
        return build_long_tail(base.manifest, replace(base.long_tail, **changes))

    return build


def _domain_limits(base: Base) -> tuple[float, float]:
    return 2, len(base.training)


def _class_limits(base: Base) -> tuple[float, float]:
    return 1, len(base.manifest.classes)


def _point_limits(base: Base) -> tuple[float, float]:
    """The most that any domain can give: training rows, or half of an unseen domain's rows."""
    rows = base.manifest.rows
    seen = (len(rows(domain=d, split="train")) for d in base.training)
    unseen = (len(rows(domain=d)) // 2 for d in base.manifest.domains if d not in base.training)
    return 1, max(*seen, 0, *unseen)


def _up_to(values: Sequence[int], limits: tuple[float, float]) -> list[Value]:
    return [value for value in values if value <= limits[1]]


def _shares(shares: Sequence[float], whole: int) -> list[Value]:
    return list(dict.fromkeys(max(1, round(share * whole)) for share in shares))


_MANY = DigitsSettings(train_domains=100, test_images=300)

ABLATIONS: dict[str, Ablation] = {
    "domains": Ablation(
        about="more training domains, as many images of each (Fig. 4B)",
        label="training domains N",
        values=lambda base: _doubling(len(base.training)),
        embedded=(6, 12, 25, 50, 100),
        digits=_MANY,
        along=_same_batches,
        data=_first,
        limit=_domain_limits,
    ),
    "domains-constant": Ablation(
        about="more training domains, as many images in all (Fig. 4C)",
        label="training domains N, N·n constant",
        values=lambda base: _doubling(len(base.training)),
        embedded=(6, 12, 25, 50, 100),
        digits=replace(_MANY, train_images=600),
        along=_same_batches,
        data=_first_of_the_same_total,
        limit=_domain_limits,
    ),
    "tail": Ablation(
        about="the share of a head class's images that a tail class has (Fig. 4D)",
        label="tail index f",
        values=lambda base: (0.02, 0.05, 0.1, 0.2, 0.5),
        embedded=(0.025, 0.05, 0.1, 0.2, 0.5),
        digits=_MANY,
        data=_sampled("tail"),
        limit=lambda base: (0, 1),
        whole=False,
        pool=True,
    ),
    "heads": Ablation(
        about="head classes of a domain in long-tailed data",
        label="head classes K",
        values=lambda base: _shares((0.05, 0.1, 0.2, 0.4, 0.8), len(base.manifest.classes)),
        embedded=(1, 2, 4, 6, 8),
        digits=_MANY,
        data=_sampled("heads"),
        limit=_class_limits,
        pool=True,
    ),
    "per-class": Ablation(
        about="images of a head class in long-tailed data",
        label="images per head class A",
        values=lambda base: _shares((0.25, 0.5, 1.0, 2.0), base.long_tail.per_class),
        embedded=(10, 20, 40, 80, 160),
        digits=_MANY,
        data=_sampled("per_class"),
        limit=lambda base: (1, float("inf")),
        pool=True,
    ),
    "embeddings": Ablation(
        about="how the domain embedding is learned (Table 4); none: plain algorithms",
        label="domain embedding",
        values=lambda base: (NONE, "mean", "softmax", "prototype", "posterior"),
        embedded=(NONE, "mean", "softmax", "prototype", "posterior"),
        settings=lambda value: {} if value == NONE else {"embedding.name": value},
    ),
    "points": Ablation(
        about="images that make a domain's embedding, in training and after (appendix)",
        label="images per embedding",
        values=lambda base: _up_to((50, 100, 250, 500, 1000, 2000), _point_limits(base)),
        embedded=(5, 10, 25, 50, 100, 150),
        settings=lambda value: {"embedding.points": int(value), "adapt.points": int(value)},
        limit=_point_limits,
    ),
    "domains-per-step": Ablation(
        about="domains in a round of Step A, N_t (Section 5.3)",
        label="domains per round N_t",
        values=lambda base: _up_to((3, 4, 5, 6, 7, 8), _domain_limits(base)),
        embedded=(3, 4, 5, 6, 7, 8),
        settings=lambda value: {"embedding.domains_per_step": int(value)},
        limit=_domain_limits,
        algorithms=("da-erm",),
    ),
}


def find_ablation(name: str) -> Ablation:
    if name not in ABLATIONS:
        raise unknown(f"there is no ablation '{name}'", name, ABLATIONS)
    return ABLATIONS[name]
