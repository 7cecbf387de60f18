"""A connection that keeps a deadline and refuses private addresses, under all their names."""

import http.client
import ipaddress
import socket
import ssl
import time
from typing import Any
from urllib.parse import SplitResult

# Addresses that Python calls global though a gateway may turn them into private ones: IPv4 in
# IPv6, as translated (NAT64), tunnelled (6to4) or simply written down; and site-local ones.
_WAYS_INSIDE = tuple(
    ipaddress.IPv6Network(network)
    for network in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "::/96", "fec0::/10")
)


class Failed(Exception):
    """No image. `dead` when another attempt is pointless; `wait` as the server asked."""

    def __init__(self, reason: str, *, dead: bool, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.dead = dead
        self.wait = wait


class _Deadline:
    """A socket whose every read ends with the attempt, however slowly bytes drip in."""

    until = 0.0

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)  # type: ignore[attr-defined]
        count: int = super().recv_into(*arguments, **options)  # type: ignore[misc]
        return count


class _PlainSocket(_Deadline, socket.socket):
    pass


class TlsSocket(_Deadline, ssl.SSLSocket):
    pass


class Connection(http.client.HTTPConnection):
    """Connects to the very address that was looked at, so that no name can change in between."""

    def __init__(
        self,
        target: SplitResult,
        tls: ssl.SSLContext | None,
        deadline: float,
        refusal: str | None,
    ) -> None:
        super().__init__(target.hostname or "", target.port or (80 if tls is None else 443))
        self._tls = tls
        self._deadline = deadline
        self._refusal = refusal
        self.inside = False

    def until(self, deadline: float) -> None:
        self._deadline = deadline
        if self.sock is not None:
            self.sock.settimeout(self._left())
        if isinstance(self.sock, _Deadline):
            self.sock.until = deadline

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def connect(self) -> None:
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError:
            raise Failed("unknown host", dead=False) from None
        except UnicodeError:
            raise Failed("not a host name", dead=True) from None
        problem: OSError = OSError("no address")
        for family, kind, protocol, _, address in found:
            if is_link_local(str(address[0])):
                raise Failed("a link-local address, which is never asked", dead=True)
            self.inside = is_inside(str(address[0]))
            if self.inside and self._refusal is not None:
                raise Failed(self._refusal, dead=True)
            plain = _PlainSocket(family, kind, protocol)
            try:
                plain.settimeout(self._left())
                plain.connect(address)
                self.sock = plain
                if self._tls is not None:
                    self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
                self.until(self._deadline)
                return
            except OSError as error:
                plain.close()
                problem = error
        raise problem


def is_link_local(address: str) -> bool:
    """Whether it, or the IPv4 address that it stands for, is one where clouds keep their keys."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return any(one.is_link_local for one in (parsed, *_stood_for(parsed)))


def _stood_for(
    parsed: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> list[ipaddress.IPv4Address]:
    """IPv4 addresses that a gateway may make of one of IPv6."""
    if isinstance(parsed, ipaddress.IPv4Address):
        return []
    known = [parsed.ipv4_mapped, parsed.sixtofour, *(parsed.teredo or ())]
    if any(parsed in network for network in _WAYS_INSIDE):  # translated, or simply written down
        known.append(ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF))
    return [address for address in known if address is not None]


def is_inside(address: str) -> bool:
    """Whether an address belongs to this machine or to a private network."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        if any(parsed in network for network in _WAYS_INSIDE):
            return True
        parsed = parsed.ipv4_mapped or parsed
    return not parsed.is_global or parsed.is_multicast
