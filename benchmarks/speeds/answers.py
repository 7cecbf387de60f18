"""How long a user waits: adapting, predicting, features on a CPU, the command line."""

import copy
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from acclimate.adapt.classifier import adapt, apply_state
from acclimate.adapt.many import ManyDomains
from acclimate.data.source import to_float
from acclimate.learn.model import Trained, ready
from acclimate.learn.models import accelerate, build_backbone, engine_used
from speeds.bench import Bench, Row

CPU_BACKBONE = "efficientnet-lite0"  # the default for images above 64 px


def adapting(bench: Bench) -> list[Row]:
    """How long `adapt` takes for n images, and prediction plain and adapted, files to labels. On a
    CPU the backbone is one that stays as it is, as there by default."""
    few = {"train.steps": 2, **(bench.frozen() if bench.device.type == "cpu" else {})}
    run, _ = bench.trained("adapted", bench.config("da-erm", **few))
    plain, _ = bench.trained("plain", bench.config("erm", **few))
    model, other = Trained.load(run, bench.device), Trained.load(plain, bench.device)
    paths = [bench.manifest.image_source(row) for row in range(len(bench.manifest))]
    rows: list[Row] = []
    for n in (1, 10, 100, 1000):
        if n <= len(paths):
            taken = bench.seconds(lambda: adapt(model, paths[:n], method="embedding"), 2)  # noqa: B023
            rows.append({"work": f"adapt on {n}", "ms": 1e3 * taken, "images/s": n / taken})
    adapted = adapt(model, paths[:10], method="embedding")
    sites = {f"site {i}": adapt(model, paths[i : i + 1], method="embedding") for i in range(64)}
    many, mixed = ManyDomains(sites), [f"site {i % len(sites)}" for i in range(len(paths))]
    as_it_is = apply_state(other, None)
    images = 32 if bench.device.type == "cpu" else 256
    loaded = torch.randint(0, 256, (images, 3, model.size, model.size), dtype=torch.uint8)
    x = to_float(loaded, bench.device)
    whole: dict[str, Callable[[], object]] = {
        "predict, plain": lambda: as_it_is.predict_proba(paths),
        "predict, adapted": lambda: adapted.predict_proba(paths),
        "predict, 64 domains mixed": lambda: many.predict_proba(paths, mixed),
    }
    alone: dict[str, Callable[[], object]] = {
        "the network alone, plain": lambda: as_it_is.predictor(x),
        "the network alone, adapted": lambda: adapted.predictor(x),
    }
    with torch.no_grad():
        for works, count in ((whole, len(paths)), (alone, len(x))):
            found = bench.beside(works, 15)
            first = next(iter(found.values()))
            rows += [
                {"work": name, "ms": 1e3 * one, "images/s": count / one, "x": one / first}
                for name, one in found.items()
            ]
    return rows


def engines(bench: Bench) -> list[Row]:
    """Features on a CPU: PyTorch's in both layouts, and as `predict` computes them."""
    if bench.device.type != "cpu":
        return [{"engine": "only on a CPU"}]
    as_usual, ours = (build_backbone(CPU_BACKBONE, pretrained=False).eval() for _ in range(2))
    ours.load_state_dict(as_usual.state_dict())
    as_usual.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    last = copy.deepcopy(as_usual).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ready(ours, bench.device)
    accelerate(ours)
    x = torch.rand(32, 3, 224, 224)
    lying = x.contiguous(memory_format=torch.channels_last)
    works: dict[str, Callable[[], object]] = {
        "PyTorch": lambda: as_usual.normalised_body(x),
        "PyTorch, channels last": lambda: last.normalised_body(lying),
        "ours": lambda: ours(lying),
    }
    with torch.inference_mode():
        taken = bench.beside(works, 5)
        apart = (ours(lying) - as_usual.normalised_body(x)).abs().max()
    rows: list[Row] = [
        {"engine": name, "images/s": len(x) / one, "x": taken["PyTorch"] / one}
        for name, one in taken.items()
    ]
    rows[-1] |= {"engine": f"ours: {engine_used(ours)}", "largest difference": float(apart)}
    return rows


def start_up(bench: Bench) -> list[Row]:
    rows = []
    for arguments in (["--help"], ["--version"], ["list", "algorithms"], ["train", "--help"]):
        command = [sys.executable, "-m", "acclimate", *arguments]
        found = []
        for _ in range(2):
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            found.append(time.perf_counter() - started)
        rows.append({"command": f"acclimate {' '.join(arguments)}", "seconds": min(found)})
    return rows
