"""What is imported when it is first used: names that a package offers, packages of extras."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from acclimate.core.errors import ConfigError


def lazy_exports(package: str, **modules: str) -> tuple[Callable[[str], Any], list[str]]:
    """`__getattr__` and `__all__` of `package`, from the names that each of its `modules` offers.

    Nothing is imported before a name is asked for, so that `import acclimate.results` does not pay
    for what only some of its names need, such as torch. A dot in a module's path is written `__`.

        __getattr__, __all__ = lazy_exports(__name__, chain="Chain adapt_model", trust="Trust")
    """
    homes = {
        name: module.replace("__", ".")
        for module, names in modules.items()
        for name in names.split()
    }

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find, sorted(homes)


def load(place: str) -> Any:
    """What a path `module:name` names, imported now."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def require(*packages: str, purpose: str, extra: str = "onnx") -> list[Any]:
    """The packages of an extra, or one line that says how to get them."""
    try:
        return [import_module(package) for package in packages]
    except ImportError as error:
        raise ConfigError(
            f"{purpose}, the package {error.name} is needed and not installed; "
            f'pip install "acclimate[{extra}]"'
        ) from None
