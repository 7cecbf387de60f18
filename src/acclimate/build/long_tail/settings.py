"""LT(N, K, A, f): how many domains, and how many images of which classes they get."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from acclimate.build.base import flag, require_limits
from acclimate.build.synsets import ilsvrc12_synsets, is_synset, short
from acclimate.config import setting
from acclimate.core.errors import ConfigError, ManifestError

_RECORDED = 1000  # names; of longer lists a digest is enough to tell them apart


@dataclass(frozen=True, kw_only=True)
class LongTailSettings:
    """LT(N, K, A, f). The defaults are the paper's but for the classes, of which it sampled 500."""

    classes: int = 0  # sampled from those of the base; 0: all
    only: tuple[str, ...] = ()  # class names that may be sampled; none: all
    exclude: tuple[str, ...] = ()  # class names that are not sampled
    exclude_ilsvrc12: bool = flag("Leave out ILSVRC12's classes; DATA's are synsets.")
    domains: int = setting(50, "N, domains to train on.", at_least=1)
    heads: int = setting(100, "K, head classes of a domain.", at_least=1)
    per_class: int = setting(350, "A, training images of a head class.", at_least=1)
    # A tail class has round(A·f) images, and one at least unless f is 0.
    tail: float = setting(0.1, "f, a tail class has this share of A.", at_least=0, at_most=1)
    val_per_class: int = setting(50, "A of validation splits and domains.", at_least=1)
    test_per_class: int = setting(300, "A of test splits and domains.", at_least=1)
    val_domains: int = setting(10, "Unseen domains to choose by.", at_least=0)
    test_domains: int = setting(10, "Unseen domains to score on.", at_least=0)
    pools: Literal["random", "splits"] = setting(
        "random", "random: each class dealt out by the shares; splits: DATA's own."
    )
    val_share: float = 0.1
    test_share: float = 0.2
    constant_total: int = setting(
        0, "Divide A so that the total is that of this many domains; 0: no.", at_least=0
    )
    seed: int = setting(0, "Seed of classes, pools and domains.", at_least=0)

    def allowed(self, classes: Sequence[str], source: str) -> list[str]:
        """Those of `classes` that may be sampled, in their order."""
        excluded = set(self.exclude)
        if self.exclude_ilsvrc12:
            if not any(map(is_synset, classes)):
                raise ManifestError(
                    f"no class of {source} is a synset such as n01440764; leave "
                    "--exclude-ilsvrc12 away, or name the classes by their synsets"
                )
            excluded |= ilsvrc12_synsets()
        listed = set(self.only or classes)
        if listed.isdisjoint(classes):
            raise ManifestError(
                f"{source} has none of the {len(listed)} classes that --only lists; it has "
                f"{', '.join(map(short, classes[:3])) or 'none'}: check the names"
            )
        return [name for name in classes if name in listed and name not in excluded]

    def wanted(self, split: str) -> tuple[int, int]:
        """(images of a head class, images of a tail class) in a domain's `split`."""
        head: float = {"val": self.val_per_class, "test": self.test_per_class}.get(
            split, self.per_class
        )
        if split == "train" and self.constant_total:
            head = max(head * self.constant_total / self.domains, 1)
        tail = max(round(head * self.tail), 1) if self.tail else 0
        return round(head), tail

    def require_sense(self) -> None:
        if self.classes < 0:
            raise ConfigError(f"long-tail: --classes must be at least 0, not {self.classes}")
        require_limits(self, "long-tail")
        val, test = self.val_share, self.test_share
        if not (0 < val < 1 and 0 < test < 1 and val + test < 1):
            raise ConfigError(
                f"long-tail: --val-share and --test-share must be above 0 and leave something to "
                f"train on, not {val:g} and {test:g}"
            )


# The paper says nothing of the pools. In proportion to A, 700 images of a class are enough for all.
LT_IMAGENET = LongTailSettings(classes=500, val_share=50 / 700, test_share=300 / 700)


def raised_total(settings: LongTailSettings, classes: int) -> tuple[int, int] | None:
    """(training images, those that `constant_total` asks for), where rounding up to one image of
    a class makes more of them; else None."""
    if not settings.constant_total:
        return None

    def total(made: LongTailSettings) -> int:
        head, tail = made.wanted("train")
        return made.domains * (made.heads * head + (classes - made.heads) * tail)

    asked = total(replace(settings, domains=settings.constant_total, constant_total=0))
    head = settings.per_class * settings.constant_total / settings.domains
    tails = settings.tail > 0 and classes > settings.heads
    raised = head < 1 or (tails and round(head * settings.tail) < 1)
    found = total(settings)
    return (found, asked) if raised and found > asked else None


def recorded(names: Sequence[str]) -> list[str] | str:
    """What a manifest says of a list: the names, or of a long one their number and a digest."""
    if len(names) <= _RECORDED:
        return list(names)
    digest = hashlib.sha256(json.dumps(sorted(names)).encode()).hexdigest()
    return f"{len(names)} names, SHA-256 {digest}"
