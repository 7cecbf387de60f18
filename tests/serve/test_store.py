"""The database: what is deleted is gone, what is damaged or wrong is said."""

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from acclimate.core.errors import ConfigError, StoreError, UnknownSite
from acclimate.serve import Service, Store
from acclimate.serve.rows import packed
from acclimate.serve.tables import SCHEMA
from fixtures.errors import refused
from fixtures.models import CLASSES
from fixtures.postgres import Postgres
from fixtures.uploads import ids, pixels, uploads

Open = Callable[..., Service]


def files_with(folder: Path, parts: list[bytes]) -> list[str]:
    """Files below a folder that hold one of these."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if any(part in path.read_bytes() for part in parts)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_deleted_sites_are_in_no_file(open_service: Open, tmp_path: Path) -> None:
    service, rows = open_service("concat", keep=20), pixels(60)
    for name in ("north", "south"):
        service.create_site(name)
        service.add_images(name, uploads(rows[30 * (name == "south") :][:30]), key="k")
    north, south = (packed(service.store.kept(name).features) for name in ("north", "south"))
    assert files_with(tmp_path, north[:1]) and files_with(tmp_path, south[:1])
    service.delete("north")
    assert files_with(tmp_path, north) == []  # nor is it in the log
    assert files_with(tmp_path, [b"north"]) == []
    assert files_with(tmp_path, south[-1:]) == ["sites.db"]
    with refused(UnknownSite, "'north'"):
        service.site("north")
    assert service.create_site("north").images == 0  # a new one
    assert service.add_images("north", uploads(rows[:5]), key="k").added == 5


@pytest.mark.full
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_deleted_sites_are_in_no_table(open_service: Open, postgres: Postgres) -> None:
    # Pictures that no other database of the server has had.
    service, rows = open_service("concat", keep=20), pixels(60, seed=77)
    for name in ("north", "south"):
        service.create_site(name)
        service.add_images(name, uploads(rows[30 * (name == "south") :][:30]), key="k")
    north, south = (packed(service.store.kept(name).features) for name in ("north", "south"))
    tables = postgres.data / "base"
    postgres.checkpoint()
    assert files_with(tables, north) and files_with(tables, south)
    service.delete("north")
    postgres.checkpoint()
    assert files_with(tables, north) == []
    assert files_with(tables, south)
    assert service.create_site("north").images == 0


def test_a_log_that_somebody_reads_is_reported(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'sites.db'}", patience=0.1)
    values = {"model": "m", "method": "auto", "extractor": "e", "keep": 5}
    store.create("north", 5, **values)
    with sqlite3.connect(tmp_path / "sites.db") as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM sites").fetchall()
        with refused(StoreError, "sites.db"):
            store.delete("north")
        reader.rollback()
    reader.close()
    assert store.all() == []
    store.close()


def test_urls() -> None:
    with refused(ConfigError, "sqlite:///FILE", "mysql"):
        Store("mysql://somebody:secret@host/sites")
    with pytest.raises(ConfigError) as caught:
        Store("mysql://somebody:secret@host/sites")
    assert "secret" not in str(caught.value)
    for url in ("sites.db", "", "sqlite://", "sqlite:///:memory:"):
        with refused(ConfigError, "sqlite:///FILE"):
            Store(url)


def test_databases_that_are_none(tmp_path: Path) -> None:
    with refused(StoreError, "sites.db"):
        Store(f"sqlite:///{tmp_path / 'nowhere' / 'sites.db'}")
    (tmp_path / "notes.db").write_text("no database" * 100)
    with refused(StoreError, "notes.db"):
        Store(f"sqlite:///{tmp_path / 'notes.db'}")


def test_a_later_format_is_refused(database: str) -> None:
    store = Store(database)
    with store.database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE format SET version = {SCHEMA + 1}")
    store.close()
    with refused(StoreError, SCHEMA + 1):
        Store(database)


def test_replicas_are_one(open_service: Open) -> None:
    """Three services on one database, all at once: nothing is lost, nothing counts twice."""
    rows = pixels(60)
    services = [open_service("concat", keep=25) for _ in range(3)]
    services[0].create_site("north")
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            service, rng = services[number], np.random.default_rng(number)
            for call in range(6):
                some = rng.choice(60, 20, replace=False)
                given = [CLASSES[row % 3] if row < 3 else None for row in some]
                service.add_images(
                    "north", uploads(rows[some]), labels=given, key=f"{number}-{call}"
                )
                service.add_images(
                    "north", uploads(rows[some]), labels=given, key=f"{number}-{call}"
                )
                service.predict("north", uploads(rows[:2]))
            rest = np.arange(number, 60, 3)
            given = [CLASSES[row % 3] if row < 3 else None for row in rest]
            service.add_images("north", uploads(rows[rest]), labels=given, key=f"rest-{number}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    alone = open_service("concat", keep=25)
    alone.create_site("alone")
    alone.add_images("alone", uploads(rows), labels=[*CLASSES, *[None] * 57])
    views = [service.site("north") for service in services]
    assert views[0] == views[1] == views[2]
    assert (views[0].images, views[0].kept, views[0].labelled) == (60, 25, 3)
    together, once = (alone.store.kept(name) for name in ("north", "alone"))
    assert together.hashes.equal(once.hashes) and together.labels == once.labels
    answers = [
        [one.probability for one in service.predict(name, uploads(rows[:8]))]
        for service, name in [*((one, "north") for one in services), (alone, "alone")]
    ]
    assert all(np.allclose(one, answers[0], atol=1e-5) for one in answers)
    entries = [entry for entry in views[0].history if entry["what"] == "images"]
    assert sum(entry["pictures"] for entry in entries) == 60
    assert len({entry["revision"] for entry in views[0].history}) == len(views[0].history)


def test_replicas_create_a_site_once(open_service: Open) -> None:
    services, together = [open_service("concat") for _ in range(3)], threading.Barrier(3)

    def create(service: Service) -> int:
        together.wait(60)
        return [service.create_site(f"site-{number}").revision for number in range(10)].count(1)

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(create, services)) == [10, 10, 10]
    sites = services[0].sites()
    assert [site.name for site in sites] == [f"site-{number}" for number in range(10)]
    assert len(services[0].site("site-0").history) == 1


def test_replicas_see_each_others_changes_at_once(open_service: Open) -> None:
    one, two = open_service("concat"), open_service("concat")
    rows = pixels(40)
    one.create_site("north")
    one.add_images("north", uploads(rows[:20]))
    before = two.predict("north", uploads(rows[:3]))
    one.add_images("north", uploads(rows[20:]))
    after = two.predict("north", uploads(rows[:3]))
    assert [a.probability for a in after] != [b.probability for b in before]
    assert [a.probability for a in after] == [
        a.probability for a in one.predict("north", uploads(rows[:3]))
    ]
    one.delete("north")
    with refused(UnknownSite, "'north'"):
        two.predict("north", uploads(rows[:1]))
    one.create_site("north")
    assert two.site("north").images == 0
    two.add_images("north", uploads(rows[:1]))
    assert one.add_labels("north", {ids(rows)[0]: "ant"}).site.labelled == 1


@pytest.mark.full
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_database_that_was_away_is_used_again(open_service: Open, postgres: Postgres) -> None:
    service = open_service("concat")
    service.create_site("north")
    service.add_images("north", uploads(pixels(3)))
    postgres.stop()
    with refused(StoreError, "postgres"):
        service.predict("north", uploads(pixels(1)))
    postgres.start()
    assert service.site("north").images == 3
