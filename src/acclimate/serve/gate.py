"""What every request passes around its handler: limits, deadlines, one log line and metrics."""

import asyncio
import secrets
import socket
import time
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acclimate.core.errors import ConfigError, OverLimit, QueueFull
from acclimate.serve.limits import Limits
from acclimate.serve.problems import Foreign, SlowBody, TooSlow, WrongType, answer
from acclimate.serve.telemetry import LOGGER, Telemetry

MIB = 1 << 20


@dataclass(eq=False)
class Gate:
    """ASGI middleware. `local`: there are no tokens, so only programs of this machine may ask, and
    no page that somebody has open in a browser."""

    app: ASGIApp
    limits: Limits
    telemetry: Telemetry
    local: bool
    requests: int = 0
    bytes: int = 0  # of bodies, of all requests under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        call = Call(self, scope, receive, send)
        self.requests += 1
        try:
            await call.run()
        finally:
            self.requests -= 1
            self.bytes -= call.received
            call.report()


@dataclass(eq=False)
class Call:
    """One request on its way."""

    gate: Gate
    scope: Scope
    receive_next: Receive
    send_on: Send
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    start: float = field(default_factory=time.perf_counter)
    facts: dict[str, Any] = field(default_factory=dict)  # what handlers say for the log
    received: int = 0  # bytes
    reading: bool = False  # waits for a part of the body
    status: int = 0

    async def run(self) -> None:
        self.scope.setdefault("state", {})["facts"] = self.facts
        try:
            self._admit()
            async with asyncio.timeout(self.gate.limits.timeout):
                await self.gate.app(self.scope, self.receive, self.send)
        except Exception as error:
            await self._fail(error)

    def _admit(self) -> None:
        """Refuse before anything is read."""
        headers, limits = Headers(scope=self.scope), self.gate.limits
        if self.gate.local:
            _require_local(headers)
        if self.gate.requests > limits.requests:
            raise QueueFull(f"{limits.requests} requests are under way; try again in a moment")
        packed = headers.get("content-encoding", "identity")
        if packed != "identity":
            raise WrongType(f"the body is packed ({packed[:20]}); send it as it is")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > limits.body_mib * MIB:
            raise _too_large(limits)

    async def receive(self) -> Message:
        self.reading = True
        message = await self.receive_next()
        self.reading = False
        if message["type"] == "http.request":
            size, limits = len(message.get("body", b"")), self.gate.limits
            self.received += size
            self.gate.bytes += size
            if self.received > limits.body_mib * MIB:
                raise _too_large(limits)
            if self.gate.bytes > limits.memory_mib * MIB and self.gate.bytes > self.received:
                raise QueueFull(
                    f"{limits.memory_mib} MiB of bodies are under way; try again in a moment"
                )
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            extra = (b"x-request-id", self.id.encode()), (b"x-content-type-options", b"nosniff")
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await self.send_on(message)

    async def _fail(self, error: Exception) -> None:
        """Answer for an error that no handler did."""
        if isinstance(error, TimeoutError):
            seconds = f"{self.gate.limits.timeout:g} s"
            error = (
                SlowBody(f"the body did not arrive within {seconds}; send less at once")
                if self.reading
                else TooSlow(f"this took more than {seconds}; try again in a moment, or send less")
            )
        if self.status:  # too late to say it to the client
            LOGGER.error("answer cut short", exc_info=error, extra={"facts": {"request": self.id}})
            return
        response = answer(error, self.scope["path"])
        if response.status_code == 500:
            LOGGER.error("fault", exc_info=error, extra={"facts": {"request": self.id}})
        await response(self.scope, self.receive, self.send)

    def report(self) -> None:
        seconds = time.perf_counter() - self.start
        route = getattr(self.scope.get("route"), "path", "other")
        self.gate.telemetry.request(route, self.scope["method"], self.status, seconds)
        facts = {
            "request": self.id,
            "method": self.scope["method"][:20],
            "path": self.scope["path"][:200],
            "status": self.status,
            "seconds": round(seconds, 6),
            "bytes": self.received,
            **self.facts,
        }
        LOGGER.info("request", extra={"facts": facts})


def _too_large(limits: Limits) -> OverLimit:
    return OverLimit(f"the body has more than {limits.body_mib} MiB; send fewer images at once")


def _require_local(headers: Headers) -> None:
    """A name that leads here by somebody's DNS, or a page from elsewhere, is refused: browsers
    send what such pages ask for."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if not is_loopback(_name(f"//{host}")):
        raise Foreign(f"host '{host[:100]}' is not this machine; use 127.0.0.1, or tokens")
    if origin is not None and origin.partition("://")[2] != host:
        raise Foreign(f"a page of '{origin[:100]}' may not use this server; use tokens")


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on; they wait until the server runs."""
    try:
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=kind, backlog=1024)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{host}, port {port}: {reason}; choose another with --host or --port"
        ) from None
