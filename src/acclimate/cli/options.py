"""Options that several commands share, one by one or as a group."""

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import typer

from acclimate.core.errors import ConfigError
from acclimate.sweep.settings import LaunchOptions

T = TypeVar("T")
Data = Annotated[Path, typer.Argument(help="A manifest, a table, or a domain/class/image folder.")]
Run = Annotated[Path, typer.Argument(help="A finished run folder.")]
Images = Annotated[list[Path], typer.Argument(help="Files or folders, searched recursively.")]
State = Annotated[Path | None, typer.Option(help="The domain's state, from `acclimate adapt`.")]
MinImages = Annotated[
    int | None, typer.Option(help="Leave out domains with fewer images, by name.")
]
Json = Annotated[bool, typer.Option("--json", help="Print a machine-readable result on stdout.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
MethodSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A method's setting: adapt.tent.steps=3."),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try failed jobs again.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the runs and the time they take; write nothing.")
]


def names(given: list[str] | None) -> tuple[str, ...]:
    """What an option lists: repeated, or joined by commas."""
    return tuple(name.strip() for part in given or [] for name in part.split(",") if name.strip())


def assignments(given: list[str] | None, flag: str, example: str) -> dict[str, str]:
    """["key=value"] -> {"key": "value"}; what is written otherwise is refused."""
    values = {}
    for assignment in given or []:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{flag} {assignment}: write it as key=value, e.g. {flag} {example}")
        values[key.strip()] = text.strip()
    return values


def grouped(**groups: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command: in place of each parameter named here, the command line has the options
    of that function, and the command gets what the function returns."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        options = {name: inspect.signature(make).parameters for name, make in groups.items()}

        @wraps(command)
        def with_groups(**given: Any) -> None:
            made = {
                name: groups[name](**{option: given.pop(option) for option in options[name]})
                for name in groups
            }
            command(**given, **made)

        parameters = [
            option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, own in inspect.signature(command).parameters.items()
            for option in (options[name].values() if name in groups else [own])
        ]
        return with_parameters(with_groups, parameters)

    return decorate


def parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """What Typer makes an option or argument of, by its annotation."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def with_parameters(
    function: Callable[..., T], parameters: Sequence[inspect.Parameter]
) -> Callable[..., T]:
    """The function, which takes any keywords, with the parameters that Typer is to see."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    return function


def flags_of(settings: type, *, without: Collection[str] = ()) -> list[inspect.Parameter]:
    """A flag for each field of a dataclass; None stands for one that is not given."""
    hints, flags = get_type_hints(settings), []
    for one in fields(settings):
        if one.name in without:
            continue
        kind, about = get_origin(hints[one.name]), one.metadata["about"]
        hint, names, metavar = hints[one.name] | None, [], None
        if kind in (tuple, dict):
            hint = list[str] | None
        if kind is tuple:
            about += "; repeat for more" if one.name == "test_domains" else "; commas or repeat"
        if kind is dict:
            names, metavar = ["--set"] if one.name == "settings" else [], "KEY=VALUE"
        info = typer.Option(*names, metavar=metavar, help=about[0].upper() + about[1:])
        flags.append(parameter(one.name, Annotated[hint, info]))
    return flags


def _launch_options(**given: Any) -> LaunchOptions:
    """Where jobs run. A mistake shows now, before any data are read."""
    from acclimate.config import flat, parse_assignments
    from acclimate.sweep.launchers import chosen_launcher

    assignments(given["slurm"], "--slurm", "partition=gpu")
    given["slurm"] = flat(parse_assignments(given["slurm"] or []))
    options = LaunchOptions(**{name: value for name, value in given.items() if value is not None})
    chosen_launcher(options)
    return options


launch_options = with_parameters(_launch_options, flags_of(LaunchOptions))
