"""How far exported files are from PyTorch, for every predictor and chain of methods.

`python benchmarks/exported.py` (docs/deploy.md keeps the table). A small ResNet learns the embedded
digits, and an unseen domain is adapted to; the comparison is on other images of that domain. With
`--backbone efficientnet-lite0 --size 224` pretrained weights stay as they are and heads learn on
their features, which takes half an hour on 2 cores. Needs the extra `onnx`.

`python benchmarks/exported.py --formats` writes the table of formats instead: sizes and speeds of
EfficientNet-Lite0 (extra `lite`) at 224 px, on one CPU thread.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from acclimate import AdaptiveClassifier, Manifest
from acclimate.adapt.export import export_adapted, export_conditioned, site_inputs
from acclimate.adapt.methods import find_chain
from acclimate.build.digits import DigitsSettings, build_digits
from acclimate.data.images import read_pixels
from acclimate.learn.graph import OnnxSession
from pages import fill, made

PAGE = Path(__file__).resolve().parent.parent / "docs" / "deploy.md"
ADAPTED_ON, COMPARED = 48, 32
BATCH, TURNS = 16, 6  # of the table of formats
PREDICTORS: dict[str, dict[str, Any]] = {
    "plain, linear": {"algorithm": "erm"},
    "plain, mlp": {"algorithm": "erm", "model.head": "mlp"},
    "plain, rehearsed": {"algorithm": "erm", "adapt.rehearse": True},
    "concat": {"model.condition": "concat"},
    "film": {"model.condition": "film"},
    "bias": {"model.condition": "bias"},
    "low-rank": {"model.condition": "low-rank"},
}
CHAINS = (
    *("auto", "none", "prior", "bn", "t3a", "tent", "bn+prior"),
    *("embedding", "embedding+prior", "embedding+bn", "embedding+t3a", "embedding+tent"),
)
SETTINGS: dict[str, Any] = {
    "algorithm": "da-erm",
    "model.width": 256,
    "model.hidden": 256,
    "embedding.dim": 64,
    "embedding.steps": 100,
    "embedding.per_domain": 16,
    "train.steps": 150,
    "train.per_domain": 16,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PAGE, help="page with the part `exported`")
    parser.add_argument("--backbone", default="test_resnet", help="one with batch norm")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--predictors", default=";".join(PREDICTORS), help="some, joined by ;")
    parser.add_argument("--formats", action="store_true", help="sizes and speeds instead")
    arguments = parser.parse_args()
    if arguments.formats:
        lines = [*formats(), "", made("src/acclimate/adapt/export.py")]
        fill(arguments.out, "formats", "\n".join(lines))
        return
    large = arguments.backbone == "efficientnet-lite0"
    SETTINGS.update(
        {
            "model.backbone": arguments.backbone,
            "model.pretrained": large,
            "model.freeze": "backbone" if large else "none",
            "data.image_size": arguments.size,
        }
    )
    onnxruntime.set_default_logger_severity(3)
    digits = build_digits(
        DigitsSettings(train_domains=6, test_domains=1, train_images=60, test_images=80, noise=0.2)
    )
    unseen = digits.rows(domain="test-0-000")
    images = np.stack(
        [read_pixels(digits.image_source(int(row)), arguments.size) for row in unseen]
    )
    header = ["predictor", *CHAINS, "conditioned form"]
    table = [header, ["---"] * len(header)]
    for name in arguments.predictors.split(";"):
        table.append([name, *differences(PREDICTORS[name], digits, images)])
        print(*table[-1], flush=True)
        lines = ["| " + " | ".join(cells) + " |" for cells in table]
        lines += ["", made("src/acclimate/adapt/export.py", "src/acclimate/adapt/methods")]
        fill(arguments.out, "exported", "\n".join(lines))


def differences(settings: dict[str, Any], digits: Manifest, images: np.ndarray) -> list[str]:
    """The largest in a probability by chain, and of the conditioned form over its chains."""
    model = AdaptiveClassifier(settings={**SETTINGS, **settings}, device="cpu")
    model.fit(digits.without_domains("test-0-000"))
    seen, others = images[:ADAPTED_ON], images[ADAPTED_ON : ADAPTED_ON + COMPARED]
    found, conditioned = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        whole = export_conditioned(model.trained, Path(folder) / "all.onnx")
        session = onnxruntime.InferenceSession(str(whole.path))
        for chain in CHAINS:
            by_embedding = chain != "auto" and find_chain(chain).embedding
            if by_embedding and not model.trained.adaptive:
                found.append("–")
                continue
            site = model.adapt(list(seen), method=chain)
            expected = site.predict_proba(list(others))
            made = export_adapted(site, Path(folder) / "site.onnx")
            (given,) = onnxruntime.InferenceSession(str(made.path)).run(None, {"images": others})
            found.append(f"{np.abs(given - expected).max():.0e}")
            if not {"bn", "t3a", "tent"} & {*site.method.split("+")}:
                inputs = {"images": others, **site_inputs(model.trained, site.state)}
                gap = np.abs(session.run(None, inputs)[0] - expected).max()
                conditioned = max(conditioned, float(gap))
    return [*found, f"{conditioned:.0e}"]


def formats() -> Iterator[str]:
    """A row for each kind of file: its size, speed and largest difference to PyTorch."""
    torch.set_num_threads(1)
    onnxruntime.set_default_logger_severity(3)
    digits = build_digits(  # of all classes in every domain
        DigitsSettings(
            train_domains=2, test_domains=1, train_images=60, test_images=8, concentration=100.0
        )
    )
    settings = {"model.freeze": "backbone", "train.steps": 50}
    model = AdaptiveClassifier(
        algorithm="da-erm",
        backbone="efficientnet-lite0",
        settings={**settings, "train.per_domain": 8, "embedding.steps": 20, "data.image_size": 224},
        device="cpu",
    ).fit(digits)
    images = np.random.default_rng(0).integers(0, 256, (BATCH, 3, 224, 224), dtype=np.uint8)
    site = model.adapt(list(images[:8]), method="embedding")
    yield "| file | size | images/s | against float32 | largest difference |"
    yield "|---|---:|---:|---:|---:|"
    with tempfile.TemporaryDirectory() as folder:
        for ending in (".onnx", ".pt2"):
            for form in ("one site", "all sites") if ending == ".onnx" else ("one site",):
                rates: list[float] = []
                for half in (False, True):
                    path = Path(folder) / f"model{ending}"
                    if form == "one site":
                        exported = export_adapted(site, path, half=half)
                    else:
                        exported = export_conditioned(model.trained, path, half=half)
                    rates.append(speed(path, images))
                    yield (
                        f"| `{ending}`, {form}{', `--half`' if half else ''} | "
                        f"{path.stat().st_size / 1e6:.1f} MB | {rates[-1]:.1f} | "
                        f"{rates[-1] / rates[0]:.2f}× | {exported.difference:.0e} |"
                    )


@torch.no_grad()
def speed(path: Path, images: np.ndarray) -> float:
    """Images per second of a file on one thread: the fastest of some turns."""
    if path.suffix == ".onnx":
        session = OnnxSession(path.read_bytes())
        run: Callable[[], Any] = lambda: session({"images": images})  # noqa: E731
    else:
        module = torch.export.load(path).module()
        run = lambda: module(torch.from_numpy(images))  # noqa: E731
    taken = []
    for _ in range(TURNS):
        begun = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun)
    return len(images) / min(taken)


if __name__ == "__main__":
    main()
