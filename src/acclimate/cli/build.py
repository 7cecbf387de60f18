"""`build`: a command for each row of the table of builders, with an option for each field."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from acclimate.cli import app, paper
from acclimate.cli.options import Json, parameter, with_parameters
from acclimate.cli.output import progress_bar, say, say_json, say_table, stoppable

if TYPE_CHECKING:  # builders import pyarrow, and no other command waits for them
    from acclimate.build import Built, Row


Croissant = Annotated[bool, typer.Option("--croissant", help="Write OUT.croissant.json, too.")]


class _Builders(TyperGroup):
    """Looks into the table when it is asked, so that no other command waits for builders."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(rows())

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        return command(cmd_name) if cmd_name in rows() else None


app.add_typer(
    typer.Typer(cls=_Builders, rich_markup_mode=None, callback=lambda: None),
    name="build",
    help="Make a manifest, the one table that everything reads.",
    no_args_is_help=True,
)


def rows() -> "dict[str, Row]":
    """Every builder: the product's and the paper's."""
    from acclimate.build import BUILDERS, Row

    return BUILDERS | {name: Row(*row) for name, row in paper.BUILDERS.items()}


def command(name: str) -> TyperCommand:
    """The command of a builder: Typer makes it of a function with a parameter for each option."""
    from acclimate.build import builder
    from acclimate.build.croissant import datasheet
    from acclimate.core.files import write_json
    from acclimate.records.folder import check_out

    cls = builder(name, rows())

    def build(*, json: bool, croissant: bool, **options: Any) -> None:
        request = _make_builder(cls, options)
        if (out := options["out"]) is not None:
            given = (one for value in options.values() for one in _listed(value))
            check_out(out, "manifest", (one for one in given if one is not out))
            sheet = out.expanduser().with_suffix(".croissant.json")
            if croissant:
                check_out(sheet, "data sheet")
        stop = stoppable(request.when_stopped()) if cls.resumes else nullcontext()
        with stop, progress_bar() as watch:
            built = request.build(watch)
        if croissant and built.out is not None:
            write_json(sheet, datasheet(built.manifest, built.out.expanduser()))
            built = replace(built, files=[*built.files, ("data sheet", sheet)])
        if json:
            say_json(built.as_dict())
        else:
            _show(built)
        if built.problem is not None:
            raise built.problem

    flags = [_parameter(one, hint) for one, hint in _options(cls)]
    shared = [parameter("croissant", Croissant, False), parameter("json", Json, False)]
    function = with_parameters(build, [*flags, *shared])
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, help=rows()[name].about, epilog=f"Example: {cls.example}")(function)
    command = typer.main.get_command(alone)
    assert isinstance(command, TyperCommand)
    return command


def _options(cls: Any) -> Iterator[tuple[Field[Any], Any]]:
    """The fields that say their purpose, with their types; settings in settings are looked into."""
    hints = get_type_hints(cls)
    for one in fields(cls):
        if is_dataclass(hints[one.name]):
            yield from _options(hints[one.name])
        elif "about" in one.metadata:
            yield one, hints[one.name]


def _parameter(one: Field[Any], hint: Any) -> inspect.Parameter:
    meta, about = one.metadata, one.metadata["about"]
    default: Any = inspect.Parameter.empty if one.default is MISSING else one.default
    if _is_list(hint):
        hint = list[Path]
    if meta.get("argument"):
        info = typer.Argument(help=about, metavar=meta["metavar"], show_default=False)
    else:
        least = meta.get("at_least")
        limit = "" if least in (None, 0, 1) else f" [at least {least:g}]"  # 0 workers are no wish
        switch = [f"--{one.name.replace('_', '-')}"] if meta.get("flag") else []
        info = typer.Option(*switch, help=about + limit)
    return parameter(one.name, Annotated[hint, info], default)


def _is_list(hint: Any) -> bool:
    return get_origin(hint) is tuple and get_args(hint)[-1] is Ellipsis


def _make_builder(cls: Any, options: Mapping[str, Any]) -> Any:
    """The builder with the values of its options; whatever is no option keeps its default."""
    hints, values = get_type_hints(cls), {}
    for one in fields(cls):
        hint = hints[one.name]
        if is_dataclass(hint):
            values[one.name] = _make_builder(hint, options)
        elif "about" in one.metadata:
            value = options[one.name]
            values[one.name] = tuple(value or ()) if _is_list(hint) else value
    return cls(**values)


def _listed(value: Any) -> list[Path]:
    """The paths that an option gives."""
    values = value if isinstance(value, list | tuple) else [value]
    return [one for one in values if isinstance(one, Path)]


def _show(built: "Built") -> None:
    from acclimate.build.base import in_short

    for part in built.summary or [in_short(built.manifest)]:
        if isinstance(part, str):
            say(part)
        else:
            say_table(part.header, part.rows)
    for kind, path in [("manifest", built.out), *built.files]:
        if path is not None:
            say(f"{kind}: {path}")
