"""The same handlers as a deployment of Ray Serve: replicas on many machines, one database.

    serve run acclimate.serve.ray_app:deploy run=runs/sites database=postgresql://… \\
        tokens=tokens.json replicas=4
"""

from pathlib import Path
from typing import Any

from acclimate.core.errors import ConfigError
from acclimate.core.exports import require
from acclimate.serve.app import make_app
from acclimate.serve.server import Server
from acclimate.serve.service import Service
from acclimate.serve.telemetry import Telemetry
from acclimate.serve.tokens import Tokens


def deploy(settings: dict[str, str]) -> Any:
    """A Ray Serve application of a run, a database and a file of tokens, which every machine finds
    under these names; `replicas` of it, one by default."""
    (serve,) = require("ray.serve", purpose="to deploy on Ray", extra="serve,ray] ray[serve")
    if missing := {"run", "database", "tokens"} - {*settings}:
        raise ConfigError(f"'{min(missing)}' is missing; give run, database and tokens")
    run, tokens = Path(settings["run"]), Path(settings["tokens"])

    def build() -> Any:
        telemetry = Telemetry()
        service = Service.open({run.name: run}, settings["database"], told=telemetry.batch)
        telemetry.watch(service)
        return make_app(Server(service, telemetry, Tokens(tokens)))

    replicas = int(settings.get("replicas", "1"))
    deployed = serve.deployment(num_replicas=replicas, max_ongoing_requests=512)
    return deployed(serve.ingress(build)()).bind()
