"""Settings of splits and roles that several builders share."""

from dataclasses import dataclass

from acclimate.config import setting
from acclimate.core.errors import ConfigError

SEED = "Seed of the splits."
Split = tuple[int, int, int]  # domains to train, validate and test on


@dataclass(frozen=True, kw_only=True)
class SplitSettings:
    val_share: float = setting(0.2, "Share of each domain kept for validation.")
    seed: int = setting(0, SEED)

    def __post_init__(self) -> None:
        require_share(self.val_share)


def require_share(val_share: float) -> None:
    if not 0 <= val_share < 1:
        raise ConfigError(f"--val-share is {val_share}; give a share of at least 0 and less than 1")


def require_split(split: Split) -> None:
    if len(split) != 3 or min(split) < 0 or split[0] < 1:
        raise _no_split(",".join(map(str, split)))


def parse_split(text: str) -> Split:
    """
    >>> parse_split("40,7,15")
    (40, 7, 15)
    """
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise _no_split(f"'{text}'")
    train, val, test = map(int, parts)
    return train, val, test


def _no_split(said: str) -> ConfigError:
    return ConfigError(
        f"--split is {said}; give the numbers of training, validation and test domains, "
        "such as 40,7,15"
    )
