"""THE table of recipes: what it takes to make each of the paper's tables and figures again.

A recipe is data: its parts are sweeps or ablations of the usual kind, with the paper's settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from acclimate.build.long_tail import LT_IMAGENET, LongTailSettings
from acclimate.core.errors import unknown
from acclimate.paper.ablations.table import find_ablation

SMALL_SCALE = ("vlcs", "pacs", "office-home", "domainnet", "terra-incognita")
BASELINES = ("erm", "irm", "group-dro", "mixup", "mldg", "coral", "mmd", "cdann")
ADAPTIVE = ("da-erm", "da-mmd", "da-coral")
LARGE_SCALE = ("erm", "coral", "mmd", "da-erm")
# The paper's ERM is DomainBed's, whose head is linear.
SETTINGS: Mapping[str, Any] = {"model.head": "linear"}
# Under --small: a run takes about a second of one core. Whatever ablations of the embedded digits
# have of their own is said here, so that a model is the same one in every table.
SMALL: Mapping[str, Any] = {
    **SETTINGS,
    "model.width": 64,
    "model.hidden": 64,
    "embedding.dim": 64,
    "embedding.steps": 60,
    "embedding.domains_per_step": 4,
    "embedding.per_domain": 16,
    "train.steps": 60,
    "train.domains_per_step": 0,
    "train.per_domain": 8,
    "train.evaluate_every": 30,
    "train.optimiser.schedule": "constant",
    "adapt.points": 50,
}
_SMALL_TAIL = LongTailSettings(
    domains=16, heads=2, per_class=20, val_per_class=10, test_per_class=10, val_domains=3,
    test_domains=5, pools="splits",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RecipePart:
    """Runs under one preset, in a folder of their own: a sweep, or an ablation where it names one.
    Without algorithms the data are only looked at."""

    name: str  # of its folder
    data: tuple[str, ...]  # rows of DATA_SETS; an ablation takes one
    preset: str = ""
    algorithms: tuple[str, ...] = ()
    rule: str = ""
    draws: int = 1
    trials: int = 1
    ablation: str = ""
    values: tuple[str, ...] = ()
    long_tail: LongTailSettings | None = None  # how the data, a pool, are sampled first
    settings: Mapping[str, Any] = field(default_factory=lambda: SETTINGS)
    small: Mapping[str, Any] = field(default_factory=dict)  # fields of --small, over these

    def made_small(self) -> "RecipePart":
        """The same on stand-ins for the data, without what takes hours."""
        settings = SMALL
        if self.ablation:  # what it varies it sets itself
            varied = find_ablation(self.ablation).settings(self.values[-1])
            settings = {key: value for key, value in settings.items() if key not in varied}
        defaults = {"preset": "", "settings": settings, "trials": 1}
        return replace(self, **{**defaults, **self.small})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    paper: str  # what the paper calls it
    about: str
    parts: tuple[RecipePart, ...]
    published: str = ""  # the table of `results.published` that stands beside ours
    figures: tuple[str, ...] = ()  # what is drawn: of the runs, or of the data


def _large_scale(name: str, **fields: Any) -> RecipePart:
    return RecipePart(name=name, data=(name,), preset=name, **fields)


def _curves(name: str, ablation: str, values: tuple[str, ...], few: tuple[str, ...]) -> RecipePart:
    """Fig. 4B-D: LT-ImageNet with one of its numbers varied, all four algorithms."""
    most = int(values[-1]) if ablation != "tail" else LT_IMAGENET.domains
    return RecipePart(
        name=name,
        data=("imagenet-5k",),
        preset="lt-imagenet",
        algorithms=LARGE_SCALE,
        trials=3,
        ablation=ablation,
        values=values,
        long_tail=replace(LT_IMAGENET, domains=most),
        small={"long_tail": _SMALL_TAIL, "values": few},
    )


_DOMAINS = ("10", "25", "50", "100", "150")  # the figure's axis is not printed as numbers

RECIPES: Mapping[str, Recipe] = {
    "table-1": Recipe(
        paper="Table 1",
        about="11 algorithms on DomainBed's five image benchmarks, leave-one-domain-out, 8 trials",
        parts=(
            RecipePart(
                name="small-scale",
                data=SMALL_SCALE,
                preset="small-scale",
                algorithms=(*BASELINES, *ADAPTIVE),
                rule="leave-one-out",
                draws=20,  # as many as DomainBed draws
                trials=8,
                settings={},
                small={"data": ("pacs",), "draws": 2},
            ),
        ),
        published="1",
    ),
    "table-2": Recipe(
        paper="Table 2",
        about="ERM, CORAL, MMD and DA-ERM at large scale: training and unseen domains, top-1 and 5",
        parts=(
            _large_scale("lt-imagenet", algorithms=LARGE_SCALE),
            _large_scale("geo-yfcc", algorithms=LARGE_SCALE),
        ),
        published="2",
    ),
    "table-4": Recipe(
        paper="Table 4",
        about="how the domain embedding is learned: none, random, mean, softmax, prototype",
        parts=tuple(
            _large_scale(
                name,
                algorithms=("erm", "da-erm"),
                ablation="embeddings",
                values=("none", "mean", "softmax", "prototype"),
            )
            for name in ("lt-imagenet", "geo-yfcc")
        ),
        published="4",
    ),
    "table-points": Recipe(
        paper="Appendix, table on points",
        about="images per prototype, from 50 to 2000",
        parts=(
            _large_scale(
                "lt-imagenet",
                algorithms=("da-erm",),
                ablation="points",
                values=("100", "250", "500"),
                small={"values": ("5", "50")},
            ),
            _large_scale(
                "geo-yfcc",
                algorithms=("da-erm",),
                ablation="points",
                values=("50", "100", "250", "500", "1000", "2000"),
                small={"values": ("5", "50")},
            ),
        ),
        published="points",
    ),
    "table-n-t": Recipe(
        paper="Section 5.3, N_t",
        about="domains sampled in a round of prototypical training, from 3 to 8",
        parts=(
            _large_scale(
                "lt-imagenet",
                algorithms=("da-erm",),
                trials=3,
                ablation="domains-per-step",
                values=("3", "4", "5", "6", "7", "8"),
                small={"values": ("3", "8")},
            ),
        ),
        figures=("ablation",),
    ),
    "figure-2a": Recipe(
        paper="Figure 2A",
        about="label distributions of the most shifted countries, over the USA's if there is one",
        parts=(RecipePart(name="geo-yfcc", data=("geo-yfcc",)),),
        figures=("labels",),
    ),
    "figure-2b": Recipe(
        paper="Figure 2B",
        about="sample images of three classes in several countries",
        parts=(RecipePart(name="geo-yfcc", data=("geo-yfcc",)),),
        figures=("samples",),
    ),
    "figure-4a": Recipe(
        paper="Figure 4A",
        about="map of the countries' embeddings by t-SNE, coloured by continent",
        parts=(_large_scale("geo-yfcc", algorithms=("da-erm",)),),
        figures=("map",),
    ),
    "figure-4b": Recipe(
        paper="Figure 4B",
        about="more training domains, as many images of each",
        parts=(_curves("domains", "domains", _DOMAINS, ("4", "8", "16")),),
        figures=("ablation",),
    ),
    "figure-4c": Recipe(
        paper="Figure 4C",
        about="more training domains, as many images in all: N·A = "
        f"{int(_DOMAINS[0]) * LT_IMAGENET.per_class:,} (LT-ImageNet itself has "
        f"{LT_IMAGENET.domains * LT_IMAGENET.per_class:,})",
        parts=(_curves("domains-constant", "domains-constant", _DOMAINS, ("4", "8", "16")),),
        figures=("ablation",),
    ),
    "figure-4d": Recipe(
        paper="Figure 4D",
        about="the tail index f of LT-ImageNet",
        parts=(_curves("tail", "tail", ("0.02", "0.05", "0.1", "0.2", "0.5"), ("0.05", "0.5")),),
        figures=("ablation",),
    ),
}


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown(f"there is no recipe '{name}'", name, RECIPES)
    return RECIPES[name]
