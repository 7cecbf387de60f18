"""One URL to bytes, with care: a whole deadline, a size limit, few redirects, no way inside.

Why not a larger library: the checks that matter here (which address is connected to, how long all
of it may take, how many bytes are read) are below the level at which such libraries can be asked.
"""

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from acclimate import __version__
from acclimate.build.base import Limited, flag
from acclimate.config import setting

_REDIRECTS = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429, 500, 502, 503, 504)  # worth another attempt
_UNAVAILABLE = "photo_unavailable"  # the picture that Flickr sends for one that is gone
_CHUNK = 1 << 16
PRIVATE = "a private address; allow it with --private"  # a reason that may pass
# Addresses that Python calls global though a gateway may turn them into private ones: IPv4 in
# IPv6, as translated (NAT64), tunnelled (6to4) or simply written down; and site-local ones.
_WAYS_INSIDE = tuple(
    ipaddress.IPv6Network(network)
    for network in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "::/96", "fec0::/10")
)
# Set aside for documentation and for routers, which not every Python knows.
_NOWHERE = tuple(ipaddress.IPv6Network(network) for network in ("3fff::/20", "5f00::/16"))
# Where clouds keep their keys beside link-local addresses: Oracle's, Azure's, Alibaba's, Amazon's.
_KEYS = ("192.0.0.192", "168.63.129.16", "100.100.100.200", "fd00:ec2::254")
_ISATAP = (0x00005EFE, 0x02005EFE)  # the third quarter of an address that holds one of IPv4


@dataclass(frozen=True, kw_only=True)
class DownloadSettings(Limited):
    per_host: int = setting(8, "Connections to one host.", at_least=1)
    # From the name's lookup to the last byte.
    timeout: float = setting(20.0, "Seconds for one attempt.", at_least=0.001)
    retries: int = setting(3, "Further attempts after a passing failure.", at_least=0)
    backoff: float = 1.0  # seconds before the first of them, doubled each time
    max_bytes: int = setting(64 << 20, "Largest image.", at_least=1)
    max_redirects: int = 5
    # Off, as the URLs are others' text.
    private: bool = flag("Also ask private addresses, such as a mirror of yours.")
    user_agent: str = f"acclimate/{__version__} (data set builder)"


class Failed(Exception):
    """No image. `dead` when another attempt is pointless; `wait` as the server asked."""

    def __init__(self, reason: str, *, dead: bool, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.dead = dead
        self.wait = wait


class _Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes
    inside: bool  # whether the host is on a private network


class Downloader:
    """Safe from threads. Connections stay open for the next image until `close`."""

    def __init__(self, settings: DownloadSettings | None = None) -> None:
        self.settings = settings or DownloadSettings()
        self._hosts: dict[str, threading.BoundedSemaphore] = {}
        self._idle: dict[tuple[str, str], list[_Connection]] = {}
        self._stopped = threading.Event()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.sslsocket_class = _TlsSocket
        return context

    def stop(self) -> None:
        """End waits between attempts; attempts under way end by their timeout."""
        self._stopped.set()

    def close(self) -> None:
        self.stop()
        while self._idle:
            for connection in self._idle.popitem()[1]:
                connection.close()

    def get(self, url: str, accept: Callable[[bytes], object] = bool) -> bytes:
        """Returns the content at `url`, or raises `Failed` after all attempts; `accept` may too."""
        wait = self.settings.backoff
        for attempt in range(self.settings.retries + 1):
            try:
                content = self._attempt(url)
                accept(content)
                return content
            except Failed as failure:
                if failure.dead or attempt == self.settings.retries:
                    raise
                if self._stopped.wait(max(wait, min(failure.wait, 60.0))):
                    raise
                wait *= 2
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, url: str) -> bytes:
        deadline = time.monotonic() + self.settings.timeout
        inside: bool | None = None  # whether the first host is; known once it was asked
        target = first = _target(url)
        for _ in range(self.settings.max_redirects + 1):
            came = time.monotonic()
            turns = threading.BoundedSemaphore(self.settings.per_host)
            with self._hosts.setdefault(target.netloc, turns):
                deadline += time.monotonic() - came  # waiting for our own turn is not slowness
                answer = self._exchange(target, deadline, self._refusal(inside, first, target))
            inside = answer.inside if inside is None else inside
            if answer.status == 200:
                return answer.body
            if answer.status not in _REDIRECTS:
                wait = answer.headers.get("Retry-After", "")  # seconds; a date is not waited for
                dead = answer.status not in _PASSING
                seconds = float(wait[:6]) if wait.isdecimal() else 0.0
                raise Failed(f"HTTP {answer.status}", dead=dead, wait=seconds)
            target = _redirected(target, answer)
        raise Failed(f"more than {self.settings.max_redirects} redirects", dead=True)

    def _refusal(self, inside: bool | None, first: SplitResult, target: SplitResult) -> str | None:
        """Why a private address may not be asked now, or None if it may."""
        if inside is False:
            return "redirect to a private address"
        if _port(target) != _port(first):
            return "redirect to another port of a private address"
        return None if self.settings.private else PRIVATE

    def _exchange(self, target: SplitResult, deadline: float, refusal: str | None) -> _Answer:
        idle = self._idle.setdefault((target.scheme, target.netloc), [])
        try:
            connection = idle.pop()
        except IndexError:  # none, or another thread was faster
            connection = _Connection(target, self._tls if target.scheme == "https" else None)
        is_used = connection.sock is not None
        try:
            try:
                answer = self._ask(connection, target, deadline, refusal)
            except (ConnectionError, ssl.SSLError):
                if not is_used:
                    raise
                connection.close()  # the server had closed it meanwhile; asking opens it anew
                answer = self._ask(connection, target, deadline, refusal)
        except BaseException as error:
            connection.close()
            raise _failure(error, self.settings.timeout) from None
        if connection.sock is not None:
            idle.append(connection)
        return answer

    def _ask(
        self, connection: "_Connection", target: SplitResult, deadline: float, refusal: str | None
    ) -> _Answer:
        connection.prepare(deadline, refusal)
        path = quote(target.path or "/", safe="/%:=&?~#+!$,;'@()*[]-._")
        query = f"?{quote(target.query, safe='/%:=&?~+!$,;@()*[]-._')}" if target.query else ""
        headers = {"User-Agent": self.settings.user_agent, "Accept": "image/*,*/*;q=0.5"}
        connection.request("GET", path + query, headers=headers)
        response = connection.getresponse()
        body = b""
        if response.status == 200:
            body = _body(response, self.settings.max_bytes)
        elif response.length is not None and response.length <= _CHUNK:
            response.read()  # of no interest, but read so that the connection lasts
        else:
            connection.close()
        return _Answer(response.status, response.headers, body, connection.inside)


def _body(response: http.client.HTTPResponse, limit: int) -> bytes:
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


def _target(url: str) -> SplitResult:
    try:
        target = urlsplit(url)
        usable = target.scheme in ("http", "https") and target.hostname and target.port != 0
    except ValueError:
        usable = False
    if not usable or any(ord(character) <= 32 for character in url):
        raise Failed("not an http or https URL", dead=True)
    return target


def _port(target: SplitResult) -> int:
    return target.port or (443 if target.scheme == "https" else 80)


def _redirected(target: SplitResult, answer: _Answer) -> SplitResult:
    location = answer.headers.get("Location", "")
    if not location:
        raise Failed(f"HTTP {answer.status} without a Location", dead=True)
    if _UNAVAILABLE in location:
        raise Failed("photo unavailable", dead=True)
    try:
        return _target(urljoin(target.geturl(), location))
    except ValueError:
        raise Failed("redirect to what is no URL", dead=True) from None


def _failure(error: BaseException, timeout: float) -> BaseException:
    """Returns what to raise for `error`; what is no matter of the network stays as it is."""
    if not isinstance(error, OSError | http.client.HTTPException | ValueError):
        return error
    match error:
        case TimeoutError():
            reason = f"slower than {timeout:g} s"
        case http.client.IncompleteRead():
            reason = "truncated"
        case ssl.SSLCertVerificationError():
            reason = "its certificate is not valid"
        case ConnectionRefusedError():
            reason = "connection refused"
        case ConnectionError():
            reason = "connection closed"
        case _:
            text = getattr(error, "strerror", None) or type(error).__name__
            reason = f"no connection ({str(text)[:80]})"
    return Failed(reason, dead=False)


class _Deadline:
    """A socket whose every read ends with the attempt, however slowly bytes drip in."""

    deadline = 0.0

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        self.settimeout(_seconds_until(self.deadline))  # type: ignore[attr-defined]
        count: int = super().recv_into(*arguments, **options)  # type: ignore[misc]
        return count


def _seconds_until(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


class _PlainSocket(_Deadline, socket.socket):
    pass


class _TlsSocket(_Deadline, ssl.SSLSocket):
    pass


class _Connection(http.client.HTTPConnection):
    """Connects to the very address that was looked at, so that no name can change in between."""

    def __init__(self, target: SplitResult, tls: ssl.SSLContext | None) -> None:
        super().__init__(target.hostname or "", _port(target))
        self._tls = tls
        self._deadline = 0.0
        self._refusal: str | None = None
        self.inside = False

    def prepare(self, deadline: float, refusal: str | None) -> None:
        """Sets the deadline of the next request, and why a private address may not answer it."""
        self._deadline, self._refusal = deadline, refusal
        if self.sock is not None:
            self._require_allowed()
            self.sock.settimeout(_seconds_until(deadline))
            self.sock.deadline = deadline  # type: ignore[union-attr]

    def _require_allowed(self) -> None:
        if self.inside and self._refusal is not None:
            raise Failed(self._refusal, dead=True)

    def connect(self) -> None:
        try:
            addresses = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError:
            raise Failed("unknown host", dead=False) from None
        except UnicodeError:
            raise Failed("not a host name", dead=True) from None
        problem: OSError = OSError("no address")
        for family, kind, protocol, _, address in addresses:
            if is_never_asked(str(address[0])):
                raise Failed("a link-local address, which is never asked", dead=True)
            self.inside = is_inside(str(address[0]))
            self._require_allowed()
            plain = _PlainSocket(family, kind, protocol)
            try:
                plain.settimeout(_seconds_until(self._deadline))
                plain.connect(address)
                self.sock = plain
                if self._tls is not None:
                    self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
                self.prepare(self._deadline, self._refusal)
                return
            except OSError as error:
                plain.close()
                problem = error
        raise problem


def is_never_asked(address: str) -> bool:
    """Whether it, or an IPv4 address that it stands for, is link-local or where clouds keep their
    keys."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    every = (parsed, *_stood_for(parsed))
    return any(one.is_link_local or str(one) in _KEYS for one in every)


def _stood_for(
    parsed: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> list[ipaddress.IPv4Address]:
    """IPv4 addresses that a gateway may make of one of IPv6."""
    if isinstance(parsed, ipaddress.IPv4Address):
        return []
    last = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
    known = [parsed.ipv4_mapped, parsed.sixtofour, *(parsed.teredo or ())]
    if _holds_another(parsed):
        known.append(last)
    return [address for address in known if address is not None]


def _holds_another(parsed: ipaddress.IPv6Address) -> bool:
    """Whether an IPv4 address is in it: translated, tunnelled, or simply written down."""
    within = any(parsed in network for network in _WAYS_INSIDE)
    return within or int(parsed) >> 32 & 0xFFFFFFFF in _ISATAP


def is_inside(address: str) -> bool:
    """Whether an address belongs to this machine or to a private network."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        if _holds_another(parsed) or any(parsed in network for network in _NOWHERE):
            return True
        parsed = parsed.ipv4_mapped or parsed
    return not parsed.is_global or parsed.is_multicast or str(parsed) in _KEYS
