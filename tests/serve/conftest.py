"""Databases of both kinds, models with random weights, and servers in front of them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from acclimate.serve import Limits, Service, Store
from acclimate.serve.tokens import Tokens
from fixtures.models import make_trained
from fixtures.postgres import Postgres, running_postgres
from fixtures.servers import Running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty one."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sites.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def open_service(database: str) -> Iterator[Callable[..., Service]]:
    """`open_service("concat", keep=20)`: a service over the test's database, as many as it wants;
    models are a kind of `fixtures.models`, or several by name."""
    services, stores = [], []

    def make(models: Any = "concat", url: str = database, **settings: Any) -> Service:
        kinds = {"model": models} if isinstance(models, str) else models
        made = {
            name: make_trained(kind) if isinstance(kind, str) else kind
            for name, kind in kinds.items()
        }
        stores.append(Store(url))
        services.append(Service(made, stores[-1], **settings))
        return services[-1]

    yield make
    for service in services:
        service.close()
    for store in stores:
        store.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """`start(images=3)`: a server with these limits and a store of its own."""
    with ExitStack() as stack:

        def begin(tokens: Tokens | None = None, also: Any = None, **limits: Any) -> Running:
            store = Store(f"sqlite:///{tmp_path / 'served.sqlite'}")
            models = {"main": make_trained("rehearsed"), **(also or {})}
            given = Limits(**limits)
            service = Service(models, store, limits=given, room=given.queue)
            stack.enter_context(closing(service))
            return stack.enter_context(Running(service, tokens))

        yield begin


@pytest.fixture
def running(start: Callable[..., Running]) -> Running:
    """A server with a site, `north`."""
    running = start()
    assert running.client.put("/v1/sites/north").status_code == 200
    return running
