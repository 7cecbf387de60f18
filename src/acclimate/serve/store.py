"""What is kept of sites: a set of pictures and their labels, in one database for all replicas.

The set has one row per picture. The features of a sample of them are kept, of the rest the hash
alone, so that counting is exact. A picture or an idempotency key that comes again changes nothing.
Whoever writes holds the site's row: changes of one site follow each other, on all replicas.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa
import torch
from sqlalchemy.engine import Connection
from torch import Tensor

from acclimate.core.errors import ConfigError, KeyReused, OverLimit, UnknownName
from acclimate.learn.embeddings.pictures import (
    NO_NUMBERS,
    NO_PICTURES,
    UNLABELLED,
    Pictures,
)
from acclimate.serve.rows import (
    Content,
    advance,
    all_labels,
    complete_move,
    count_pictures,
    find_site,
    in_sample,
    insert_labels,
    insert_pictures,
    known_pictures,
    labels_of,
    last_revision,
    lock_site,
    note,
    plan_arrivals,
    require_site,
    unpacked,
)
from acclimate.serve.tables import ANSWERS, HISTORY, LABELS, PICTURES, SITES, WATCHES, Database, Row


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
            if (row := find_site(connection, name)) is not None:
                return row
            if (connection.scalar(sa.select(sa.func.count()).select_from(SITES)) or 0) >= most:
                raise OverLimit(f"there are {most} sites, as many as may be; delete one first")
            # Another replica may create it in this moment.
            insert = self.database.insert(SITES).values(name=name, revision=1, **values)
            new = connection.scalar(insert.on_conflict_do_nothing().returning(SITES.c.id))
            row = require_site(find_site(connection, name), name)
            if new is not None:
                note(connection, row.id, 1, "created", about=row.model)
            return row

    def find(self, name: str) -> Row:
        with self.database.reading() as connection:
            return require_site(find_site(connection, name), name)

    def all(self) -> Sequence[Row]:
        with self.database.reading() as connection:
            return connection.execute(sa.select(SITES).order_by(SITES.c.name)).all()

    def history(self, row: Row, most: int = 100) -> list[dict[str, Any]]:
        """The last changes of a site."""
        c = HISTORY.c
        wanted = sa.select(c.revision, c.at, c.what, c.pictures, c.labels, c.about)
        last = wanted.where(c.site == row.id).order_by(c.revision.desc()).limit(most)
        with self.database.reading() as connection:
            return [dict(entry) for entry in connection.execute(last).mappings()][::-1]

    def kept(self, name: str) -> Kept:
        """The sample of a site, as of one moment."""
        c = PICTURES.c
        with self.database.reading() as connection:
            row = require_site(find_site(connection, name), name)
            wanted = sa.select(c.hash, c.feature, c.phi, c.pixels).order_by(c.hash)
            rows = connection.execute(wanted.where(*in_sample(row.id, row.extractor))).all()
            images = count_pictures(connection, row.id, row.extractor)
            labels = labels_of(connection, row)
        if not rows:
            return Kept(row, images, labels)
        hashes, features, phi, pixels = zip(*rows, strict=True)
        return Kept(
            row,
            images,
            labels,
            torch.tensor(hashes),
            unpacked(features),
            None if phi[0] is None else unpacked(phi),
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
            lock_site(connection, row.name)
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
            return _answered(
                connection, require_site(find_site(connection, name), name), key, digest
            )

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
            row = lock_site(connection, name)
            if key is not None and (before := _answered(connection, row, key, digest)):
                return before
            if row.extractor not in arrivals:  # it has moved meanwhile
                return Outcome(wanted={row.extractor: ()})
            given = {h: label for some in arrivals.values() for h, label in some.labels.items()}
            labels = {**all_labels(connection, row.id), **given}
            plans = {
                extractor: plan_arrivals(connection, row, extractor, some.hashes, labels)
                for extractor, some in arrivals.items()
            }
            wanted = {
                extractor: sorted({*plan.entering} - {*arrivals[extractor].contents})
                for extractor, plan in plans.items()
            }
            if any(wanted.values()):
                return Outcome(wanted=wanted)
            added = len(plans[row.extractor].fresh)
            if count_pictures(connection, row.id, row.extractor) + added > most:
                raise OverLimit(f"site '{name}' may have {most} images, and would have more")
            labelled = insert_labels(connection, row, given)
            for extractor, plan in plans.items():
                insert_pictures(connection, row, extractor, plan, arrivals[extractor].contents)
            repeated = len(arrivals[row.extractor].hashes) - added
            outcome = Outcome(added, repeated, labelled, about=about or {})
            if labelled or any(plan.fresh or plan.entering for plan in plans.values()):
                advance(connection, row, "images", added, labelled)
                complete_move(connection, row)
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
            row = lock_site(connection, name)
            if key is not None and (before := _answered(connection, row, key, digest)):
                return before
            known = known_pictures(connection, row, row.extractor, labels)
            if missing := [number for number in labels if number not in known]:
                raise UnknownName(
                    f"site '{name}' has no picture {missing[0] % 2**64:016x}; send the image itself"
                )
            changed = insert_labels(connection, row, labels)
            outcome = Outcome(
                labelled=changed,
                repeated=len(labels) - changed,
                not_kept=tuple(number for number in labels if not known[number]),
                about=about or {},
            )
            if changed:
                advance(connection, row, "labels", 0, changed)
            _keep_answer(connection, row, key, digest, outcome)
            return outcome

    def roll_back(self, name: str, revision: int | None) -> int:
        """Forget what came after `revision`, or the last that came; the revision gone back to."""
        with self.database.writing() as connection:
            row = lock_site(connection, name)
            target = last_revision(connection, row) - 1 if revision is None else revision
            if not 1 <= target <= row.revision:
                raise ConfigError(
                    f"site '{name}' has revisions from 1 to {row.revision}; go back to one of these"
                )
            gone = []
            for table in (PICTURES, LABELS):
                late = sa.delete(table).where(table.c.site == row.id, table.c.revision > target)
                gone.append(connection.execute(late).rowcount)
            advance(connection, row, "rollback", -gone[0], -gone[1], about=f"to {target}")
        return target

    def move(self, name: str, model: str, extractor: str, *, at_once: bool) -> None:
        """Let the site use another model: now if that has the same extractor, or if it is to be
        `at_once`; else when enough new images have come."""
        with self.database.writing() as connection:
            row = lock_site(connection, name)
            values: dict[str, str | None] = {"model": model, "extractor": extractor}
            if extractor == row.extractor or at_once:
                values |= {"next_model": None, "next_extractor": None}
            else:
                values = {"next_model": model, "next_extractor": extractor}
            connection.execute(sa.update(SITES).where(SITES.c.id == row.id).values(**values))
            advance(connection, row, "move", about=model)
            others = sa.delete(PICTURES).where(
                PICTURES.c.site == row.id,
                PICTURES.c.extractor.not_in([values.get("extractor", row.extractor), extractor]),
            )
            connection.execute(others)

    def delete(self, name: str) -> None:
        """All rows of a site, and what they held."""
        with self.database.writing() as connection:
            row = lock_site(connection, name)
            connection.execute(sa.delete(SITES).where(SITES.c.id == row.id))
        self.database.purge()


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
