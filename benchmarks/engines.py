"""Features on a CPU: PyTorch, PyTorch in channels-last order, and ONNX Runtime, in one run.

`python benchmarks/engines.py` (docs/deploy.md keeps the table). The three take turns on the same
batches, and the fastest turn of each counts: on a machine with other work, the median is of that.
Weights do not matter to speed, so that only EfficientNet-Lite0 has its own (extra `lite`).
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from acclimate.core.files import write_json
from acclimate.learn.models import accelerate, build_backbone
from acclimate.learn.models.backbones import engine_at
from pages import fill, made

PAGE = Path(__file__).resolve().parent.parent / "docs" / "deploy.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbones", default="efficientnet-lite0,resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where the numbers go as well")
    parser.add_argument("--out", type=Path, default=PAGE, help="page with the part `engines`")
    arguments = parser.parse_args()
    measured = {
        name: measure(name, arguments.size, arguments.batch, arguments.turns)
        for name in arguments.backbones.split(",")
    }
    lines = [
        "| backbone | PyTorch | channels-last | ONNX Runtime | against PyTorch | "
        "largest difference | graph made in |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in measured.items():
        rates = " | ".join(f"{row[way]:.1f}" for way in ("torch", "channels-last", "onnxruntime"))
        ratio = row["onnxruntime"] / row["torch"]
        lines.append(
            f"| {name} | {rates} | {ratio:.1f}× | {row['difference']:.0e} | {row['made']:.0f} s |"
        )
    print("\n".join(lines))
    print(json.dumps(measured))
    if arguments.json:
        write_json(arguments.json, measured)
    lines += ["", made("src/acclimate/learn/graph.py")]
    fill(arguments.out, "engines", "\n".join(lines))


@torch.inference_mode()
def measure(name: str, size: int, batch: int, turns: int) -> dict[str, float]:
    """Images per second by way, and what making the graph took (nothing where it is cached)."""
    pretrained = name == "efficientnet-lite0"
    plain = build_backbone(name, pretrained=pretrained).eval()
    last = build_backbone(name, pretrained=pretrained).eval()
    last.load_state_dict(plain.state_dict())
    last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.rand(batch, 3, size, size, generator=torch.Generator().manual_seed(0))
    x_last = x.contiguous(memory_format=torch.channels_last)
    accelerate(last)
    begun = time.perf_counter()
    engine = engine_at(last, size)
    made = time.perf_counter() - begun
    assert engine.session is not None and engine.difference is not None, engine.why
    ways: dict[str, Callable[[], Tensor]] = {
        "torch": lambda: plain.in_torch(x),
        "channels-last": lambda: last.in_torch(x_last),
        "onnxruntime": lambda: last(x_last),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns + 1):  # the first of each makes ready
        for way, run in ways.items():
            begun = time.perf_counter()
            run()
            seconds[way].append(time.perf_counter() - begun)
    rates = {way: batch / min(times[1:]) for way, times in seconds.items()}
    return {**rates, "difference": engine.difference, "made": made}


if __name__ == "__main__":
    main()
