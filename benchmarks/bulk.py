"""Millions of images: `predict --table` beside `predict`, killed, resumed, and on two Ray nodes.

    python benchmarks/bulk.py [--images 100000] [--sites 1000] [--write]

Handwritten digits of 32 px, as JPEG files of many noisy sensors (sites), each with a state from 20
of its images. A small network learns from other sensors. Every way is a command in a process of its
own; what it cost is the processor time of that process and its children. The shards of every way
are compared byte by byte. Needs the extra `ray`; one thread per process.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acclimate import AdaptiveClassifier
from acclimate.build.digits import DigitsSettings, build_digits
from acclimate.data.images import read_pixels
from acclimate.data.readers import encode_image
from pages import fill, made
from scale import duration

HERE = Path(__file__).resolve().parent
PAGE, MEASURED = HERE.parent / "docs" / "scale.md", HERE / "measured" / "h200.json"
SIDE, ADAPTED_ON = 32, 20
SETTINGS = {
    "train.steps": 300,
    "train.per_domain": 8,
    "adapt.site.steps": 100,
    "data.image_size": SIDE,
    "model.pretrained": False,
}
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument("--work", type=Path, help="a folder that keeps images, model and states")
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scale.md")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    work = asked.work or Path(tempfile.mkdtemp(prefix="bulk-"))
    work.mkdir(parents=True, exist_ok=True)
    prepare(work, asked.sites, asked.images // asked.sites)
    rows = list(local(work))
    if not asked.no_ray:
        rows += on_ray(work)
    images = pq.read_metadata(work / "many.parquet").num_rows
    text = "\n".join([*table(rows, images), "", *costs(rows, images, work)])
    print(json.dumps(rows, indent=1), text, sep="\n")
    if asked.write:
        paths = (
            "benchmarks/bulk.py",
            "src/acclimate/adapt/many.py",
            "src/acclimate/adapt/table.py",
        )
        fill(PAGE, "bulk", f"{text}\n\n{made(*paths)}")
    if asked.work is None:
        shutil.rmtree(work)


def prepare(work: Path, sites: int, images: int) -> None:
    """Files, a model, states and two tables: of all sites, and of the first for every image."""
    if (work / "one.parquet").exists():
        return
    sizes = DigitsSettings(
        train_domains=12, train_images=60, test_domains=sites, test_images=images
    )
    digits = build_digits(sizes)
    new = [name for name in digits.domains if name.startswith("test")]
    model = AdaptiveClassifier(backbone="small-cnn", settings=SETTINGS, out=work / "run")
    model.fit(digits.without_domains(*new))
    names, owners = [], []
    for site in new:
        (work / "photos" / site).mkdir(parents=True)
        files = []
        for number, row in enumerate(digits.rows(domain=site)):
            pixels = read_pixels(digits.image_source(int(row)), SIDE).transpose(1, 2, 0)
            files.append(work / "photos" / site / f"{number}.jpg")
            files[-1].write_bytes(encode_image(pixels, "jpeg"))
        state = model.adapt(files[:ADAPTED_ON], method="embedding+prior").state
        assert state is not None
        state.save(work / "states" / f"{site}.safetensors")
        names += [str(file.relative_to(work)) for file in files]
        owners += [site] * len(files)
    order = np.random.default_rng(0).permutation(len(names))
    mixed = pa.table({"image": names, "site": owners}).take(order)
    pq.write_table(mixed, work / "many.parquet")
    alone = mixed.set_column(1, "site", pa.array([owners[0]] * len(owners)))
    pq.write_table(alone, work / "one.parquet")


def local(work: Path) -> Iterator[Row]:
    """`predict` of all images by one state, and tables of one site and of all."""
    state = sorted((work / "states").iterdir())[0]
    flags = [work / "photos", "--domain", state, "--out", work / "predictions.csv"]
    yield {"way": "predict, one site", **timed(command(work, *flags))}
    for name, way in (("one", "one site"), ("many", "all sites, mixed")):
        shutil.rmtree(work / name, ignore_errors=True)
        yield {"way": f"predict --table, {way}", **timed(tabled(work, name, work / name))}
    yield {"way": "… killed and resumed", **twice(work, "killed")}


def on_ray(work: Path) -> Iterator[Row]:
    """All sites on two nodes of one core each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        flags = ["--launcher", "ray", "--ray-address", cluster.address]
        shutil.rmtree(work / "ray", ignore_errors=True)
        taken = timed(tabled(work, "many", work / "ray", *flags))
        equal = same(work / "ray", work / "many")
        yield {"way": "… on two Ray nodes", **taken, "cpu": None, "equal": equal}
        yield {"way": "… killed and resumed", **twice(work, "ray killed", *flags), "cpu": None}
    finally:
        cluster.shutdown()


def command(work: Path, *arguments: Any) -> list[str]:
    whole = ["-m", "acclimate", "predict", work / "run", *arguments, "--device", "cpu"]
    return [sys.executable, *map(str, whole)]


def tabled(work: Path, name: str, out: Path, *flags: str) -> list[str]:
    given = ["--table", work / f"{name}.parquet", "--domains", work / "states", "--out", out]
    return command(work, *given, *flags)


def timed(arguments: Sequence[str], stop: Callable[[], bool] | None = None) -> Row:
    """Seconds that a command took or until it was killed because of `stop`, its processor time and
    its largest memory; Ray's own processes are no part of it."""
    begun, largest, quiet = time.perf_counter(), 0.0, subprocess.DEVNULL
    process = subprocess.Popen(arguments, stdout=quiet, stderr=quiet)
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        largest = max(largest, peak(process.pid))
        if stop is not None and stop():
            process.kill()
        time.sleep(0.02)
    if ended[1] and stop is None:
        sys.exit(f"failed: {' '.join(arguments)}")
    used = ended[2]
    return {
        "seconds": time.perf_counter() - begun,
        "cpu": used.ru_utime + used.ru_stime,
        "mib": largest,
    }


def peak(pid: int) -> float:
    """The largest memory of a process so far, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def twice(work: Path, name: str, *flags: str) -> Row:
    """Kill a command after three shards, and repeat it: seconds and processor time of both, and
    whether its shards are those of the command that was not killed."""
    out = work / name
    shutil.rmtree(out, ignore_errors=True)
    arguments = tabled(work, "many", out, *flags)
    first = timed(arguments, lambda: len(list(out.glob("*.parquet"))) >= 3)
    made = len(list(out.glob("*.parquet")))
    second = timed(arguments)
    both = {key: first[key] + second[key] for key in ("seconds", "cpu")}
    return {**second, **both, "kept": made, "equal": same(out, work / "many")}


def table(rows: Sequence[Row], images: int) -> Iterator[str]:
    yield "| way | processor | images per processor second | largest memory | rows |"
    yield "|---|---:|---:|---:|---|"
    for row in rows:
        cells = ["–", "–"]
        if row["cpu"] is not None:
            cells = [f"{row['cpu']:.0f} s", f"{images / row['cpu']:,.0f}"]
        equal = {None: "–", True: "equal, to the bit", False: "DIFFERENT"}[row.get("equal")]
        kept = f"; {row['kept']} files kept" if "kept" in row else ""
        cells += [f"{row['mib']:.0f} MiB", f"{equal}{kept}"]
        yield f"| {row['way']} | {' | '.join(cells)} |"


def costs(rows: Sequence[Row], images: int, work: Path) -> Iterator[str]:
    """Hours for 10 and 100 million images by the rate of one core, and of a GPU as it was measured
    for `predict`; and what the files take."""
    by_way = {row["way"]: row for row in rows}
    fixed = by_way["predict --table, all sites, mixed"]
    gpu = json.loads(MEASURED.read_text())
    (mixed,) = (row for row in gpu["adapting"] if row["work"] == "predict, 64 domains mixed")
    rates = {
        f"{SIDE} px, small network: one core": images / fixed["cpu"],
        f"227 px, ResNet-50: one {gpu['machine']['gpu']} with {gpu['machine']['cores']} cores": (
            mixed["images/s"]
        ),
    }
    yield "| | images/s | 10 million | 100 million | 100 million on 8 | on 64 |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name, rate in rates.items():
        hours = [duration(n / rate / 3600) for n in (1e7, 1e8, 1e8 / 8, 1e8 / 64)]
        yield f"| {name} | {rate:,.0f} | {' | '.join(hours)} |"
    files = sum(path.stat().st_size for path in (work / "many").glob("*.parquet"))
    yield ""
    yield (
        f"Files take {files / images:.0f} bytes a row here, {files / images / 10:.1f} GB for 100 "
        f"million rows."
    )


def same(one: Path, other: Path) -> bool:
    """Whether two folders hold the same shards, to the last byte."""
    names = [sorted(path.name for path in folder.glob("*.parquet")) for folder in (one, other)]
    return names[0] == names[1] and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names[0]
    )


if __name__ == "__main__":
    main()
