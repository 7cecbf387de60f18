"""Options that several commands share, one by one or as a group made from settings."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from acclimate.config import parse_assignments, settings_of
from acclimate.config.values import Setting
from acclimate.sweep.settings import LaunchOptions

Data = Annotated[Path, typer.Argument(help="A manifest, a table, or a domain/class/image folder.")]
Run = Annotated[Path, typer.Argument(help="A finished run folder.")]
Images = Annotated[list[Path], typer.Argument(help="Files or folders, searched recursively.")]
State = Annotated[Path | None, typer.Option(help="The domain's state, from `acclimate adapt`.")]
Json = Annotated[bool, typer.Option("--json", help="Print a machine-readable result on stdout.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Page = Annotated[Path | None, typer.Option(help="Write a page with pictures (HTML).")]
MethodSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A method's setting: adapt.tent.steps=3."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(help="Show the run in tensorboard, mlflow, wandb or trackio; commas or repeat."),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try failed jobs again.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the runs and what is left of them; write nothing.")
]


def names(values: list[str] | None) -> tuple[str, ...]:
    """What an option lists: repeated, or joined by commas."""
    return tuple(name.strip() for part in values or [] for name in part.split(",") if name.strip())


class Flags:
    """An option for each setting, called by the last part of its name.

    Lists are joined by commas; `repeated` is one whose entries may hold commas themselves."""

    def __init__(self, settings: Iterable[Setting], *, repeated: str = "") -> None:
        self.rows = {one.name.rpartition(".")[2]: one for one in settings}
        self.repeated = repeated

    def parameters(self) -> list[inspect.Parameter]:
        return [self._parameter(name, row) for name, row in self.rows.items()]

    def _parameter(self, name: str, row: Setting) -> inspect.Parameter:
        kind, about = get_origin(row.kind), row.facts["about"]
        hint = list[str] if kind in (tuple, dict) else row.kind
        if kind is tuple:
            about += "; repeat for more" if name == self.repeated else "; commas or repeat"
        metavar = "KEY=VALUE" if kind is dict else None
        info = typer.Option(_flag(name), metavar=metavar, help=about[0].upper() + about[1:])
        return parameter(name, Annotated[hint | None, info])

    def read(self, options: dict[str, Any]) -> dict[str, Any]:
        """Takes its own out of the options of a command; those that were given, by the settings'
        whole names."""
        values = {}
        for name, row in self.rows.items():
            value, kind = options.pop(name), get_origin(row.kind)
            if value in (None, []):
                continue
            if kind is dict:
                value = parse_assignments(value, flag=_flag(name))
            elif kind is tuple:
                value = tuple(value) if name == self.repeated else names(value)
            values[row.name] = value
        return values


LAUNCH = Flags(settings_of(LaunchOptions()))


def grouped(**groups: Flags) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command: in place of each parameter named here, the command line has the options
    of that group, and the command gets the values that were given as one dictionary."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_groups(**options: Any) -> None:
            values = {name: group.read(options) for name, group in groups.items()}
            command(**options, **values)

        return with_parameters(
            with_groups,
            [
                option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                for name, own in inspect.signature(command).parameters.items()
                for option in (groups[name].parameters() if name in groups else [own])
            ],
        )

    return decorate


def parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """What Typer makes an option or argument of, by its annotation."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def with_parameters(
    function: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """The function, which takes any keywords, with the parameters that Typer is to see."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    return function


def _flag(name: str) -> str:
    return "--set" if name == "settings" else f"--{name.replace('_', '-')}"
