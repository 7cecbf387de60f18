"""What goes into requests and comes out of answers, as OpenAPI describes it."""

from typing import Annotated, Any

from fastapi import Header, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from acclimate.serve.views import SiteView


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Create(Body):
    model: str | None = Field(None, description="One of the models served; the first by default.")
    method: str | None = Field(None, description="How to adapt; as rehearsed by default.")


class Labels(Body):
    labels: dict[str, str | None] = Field(
        description="By picture id, from the answer to its upload; null takes a label back."
    )


class Rollback(Body):
    revision: int | None = Field(None, description="One of the history; the last by default.")


class Move(Body):
    model: str = Field(description="One of the models served.")


class SiteList(BaseModel):
    models: list[str]
    sites: list[SiteView]


class Suggestion(BaseModel):
    picture: str
    guess: str
    confidence: float


class Suggestions(BaseModel):
    pictures: list[Suggestion]


class Answer(BaseModel):
    label: str | None = Field(description="The class; null below the threshold, or with an error.")
    probability: float | None = Field(description="Of the likeliest class.")
    unsure: str | None = Field(None, description="The likeliest class, below the threshold.")
    index: int | None = Field(None, description="Of an image that cannot be read.")
    error: str | None = Field(None, description="Why it cannot be read.")


class Answers(BaseModel):
    predictions: list[Answer]


class Problem(BaseModel):
    code: str
    message: str


class Refusal(BaseModel):
    error: Problem


class ProtocolRefusal(BaseModel):
    error: str
    code: str


def takes(kind: type[Body]) -> dict[str, Any]:
    schema = kind.model_json_schema()
    required = bool(schema.get("required"))
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}
    }


def takes_images(*, labels: bool) -> dict[str, Any]:
    file = {"type": "string", "format": "binary"}
    fields: dict[str, Any] = {"images": {"type": "array", "items": file, "minItems": 1}}
    if labels:
        about = "The class of each image, in their order; empty where it is not known."
        fields["labels"] = {"type": "array", "items": {"type": "string"}, "description": about}
    schema = {"type": "object", "required": ["images"], "properties": fields}
    content = {"multipart/form-data": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def failures(kind: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    return {"4XX": {"model": kind}, "5XX": {"model": kind}}


def content(kind: str) -> dict[int | str, dict[str, Any]]:
    """An answer that is no JSON."""
    return {200: {"content": {kind: {"schema": {"type": "string", "format": "binary"}}}}}


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
