"""What a step takes: penalties, memory, waits for the GPU."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from acclimate.config import RunConfig
from acclimate.learn.algorithms import names
from acclimate.learn.penalties import coral, irm, mmd2
from acclimate.records.folder import RunFolder
from acclimate.rehearse.training import train
from acclimate.runs.loop import Loop
from speeds.bench import Bench, Row, one_batch, say


def penalties(bench: Bench) -> list[Row]:
    width, per_domain, classes = 256, 8, 16
    rows = []
    for domains in (4, 16, 64, 256, 512):
        count = domains * per_domain
        x = torch.randn(count, width, device=bench.device, requires_grad=True)
        y = torch.randint(classes, (count,), device=bench.device)
        domain = torch.arange(domains).repeat_interleave(per_domain)  # the host's, as in training
        row: Row = {"domains": domains, "rows": count}
        ways: dict[str, Callable[[], torch.Tensor]] = {
            "coral": lambda: coral(x, domain),  # noqa: B023
            "mmd": lambda: mmd2(x, domain),  # noqa: B023
            "irm": lambda: irm(x[:, :classes], y, domain),  # noqa: B023
        }
        for name, way in ways.items():
            row[f"{name} ms"] = 1e3 * bench.seconds(lambda: way().sum().backward(), 3)  # type: ignore[no-untyped-call]  # noqa: B023
        rows.append(row)
    return rows


def memory(bench: Bench) -> list[Row]:
    """What training takes on a GPU, and what it does on one that is too small."""
    if bench.device.type != "cuda":
        return [{"work": "only on a GPU"}]
    few: dict[str, Any] = {"train.steps": 20, "train.checkpoint_every": 20}
    rows: list[Row] = []
    for name, config in {
        "ERM": bench.config(**few),
        "ERM, 2 images of a domain": bench.config(**{**few, "train.per_domain": 2}),
        "CORAL in 4 micro-batches": bench.config("coral", **{**few, "train.micro_batches": 4}),
    }.items():
        taken = _taken(bench, config, bench.folder / f"memory {name}")
        rows.append({"work": name, "taken GiB": taken / 2**30})
        say("memory", rows[-1])
    return [*rows, *_squeezed(bench)]


def _taken(bench: Bench, config: RunConfig, out: Path) -> float:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(bench.device)
    before = torch.cuda.memory_allocated(bench.device)
    train(config, bench.manifest, out, device=str(bench.device))
    return float(torch.cuda.max_memory_allocated(bench.device) - before)


def _squeezed(bench: Bench) -> list[Row]:
    """A batch four times as large, in a quarter of the memory that it would take whole."""
    more = {"train.per_domain": 4 * bench.scale.per_domain, "train.steps": 20}
    config = bench.config("coral", **more, **{"train.checkpoint_every": 20})
    whole = _taken(bench, config, bench.folder / "whole")
    total = torch.cuda.get_device_properties(bench.device).total_memory
    lines: list[str] = []
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(bench.device)  # by other parts, which compile
    share = (before + 0.25 * whole) / total
    torch.cuda.set_per_process_memory_fraction(max(share, 0.02), bench.device)
    try:
        out = bench.folder / "squeezed"
        train(config, bench.manifest, out, device=str(bench.device), say=lines.append)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, bench.device)
    losses = [RunFolder(bench.folder / n).records().losses[-1] for n in ("whole", "squeezed")]
    rows: list[Row] = [
        {"work": name, "loss": loss.risk, "images/s": loss.images_per_second}
        for name, loss in zip(("CORAL, a large batch", "in a quarter of it"), losses, strict=True)
    ]
    rows[0]["taken GiB"] = whole / 2**30
    return [*rows, *({"work": line} for line in lines if "memory" in line)]


def waits(bench: Bench) -> list[Row]:
    """How often the host waits for the GPU in ten steps of training, by algorithm."""
    if bench.device.type != "cuda":
        return [{"algorithm": "only on a GPU"}]
    rows = []
    for name in names():
        config = bench.config(
            name,
            **{
                "model.backbone": "small-cnn",
                "data.image_size": 32,
                "train.steps": 10,
                "train.checkpoint_every": 10,
            },
        )
        with one_batch(), counted_waits() as found:
            bench.trained(f"waits {name}", config)
        places = ", ".join(dict.fromkeys(found))
        rows.append({"algorithm": name, "waits in 10 steps": len(found), "where": places})
    return rows


@contextmanager
def counted_waits() -> Iterator[list[str]]:
    """The places in the steps of Step B where the host waited for the GPU."""
    found: list[str] = []
    step = Loop._step

    def watched(self: Loop, *given: Any, may_divide: bool) -> None:
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn" if self.phase.name == "main" else before)
            try:
                step(self, *given, may_divide=may_divide)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        waited = (one for one in said if "called a synchronizing" in str(one.message))
        found.extend(f"{Path(one.filename).name}:{one.lineno}" for one in waited)

    with mock.patch.object(Loop, "_step", watched):
        yield found
