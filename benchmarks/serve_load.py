"""Many clients of many sites at once: is every answer right, and what does an image cost?

    python benchmarks/serve_load.py          # 200 clients, a minute each of 1, 50 and 1,000 sites
    python benchmarks/serve_load.py --clients 10 --seconds 5 --sites 3,20 --per-site 4 --small

A server in a process of its own answers clients of this one. Each site is adapted to images of its
own. Every answer is compared with the offline prediction of its site: `adapt` on the same images in
this process, without a server. What an image costs is the processor time of the server's process in
the measured minute, over the images answered; the load generator counts apart. Beside it, `predict`
offline with as many images a call, and with one: each call has a pass of its own, which is what a
server with a model per site can do at best. The results are in runs/serve-load/load.json.
"""

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from acclimate.adapt.classifier import Adapted, adapt, open_images
from acclimate.core.files import write_json
from acclimate.core.randomness import stream
from acclimate.data.source import Quarantine, readable
from acclimate.learn.images import Images
from acclimate.learn.model import Trained
from serving.process import ServerProcess, serving, trained_run

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-3  # in the probability of an answer; sums over other batches differ by some 1e-6
METHOD = "prior"  # makes each site's classifier another, whatever was rehearsed
EDGE = "edge-of-a-part"
CONSOLE = Console(highlight=False, width=140)


@dataclass
class Tally:
    """What clients saw."""

    seconds: list[float] = field(default_factory=list)  # of each answered call
    images: int = 0
    wrong: int = 0
    largest: float = 0.0  # difference to the offline prediction, in a probability
    busy: int = 0  # calls that were told to come again
    failed: int = 0


@dataclass
class Load:
    """A running server with its sites, and what is known offline of them."""

    server: ServerProcess
    names: Sequence[str]
    expected: np.ndarray  # [sites, images, C]
    classes: Sequence[str]
    images: Sequence[bytes]
    resident: list[float] = field(default_factory=list)


def form(images: Sequence[bytes]) -> bytes:
    """A body of multipart/form-data."""
    head = f'--{EDGE}\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\n\r\n'
    return (
        b"".join(head.encode() + image + b"\r\n" for image in images) + f"--{EDGE}--\r\n".encode()
    )


HEADERS = {"content-type": f"multipart/form-data; boundary={EDGE}"}


async def ask(load: Load, tally: Tally, client: int, per_call: int, sites: int, end: float) -> None:
    """One client: calls for sites by chance, one after the other."""
    rng = stream(0, "client", client)
    limits = httpx.Timeout(300)
    async with httpx.AsyncClient(base_url=load.server.url, timeout=limits, headers=HEADERS) as http:
        while time.perf_counter() < end:
            site = int(rng.integers(sites))
            rows = rng.integers(len(load.images), size=per_call)
            body = form([load.images[row] for row in rows])
            start = time.perf_counter()
            answer = await http.post(f"/v1/sites/{load.names[site]}/predict", content=body)
            if answer.status_code == 429:
                tally.busy += 1
                await asyncio.sleep(float(answer.headers["retry-after"]))
            elif answer.status_code != 200:
                tally.failed += 1
            else:
                tally.seconds.append(time.perf_counter() - start)
                check(load, tally, site, rows, answer.json()["predictions"])


def check(load: Load, tally: Tally, site: int, rows: np.ndarray, answers: Any) -> None:
    """Compare an answer with the offline prediction of its site."""
    tally.images += len(rows)
    for row, answer in zip(rows, answers, strict=True):
        expected = load.expected[site, row]
        place = load.classes.index(answer["label"])
        difference = abs(float(expected[place]) - answer["probability"])
        near = expected.max() - expected[place] <= TOLERANCE  # two classes may be equally likely
        tally.largest = max(tally.largest, difference)
        tally.wrong += not (near and difference <= TOLERANCE)


async def measure(
    load: Load, clients: int, per_call: int, sites: int, seconds: float
) -> dict[str, Any]:
    """A minute of load over the first `sites` sites."""
    tally, cpu, start = Tally(), load.server.cpu(), time.perf_counter()
    end = start + seconds
    tasks = [
        asyncio.create_task(ask(load, tally, client, per_call, sites, end))
        for client in range(clients)
    ]
    while not all(task.done() for task in tasks):
        load.resident.append(load.server.resident())
        await asyncio.sleep(1)
    await asyncio.gather(*tasks)
    spent, wall = load.server.cpu() - cpu, time.perf_counter() - start
    times = np.array(tally.seconds or [np.nan])
    return {
        "sites": sites,
        "clients": clients,
        "images a call": per_call,
        "images": tally.images,
        "images/s": tally.images / wall,
        "cpu ms/image": 1000 * spent / max(tally.images, 1),
        "p50 s": float(np.percentile(times, 50)),
        "p99 s": float(np.percentile(times, 99)),
        "wrong": tally.wrong,
        "largest difference": tally.largest,
        "told to wait": tally.busy,
        "failed": tally.failed,
        "MiB": load.resident[-1],
    }


def offline(
    sites: Sequence[Adapted], paths: Sequence[Path], per_call: int, seconds: float
) -> float:
    """Processor milliseconds per image of `predict` without a server, a site after the other."""
    images, call = 0, 0
    sites[0].predict_proba(list(paths[:per_call]))  # the first call makes the engine
    start, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        rows = range(call * per_call, (call + 1) * per_call)
        sites[call % len(sites)].predict_proba([paths[row % len(paths)] for row in rows])
        images, call = images + per_call, call + 1
    return 1000 * (time.process_time() - cpu) / images


def create(
    url: str, names: Sequence[str], own: Sequence[np.ndarray], images: Sequence[bytes]
) -> None:
    with httpx.Client(base_url=url, timeout=300) as http:
        for name, rows in zip(names, own, strict=True):
            http.put(f"/v1/sites/{name}", json={"method": METHOD}).raise_for_status()
            body = form([images[row] for row in rows])
            http.post(f"/v1/sites/{name}/images", content=body, headers=HEADERS).raise_for_status()


def known(
    trained: Trained, own: Sequence[np.ndarray], paths: Sequence[Path]
) -> tuple[list[Adapted], np.ndarray]:
    """Each site's classifier and its probabilities for every image [sites, images, C], by `adapt`
    on the site's images. All images share one pass of the backbone, and each site has its head."""
    sites = [adapt(trained, [paths[row] for row in rows], method=METHOD) for rows in own]
    source, rows = open_images(list(paths), trained, Quarantine(max_share=0.0))
    parts = []
    with torch.no_grad():
        for _, stored in readable(source, rows):
            batch = Images(stored, trained.device)
            outputs = [batch.outputs(site.predictor).logits.softmax(1).numpy() for site in sites]
            parts.append(np.stack(outputs))
    return sites, np.concatenate(parts, 1)


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        values = (f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values())
        table.add_row(*values)
    CONSOLE.print(table, "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--sites", default="1,50,1000", help="commas between")
    parser.add_argument("--per-site", type=int, default=8, help="images that a site is adapted to")
    parser.add_argument("--per-call", type=int, default=16)
    parser.add_argument("--small", action="store_true", help="a small network on small images")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--database", default="", help="a URL; SQLite in a temporary folder")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "serve-load" / "load.json")
    asked = parser.parse_args()
    numbers = sorted(map(int, asked.sites.split(",")))
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, paths = trained_run(folder, asked.small)
        trained = Trained.load(run, torch.device("cpu"))
        rng = stream(0, "sites")
        own = [rng.choice(len(paths), asked.per_site, replace=False) for _ in range(numbers[-1])]
        names = [f"site-{number:04}" for number in range(numbers[-1])]
        images = [path.read_bytes() for path in paths]
        adapted, expected = known(trained, own, paths)
        found: dict[str, Any] = {
            "machine": {"cpu": platform.processor(), "cores": os.cpu_count()},
            "torch": torch.__version__,
            "engine": adapted[0].engine,
            "model MiB": (run / "model.safetensors").stat().st_size / 2**20,
            "offline cpu ms/image": {
                str(count): offline(adapted[:50], paths, count, asked.seconds / 3)
                for count in (asked.per_call, 1)
            },
        }
        CONSOLE.print(found)
        database = asked.database or f"sqlite:///{folder / 'sites.sqlite'}"
        flags = ["--threads", str(asked.threads), "--timeout", "300"]
        with serving(run, database, folder / "log", *flags) as server:
            create(server.url, names, own, images)
            load = Load(server, names, expected, trained.classes, images)
            asyncio.run(measure(load, 4, asked.per_call, numbers[-1], 2))  # warm up
            rows = [
                asyncio.run(measure(load, asked.clients, asked.per_call, sites, asked.seconds))
                for sites in numbers
            ]
            rows.append(asyncio.run(measure(load, asked.clients, 1, numbers[-1], asked.seconds)))
            rows.append(
                asyncio.run(measure(load, 1, asked.per_call, numbers[-1], asked.seconds / 3))
            )
            found |= {"load": rows, "resident MiB, each second": load.resident}
    show(rows)
    write_json(asked.out, found)
    CONSOLE.print(f"results: {asked.out}")
    if any(row["wrong"] or row["failed"] for row in rows):
        sys.exit("there are wrong or failed answers")


if __name__ == "__main__":
    main()
