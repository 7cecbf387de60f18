"""`build`: a command for each row of the table of builders."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from acclimate.cli import app


class _Builders(TyperGroup):
    """Looks into the table when it is asked, so that no other command waits for builders."""

    def list_commands(self, ctx: Any) -> list[str]:
        from acclimate.cli.builders import rows

        return list(rows())

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        from acclimate.cli.builders import command

        return command(cmd_name) if cmd_name in self.list_commands(ctx) else None


app.add_typer(
    typer.Typer(cls=_Builders, rich_markup_mode=None, callback=lambda: None),
    name="build",
    help="Make a manifest, the one table that everything reads.",
    no_args_is_help=True,
)
