"""What torchrun says in the environment; free of torch."""

import os

from acclimate.core.errors import ConfigError


def launched(name: str, default: int) -> int:
    """A number that torchrun gives to each of its processes; `default` outside of torchrun."""
    text = os.environ.get(name, "")
    if text and not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"{name} is '{text}' in the environment, no number; unset it")
    return int(text or default)


def first_process() -> bool:
    """Whether this process speaks for all that share the work."""
    return launched("WORLD_SIZE", 1) < 2 or launched("RANK", 0) == 0
