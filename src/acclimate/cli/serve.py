"""`serve`."""

import math
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import Device, Flags, Json, Run, grouped
from acclimate.cli.output import say_facts
from acclimate.config import from_dict, settings_of
from acclimate.core.errors import ConfigError
from acclimate.core.exports import require
from acclimate.serve.limits import Limits

if TYPE_CHECKING:
    from socket import socket

PACKAGES = ("fastapi", "uvicorn", "python_multipart", "sqlalchemy", "prometheus_client")


@app.command(epilog="Example: acclimate serve runs/sites")
@grouped(limits=Flags(settings_of(Limits())))
def serve(
    run: Run,
    limits: dict[str, Any],
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=RUN", help="A further model; repeat for more."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine need tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = 8000,
    database: Annotated[
        str | None,
        typer.Option(help="sqlite:///FILE or postgresql://… [default: RUN.sites.sqlite]"),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Only requests with one of its tokens; see `token`.")
    ] = None,
    keep: Annotated[int, typer.Option(help="Images whose features a site keeps.")] = 500,
    allow_backbone: Annotated[
        bool,
        typer.Option(
            "--allow-backbone",
            help="Let sites use methods that change the backbone: each has passes of its own, and "
            "its pixels are stored.",
        ),
    ] = False,
    threads: Annotated[
        int | None, typer.Option(help="Cores to use. [default: all]", min=1, max=4096)
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Serve a model to many sites over HTTP: each sends images and has its own classifier.

    Logs are lines of JSON on stderr. SIGTERM or Ctrl-C ends it when all requests are answered.
    """
    require(*PACKAGES, purpose="to serve", extra="serve")
    import torch
    import uvicorn

    from acclimate.serve.app import make_app
    from acclimate.serve.gate import is_loopback, listen
    from acclimate.serve.server import Server
    from acclimate.serve.service import Service
    from acclimate.serve.telemetry import LOGGER, Telemetry, log_to
    from acclimate.serve.tokens import Tokens

    if token_file is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached by other machines; give --token-file, with tokens made "
            f"by `acclimate token`"
        )
    tokens = None if token_file is None else Tokens(token_file)
    runs = models_of(run, also or [])
    if threads is not None:
        torch.set_num_threads(threads)
    place = database or f"sqlite:///{run.with_name(f'{run.name}.sites.sqlite')}"
    telemetry, checked = Telemetry(), from_dict(Limits, limits, where="serve")
    service = Service.open(
        runs,
        place,
        device=device,
        keep=keep,
        allow_backbone=allow_backbone,
        limits=checked,
        room=checked.queue,
        told=telemetry.batch,
    )
    with closing(service), closing(listen(host, port)) as door:
        telemetry.watch(service)
        application = make_app(Server(service, telemetry, tokens))
        log_to(sys.stderr)
        config = uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=math.ceil(checked.timeout),
        )
        _say_where(door, list(runs), service.store.database.shown, tokens is not None, json)
        with suppress(KeyboardInterrupt):  # which uvicorn raises again once it has ended well
            uvicorn.Server(config).run(sockets=[door])
    LOGGER.info("stopped")


def models_of(run: Path, also: list[str]) -> dict[str, Path]:
    """Run folders by the names of their models."""
    models = {run.resolve().name: run}
    for entry in also:
        name, equals, path = entry.partition("=")
        if not (name and equals and path):
            raise ConfigError(f"--also {entry}: write it as NAME=RUN")
        if name in models:
            raise ConfigError(f"--also {entry}: '{name}' is a model already; choose another name")
        models[name] = Path(path)
    return models


def _say_where(
    door: "socket", models: list[str], database: str, needs_token: bool, json: bool
) -> None:
    host, port = door.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    facts = {"address": url, "page": f"{url}/", "models": models, "database": database}
    say_facts(facts | {"tokens": needs_token}, json=json)
    sys.stdout.flush()
