"""A real server on this machine, with a model of random weights."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from acclimate.serve.limits import Limits
from acclimate.serve.service import Service
from acclimate.serve.store import Store
from acclimate.serve.tokens import Tokens
from fixtures.models import make_trained

pytest.importorskip("fastapi")
Start = Callable[..., "Running"]


class Running:
    """A server in a thread, and a client for it."""

    def __init__(self, service: Service, tokens: Tokens | None = None) -> None:
        import uvicorn

        from acclimate.serve.app import Server, make_app
        from acclimate.serve.gate import listen
        from acclimate.serve.telemetry import Telemetry

        self.service, self.telemetry = service, Telemetry()
        self.telemetry.watch(service)
        app = make_app(Server(service, self.telemetry, tokens))
        self.door: socket.socket = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.door.getsockname()[1]}"
        config = uvicorn.Config(app, log_config=None, access_log=False, ws="none")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([self.door],), daemon=True)
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def __enter__(self) -> "Running":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.server.should_exit = True
        self.thread.join(20)
        self.door.close()
        assert not self.thread.is_alive()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(images=3)`: a server with these limits and a store of its own."""
    with ExitStack() as stack:

        def begin(tokens: Tokens | None = None, also: Any = None, **limits: Any) -> Running:
            store = Store(f"sqlite:///{tmp_path / 'sites.sqlite'}")
            models = {"main": make_trained("rehearsed"), **(also or {})}
            given = Limits(**limits)
            service = Service(models, store, limits=given, room=given.queue)
            stack.enter_context(closing(service))
            return stack.enter_context(Running(service, tokens))

        yield begin


@pytest.fixture
def running(start: Start) -> Running:
    """A server with a site, `north`."""
    running = start()
    assert running.client.put("/v1/sites/north").status_code == 200
    return running
