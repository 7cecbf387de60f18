"""The tables of the store, and databases that may hold them."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from acclimate.core.errors import ConfigError, StoreError
from acclimate.core.exports import require
from acclimate.core.text import reason_of

SCHEMA = 1
META = sa.MetaData()
Row = sa.Row[Any]


def _site() -> sa.Column[int]:
    return sa.Column("site", sa.ForeignKey("sites.id", ondelete="CASCADE"), primary_key=True)


FORMAT = sa.Table("format", META, sa.Column("version", sa.Integer, primary_key=True))
SITES = sa.Table(
    "sites",
    META,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(100), nullable=False, unique=True),
    sa.Column("model", sa.String(200), nullable=False),
    sa.Column("method", sa.String(200), nullable=False),  # of adaptation
    sa.Column("extractor", sa.String(64), nullable=False),  # of the features in use
    sa.Column("next_model", sa.String(200)),  # where it moves once enough new images are there
    sa.Column("next_extractor", sa.String(64)),
    sa.Column("keep", sa.Integer, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),  # grows with every change
    sa.Column("facts", sa.Text),  # JSON: what its classifier is, as of a revision and a model
    sa.Column("drift", sa.Float),  # evidence that the site has changed: 1 raises an alarm
    sqlite_autoincrement=True,  # no number is used again: another process may remember it
)
PICTURES = sa.Table(
    "pictures",
    META,
    _site(),
    sa.Column("extractor", sa.String(64), primary_key=True),
    sa.Column("hash", sa.BigInteger, primary_key=True),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("feature", sa.LargeBinary),  # float16, of pictures in the sample
    sa.Column("phi", sa.LargeBinary),  # float16, where Φ is one of images
    sa.Column("pixels", sa.LargeBinary),  # as the model sees them, where a method needs them
)
KEPT = sa.Index(
    "kept",
    PICTURES.c.site,
    PICTURES.c.extractor,
    sqlite_where=PICTURES.c.feature.is_not(None),
    postgresql_where=PICTURES.c.feature.is_not(None),
)
LABELS = sa.Table(
    "labels",
    META,
    _site(),
    sa.Column("hash", sa.BigInteger, primary_key=True),
    sa.Column("revision", sa.Integer, primary_key=True),
    sa.Column("label", sa.Text),  # NULL takes an earlier one back
)
HISTORY = sa.Table(
    "history",
    META,
    _site(),
    sa.Column("revision", sa.Integer, primary_key=True),
    sa.Column("at", sa.String(40), nullable=False),
    sa.Column("what", sa.String(20), nullable=False),
    sa.Column("pictures", sa.Integer, nullable=False),
    sa.Column("labels", sa.Integer, nullable=False),
    sa.Column("about", sa.Text),
)
WATCHES = sa.Table(
    "watches",
    META,
    _site(),
    sa.Column("version", sa.Integer, nullable=False),  # grows with every look
    sa.Column("baseline", sa.String(200), nullable=False),
    sa.Column("watch", sa.Text, nullable=False),
    sa.Column("report", sa.Text, nullable=False),
)
ANSWERS = sa.Table(
    "answers",
    META,
    _site(),
    sa.Column("key", sa.String(200), primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("answer", sa.Text, nullable=False),
)


class Database:
    """An SQLite file or a PostgreSQL database with these tables. On SQLite, processes wait for each
    other for as long as `patience`, in seconds."""

    def __init__(self, url: str, patience: float) -> None:
        self.url = _parsed(url)
        self.shown = self.url.render_as_string(hide_password=True)
        self.sqlite = self.url.get_backend_name() == "sqlite"
        self._patience = patience
        self._alone = threading.Lock()  # threads of this process wait without asking again
        self.insert = (sqlite if self.sqlite else postgresql).insert
        self._engine = self._connect()
        self._writer = self._engine.execution_options(writes=True)
        isolation = {} if self.sqlite else {"isolation_level": "REPEATABLE READ"}
        self._reader = self._engine.execution_options(**isolation)
        try:
            self._create()
        except BaseException:
            self.close()
            raise

    def _create(self) -> None:
        """Make the tables, unless they are there."""
        with self.writing() as connection:
            if not self.sqlite:  # servers that start together do so one after the other
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(7362451)"))
            META.create_all(connection)
            version = connection.scalar(sa.select(FORMAT.c.version))
            if version is None:
                connection.execute(FORMAT.insert().values(version=SCHEMA))
            elif version != SCHEMA:
                raise StoreError(
                    f"{self.shown} was written by another version (format {version}, not {SCHEMA});"
                    f" use that one, or another database"
                )

    def _connect(self) -> Engine:
        if not self.sqlite:
            require("psycopg", purpose="for a PostgreSQL database", extra="postgres")
            # Whatever the database's default is: what is acknowledged is on its disk.
            durable = {"options": "-c synchronous_commit=on"}
            return sa.create_engine(self.url, pool_pre_ping=True, connect_args=durable)
        engine = sa.create_engine(self.url, connect_args={"timeout": self._patience})
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        return engine

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction: all of it is on the disk afterwards, or nothing."""
        alone = self._alone if self.sqlite else nullcontext()
        with alone, self._errors(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """The database as it is at one moment."""
        with self._errors(), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise StoreError(
                f"{self.shown} cannot be used: {reason_of(cause)}; see that it is there and takes "
                f"writes, and try again"
            ) from error

    def purge(self) -> None:
        """Overwrite what was deleted; on SQLite also in its log, which PostgreSQL reuses itself."""
        with self._errors():
            if not self.sqlite:
                options = {"isolation_level": "AUTOCOMMIT"}
                with self._engine.execution_options(**options).connect() as connection:
                    # VACUUM alone leaves the bytes in the table's file.
                    tables = ", ".join(table.name for table in (PICTURES, LABELS, WATCHES, ANSWERS))
                    connection.execute(sa.text(f"VACUUM (FULL) {tables}"))
                return
            with closing(self._engine.raw_connection()) as raw:
                cursor = raw.cursor()
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # waits for readers
                busy = any(row[0] for row in cursor.fetchall())
        if busy:
            raise StoreError(
                f"{self.shown}: rows are deleted, and its log could not be emptied because another "
                f"process reads it; delete another site, or restart, when it is done"
            )

    def close(self) -> None:
        self._engine.dispose()


def _parsed(url: str) -> sa.URL:
    """`postgresql://` is spoken by psycopg 3."""
    try:
        parsed = sa.make_url(url)
    except ArgumentError:
        raise _unknown_kind(url) from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        raise _unknown_kind(parsed.render_as_string(hide_password=True))
    if parsed.drivername == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigError(f"{url} is forgotten when the server stops; give sqlite:///FILE")
    return parsed


def _unknown_kind(shown: str) -> ConfigError:
    return ConfigError(f"{shown} is no database; give sqlite:///FILE or postgresql://…")


def _prepare(connection: sqlite3.Connection, record: object) -> None:
    """What is acknowledged survives a power cut, and what is deleted is overwritten."""
    connection.isolation_level = None  # transactions begin where we say, not where sqlite3 does
    for setting in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "secure_delete=ON",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {setting}")


def _begin(connection: Connection) -> None:
    # A reader that later writes would fail if somebody else wrote in between.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
