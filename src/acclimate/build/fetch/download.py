"""One URL to bytes, with care: a whole deadline, a size limit, few redirects, no way inside.

Why not a larger library: the checks that matter here (which address is connected to, how long all
of it may take, how many bytes are read) are below the level at which such libraries can be asked.
"""

import http.client
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cached_property
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from acclimate import __version__
from acclimate.build.base import flag
from acclimate.build.fetch.connection import Connection, Failed, TlsSocket
from acclimate.config import setting

_REDIRECTS = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429, 500, 502, 503, 504)  # worth another attempt
_UNAVAILABLE = "photo_unavailable"  # the picture that Flickr sends for one that is gone
_CHUNK = 1 << 16
PRIVATE = "a private address; allow it with --private"  # a reason that may pass


@dataclass(frozen=True, kw_only=True)
class DownloadSettings:
    per_host: int = setting(8, "Connections to one host.", at_least=1)
    # From the name's lookup to the last byte.
    timeout: float = setting(20.0, "Seconds for one attempt.")
    retries: int = setting(3, "Further attempts after a passing failure.")
    backoff: float = 1.0  # seconds before the first of them, doubled each time
    max_bytes: int = setting(64 << 20, "Largest image.", at_least=1)
    max_redirects: int = 5
    # Off, as the URLs are others' text.
    private: bool = flag("Also ask private addresses, such as a mirror of yours.")
    user_agent: str = f"acclimate/{__version__} (data set builder)"


class Downloader:
    """Safe from threads. Connections stay open for the next image until `close`."""

    def __init__(self, settings: DownloadSettings | None = None) -> None:
        self.settings = settings or DownloadSettings()
        self._hosts: dict[str, threading.BoundedSemaphore] = defaultdict(
            lambda: threading.BoundedSemaphore(self.settings.per_host)
        )
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[Connection]] = defaultdict(list)
        self._stopped = threading.Event()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.sslsocket_class = TlsSocket
        return context

    def stop(self) -> None:
        """End waits between attempts; attempts under way end by their timeout."""
        self._stopped.set()

    def close(self) -> None:
        self.stop()
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    def get(self, url: str, accept: Callable[[bytes], object] = bool) -> bytes:
        """The content at `url`, or `Failed` after all attempts; `accept` may raise it too."""
        wait = self.settings.backoff
        for attempt in range(self.settings.retries + 1):
            try:
                content = self._attempt(url)
                accept(content)
                return content
            except Failed as failure:
                if failure.dead or attempt == self.settings.retries:
                    raise
                asked = min(failure.wait or 0.0, 60.0)
                if self._stopped.wait(max(wait, asked)):
                    raise
                wait *= 2
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, url: str) -> bytes:
        deadline = time.monotonic() + self.settings.timeout
        inside_allowed: bool | None = None  # known once the first host is
        target = _target(url)
        for _ in range(self.settings.max_redirects + 1):
            came = time.monotonic()
            with self._host(target.netloc):
                deadline += time.monotonic() - came  # waiting for our own turn is not slowness
                status, headers, body, inside = self._exchange(target, deadline, inside_allowed)
            inside_allowed = inside if inside_allowed is None else inside_allowed
            if status not in _REDIRECTS:
                return _content(status, headers, body)
            target = _redirected(target, status, headers.get("Location", ""))
        raise Failed(f"more than {self.settings.max_redirects} redirects", dead=True)

    @contextmanager
    def _host(self, netloc: str) -> Iterator[None]:
        with self._lock:
            host = self._hosts[netloc]
        with host:
            yield

    def _exchange(
        self, target: SplitResult, deadline: float, inside_allowed: bool | None
    ) -> tuple[int, http.client.HTTPMessage, bytes, bool]:
        """(status, headers, body, whether the host is on a private network)."""
        place = (target.scheme, target.netloc)
        tls = self._tls if target.scheme == "https" else None
        connection = self._idle_one(place)
        try:
            if connection is not None:
                try:
                    answer = self._ask(connection, target, deadline, inside_allowed)
                except (ConnectionError, ssl.SSLError):
                    connection.close()  # the server had closed it meanwhile
                    connection = None
            if connection is None:
                connection = Connection(target, tls, deadline, self._refusal(inside_allowed))
                answer = self._ask(connection, target, deadline, inside_allowed)
        except BaseException as error:
            if connection is not None:
                connection.close()
            raise self._failure(error) from None
        self._put_back(place, connection)
        return answer

    def _refusal(self, inside_allowed: bool | None) -> str | None:
        """Why a private address may not be asked now, or None if it may."""
        if inside_allowed is False:
            return "redirect to a private address"
        return None if self.settings.private else PRIVATE

    def _failure(self, error: BaseException) -> BaseException:
        """What to raise for `error`; what is no matter of the network stays as it is."""
        if isinstance(error, TimeoutError):
            return Failed(f"slower than {self.settings.timeout:g} s", dead=False)
        if isinstance(error, http.client.IncompleteRead):
            return Failed("truncated", dead=False)
        if isinstance(error, OSError | http.client.HTTPException | ValueError):
            return Failed(_why(error), dead=False)
        return error

    def _ask(
        self,
        connection: Connection,
        target: SplitResult,
        deadline: float,
        inside_allowed: bool | None,
    ) -> tuple[int, http.client.HTTPMessage, bytes, bool]:
        refusal = self._refusal(inside_allowed)
        if connection.inside and refusal is not None:
            raise Failed(refusal, dead=True)
        connection.until(deadline)
        path = quote(target.path or "/", safe="/%:=&?~#+!$,;'@()*[]-._")
        query = f"?{quote(target.query, safe='/%:=&?~+!$,;@()*[]-._')}" if target.query else ""
        connection.request(
            "GET",
            path + query,
            headers={"User-Agent": self.settings.user_agent, "Accept": "image/*,*/*;q=0.5"},
        )
        response = connection.getresponse()
        if response.status == 200:
            body = self._body(response)
        else:
            body = b""  # of no interest, but a short one is read so that the connection lasts
            if response.length is not None and response.length <= _CHUNK:
                response.read()
            else:
                connection.close()
        return response.status, response.headers, body, connection.inside

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        limit = self.settings.max_bytes
        if (response.length or 0) > limit:
            raise Failed(f"larger than {limit} bytes", dead=True)
        parts, size = [], 0
        while part := response.read(_CHUNK):
            parts.append(part)
            size += len(part)
            if size > limit:
                raise Failed(f"larger than {limit} bytes", dead=True)
        if response.length:  # the server promised more
            raise Failed("truncated", dead=False)
        return b"".join(parts)

    def _idle_one(self, place: tuple[str, str]) -> Connection | None:
        with self._lock:
            return self._idle[place].pop() if self._idle[place] else None

    def _put_back(self, place: tuple[str, str], connection: Connection) -> None:
        with self._lock:
            if connection.sock is not None:
                self._idle[place].append(connection)


def _target(url: str) -> SplitResult:
    try:
        target = urlsplit(url)
        usable = target.scheme in ("http", "https") and target.hostname and target.port != 0
    except ValueError:
        usable = False
    if not usable or any(ord(character) <= 32 for character in url):
        raise Failed("not an http or https URL", dead=True)
    return target


def _redirected(target: SplitResult, status: int, location: str) -> SplitResult:
    if not location:
        raise Failed(f"HTTP {status} without a Location", dead=True)
    if _UNAVAILABLE in location:
        raise Failed("photo unavailable", dead=True)
    try:
        further = urljoin(target.geturl(), location)
    except ValueError:
        raise Failed("redirect to what is no URL", dead=True) from None
    return _target(further)


def _content(status: int, headers: http.client.HTTPMessage, body: bytes) -> bytes:
    if status == 200:
        return body
    raise Failed(f"HTTP {status}", dead=status not in _PASSING, wait=_asked_wait(headers))


def _asked_wait(headers: http.client.HTTPMessage) -> float | None:
    """Retry-After, in seconds or as a date."""
    text = (headers.get("Retry-After") or "").strip()
    if text.isdecimal():
        return float(text[:6])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time()) if text else None
    except (ValueError, OverflowError):
        return None


def _why(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not valid"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionError | http.client.RemoteDisconnected):
        return "connection closed"
    text = getattr(error, "strerror", None) or type(error).__name__
    return f"no connection ({str(text)[:80]})"
