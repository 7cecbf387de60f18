"""Databases of both kinds, models with random weights, and pictures for them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from acclimate.serve import Service, Store
from fixtures.models import make_trained
from fixtures.postgres import Postgres, running_postgres


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
