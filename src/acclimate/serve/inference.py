"""The routes of the Open Inference Protocol."""

from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from acclimate import __version__
from acclimate.core.errors import ImageError, StateMismatch
from acclimate.core.text import listed
from acclimate.learn.model import Trained
from acclimate.serve import protocol
from acclimate.serve.problems import UnknownModel
from acclimate.serve.schemas import ProtocolRefusal, failures
from acclimate.serve.server import needs, read_body, run, server_of
from acclimate.serve.service import Service

MODELS = APIRouter(
    prefix="/v2", tags=["Open Inference Protocol v2"], responses=failures(ProtocolRefusal)
)


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
    asked = protocol.read_request(await read_body(request), length, trained.size)
    request.state.facts["images"] = len(asked.images)
    answered = await run(server.predicting, _infer, server.service, model, asked)
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
