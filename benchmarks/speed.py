"""How fast everything is: `make bench-speed`, or `python benchmarks/speed.py [--data FOLDER]`.

Each part prints a table and ends in speed.json. Images are JPEGs that it makes itself (227 px, as
PACS has them), or those of a domain/class/image folder. Both sides of every ratio are measured in
the same run, on the same images, batches and network. On a CPU it is small: it shows that it runs.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from acclimate.core.distributed import pick_device
from acclimate.core.files import write_json
from acclimate.data import images
from acclimate.data.manifest import Manifest
from speeds.answers import adapting, engines, start_up
from speeds.bench import CPU, GPU, Bench, Row, Scale, make_images, some_of
from speeds.inputs import decoding, samplers
from speeds.scoring import features, long_tail, scoring
from speeds.steps import memory, penalties, waits
from speeds.training import compiled, training
from speeds.whole import whole_runs

ROOT = Path(__file__).resolve().parent.parent
PARTS: Mapping[str, Callable[[Bench], list[Row]]] = {
    "decoding": decoding,
    "training": training,
    "compiled": compiled,
    "whole runs": whole_runs,
    "scoring": scoring,
    "long tail": long_tail,
    "features": features,
    "penalties": penalties,
    "waits": waits,
    "memory": memory,
    "samplers": samplers,
    "adapting": adapting,
    "engines": engines,
    "start-up": start_up,
}
WHOLE = {"training", "compiled", "whole runs"}  # which take all images that there are


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return "" if value is None else str(value)


def show(name: str, rows: Sequence[Row], seconds: float) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(title=f"{name} ({seconds:.0f} s)", title_justify="left", box=None, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*(shown(row.get(column)) for column in columns))
    Console(highlight=False, markup=False, width=140).print(table, "")


def machine(device: torch.device) -> dict[str, Any]:
    names = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    if device.type == "cuda":
        names["gpu"] = torch.cuda.get_device_name(device)
    return {**names, "torch": torch.__version__, "simplejpeg": images.DECODER is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="domain/class/image folder of JPEGs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default="", help=f"some of {', '.join(PARTS)}; commas between")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench-speed" / "speed.json")
    for name, type_ in Scale.__annotations__.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type_)
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else list(PARTS)
    if unknown := [part for part in wanted if part not in PARTS]:
        parser.error(f"there is no part '{unknown[0]}'; use {', '.join(PARTS)}")
    device = pick_device(arguments.device)
    given = {name: getattr(arguments, name) for name in Scale.__annotations__}
    scale = replace(
        GPU if device.type == "cuda" else CPU,
        **{name: value for name, value in given.items() if value is not None},
    )
    found: dict[str, Any] = {"machine": machine(device), "scale": vars(scale)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["ACCLIMATE_CACHE"] = str(folder / "cache")
        if arguments.data is None:
            make_images(folder / "images", scale.images)
        manifest = Manifest.open(arguments.data or folder / "images")
        bench = Bench(folder, scale, device, manifest)
        small = replace(bench, manifest=some_of(manifest, scale.images))
        Console(highlight=False).print(json.dumps(found["machine"]), "")
        for part in wanted:
            started = time.perf_counter()
            try:
                found[part] = PARTS[part](bench if part in WHOLE else small)
            except Exception as error:  # one part that fails must not cost the hour of the others
                traceback.print_exc()
                found[part] = [{"failed": f"{type(error).__name__}: {error}"}]
            show(part, found[part], time.perf_counter() - started)
            write_json(arguments.out, found)
        if any("failed" in row for part in wanted for row in found[part]):
            sys.exit(1)


if __name__ == "__main__":
    main()
