"""`kill -9` under load: is an acknowledged image lost, is one counted twice?

    python benchmarks/serve_kills.py                                # 20 kills of each kind
    python benchmarks/serve_kills.py --kills 2 --databases sqlite --replicas 1

Clients send images that nobody sent before, each call with an idempotency key, to any replica, and
repeat a call with its key until it is answered. Meanwhile replicas are killed and started again.
Some answered calls are repeated as well, and some images come again in other calls. In the end each
site must have exactly the images that were sent to it, each picture by its id. SQLite and a
PostgreSQL of our own, one replica and three. The results are in runs/serve-kills/kills.json.
"""

import argparse
import io
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from itertools import count, product
from pathlib import Path
from threading import Event, Lock
from typing import Any

import httpx
import numpy as np
import sqlalchemy as sa
from PIL import Image
from rich.console import Console

from acclimate.core.files import write_json
from acclimate.core.randomness import stream
from acclimate.serve.calls import picture_id
from acclimate.serve.store import Store
from acclimate.serve.tables import PICTURES
from serving.process import ServerProcess, trained_run

ROOT = Path(__file__).resolve().parent.parent
SITES = ("north", "south", "east")
PER_CALL, CLIENTS = 4, 8
CONSOLE = Console(highlight=False, width=140)


@dataclass
class Replicas:
    """Servers over one database; a killed one is started again."""

    start: Callable[[], ServerProcess]
    servers: list[ServerProcess] = field(default_factory=list)

    def kill(self, number: int) -> None:
        self.servers[number].stop(signal.SIGKILL)
        self.servers[number] = self.start()


@dataclass
class Sent:
    """What clients know: pictures of each site by id, and how often calls were made."""

    pictures: dict[str, set[str]] = field(default_factory=lambda: {site: set() for site in SITES})
    calls: int = 0
    attempts: int = 0
    lock: Lock = field(default_factory=Lock)


def picture(client: int, number: int) -> bytes:
    """An image that no other call has."""
    pixels = stream(0, "picture", client, number).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def send(replicas: Replicas, sent: Sent, client: int, done: Event) -> None:
    """One client, until the last replica was killed."""
    rng, numbers = stream(0, "client", client), count()
    while not done.is_set():
        call = next(numbers)
        site = SITES[int(rng.integers(len(SITES)))]
        images = [picture(client, call * PER_CALL + place) for place in range(PER_CALL)]
        if call and rng.random() < 0.2:  # with a picture of an earlier call, which may be here
            images[0] = picture(client, int(rng.integers(call * PER_CALL)))
        for _ in range(1 + int(rng.random() < 0.2)):  # some calls are repeated after their answer
            answer = until_answered(replicas, sent, rng, site, images, f"{client}-{call}")
            with sent.lock:
                sent.pictures[site] |= set(answer["pictures"])
        with sent.lock:
            sent.calls += 1


def until_answered(
    replicas: Replicas,
    sent: Sent,
    rng: np.random.Generator,
    site: str,
    images: Sequence[bytes],
    key: str,
) -> Any:
    files = [("images", (f"{place}.png", image)) for place, image in enumerate(images)]
    while True:
        server = replicas.servers[int(rng.integers(len(replicas.servers)))]
        sent.attempts += 1
        try:
            answer = httpx.post(
                f"{server.url}/v1/sites/{site}/images",
                files=files,
                headers={"Idempotency-Key": key},
                timeout=120,
            )
        except httpx.TransportError:  # killed, or not yet started again
            time.sleep(0.05)
            continue
        if answer.status_code == 200:
            return answer.json()
        if answer.status_code not in (429, 503):
            raise SystemExit(f"{answer.status_code}: {answer.text}")
        time.sleep(float(answer.headers["retry-after"]))


def verdict(database: str, sent: Sent) -> dict[str, int]:
    """Pictures that were acknowledged and are not there, and those that count without having been
    acknowledged once."""
    store = Store(database)
    lost = twice = 0
    for site, pictures in sent.pictures.items():
        row = store.find(site)
        wanted = sa.select(PICTURES.c.hash).where(PICTURES.c.site == row.id)
        with store.database.reading() as connection:
            stored = [picture_id(number) for number in connection.scalars(wanted)]
        lost += len(pictures - {*stored})
        counted = sum(entry["pictures"] for entry in store.history(row))
        twice += len({*stored} - pictures) + len(stored) - len({*stored})
        twice += abs(counted - len(stored))
    store.close()
    return {"lost": lost, "twice": twice}


def attack(run: Path, database: str, replicas: int, kills: int, folder: Path) -> dict[str, Any]:
    """Kills of one kind, and what is there afterwards."""
    start = partial(ServerProcess.start, run, database, folder / "log", "--threads", "1")
    running, sent, done = Replicas(start, [start() for _ in range(replicas)]), Sent(), Event()
    for site in SITES:
        httpx.put(f"{running.servers[0].url}/v1/sites/{site}", timeout=60).raise_for_status()
    rng, began = stream(0, "kills"), time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(send, running, sent, number, done) for number in range(CLIENTS)]
        for _ in range(kills):
            time.sleep(rng.uniform(0.5, 2))
            running.kill(int(rng.integers(replicas)))
        done.set()
        for client in clients:
            client.result()
    for server in running.servers:
        server.stop()
    return {
        "database": database.partition(":")[0],
        "replicas": replicas,
        "kills": kills,
        "calls": sent.calls,
        "attempts": sent.attempts,
        "pictures": sum(map(len, sent.pictures.values())),
        **verdict(database, sent),
        "seconds": round(time.monotonic() - began),
    }


@contextmanager
def databases(kinds: Sequence[str], folder: Path) -> Iterator[Iterator[str]]:
    """New databases: their URLs, kind by kind, as many as are wanted."""
    with ExitStack() as stack:

        def urls() -> Iterator[str]:
            for number, kind in enumerate(kinds):
                if kind == "sqlite":
                    yield f"sqlite:///{folder / f'{number}.sqlite'}"
                else:
                    yield postgres().database()

        @cache
        def postgres() -> Any:
            sys.path.insert(0, str(ROOT / "tests"))
            return stack.enter_context(import_module("fixtures.postgres").running_postgres())

        yield urls()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--databases", default="sqlite,postgresql", help="commas between")
    parser.add_argument("--replicas", default="1,3", help="commas between")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "serve-kills" / "kills.json")
    asked = parser.parse_args()
    cases = list(product(asked.databases.split(","), map(int, asked.replicas.split(","))))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, _ = trained_run(folder, small=True)
        with databases([kind for kind, _ in cases], folder) as urls:
            rows = []
            for url, (_, replicas) in zip(urls, cases, strict=True):
                rows.append(attack(run, url, replicas, asked.kills, folder))
                CONSOLE.print(rows[-1])
    write_json(asked.out, {"cases": rows})
    if any(row["lost"] or row["twice"] for row in rows):
        sys.exit("images were lost, or counted twice")


if __name__ == "__main__":
    main()
