"""What handlers work with: the server, who may ask it, and the bodies of requests."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from pydantic import ValidationError
from starlette.responses import Response

from acclimate.core.errors import OverLimit
from acclimate.serve import protocol
from acclimate.serve.forms import IMAGES, Form, read_form
from acclimate.serve.schemas import Body
from acclimate.serve.service import Service
from acclimate.serve.telemetry import Telemetry
from acclimate.serve.tokens import SCOPES, Tokens

MOST = 10_000  # entries of an object in a body
B = TypeVar("B", bound=Body)
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False)
class Server:
    """What handlers work with. Predictions wait for the batcher and hardly compute themselves;
    adapting and exporting do, so that few of those run at a time."""

    service: Service
    telemetry: Telemetry
    tokens: Tokens | None = None
    predicting: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(128))
    adapting: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(4))


def server_of(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


async def run(
    limiter: CapacityLimiter, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """In a thread. A request that is given up leaves its thread to end by itself."""
    call = partial(function, *args, **kwargs)
    return await to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter)


BEARER = HTTPBearer(auto_error=False, description="; ".join(f"{k}: {v}" for k, v in SCOPES.items()))


def needs(scope: str) -> Any:
    """A dependency that refuses, before the body is read, who may not do this."""

    async def check(request: Request, _: Annotated[object, Depends(BEARER)]) -> None:
        tokens = server_of(request).tokens
        if tokens is not None:
            header = request.headers.get("authorization", "")
            request.state.facts["token"] = tokens.require(header, scope)

    return Depends(check)


async def read_images(request: Request) -> Form:
    """The files of the field `images`, and the texts of the field `labels`."""
    most = server_of(request).service.limits.images
    kind = request.headers.get("content-type", "")
    form = await read_form(kind, request.stream(), most)
    request.state.facts["images"] = len(form.parts[IMAGES])
    return form


async def read_body(request: Request) -> bytes:
    """The whole body, which the gate bounds. `Request.body` would keep it until a collection of
    garbage."""
    return b"".join([chunk async for chunk in request.stream()])


async def read_json(request: Request, kind: type[B]) -> B:
    values = protocol.parse_object(await read_body(request) or b"{}")
    inner = values.values() if isinstance(values, dict) else ()
    if any(len(one) > MOST for one in (values, *inner) if isinstance(one, dict | list)):
        # Each wrong entry would be an error of its own.
        raise OverLimit(f"the body has more than {MOST} entries; send fewer at once")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


def as_json(content: Any) -> Response:
    text = json.dumps(content, default=lambda value: value.to_dict())
    return Response(text, media_type="application/json")
