"""The server's routes: thin handlers between HTTP and `Service`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated, Any, ParamSpec, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import Response

from acclimate import __version__
from acclimate.core.errors import (
    AcclimateError,
    ConfigError,
    ImageError,
    OverLimit,
    StateMismatch,
)
from acclimate.core.text import count, listed
from acclimate.learn.model import Trained
from acclimate.serve import protocol
from acclimate.serve.gate import Gate
from acclimate.serve.page import add_page
from acclimate.serve.problems import UnknownModel, WrongType, answer
from acclimate.serve.service import Service
from acclimate.serve.telemetry import Telemetry
from acclimate.serve.tokens import SCOPES, Tokens

P = ParamSpec("P")
T = TypeVar("T")
LONGEST_LABEL = 1000  # bytes of a text field


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


async def _run(
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


# Bodies: read by hand, after `needs`, and described for OpenAPI.


class _InMemory(MultiPartParser):
    """No picture touches the disk; the limit of a body bounds what is in memory."""

    spool_max_size = 1 << 40


async def _read_images(request: Request) -> tuple[list[bytes], list[str]]:
    """The files of the field `images`, and the texts of the field `labels`."""
    most = server_of(request).service.limits.images
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise WrongType("images come as multipart/form-data; send files as the field images")
    parser = _InMemory(
        request.headers,
        request.stream(),
        max_files=most,
        max_fields=most,
        max_part_size=LONGEST_LABEL,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        kind = OverLimit if error.message.startswith("Too many") else ConfigError
        raise kind(
            f"the form: {error.message.lower().rstrip('.')}; send at most {most} images"
        ) from None
    images, labels, others = list[bytes](), list[str](), list[str]()
    for name, value in form.multi_items():
        if name == "images" and isinstance(value, UploadFile):
            images.append(value.file.read())
        elif name == "labels" and isinstance(value, str):
            labels.append(value)
        else:
            others.append(name)
    await form.close()
    if others:
        raise ConfigError(
            f"the form's field '{others[0][:50]}' is not read; send files as images, texts as labels"
        )
    if not images:
        raise ConfigError("the form has no image; add files as the field images, repeated")
    request.state.facts["images"] = len(images)
    return images, labels


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Create(_Body):
    model: str | None = Field(None, description="One of the models served; the first by default.")


class Labels(_Body):
    labels: dict[str, str | None] = Field(
        description="By picture id, from the answer to its upload; null takes a label back."
    )


class Rollback(_Body):
    revision: int | None = Field(None, description="One of the history; the last by default.")


class Move(_Body):
    model: str = Field(description="One of the models served.")


B = TypeVar("B", bound=_Body)


async def _read_json(request: Request, kind: type[B]) -> B:
    body = await request.body()
    try:
        return kind.model_validate(protocol.parse_object(body or b"{}"))
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


def _takes(kind: type[_Body]) -> dict[str, Any]:
    schema = kind.model_json_schema()
    required = bool(schema.get("required"))
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}
    }


def _takes_images(*, labels: bool) -> dict[str, Any]:
    file = {"type": "string", "format": "binary"}
    fields: dict[str, Any] = {"images": {"type": "array", "items": file, "minItems": 1}}
    if labels:
        about = "The class of each image, in their order; empty where it is not known."
        fields["labels"] = {"type": "array", "items": {"type": "string"}, "description": about}
    schema = {"type": "object", "required": ["images"], "properties": fields}
    content = {"multipart/form-data": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


class Problem(BaseModel):
    code: str
    message: str


class Refusal(BaseModel):
    error: Problem


FAILURES: dict[int | str, dict[str, Any]] = {"4XX": {"model": Refusal}, "5XX": {"model": Refusal}}
OPEN, MODELS = APIRouter(), APIRouter(prefix="/v2", tags=["Open Inference Protocol v2"])
SITES = APIRouter(prefix="/v1", tags=["sites"], responses=FAILURES)
Name = Annotated[str, Path(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=200,
        description="The same call with the same key counts once, and gets the same answer.",
    ),
]
Share = Annotated[float | None, Query(gt=0, lt=1)]


@SITES.get("/sites", dependencies=[needs("observe")])
async def list_sites(request: Request) -> Response:
    """All sites, briefly, and the models that they may use, that of new sites first."""
    server = server_of(request)
    sites = await _run(server.predicting, server.service.overview)
    return _json({"models": list(server.service.models), "sites": list(sites.values())})


@SITES.put("/sites/{name}", dependencies=[needs("admin")], openapi_extra=_takes(Create))
async def create_site(request: Request, name: Name) -> Response:
    """Create a site; one that exists stays as it is."""
    server, body = server_of(request), await _read_json(request, Create)
    view = await _run(server.adapting, server.service.create_site, name, body.model)
    return _json(view.to_dict())


@SITES.get("/sites/{name}", dependencies=[needs("observe")])
async def show_site(request: Request, name: Name) -> Response:
    """A site: method, images, trust, expected accuracy and floor, label mix, history."""
    server = server_of(request)
    view = await _run(server.adapting, server.service.site, name)
    return _json(view.to_dict())


@SITES.delete("/sites/{name}", dependencies=[needs("admin")], status_code=204)
async def delete_site(request: Request, name: Name) -> Response:
    """Delete a site with all that is kept of it."""
    server = server_of(request)
    await _run(server.adapting, server.service.delete, name)
    return Response(status_code=204)


@SITES.post(
    "/sites/{name}/images",
    dependencies=[needs("observe")],
    openapi_extra=_takes_images(labels=True),
)
async def add_images(request: Request, name: Name, key: Key = None) -> Response:
    """Adapt the site to images, together with those that it has."""
    server, (images, labels) = server_of(request), await _read_images(request)
    if labels and len(labels) != len(images):
        raise ConfigError(
            f"there are {len(images)} images and {len(labels)} labels; give one for each, empty "
            f"where it is not known"
        )
    known = [label or None for label in labels] or None
    add = partial(server.service.add_images, labels=known, key=key)
    added = await _run(server.adapting, add, name, images)
    _require_readable([one["reason"] for one in added.unreadable], len(images))
    return _json(added.to_dict())


@SITES.post("/sites/{name}/labels", dependencies=[needs("observe")], openapi_extra=_takes(Labels))
async def add_labels(request: Request, name: Name, key: Key = None) -> Response:
    """Label images that the site has."""
    server, body = server_of(request), await _read_json(request, Labels)
    add = partial(server.service.add_labels, key=key)
    added = await _run(server.adapting, add, name, body.labels)
    return _json(added.to_dict())


@SITES.get("/sites/{name}/suggest", dependencies=[needs("observe")])
async def suggest(
    request: Request, name: Name, count: Annotated[int, Query(ge=1, le=1000)] = 20
) -> Response:
    """Name the pictures whose labels would tell the most."""
    server = server_of(request)
    pictures = await _run(server.adapting, server.service.suggest, name, count)
    return _json({"pictures": list(pictures)})


@SITES.post(
    "/sites/{name}/predict",
    dependencies=[needs("predict")],
    openapi_extra=_takes_images(labels=False),
)
async def predict(
    request: Request,
    name: Name,
    at_least: Share = None,
    unsure_below: Share = None,
    plain: Annotated[bool, Query(description="By the model before adaptation.")] = False,
) -> Response:
    """Classify images by the site's classifier; answers are in the order of the images."""
    server, (images, _) = server_of(request), await _read_images(request)
    below = unsure_below or 0.0
    how = partial(server.service.predict, at_least=at_least, unsure_below=below, plain=plain)
    predictions = await _run(server.predicting, how, name, images)
    _require_readable([one.problem for one in predictions if one.problem], len(images))
    return _json({"predictions": [one.to_dict() for one in predictions]})


@SITES.get("/sites/{name}/drift", dependencies=[needs("observe")])
async def drift(request: Request, name: Name) -> Response:
    """Whether the site is still the one that was adapted to."""
    server = server_of(request)
    return _json(await _run(server.adapting, server.service.drift, name))


@SITES.get(
    "/sites/{name}/export",
    dependencies=[needs("admin")],
    responses={200: {"content": {"application/octet-stream": {}}}},
)
async def export(request: Request, name: Name) -> Response:
    """The site's classifier as an ONNX file."""
    server = server_of(request)
    content = await _run(server.adapting, server.service.export, name)
    headers = {"content-disposition": f'attachment; filename="{name}.onnx"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


@SITES.post("/sites/{name}/rollback", dependencies=[needs("admin")], openapi_extra=_takes(Rollback))
async def roll_back(request: Request, name: Name) -> Response:
    """Forget what came to the site after a revision."""
    server, body = server_of(request), await _read_json(request, Rollback)
    view = await _run(server.adapting, server.service.rollback, name, body.revision)
    return _json(view.to_dict())


@SITES.post("/sites/{name}/move", dependencies=[needs("admin")], openapi_extra=_takes(Move))
async def move(request: Request, name: Name) -> Response:
    """Let the site use another model: at once where both share a backbone, else with new images."""
    server, body = server_of(request), await _read_json(request, Move)
    view = await _run(server.adapting, server.service.move, name, body.model)
    return _json(view.to_dict())


@SITES.get("/map", dependencies=[needs("observe")])
async def training_map(request: Request) -> Response:
    """Where the training sites and the sites here lie, in two dimensions."""
    server = server_of(request)
    return _json(await _run(server.adapting, server.service.training_map))


@OPEN.get(
    "/metrics", dependencies=[needs("observe")], responses={200: {"content": {"text/plain": {}}}}
)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    server = server_of(request)
    text = await _run(server.predicting, server.telemetry.text)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@MODELS.get("")
async def describe_server() -> dict[str, Any]:
    """Name, version and extensions of the server."""
    return {"name": "acclimate", "version": __version__, "extensions": protocol.EXTENSIONS}


@MODELS.get("/health/live")
async def live() -> dict[str, bool]:
    """Whether the server runs."""
    return {"live": True}


@MODELS.get("/health/ready")
async def ready() -> dict[str, bool]:
    """Whether the server takes requests: it has loaded its models before it listens."""
    return {"ready": True}


@MODELS.get("/models/{model}", dependencies=[needs("predict")])
async def describe_model(request: Request, model: str) -> dict[str, Any]:
    """Inputs, outputs and classes of a model."""
    trained = _model(request, model)
    return protocol.describe_model(model, trained.classes, trained.size)


@MODELS.get("/models/{model}/ready")
async def model_ready(request: Request, model: str) -> dict[str, Any]:
    """Whether there is such a model."""
    _model(request, model)
    return {"name": model, "ready": True}


@MODELS.post(
    "/models/{model}/infer", dependencies=[needs("predict")], openapi_extra=protocol.DESCRIPTION
)
async def infer(request: Request, model: str) -> Response:
    """Class probabilities of images by the classifier of the site in `parameters`."""
    server, trained = server_of(request), _model(request, model)
    length = request.headers.get(protocol.LENGTH_HEADER)
    asked = protocol.read_request(await request.body(), length, trained.size)
    request.state.facts["images"] = len(asked.images)
    answered = await _run(server.predicting, _infer, server.service, model, asked)
    body, headers = protocol.write_answer(asked, model, *answered)
    return Response(body, headers=headers)


def _infer(
    service: Service, model: str, asked: protocol.InferRequest
) -> tuple[np.ndarray, list[str]]:
    """Probabilities [n,C] and labels [n]; a protocol of tensors has no place for a bad image."""
    used = service.store.find(asked.site).model
    if used != model:
        raise StateMismatch(f"site '{asked.site}' uses model '{used}'; ask that one, or move it")
    predictions = service.predict(asked.site, list(asked.images))
    for one in predictions:
        if one.problem is not None:
            raise ImageError(f"images[{one.index}]: {one.problem}; leave it out")
    rows = [one.probabilities for one in predictions if one.probabilities is not None]
    return np.stack(rows), [one.likeliest or "" for one in predictions]


def _model(request: Request, name: str) -> Trained:
    models = server_of(request).service.models
    if name not in models:
        raise UnknownModel(f"there is no model '{name[:50]}'; there is {listed([*models], 12)}")
    return models[name].trained


def _require_readable(reasons: Sequence[str], images: int) -> None:
    if len(reasons) == images:
        raise ImageError(f"none of {count(images, 'image')} can be read: {reasons[0]}; send others")


def _json(content: Any) -> Response:
    text = json.dumps(content, ensure_ascii=False, default=_plain)
    return Response(text, media_type="application/json")


def _plain(value: Any) -> Any:
    """What JSON has no form for: the views of the service, and what they hold."""
    return value.to_dict() if hasattr(value, "to_dict") else asdict(value)


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
    for router in (OPEN, SITES, MODELS):
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
