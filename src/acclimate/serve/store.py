"""What is kept of sites: a set of pictures and their labels, in one database for all replicas.

The set has one row per picture. The features of a sample of them are kept, of the rest the hash
alone, so that counting is exact. A picture or an idempotency key that comes again changes nothing.
Whoever writes holds the site's row: changes of one site follow each other, on all replicas.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa
import torch
from sqlalchemy.engine import Connection
from torch import Tensor

from acclimate.adapt.trust import FEW_IMAGES
from acclimate.core.errors import ConfigError, KeyReused, OverLimit, UnknownName, UnknownSite
from acclimate.core.text import timestamp
from acclimate.learn.embeddings.pictures import NO_NUMBERS, NO_PICTURES, UNLABELLED, Pictures
from acclimate.serve.tables import ANSWERS, HISTORY, LABELS, PICTURES, SITES, Database, Row

SOME = 500  # values that one statement looks for


@dataclass(frozen=True)
class Arrivals:
    """Pictures that came in one call, each once: what one extractor makes of them."""

    hashes: Sequence[int]
    features: Tensor  # [n, f]
    phi: Tensor | None = None  # [n, d], where Φ is one of images
    labels: Mapping[int, str] = field(default_factory=dict)  # by hash


@dataclass(frozen=True)
class Kept:
    """A site's sample, ascending by hash, and the names of its labels."""

    row: Row
    hashes: Tensor = NO_NUMBERS  # [k] int64
    features: Tensor = NO_PICTURES.features  # [k, f] float16
    phi: Tensor | None = None  # [k, d] float16
    labels: Mapping[int, str] = field(default_factory=dict)

    def pictures(self, classes: Sequence[str]) -> Pictures:
        """With labels by number; one that `classes` do not have is none."""
        places = {name: place for place, name in enumerate(classes)}
        numbers = [places.get(self.labels.get(h, ""), UNLABELLED) for h in self.hashes.tolist()]
        return Pictures(self.hashes, self.features, torch.tensor(numbers, dtype=torch.int64))


@dataclass(frozen=True)
class Outcome:
    """What a call came to, as its repetition is answered too."""

    added: int = 0
    repeated: int = 0
    labelled: int = 0
    not_kept: tuple[int, ...] = ()  # labelled pictures whose features were dropped before
    again: bool = False  # the key was used before, for this very call
    about: Mapping[str, Any] = field(default_factory=dict)  # what the caller wants back then


class Store:
    """The sites of a database. Every method is one transaction."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)

    def close(self) -> None:
        self.database.close()

    def create(self, name: str, model: str, extractor: str, keep: int, most: int) -> Row:
        """The site `name`; what it is made with counts only where it is new."""
        with self.database.writing() as connection:
            if (row := _find(connection, name)) is not None:
                return row
            if (connection.scalar(sa.select(sa.func.count()).select_from(SITES)) or 0) >= most:
                raise OverLimit(f"there are {most} sites, as many as may be; delete one first")
            values = {"name": name, "model": model, "extractor": extractor, "keep": keep}
            insert = SITES.insert().values(**values, revision=1)
            key = connection.execute(insert).inserted_primary_key
            assert key is not None
            _note(connection, key[0], 1, "created", about=model)
            row = _find(connection, name)
            assert row is not None
            return row

    def find(self, name: str) -> Row:
        with self.database.reading() as connection:
            return _require(_find(connection, name), name)

    def all(self) -> Sequence[Row]:
        with self.database.reading() as connection:
            return connection.execute(sa.select(SITES).order_by(SITES.c.name)).all()

    def totals(self) -> dict[str, int]:
        """Pictures of every site, by its name."""
        c = PICTURES.c
        of = sa.and_(c.site == SITES.c.id, c.extractor == SITES.c.extractor)
        wanted = sa.select(SITES.c.name, sa.func.count(c.hash).label("images")).select_from(
            SITES.outerjoin(PICTURES, of)
        )
        with self.database.reading() as connection:
            rows = connection.execute(wanted.group_by(SITES.c.id).order_by(SITES.c.name))
            return {row.name: row.images for row in rows}

    def counts(self, row: Row) -> tuple[int, int]:
        """Pictures of a site, and those of them with a label."""
        with self.database.reading() as connection:
            return _count(connection, row.id, row.extractor), len(_labels(connection, row))

    def history(self, row: Row) -> list[dict[str, Any]]:
        wanted = sa.select(HISTORY).where(HISTORY.c.site == row.id).order_by(HISTORY.c.revision)
        with self.database.reading() as connection:
            entries = [dict(entry) for entry in connection.execute(wanted).mappings()]
        for entry in entries:
            entry.pop("site")
        return entries

    def kept(self, name: str) -> Kept:
        """The sample of a site, with the row that it belongs to."""
        with self.database.reading() as connection:
            row = _require(_find(connection, name), name)
            c = PICTURES.c
            wanted = sa.select(c.hash, c.feature, c.phi).where(*_sample(row)).order_by(c.hash)
            rows = connection.execute(wanted).all()
            labels = _labels(connection, row)
        if not rows:
            return Kept(row)
        hashes, features, phi = zip(*rows, strict=True)
        own = None if phi[0] is None else _unpacked(phi)
        return Kept(row, torch.tensor(hashes), _unpacked(features), own, labels)

    def answer(self, name: str, key: str, digest: str) -> Outcome | None:
        """What was answered when the key came first."""
        with self.database.reading() as connection:
            return _answered(connection, _require(_find(connection, name), name), key, digest)

    def add(
        self,
        name: str,
        arrivals: Mapping[str, Arrivals],
        *,
        most: int,
        key: str | None = None,
        digest: str = "",
        about: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Pictures as each extractor sees them, that of the site's model among them."""
        with self.database.writing() as connection:
            row = _lock(connection, name)
            if key is not None and (before := _answered(connection, row, key, digest)):
                return before
            if row.extractor not in arrivals:
                raise ConfigError(f"site '{name}' has moved to another model; repeat the call")
            given = {h: label for some in arrivals.values() for h, label in some.labels.items()}
            labelled, changed, added = _label(connection, row, given), 0, 0
            for extractor, some in arrivals.items():
                fresh, stored = _insert(connection, row, extractor, some)
                changed += fresh + stored
                added += fresh if extractor == row.extractor else 0
            total = _count(connection, row.id, row.extractor)
            if total > most:
                raise OverLimit(f"site '{name}' would have {total} pictures, and {most} may be")
            outcome = Outcome(
                added=added,
                repeated=len(arrivals[row.extractor].hashes) - added,
                labelled=labelled,
                about=about or {},
            )
            if changed or labelled:
                _advance(connection, row, "images", added, labelled)
                _complete_move(connection, row)
            _keep_answer(connection, row, key, digest, outcome)
            return outcome

    def label(
        self,
        name: str,
        labels: Mapping[int, str | None],
        *,
        key: str | None = None,
        digest: str = "",
        about: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Labels of pictures that the site has; None takes one back."""
        with self.database.writing() as connection:
            row = _lock(connection, name)
            if key is not None and (before := _answered(connection, row, key, digest)):
                return before
            known = _known(connection, row, row.extractor, labels)
            if missing := [number for number in labels if number not in known]:
                raise UnknownName(
                    f"site '{name}' has no picture {missing[0] % 2**64:016x}; send the image itself"
                )
            changed = _label(connection, row, labels)
            outcome = Outcome(
                labelled=changed,
                repeated=len(labels) - changed,
                not_kept=tuple(number for number in labels if not known[number]),
                about=about or {},
            )
            if changed:
                _advance(connection, row, "labels", 0, changed)
            _keep_answer(connection, row, key, digest, outcome)
            return outcome

    def roll_back(self, name: str, revision: int | None) -> int:
        """Forget what came after `revision`, or the last that came; the revision gone back to."""
        with self.database.writing() as connection:
            row = _lock(connection, name)
            target = _last(connection, row) - 1 if revision is None else revision
            if not 1 <= target <= row.revision:
                raise ConfigError(
                    f"site '{name}' has revisions from 1 to {row.revision}; go back to one of these"
                )
            gone = []
            for table in (PICTURES, LABELS):
                late = sa.delete(table).where(table.c.site == row.id, table.c.revision > target)
                gone.append(connection.execute(late).rowcount)
            _advance(connection, row, "rollback", -gone[0], -gone[1], about=f"to {target}")
        self.database.purge()
        return target

    def move(self, name: str, model: str, extractor: str, *, at_once: bool) -> None:
        """Let the site use another model: now where its features do, or where it is to be
        `at_once`; else when enough new images have come."""
        with self.database.writing() as connection:
            row = _lock(connection, name)
            values: dict[str, str | None] = {"model": model, "extractor": extractor}
            if extractor == row.extractor or at_once:
                values |= {"next_model": None, "next_extractor": None}
            else:
                values = {"next_model": model, "next_extractor": extractor}
            connection.execute(sa.update(SITES).where(SITES.c.id == row.id).values(**values))
            _advance(connection, row, "move", about=model)
            others = sa.delete(PICTURES).where(
                PICTURES.c.site == row.id,
                PICTURES.c.extractor.not_in([values.get("extractor", row.extractor), extractor]),
            )
            connection.execute(others)
        self.database.purge()

    def delete(self, name: str) -> None:
        """All rows of a site, and what they held."""
        with self.database.writing() as connection:
            row = _lock(connection, name)
            connection.execute(sa.delete(SITES).where(SITES.c.id == row.id))
        self.database.purge()


def _find(connection: Connection, name: str) -> Row | None:
    return connection.execute(sa.select(SITES).where(SITES.c.name == name)).one_or_none()


def _require(row: Row | None, name: str) -> Row:
    if row is None:
        raise UnknownSite(f"there is no site '{name}'; create it first")
    return row


def _lock(connection: Connection, name: str) -> Row:
    """The site's row, for this transaction alone."""
    wanted = sa.select(SITES).where(SITES.c.name == name).with_for_update()
    return _require(connection.execute(wanted).one_or_none(), name)


def _advance(
    connection: Connection,
    row: Row,
    what: str,
    pictures: int = 0,
    labels: int = 0,
    about: str | None = None,
) -> None:
    update = sa.update(SITES).where(SITES.c.id == row.id).values(revision=row.revision + 1)
    connection.execute(update)
    _note(connection, row.id, row.revision + 1, what, pictures, labels, about)


def _note(
    connection: Connection,
    site: int,
    revision: int,
    what: str,
    pictures: int = 0,
    labels: int = 0,
    about: str | None = None,
) -> None:
    values = {"site": site, "revision": revision, "at": timestamp(), "what": what}
    values |= {"pictures": pictures, "labels": labels, "about": about}
    connection.execute(HISTORY.insert().values(values))


def _count(connection: Connection, site: int, extractor: str) -> int:
    c = PICTURES.c
    wanted = sa.select(sa.func.count()).where(c.site == site, c.extractor == extractor)
    return connection.scalar(wanted) or 0


def _sample(row: Row) -> tuple[sa.ColumnElement[bool], ...]:
    """Which pictures are in a site's sample."""
    c = PICTURES.c
    return c.site == row.id, c.extractor == row.extractor, c.feature.is_not(None)


def _last(connection: Connection, row: Row) -> int:
    """The last revision in which something came that is still there."""
    tables = [
        sa.select(sa.func.max(table.c.revision)).where(table.c.site == row.id)
        for table in (PICTURES, LABELS)
    ]
    return max(connection.scalar(wanted) or 0 for wanted in tables)


def _all_labels(connection: Connection, site: int) -> dict[int, str]:
    """The last label of each picture that has one, by hash."""
    c = LABELS.c
    wanted = sa.select(c.hash, c.label).where(c.site == site).order_by(c.revision)
    last: dict[int, str | None] = {one.hash: one.label for one in connection.execute(wanted)}
    return {number: label for number, label in last.items() if label is not None}


def _labels(connection: Connection, row: Row) -> dict[int, str]:
    """Those of pictures that the site has for its model."""
    labels = _all_labels(connection, row.id)
    known = _known(connection, row, row.extractor, labels)
    return {number: label for number, label in labels.items() if number in known}


def _known(
    connection: Connection, row: Row, extractor: str, hashes: Iterable[int]
) -> dict[int, bool]:
    """Those of `hashes` that the site has, and whether their features are kept."""
    wanted, known, c = list(hashes), dict[int, bool](), PICTURES.c
    for start in range(0, len(wanted), SOME):
        some = sa.select(c.hash, c.feature.is_not(None)).where(
            c.site == row.id, c.extractor == extractor, c.hash.in_(wanted[start : start + SOME])
        )
        known |= {number: bool(kept) for number, kept in connection.execute(some)}
    return known


def _label(connection: Connection, row: Row, labels: Mapping[int, str | None]) -> int:
    """Write down labels that are not what they were; how many."""
    before = _all_labels(connection, row.id) if labels else {}
    changed = [
        {"site": row.id, "hash": number, "revision": row.revision + 1, "label": label}
        for number, label in labels.items()
        if before.get(number) != label
    ]
    if changed:
        connection.execute(LABELS.insert(), changed)
    return len(changed)


def _insert(connection: Connection, row: Row, extractor: str, some: Arrivals) -> tuple[int, int]:
    """Add pictures; how many are new, and how many of the others have their features back.

    The sample is that of all pictures whose features there are: the rest lose theirs.
    """
    c = PICTURES.c
    known = _known(connection, row, extractor, some.hashes)
    sampled = sa.select(c.hash).where(
        c.site == row.id, c.extractor == extractor, c.feature.is_not(None)
    )
    kept = {*connection.scalars(sampled)}
    labels = _all_labels(connection, row.id)
    among = sorted({*kept, *some.hashes})
    marks = torch.tensor([0 if number in labels else UNLABELLED for number in among])
    whole = Pictures(torch.tensor(among, dtype=torch.int64), torch.zeros(len(among), 0), marks)
    chosen = {*whole.sample(row.keep).hashes.tolist()}
    fresh, back = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for place, number in enumerate(some.hashes):
        if number in kept or (number in known and number not in chosen):
            continue
        feature = _packed(some.features[place]) if number in chosen else None
        phi = _packed(some.phi[place]) if number in chosen and some.phi is not None else None
        (back if number in known else fresh).append((number, feature, phi))
    place_of = {"site": row.id, "extractor": extractor}
    if fresh:
        values = [
            {**place_of, "hash": h, "revision": row.revision + 1, "feature": f, "phi": phi}
            for h, f, phi in fresh
        ]
        connection.execute(PICTURES.insert(), values)
    same = (c.site == row.id, c.extractor == extractor, c.hash == sa.bindparam("of"))
    changes = [*back, *((number, None, None) for number in kept - chosen)]
    if changes:
        update = sa.update(PICTURES).where(*same)
        update = update.values(feature=sa.bindparam("f"), phi=sa.bindparam("p"))
        connection.execute(update, [{"of": h, "f": f, "p": p} for h, f, p in changes])
    return len(fresh), len(back)


def _complete_move(connection: Connection, row: Row) -> None:
    """Let a moving site use its next model once there are enough images for it: as many as an
    adaptation is steady with, or as many as the site has."""
    if row.next_extractor is None:
        return
    before = _count(connection, row.id, row.extractor)
    if _count(connection, row.id, row.next_extractor) < min(FEW_IMAGES, before):
        return
    values = {"model": row.next_model, "extractor": row.next_extractor}
    values |= {"next_model": None, "next_extractor": None}
    connection.execute(sa.update(SITES).where(SITES.c.id == row.id).values(**values))
    c = PICTURES.c
    old = sa.delete(PICTURES).where(c.site == row.id, c.extractor == row.extractor)
    connection.execute(old)


def _answered(connection: Connection, row: Row, key: str, digest: str) -> Outcome | None:
    c = ANSWERS.c
    wanted = sa.select(c.digest, c.answer).where(c.site == row.id, c.key == key)
    answer = connection.execute(wanted).one_or_none()
    if answer is None:
        return None
    if answer.digest != digest:
        raise KeyReused(
            f"idempotency key '{key}' came with something else before; use a new key for each call"
        )
    stored = json.loads(answer.answer)
    return Outcome(**{**stored, "not_kept": tuple(stored["not_kept"]), "again": True})


def _keep_answer(
    connection: Connection, row: Row, key: str | None, digest: str, outcome: Outcome
) -> None:
    if key is not None:
        values = {"site": row.id, "key": key, "digest": digest}
        answer = json.dumps(asdict(outcome))
        connection.execute(ANSWERS.insert().values(**values, answer=answer))


def _packed(row: Tensor) -> bytes:
    """[f] -> float16 bytes."""
    return np.asarray(row, dtype="<f2").tobytes()


def _unpacked(rows: Sequence[bytes]) -> Tensor:
    """[k, f] float16"""
    return torch.from_numpy(np.frombuffer(b"".join(rows), "<f2").reshape(len(rows), -1).copy())
