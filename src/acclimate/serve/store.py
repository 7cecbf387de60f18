"""What is kept of sites: a set of pictures and their labels, in one database for all replicas.

The set has one row per picture. The features of a sample of them are kept, of the rest the hash
alone, so that counting is exact. A picture or an idempotency key that comes again changes nothing.
Whoever writes holds the site's row: changes of one site follow each other, on all replicas.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
import torch
from sqlalchemy.engine import Connection
from torch import Tensor

from acclimate.adapt.trust import FEW_IMAGES
from acclimate.core.errors import ConfigError, KeyReused, OverLimit, UnknownName, UnknownSite
from acclimate.core.text import timestamp
from acclimate.learn.embeddings.pictures import (
    NO_NUMBERS,
    NO_PICTURES,
    UNLABELLED,
    Pictures,
    in_16_bits,
)
from acclimate.serve.tables import ANSWERS, HISTORY, LABELS, PICTURES, SITES, WATCHES, Database, Row

SOME = 500  # values that one statement looks for


class Content(NamedTuple):
    """What is kept of a picture in the sample, and nothing of others."""

    feature: bytes | None = None  # [f] float16
    phi: bytes | None = None  # [d] float16, where Φ is one of images
    pixels: bytes | None = None  # [3, h, w] uint8, where the site's method needs them


@dataclass(frozen=True)
class Arrivals:
    """Pictures that came in one call, each once, as one extractor sees them."""

    hashes: Sequence[int]
    labels: Mapping[int, str]  # by hash
    contents: Mapping[int, Content]  # by hash; those that were asked for


@dataclass(frozen=True)
class Kept:
    """A site's sample, ascending by hash, with its labels and the row that it belongs to."""

    row: Row
    images: int  # of which this is a sample
    labels: Mapping[int, str]  # of all images, by hash
    hashes: Tensor = NO_NUMBERS  # [k] int64
    features: Tensor = NO_PICTURES.features  # [k, f] float16
    phi: Tensor | None = None  # [k, d] float16
    pixels: Sequence[bytes] = ()

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
    # Pictures whose contents the store has to have first, by extractor: nothing was done.
    wanted: Mapping[str, Sequence[int]] = field(default_factory=dict)


class Store:
    """The sites of a database. Every method is one transaction."""

    def __init__(self, url: str, *, patience: float = 30.0) -> None:
        self.database = Database(url, patience)

    def close(self) -> None:
        self.database.close()

    def create(self, name: str, most: int, **values: Any) -> Row:
        """The site `name`; the `values` of its row count only where it is new."""
        with self.database.writing() as connection:
            if (row := _find(connection, name)) is not None:
                return row
            if (connection.scalar(sa.select(sa.func.count()).select_from(SITES)) or 0) >= most:
                raise OverLimit(f"there are {most} sites, as many as may be; delete one first")
            connection.execute(SITES.insert().values(name=name, revision=1, **values))
            row = _require(_find(connection, name), name)
            _note(connection, row.id, 1, "created", about=row.model)
            return row

    def find(self, name: str) -> Row:
        with self.database.reading() as connection:
            return _require(_find(connection, name), name)

    def all(self) -> Sequence[Row]:
        with self.database.reading() as connection:
            return connection.execute(sa.select(SITES).order_by(SITES.c.name)).all()

    def history(self, row: Row) -> list[dict[str, Any]]:
        wanted = sa.select(HISTORY).where(HISTORY.c.site == row.id).order_by(HISTORY.c.revision)
        with self.database.reading() as connection:
            entries = [dict(entry) for entry in connection.execute(wanted).mappings()]
        for entry in entries:
            entry.pop("site")
        return entries

    def kept(self, name: str) -> Kept:
        """The sample of a site, as of one moment."""
        c = PICTURES.c
        with self.database.reading() as connection:
            row = _require(_find(connection, name), name)
            wanted = sa.select(c.hash, c.feature, c.phi, c.pixels).order_by(c.hash)
            rows = connection.execute(wanted.where(*_in_sample(row.id, row.extractor))).all()
            images = _count(connection, row.id, row.extractor)
            labels = _labels_of(connection, row)
        if not rows:
            return Kept(row, images, labels)
        hashes, features, phi, pixels = zip(*rows, strict=True)
        return Kept(
            row,
            images,
            labels,
            torch.tensor(hashes),
            _unpacked(features),
            None if phi[0] is None else _unpacked(phi),
            () if pixels[0] is None else pixels,
        )

    def note_facts(self, row: Row, facts: str) -> None:
        """Write down what a site's classifier is, unless the site has changed since."""
        same = (SITES.c.id == row.id, SITES.c.revision == row.revision)
        with self.database.writing() as connection:
            connection.execute(sa.update(SITES).where(*same).values(facts=facts))

    def watch(self, row: Row) -> Row | None:
        """What was kept of looks at a site."""
        with self.database.reading() as connection:
            wanted = sa.select(WATCHES).where(WATCHES.c.site == row.id)
            return connection.execute(wanted).one_or_none()

    def keep_watch(
        self, row: Row, before: Row | None, drift: float, values: Mapping[str, str]
    ) -> bool:
        """Keep what looks come to now; False where another replica has looked since `before`. Of a
        site that has changed since `row` nothing is kept."""
        with self.database.writing() as connection:
            _lock(connection, row.name)
            own = WATCHES.c.site == row.id
            version = 0 if before is None else int(before.version)
            if (connection.scalar(sa.select(WATCHES.c.version).where(own)) or 0) != version:
                return False
            connection.execute(sa.delete(WATCHES).where(own))
            same = (SITES.c.id == row.id, SITES.c.revision == row.revision)
            update = sa.update(SITES).where(*same).values(drift=drift)
            if connection.execute(update).rowcount:
                whole = {**values, "site": row.id, "version": version + 1}
                connection.execute(WATCHES.insert().values(whole))
            return True

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
        """Pictures as each extractor sees them, that of the site's model among them. Contents of
        those that enter the sample are needed: without them nothing happens but that the outcome
        names them."""
        with self.database.writing() as connection:
            row = _lock(connection, name)
            if key is not None and (before := _answered(connection, row, key, digest)):
                return before
            if row.extractor not in arrivals:  # it has moved meanwhile
                return Outcome(wanted={row.extractor: ()})
            given = {h: label for some in arrivals.values() for h, label in some.labels.items()}
            labels = {**_all_labels(connection, row.id), **given}
            plans = {
                extractor: _plan(connection, row, extractor, some.hashes, labels)
                for extractor, some in arrivals.items()
            }
            wanted = {
                extractor: sorted({*plan.entering} - {*arrivals[extractor].contents})
                for extractor, plan in plans.items()
            }
            if any(wanted.values()):
                return Outcome(wanted=wanted)
            added = len(plans[row.extractor].fresh)
            if _count(connection, row.id, row.extractor) + added > most:
                raise OverLimit(f"site '{name}' may have {most} images, and would have more")
            labelled = _label(connection, row, given)
            for extractor, plan in plans.items():
                _insert(connection, row, extractor, plan, arrivals[extractor].contents)
            repeated = len(arrivals[row.extractor].hashes) - added
            outcome = Outcome(added, repeated, labelled, about=about or {})
            if labelled or any(plan.fresh or plan.entering for plan in plans.values()):
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
        return target

    def move(self, name: str, model: str, extractor: str, *, at_once: bool) -> None:
        """Let the site use another model: now if that has the same extractor, or if it is to be
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
    update = (
        sa.update(SITES).where(SITES.c.id == row.id).values(revision=row.revision + 1, drift=None)
    )
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


def _in_sample(site: int, extractor: str) -> tuple[sa.ColumnElement[bool], ...]:
    c = PICTURES.c
    return c.site == site, c.extractor == extractor, c.feature.is_not(None)


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


def _labels_of(connection: Connection, row: Row) -> dict[int, str]:
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


class Plan(NamedTuple):
    """What becomes of a site's pictures when others come."""

    fresh: Sequence[int]  # that the site does not have yet
    entering: Sequence[int]  # the sample; some are fresh, others were outside of it
    leaving: Sequence[int]


def _plan(
    connection: Connection,
    row: Row,
    extractor: str,
    hashes: Sequence[int],
    labels: Mapping[int, str],
) -> Plan:
    """The sample is one of all pictures whose contents there are, or come now."""
    known = _known(connection, row, extractor, hashes)
    sampled = sa.select(PICTURES.c.hash).where(*_in_sample(row.id, extractor))
    kept = {*connection.scalars(sampled)}
    among = sorted({*kept, *hashes})
    marks = torch.tensor([0 if number in labels else UNLABELLED for number in among])
    whole = Pictures(torch.tensor(among, dtype=torch.int64), torch.zeros(len(among), 0), marks)
    chosen = {*whole.sample(row.keep).hashes.tolist()}
    fresh = [number for number in hashes if number not in known]
    return Plan(fresh, sorted(chosen - kept), sorted(kept - chosen))


def _insert(
    connection: Connection,
    row: Row,
    extractor: str,
    plan: Plan,
    contents: Mapping[int, Content],
) -> None:
    """Carry out a plan; outside the sample the hash alone is kept."""
    nothing = Content()._asdict()
    entering = {number: contents[number]._asdict() for number in plan.entering}
    place = {"site": row.id, "extractor": extractor, "revision": row.revision + 1}
    fresh = [{**place, "hash": h, **entering.get(h, nothing)} for h in plan.fresh]
    if fresh:
        connection.execute(PICTURES.insert(), fresh)
    changed = {h: entering[h] for h in plan.entering if h not in {*plan.fresh}}
    changed |= dict.fromkeys(plan.leaving, nothing)
    if changed:
        c = PICTURES.c
        same = (c.site == row.id, c.extractor == extractor, c.hash == sa.bindparam("of"))
        values: dict[str, Any] = {name: sa.bindparam(f"new_{name}") for name in nothing}
        update = sa.update(PICTURES).where(*same).values(values)
        rows = [
            {"of": h, **{f"new_{name}": value for name, value in content.items()}}
            for h, content in changed.items()
        ]
        connection.execute(update, rows)


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


def packed(rows: Tensor) -> list[bytes]:
    """[n, f] -> each row's bytes, of float16."""
    return [row.tobytes() for row in in_16_bits(rows).numpy().astype("<f2")]


def _unpacked(rows: Sequence[bytes]) -> Tensor:
    """The rows of `packed` again: [k, f] float16"""
    whole = np.frombuffer(b"".join(rows), "<f2").reshape(len(rows), -1)
    return torch.from_numpy(whole.astype(np.float16))
