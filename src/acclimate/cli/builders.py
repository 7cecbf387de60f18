"""From a builder to its command: an option for each field, and what it built, shown."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from acclimate.build import BUILDERS, Builder, Built, Row, builder
from acclimate.build.base import in_short, option
from acclimate.build.splits import Split, parse_split
from acclimate.cli import paper
from acclimate.cli.options import Json, parameter, with_parameters
from acclimate.cli.output import progress_bar, say, say_json, say_table, stoppable
from acclimate.core.errors import unknown

Plots = Annotated[bool, typer.Option(help="Plot labels and domains beside OUT.")]


def rows() -> dict[str, Row]:
    """Every builder: the product's and the paper's."""
    return BUILDERS | {name: Row(*row) for name, row in paper.BUILDERS.items()}


def command(name: str) -> TyperCommand:
    cls = builder(name, rows())
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    register = alone.command(name, help=rows()[name].about, epilog=f"Example: {cls.example}")
    register(_function(cls))
    made = typer.main.get_command(alone)
    assert isinstance(made, TyperCommand)
    return made


def _function(cls: type[Builder]) -> Callable[..., None]:
    """What Typer makes a command of: a function with a parameter for each option of the builder."""

    def build(*, json: bool, plots: bool = False, **given: Any) -> None:
        asked = _assembled(cls, given)
        stop = stoppable(asked.when_stopped()) if cls.resumes else nullcontext()
        with stop, progress_bar(quiet=not (cls.resumes or cls.takes_long)) as watch:
            built = asked.build(watch)
        if cls.plotted:
            built = _with_plots(built, _plots(built) if plots else [])
        _show(built, json=json)

    flags = [_parameter(one, hint) for one, hint in _options(cls)]
    if cls.plotted:
        flags.append(parameter("plots", Plots, True))
    return with_parameters(build, [*flags, parameter("json", Json, False)])


def _options(cls: Any) -> Iterator[tuple[Field[Any], Any]]:
    """The fields that say their purpose, with their types; settings in settings are looked into."""
    hints = get_type_hints(cls)
    for one in fields(cls):
        if is_dataclass(hints[one.name]):
            yield from _options(hints[one.name])
        elif "about" in one.metadata:
            yield one, hints[one.name]


def _parameter(one: Field[Any], hint: Any) -> inspect.Parameter:
    default: Any = inspect.Parameter.empty if one.default is MISSING else one.default
    if hint == Split:
        hint, default = str, ",".join(map(str, default))
    elif get_origin(hint) is tuple:
        hint = list[Path]
    elif get_origin(hint) is Literal:
        hint = str
    return parameter(one.name, Annotated[hint, _info(one)], default)


def _info(one: Field[Any]) -> Any:
    """What Typer is to know of a field."""
    meta = one.metadata
    if meta.get("argument"):
        return typer.Argument(help=meta["about"], metavar=meta["metavar"], show_default=False)
    if meta.get("flag"):
        return typer.Option(option(one.name), help=meta["about"])
    least = meta.get("at_least")
    limit = "" if least in (None, 0, 1) else f" [at least {least:g}]"  # nobody asks for 0 workers
    return typer.Option(help=meta["about"] + limit)


def _assembled(cls: Any, given: Mapping[str, Any]) -> Any:
    """The builder with what was given; whatever is no option keeps its default."""
    hints, values = get_type_hints(cls), {}
    for one in fields(cls):
        hint = hints[one.name]
        if is_dataclass(hint):
            values[one.name] = _assembled(hint, given)
        elif "about" in one.metadata:
            values[one.name] = _parsed(one.name, given[one.name], hint)
    return cls(**values)


def _parsed(name: str, value: Any, hint: Any) -> Any:
    if hint == Split:
        return parse_split(value)
    if get_origin(hint) is tuple:
        return tuple(value or ())
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise unknown(f"{option(name)} {value}: there is no such choice", value, get_args(hint))
    return value


def _plots(built: Built) -> list[Path]:
    from acclimate.data.inspection import inspect as inspect_manifest
    from acclimate.report.figures.inspection import write_label_plots

    assert built.out is not None
    found = inspect_manifest(built.manifest)
    return write_label_plots(found, built.manifest, built.out.with_suffix(".plots"))


def _with_plots(built: Built, paths: list[Path]) -> Built:
    facts = {**built.facts, "plots": [str(path) for path in paths]}
    return replace(built, facts=facts, files=[*built.files, *(("plot", path) for path in paths)])


def _show(built: Built, *, json: bool) -> None:
    if json:
        say_json(built.as_dict())
    else:
        for part in built.told or [in_short(built.manifest)]:
            if isinstance(part, str):
                say(part)
            else:
                say_table(part.header, part.rows)
        for what, path in [("manifest", built.out), *built.files]:
            if path is not None:
                say(f"{what}: {path}")
    if built.problem is not None:
        raise built.problem
