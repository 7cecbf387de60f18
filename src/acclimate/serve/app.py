"""The application that answers requests."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from acclimate import __version__
from acclimate.core.errors import AcclimateError
from acclimate.serve.gate import Gate
from acclimate.serve.inference import MODELS
from acclimate.serve.page import add_page
from acclimate.serve.problems import answer
from acclimate.serve.routes import METRICS, SITES
from acclimate.serve.server import Server


def make_app(server: Server | None) -> FastAPI:
    """The application; without a server it can only describe itself."""
    app = FastAPI(
        title="Acclimate",
        version=__version__,
        description="Classifiers that adapt themselves to sites, over HTTP.",
        docs_url=None,  # these pages come from another server
        redoc_url=None,
    )
    for error in (AcclimateError, HTTPException, RequestValidationError):
        app.add_exception_handler(error, _answer)
    for router in (SITES, MODELS, METRICS):
        app.include_router(router)
    add_page(app)
    if server is not None:
        app.state.server = server
        local = server.tokens is None
        app.add_middleware(
            Gate, limits=server.service.limits, telemetry=server.telemetry, local=local
        )
    return app


async def _answer(request: Request, error: Exception) -> Response:
    return answer(error, request.url.path)
