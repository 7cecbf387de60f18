"""What a browser sees at `/`: one page with its style and its script, from this folder alone."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import Response

# Nothing comes from elsewhere, and no script but ours runs.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
FILES = {"": ("page.html", "text/html"), "page.css": ("page.css", "text/css")}
FILES |= {name: (name, "text/javascript") for name in ("page.js", "pictures.js")}


def add_page(app: FastAPI) -> None:
    """Serve the page and its files. They hold no data, and need no token: the script asks for one
    where the server does."""
    for address, (name, kind) in FILES.items():
        content = (Path(__file__).parent / name).read_bytes()
        app.add_api_route(f"/{address}", _file(content, kind), include_in_schema=False)


def _file(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def serve() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=HEADERS)

    return serve
