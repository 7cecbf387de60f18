"""Errors as answers: a status, a code for programs, and a sentence for people."""

from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from acclimate.core.errors import (
    AcclimateError,
    ConfigError,
    ExportError,
    ImageError,
    KeyReused,
    OverLimit,
    QueueFull,
    StateMismatch,
    StoreError,
    TooManyUnreadable,
    UnknownName,
    UnknownSite,
    WriteError,
)
from acclimate.core.text import printable, reason_of
from acclimate.serve.tokens import ScopeError, TokenError


class UnknownModel(UnknownName):
    """A model that the server does not have."""


class WrongType(AcclimateError):
    """A body of another kind than is read here."""


class SlowBody(AcclimateError):
    """A body that did not arrive in time."""


class TooSlow(AcclimateError):
    """Work that did not end in time."""


class Foreign(AcclimateError):
    """A request that a page of another place sent through somebody's browser."""


# The first row that an error is an instance of.
STATUS: Mapping[type[Exception], tuple[int, str]] = {
    TokenError: (401, "no_token"),
    ScopeError: (403, "wrong_scope"),
    Foreign: (403, "foreign_origin"),
    UnknownSite: (404, "unknown_site"),
    UnknownModel: (404, "unknown_model"),
    UnknownName: (400, "unknown_name"),
    SlowBody: (408, "slow_body"),
    KeyReused: (409, "key_reused"),
    StateMismatch: (409, "other_model"),
    OverLimit: (413, "over_limit"),
    ImageError: (422, "unreadable_image"),
    TooManyUnreadable: (422, "unreadable_image"),
    WrongType: (415, "wrong_type"),
    QueueFull: (429, "busy"),
    TooSlow: (503, "timeout"),
    StoreError: (503, "store"),
    WriteError: (503, "store"),
    ExportError: (500, "export"),
    ConfigError: (400, "bad_request"),
    AcclimateError: (400, "bad_request"),
    ClientDisconnect: (499, "gone"),
}
CODES = {404: "no_route", 405: "wrong_method"}
RETRY = {429, 503}  # answered with Retry-After: the same request may succeed in a moment


def describe(error: Exception) -> tuple[int, str, str]:
    """Status, code and sentence of an error; of one that nobody foresaw no more than its kind."""
    if isinstance(error, HTTPException):  # from the framework, which words it in two words
        code = CODES.get(error.status_code, "bad_request")
        return error.status_code, code, f"{error.detail.lower()}; /openapi.json lists the routes"
    if isinstance(error, RequestValidationError):
        return 400, "bad_request", _first_fault(error)
    for kind, (status, code) in STATUS.items():
        if isinstance(error, kind):
            return status, code, reason_of(error, 500)
    name = type(error).__name__
    return 500, "internal", f"{name}, which is a fault of the server; its log has the details"


def answer(error: Exception, path: str) -> JSONResponse:
    """The answer to a request that failed. The Open Inference Protocol has its own form."""
    status, code, sentence = describe(error)
    sentence = printable(sentence)
    body: Any = {"error": {"code": code, "message": sentence}}
    if path == "/v2" or path.startswith("/v2/"):
        body = {"error": sentence, "code": code}
    headers = {"Retry-After": "1"} if status in RETRY else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, status, headers)


def _first_fault(error: RequestValidationError) -> str:
    """Where the first fault is and what it is: "count: input should be …"."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("query", "path", "header"))
    message = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    return f"{where[:100]}: {message}; /openapi.json says what is expected"
