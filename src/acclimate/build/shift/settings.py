"""How strongly the domains of a family differ, in which of three ways, and how many there are."""

from dataclasses import dataclass
from typing import Literal

from acclimate.build.base import require_limits
from acclimate.config import setting
from acclimate.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ShiftSettings:
    label: float = setting(
        1.0, "Label shift: how many times as frequent head classes are; 1: none.", at_least=1
    )
    heads: float = setting(
        0.2, "Share of the classes that are heads, drawn per domain.", at_least=0, at_most=1
    )
    covariate: float = setting(
        0.0, "Covariate shift: strength of gain, tint and noise, about 1; 0: none.", at_least=0
    )
    conditional: float = setting(
        0.0,
        "Conditional shift: pairs of look-alike classes that swap labels, or, below 1, the share "
        "of the classes in pairs; 0: none.",
        at_least=0,
    )
    pairs: str | None = setting(None, "These pairs instead of look-alikes, as cat:dog,cup:mug.")
    domains: int = setting(60, "Domains to train on.", at_least=2)
    val: int = setting(10, "Unseen domains to choose by.", at_least=0)
    test: int = setting(20, "Unseen domains to score on.", at_least=0)
    per_domain: int = setting(1000, "Images of a domain.", at_least=2)
    classes: int = setting(0, "Classes to sample from DATA's; 0: all.", at_least=0)
    encoding: Literal["jpeg", "png"] = setting(
        "jpeg", "How changed images are stored: jpeg (quality 95), or png, which loses nothing."
    )
    seed: int = setting(0, "Seed of classes, pools, domains and images.")
    val_share: float = 0.2  # of the images, for validation splits and validation domains
    test_share: float = 0.3  # of the images, for test domains

    @property
    def swaps(self) -> bool:
        """Whether some labels depend on the latent."""
        return self.conditional > 0 or self.pairs is not None

    @property
    def repaints(self) -> bool:
        """Whether pixels change, so that images must be stored anew."""
        return self.covariate > 0 or self.swaps

    def head_count(self, classes: int) -> int:
        return max(round(self.heads * classes), 1) if self.label > 1 and self.heads > 0 else 0

    def pair_count(self, classes: int) -> int:
        """How many pairs of look-alikes, at most half as many as there are classes."""
        if self.conditional >= 1 and self.conditional != round(self.conditional):
            raise ConfigError(
                f"shift: --conditional {self.conditional:g} is no number of pairs; give a whole "
                "number, or a share of the classes below 1"
            )
        share = self.conditional < 1
        wanted = round(self.conditional * classes / 2) if share else round(self.conditional)
        if 2 * wanted > classes:
            raise ConfigError(
                f"shift: {classes} classes make at most {classes // 2} pairs, not {wanted}; "
                "lower --conditional"
            )
        return max(wanted, 1) if self.conditional else 0

    def require_sense(self) -> None:
        require_limits(self, "shift")
        if self.conditional and self.pairs is not None:
            raise ConfigError("shift: --conditional finds pairs and --pairs names them; give one")
