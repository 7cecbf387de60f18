"""What a browser sees at `/`."""

from fastapi import FastAPI
from starlette.responses import PlainTextResponse

from acclimate import __version__

TEXT = f"""Acclimate {__version__}

/openapi.json   every route
/v1/sites       the sites
/v2             Open Inference Protocol
/metrics        for Prometheus
"""


def add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> PlainTextResponse:
        return PlainTextResponse(TEXT)
