"""Numbers of domains by role, as the builders of Geo-YFCC are asked for them."""

from acclimate.core.errors import ConfigError

Split = tuple[int, int, int]  # domains to train, validate and test on


def require_split(split: Split) -> None:
    if min(split) < 0 or split[0] < 1:
        raise ConfigError(
            f"--split is {' '.join(map(str, split))}; give the numbers of training, validation "
            "and test domains, such as 40 7 15"
        )
