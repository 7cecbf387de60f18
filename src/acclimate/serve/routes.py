"""The routes of sites: thin handlers between HTTP and `Service`."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from acclimate.core.errors import ConfigError, ImageError
from acclimate.core.text import count as counted
from acclimate.serve.schemas import (
    Answers,
    Create,
    Key,
    Labels,
    Move,
    Name,
    Refusal,
    Rollback,
    Share,
    SiteList,
    Suggestions,
    content,
    failures,
    takes,
    takes_images,
)
from acclimate.serve.server import as_json, needs, read_images, read_json, run, server_of
from acclimate.serve.views import Added, SiteView

SITES = APIRouter(prefix="/v1", tags=["sites"], responses=failures(Refusal))
METRICS = APIRouter(tags=["metrics"], responses=failures(Refusal))


@SITES.get("/sites", dependencies=[needs("observe")], response_model=SiteList)
async def list_sites(request: Request) -> Response:
    """All sites, briefly, and the models that they may use, that of new sites first."""
    server = server_of(request)
    sites = await run(server.predicting, server.service.sites)
    return as_json({"models": list(server.service.models), "sites": sites})


@SITES.put(
    "/sites/{name}",
    dependencies=[needs("admin")],
    response_model=SiteView,
    openapi_extra=takes(Create),
)
async def create_site(request: Request, name: Name) -> Response:
    """Create a site; one that exists stays as it is."""
    server, body = server_of(request), await read_json(request, Create)
    view = await run(server.adapting, server.service.create_site, name, body.model, body.method)
    return as_json(view)


@SITES.get("/sites/{name}", dependencies=[needs("observe")], response_model=SiteView)
async def show_site(request: Request, name: Name) -> Response:
    """A site: method, images, trust, expected accuracy and floor, label mix, history."""
    server = server_of(request)
    view = await run(server.adapting, server.service.site, name)
    return as_json(view)


@SITES.delete("/sites/{name}", dependencies=[needs("admin")], status_code=204)
async def delete_site(request: Request, name: Name) -> Response:
    """Delete a site with all that is kept of it."""
    server = server_of(request)
    await run(server.adapting, server.service.delete, name)
    return Response(status_code=204)


@SITES.post(
    "/sites/{name}/images",
    dependencies=[needs("observe")],
    response_model=Added,
    openapi_extra=takes_images(labels=True),
)
async def add_images(request: Request, name: Name, key: Key = None) -> Response:
    """Adapt the site to images, together with those that it has."""
    server, form = server_of(request), await read_images(request)
    images, labels = form.images, form.labels
    if labels and len(labels) != len(images):
        raise ConfigError(
            f"there are {len(images)} images and {len(labels)} labels; give one for each, empty "
            f"where it is not known"
        )
    known = [label or None for label in labels] or None
    add = partial(server.service.add_images, labels=known, key=key)
    added = await run(server.adapting, add, name, images)
    _require_readable([one["reason"] for one in added.unreadable], len(images))
    return as_json(added)


@SITES.post(
    "/sites/{name}/labels",
    dependencies=[needs("observe")],
    response_model=Added,
    openapi_extra=takes(Labels),
)
async def add_labels(request: Request, name: Name, key: Key = None) -> Response:
    """Label images that the site has."""
    server, body = server_of(request), await read_json(request, Labels)
    add = partial(server.service.add_labels, key=key)
    added = await run(server.adapting, add, name, body.labels)
    return as_json(added)


@SITES.get("/sites/{name}/suggest", dependencies=[needs("observe")], response_model=Suggestions)
async def suggest(
    request: Request, name: Name, count: Annotated[int, Query(ge=1, le=1000)] = 20
) -> Response:
    """Name the pictures whose labels would tell the most."""
    server = server_of(request)
    pictures = await run(server.adapting, server.service.suggest, name, count)
    return as_json({"pictures": list(pictures)})


@SITES.post(
    "/sites/{name}/predict",
    dependencies=[needs("predict")],
    response_model=Answers,
    openapi_extra=takes_images(labels=False),
)
async def predict(
    request: Request,
    name: Name,
    at_least: Share = None,
    unsure_below: Share = None,
    plain: Annotated[bool, Query(description="By the model before any adaptation.")] = False,
) -> Response:
    """Classify images by the site's classifier; answers are in the order of the images."""
    server, form = server_of(request), await read_images(request)
    images = form.images
    below = unsure_below or 0.0
    how = partial(server.service.predict, at_least=at_least, unsure_below=below, plain=plain)
    predictions = await run(server.predicting, how, name, images)
    _require_readable([one.problem for one in predictions if one.problem], len(images))
    return as_json({"predictions": predictions})


@SITES.get("/sites/{name}/drift", dependencies=[needs("observe")])
async def drift(request: Request, name: Name) -> Response:
    """Whether the site is still the one that was adapted to."""
    server = server_of(request)
    return as_json(await run(server.adapting, server.service.drift, name))


@SITES.get(
    "/sites/{name}/export",
    dependencies=[needs("admin")],
    responses=content("application/octet-stream"),
    response_class=Response,
)
async def export(request: Request, name: Name) -> Response:
    """The site's classifier as an ONNX file."""
    server = server_of(request)
    content = await run(server.adapting, server.service.export, name)
    headers = {"content-disposition": f'attachment; filename="{name}.onnx"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


@SITES.post(
    "/sites/{name}/rollback",
    dependencies=[needs("admin")],
    response_model=SiteView,
    openapi_extra=takes(Rollback),
)
async def roll_back(request: Request, name: Name) -> Response:
    """Forget what came to the site after a revision."""
    server, body = server_of(request), await read_json(request, Rollback)
    view = await run(server.adapting, server.service.rollback, name, body.revision)
    return as_json(view)


@SITES.post(
    "/sites/{name}/move",
    dependencies=[needs("admin")],
    response_model=SiteView,
    openapi_extra=takes(Move),
)
async def move(request: Request, name: Name) -> Response:
    """Let the site use another model: at once where both share a backbone, else with new images."""
    server, body = server_of(request), await read_json(request, Move)
    view = await run(server.adapting, server.service.move, name, body.model)
    return as_json(view)


@SITES.get("/map", dependencies=[needs("observe")])
async def training_map(request: Request) -> Response:
    """Where the training sites and the sites here lie, in two dimensions."""
    server = server_of(request)
    return as_json(await run(server.adapting, server.service.training_map))


@METRICS.get(
    "/metrics",
    dependencies=[needs("observe")],
    responses=content("text/plain"),
    response_class=Response,
)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    server = server_of(request)
    text = await run(server.predicting, server.telemetry.text)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _require_readable(reasons: Sequence[str], images: int) -> None:
    if len(reasons) == images:
        raise ImageError(
            f"none of {counted(images, 'image')} can be read: {reasons[0]}; send others"
        )
