"""What a large run costs: tables for docs/scale.md from what `benchmarks/speed.py` measured.

python benchmarks/scale.py [runs/bench-speed/speed.json] [--write]

Without a file it takes what was measured on an H200 (benchmarks/measured). The model is arithmetic
on purpose: a step takes as long as its images take at the measured rate, never less than
a step of 96 does; one that does not fit into a GPU takes a forward pass more; processes exchange
gradients after it, and nothing is assumed to overlap.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from acclimate.runs.device import COMPILED_FROM

HERE = Path(__file__).resolve().parent
PAGE, MEASURED = HERE.parent / "docs" / "scale.md", HERE / "measured" / "h200.json"
NEEDED = "training,compiled,adapting,decoding"
INSIDE, BETWEEN = 300e9, 12.5e9  # bytes a second between GPUs of a machine, and between machines
BEGIN, END = "<!-- generated: scale -->\n", "<!-- end -->\n"
PIXELS = 3 * 224 * 224  # bytes of an image in a pack
GRADIENTS = 4 * 25.6e6  # bytes, of ResNet-50
KEPT = 60e6  # bytes that an image takes in a step in bf16: half of float32's on a CPU
GPU = 139 * 2**30  # bytes of memory
MEASURED_BATCH = 96


@dataclass(frozen=True)
class Rates:
    """Images a second of ResNet-50 at 224 px on one GPU, and of one core that decodes."""

    eager: float  # trained from a pack, bf16
    graphed: float  # in runs of one GPU, with CUDA graphs
    compiled: float  # kept on the GPU
    inference: float  # the network alone, 256 at a time
    decode: float  # 227 px, decoded and resized on one core
    source: str

    @staticmethod
    def read(path: Path) -> "Rates":
        found = json.loads(path.read_text())

        def rate(part: str, key: str, name: str, column: str = "images/s") -> float:
            for row in found.get(part, ()):
                if row.get(key) == name and row.get(column):
                    return float(row[column])
            sys.exit(f'{path} lacks "{name}": python benchmarks/speed.py --only "{NEEDED}"')

        machine = found["machine"]
        return Rates(
            eager=rate("training", "steps", "packed, not recorded"),
            graphed=rate("training", "steps", "packed"),
            compiled=rate("compiled", "steps, compiled", "cached"),
            inference=rate("adapting", "work", "the network alone, plain"),
            decode=rate("decoding", "decoder", "ours, decoded and resized", "1 threads"),
            source=f"{machine.get('gpu', machine['cpu'])} with {machine['cores']} cores",
        )


@dataclass(frozen=True)
class Task:
    """A data set under its preset: rows that are trained on, scored, and images to be stored."""

    name: str
    images: int
    trained: int  # rows of an epoch
    epochs: int
    domains: int  # of a step
    per_domain: int
    step_a: int  # images that Step A learns from
    pooled: int  # images of the training domains' μ
    validated: int  # rows of a validation
    tested: int

    def batch(self, gpus: int) -> int:
        """Images of a domain in a step: as the preset has it, else the next that can be shared."""
        return gpus * math.ceil(self.per_domain / gpus)


PHOTOS, ROWS, COUNTRIES = 1_147_059, 1_809_832, 62
LEFT = 1 - 3000 / (PHOTOS / COUNTRIES)  # of a country's photos, beside 3,000 for its test split
GEO = Task(
    name="Geo-YFCC",
    images=PHOTOS,
    trained=round(ROWS * 40 / COUNTRIES * LEFT * 0.8),
    epochs=6,
    domains=40,
    per_domain=80,
    step_a=1300 * 4 * 80,
    pooled=40 * 5000,
    validated=round(ROWS * 7 / COUNTRIES),
    tested=round(ROWS * 15 / COUNTRIES),
)
LT = Task(
    name="LT-ImageNet",
    images=500 * 700,
    trained=2_450_000,
    epochs=5,
    domains=8,
    per_domain=100,
    step_a=1300 * 4 * 100,
    pooled=50 * 300,
    validated=70_000,
    tested=420_000,
)


@dataclass(frozen=True)
class Cost:
    gpus: int
    per_domain: int
    steps: int
    step: float  # seconds
    exchange: float  # seconds of it
    micro_batches: int  # of a GPU's share of a step
    hours: float
    hours_scoring: float
    read: float  # bytes a second and GPU
    cores: float  # that decode for a GPU, without a pack


def cost(task: Task, gpus: int, rates: Rates, inside: float, between: float) -> Cost:
    """DA-ERM: Step A, Step B with a validation every 300 steps, final scores."""
    per_domain = task.batch(gpus)
    batch = task.domains * per_domain
    steps = math.ceil(task.trained * task.epochs / batch)
    own = batch / gpus
    alone = gpus == 1 and own * KEPT < 0.9 * GPU
    faster = rates.compiled if steps >= COMPILED_FROM else rates.graphed
    rate = faster if alone else rates.eager
    micro_batches = math.ceil(own * KEPT / (0.9 * GPU))
    work = max(own, MEASURED_BATCH) / rate * (4 / 3 if micro_batches > 1 else 1)
    wire = inside if gpus <= 8 else between
    exchange = 0.0 if gpus == 1 else 2 * GRADIENTS / wire
    passes = math.ceil(steps / 300) * 2 * task.validated + 2 * task.tested
    scoring = (passes + task.pooled) / (rates.inference * gpus)
    learning = steps * (work + exchange) + task.step_a / (rates.eager * gpus)
    return Cost(
        gpus=gpus,
        per_domain=per_domain,
        steps=steps,
        step=work + exchange,
        exchange=exchange,
        micro_batches=micro_batches,
        hours=(learning + scoring) / 3600,
        hours_scoring=scoring / 3600,
        read=own / (work + exchange) * PIXELS,
        cores=own / (work + exchange) / rates.decode,
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [list(map(str, columns)), ["---", *(["---:"] * (len(columns) - 1))]]
    lines += [list(map(str, row)) for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def pages(rates: Rates, inside: float, between: float) -> Iterator[str]:
    yield f"Rates: {rates.source}.\n\n"
    names = {
        "eager": "training, eager",
        "graphed": "training, CUDA graphs (one GPU only)",
        "compiled": "training, torch.compile (one GPU only)",
        "inference": "inference",
        "decode": "decoding, one core",
    }
    known = [(names[f.name], f"{getattr(rates, f.name):,.0f}") for f in fields(rates)[:5]]
    yield table(["ResNet-50, 224 px", "images/s"], known)
    for task in (GEO, LT):
        yield f"\n**{task.name}**: {task.images:,} images, {task.trained:,} rows an epoch, "
        yield f"{task.epochs} epochs, {task.domains} domains in a step.\n\n"
        rows = []
        for gpus in (1, 8, 64):
            found = cost(task, gpus, rates, inside, between)
            rows.append(
                (
                    gpus,
                    found.per_domain,
                    f"{found.steps:,}",
                    found.micro_batches,
                    f"{1e3 * found.step:,.0f} ms",
                    f"{1e3 * found.exchange:.1f} ms",
                    duration(found.hours),
                    duration(found.hours_scoring),
                    f"{found.read / 1e6:,.0f} MB/s",
                    f"{found.cores:.1f}",
                )
            )
        columns = ["GPUs", "`per_domain`", "steps", "micro-batches", "a step", "of it, gradients"]
        further = ["DA-ERM in all", "of it, scoring", "read per GPU", "cores per GPU, no pack"]
        yield table([*columns, *further], rows)
    yield "\n"
    packs = []
    for task in (GEO, LT):
        size, alone = task.images * PIXELS, task.images / rates.decode / 3600
        packs.append(
            (
                task.name,
                f"{size / 1e9:.0f} GB",
                f"{math.ceil(size / 2**30)}",
                duration(alone),
                duration(alone / 16),
            )
        )
    yield table(
        ["pack", "size", "`data.pack_gib` at least", "made by 1 core", "by 16 cores"], packs
    )


def duration(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.0f} min" if hours >= 1 / 60 else f"{3600 * hours:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=MEASURED, help="of speed.py")
    parser.add_argument("--inside", type=float, default=INSIDE, help="bytes/s inside a machine")
    parser.add_argument("--between", type=float, default=BETWEEN, help="bytes/s between machines")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scale.md")
    arguments = parser.parse_args()
    rates = Rates.read(arguments.file)
    text = "".join(pages(rates, arguments.inside, arguments.between))
    print(text)
    if arguments.write:
        page = PAGE.read_text()
        head, rest = page.split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}{text}{END}{rest.split(END, 1)[1]}")


if __name__ == "__main__":
    main()
