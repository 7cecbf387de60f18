"""Settings of splits and roles that several builders share."""

from dataclasses import dataclass

from acclimate.build.base import Limited
from acclimate.config import setting
from acclimate.core.errors import ConfigError

MOST_SHARE = 0.99  # something stays to train on
SEED = "Seed of the splits."
Split = tuple[int, int, int]  # domains to train, validate and test on


@dataclass(frozen=True, kw_only=True)
class SplitSettings(Limited):
    val_share: float = setting(
        0.2, "Share of each domain kept for validation.", at_least=0, at_most=MOST_SHARE
    )
    seed: int = setting(0, SEED)


def require_split(split: Split) -> None:
    if min(split) < 0 or split[0] < 1:
        raise ConfigError(
            f"--split is {' '.join(map(str, split))}; give the numbers of training, validation "
            "and test domains, such as 40 7 15"
        )
