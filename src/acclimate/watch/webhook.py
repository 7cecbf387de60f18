"""A report as JSON to a URL that somebody named."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from acclimate import __version__
from acclimate.core.errors import AcclimateError, ConfigError
from acclimate.core.text import reason_of

SECONDS = 10.0  # to wait for an answer


class NotDelivered(AcclimateError):
    """A webhook that did not take a report."""


class _NoRedirects(HTTPRedirectHandler):
    """A POST that is redirected goes on as a GET, without the report."""

    def redirect_request(self, *_: Any) -> None:
        return None


def check_url(url: str) -> None:
    """Refuse what cannot be posted to. Private addresses may be: whoever runs the command chose."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--webhook {url}: give a URL that begins with http:// or https://")


def post(url: str, values: Mapping[str, Any]) -> None:
    """POST `values` as JSON; an error where the answer is anything but a success."""
    check_url(url)
    headers = {"Content-Type": "application/json", "User-Agent": f"acclimate/{__version__}"}
    request = Request(url, json.dumps(values).encode(), headers, method="POST")
    try:
        with build_opener(_NoRedirects).open(request, timeout=SECONDS):
            pass
    except (URLError, OSError, ValueError) as error:
        raise NotDelivered(
            f"the webhook {url} did not take the report ({reason_of(error)}); repeat the command "
            f"with its --log, which counts no image twice"
        ) from None
