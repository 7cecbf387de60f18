"""What happens to the rows of one site in one transaction."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
import torch
from sqlalchemy.engine import Connection
from torch import Tensor

from acclimate.adapt.trust import FEW_IMAGES
from acclimate.core.errors import UnknownSite
from acclimate.core.text import timestamp
from acclimate.learn.embeddings.pictures import UNLABELLED, Pictures, in_16_bits
from acclimate.serve.tables import HISTORY, LABELS, PICTURES, SITES, Row

SOME = 500  # values that one statement looks for


class Content(NamedTuple):
    """What is kept of a picture in the sample, and nothing of others."""

    feature: bytes | None = None  # [f] float16
    phi: bytes | None = None  # [d] float16, where Φ is one of images
    pixels: bytes | None = None  # [3, h, w] uint8, where the site's method needs them


def find_site(connection: Connection, name: str) -> Row | None:
    return connection.execute(sa.select(SITES).where(SITES.c.name == name)).one_or_none()


def require_site(row: Row | None, name: str) -> Row:
    if row is None:
        raise UnknownSite(f"there is no site '{name}'; create it first")
    return row


def lock_site(connection: Connection, name: str) -> Row:
    """The site's row, for this transaction alone."""
    wanted = sa.select(SITES).where(SITES.c.name == name).with_for_update()
    return require_site(connection.execute(wanted).one_or_none(), name)


def advance(
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
    note(connection, row.id, row.revision + 1, what, pictures, labels, about)


def note(
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


def count_pictures(connection: Connection, site: int, extractor: str) -> int:
    c = PICTURES.c
    wanted = sa.select(sa.func.count()).where(c.site == site, c.extractor == extractor)
    return connection.scalar(wanted) or 0


def in_sample(site: int, extractor: str) -> tuple[sa.ColumnElement[bool], ...]:
    c = PICTURES.c
    return c.site == site, c.extractor == extractor, c.feature.is_not(None)


def last_revision(connection: Connection, row: Row) -> int:
    """The last revision in which something came that is still there."""
    tables = [
        sa.select(sa.func.max(table.c.revision)).where(table.c.site == row.id)
        for table in (PICTURES, LABELS)
    ]
    return max(connection.scalar(wanted) or 0 for wanted in tables)


def all_labels(connection: Connection, site: int) -> dict[int, str]:
    """The last label of each picture that has one, by hash."""
    c = LABELS.c
    wanted = sa.select(c.hash, c.label).where(c.site == site).order_by(c.revision)
    last: dict[int, str | None] = {one.hash: one.label for one in connection.execute(wanted)}
    return {number: label for number, label in last.items() if label is not None}


def labels_of(connection: Connection, row: Row) -> dict[int, str]:
    """Those of pictures that the site has for its model."""
    labels = all_labels(connection, row.id)
    known = known_pictures(connection, row, row.extractor, labels)
    return {number: label for number, label in labels.items() if number in known}


def known_pictures(
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


def insert_labels(connection: Connection, row: Row, labels: Mapping[int, str | None]) -> int:
    """Write down labels that are not what they were; how many."""
    before = all_labels(connection, row.id) if labels else {}
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


def plan_arrivals(
    connection: Connection,
    row: Row,
    extractor: str,
    hashes: Sequence[int],
    labels: Mapping[int, str],
) -> Plan:
    """The sample is one of all pictures whose contents there are, or come now."""
    known = known_pictures(connection, row, extractor, hashes)
    sampled = sa.select(PICTURES.c.hash).where(*in_sample(row.id, extractor))
    kept = {*connection.scalars(sampled)}
    among = sorted({*kept, *hashes})
    marks = torch.tensor([0 if number in labels else UNLABELLED for number in among])
    whole = Pictures(torch.tensor(among, dtype=torch.int64), torch.zeros(len(among), 0), marks)
    chosen = {*whole.sample(row.keep).hashes.tolist()}
    fresh = [number for number in hashes if number not in known]
    return Plan(fresh, sorted(chosen - kept), sorted(kept - chosen))


def insert_pictures(
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


def complete_move(connection: Connection, row: Row) -> None:
    """Let a moving site use its next model once there are enough images for it: as many as an
    adaptation is steady with, or as many as the site has."""
    if row.next_extractor is None:
        return
    before = count_pictures(connection, row.id, row.extractor)
    if count_pictures(connection, row.id, row.next_extractor) < min(FEW_IMAGES, before):
        return
    values = {"model": row.next_model, "extractor": row.next_extractor}
    values |= {"next_model": None, "next_extractor": None}
    connection.execute(sa.update(SITES).where(SITES.c.id == row.id).values(**values))
    c = PICTURES.c
    old = sa.delete(PICTURES).where(c.site == row.id, c.extractor == row.extractor)
    connection.execute(old)


def packed(rows: Tensor) -> list[bytes]:
    """[n, f] -> each row's bytes, of float16."""
    return [row.tobytes() for row in in_16_bits(rows).numpy().astype("<f2")]


def unpacked(rows: Sequence[bytes]) -> Tensor:
    """The rows of `packed` again: [k, f] float16"""
    whole = np.frombuffer(b"".join(rows), "<f2").reshape(len(rows), -1)
    return torch.from_numpy(whole.astype(np.float16))
