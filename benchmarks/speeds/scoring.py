"""What is done with a network that is there: scores, features, a long tail."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import harmonic_mean
from typing import Any

import numpy as np
import torch

from acclimate.config import DataConfig
from acclimate.data.manifest import Manifest
from acclimate.data.source import Quarantine, open_source, readable, to_float
from acclimate.learn.model import Trained
from acclimate.records.folder import RunFolder
from acclimate.runs.evaluate import evaluate_run
from speeds.bench import NONE_KEPT, Bench, Row, every_other, make_images, one_batch, rate_of, say

FIVE = ("prior", "t3a")  # none, and what is told the truth or goes by its confusions, come along
TRAINING_ON = ("bn", "tent")  # these pass images through the network again


def scoring(
    bench: Bench, asked: Sequence[Sequence[str]] = ((), FIVE, (*FIVE, *TRAINING_ON))
) -> list[Row]:
    """`evaluate` on the unseen domain's images, beside one pass of the network over as many."""
    run, _ = bench.trained("scored", bench.config("erm", **{"train.steps": 2}))
    trained = Trained.load(run, bench.device)
    everything = np.concatenate(
        [
            bench.manifest.rows(domain=bench.test),
            *(bench.manifest.rows(domain=d, split="val") for d in bench.manifest.domains[:-1]),
        ]
    )

    @torch.no_grad()
    def one_pass(rows: np.ndarray) -> None:
        quarantine = Quarantine()
        size, data = bench.scale.size, DataConfig()
        source = open_source(bench.manifest, size, data, quarantine, bench.device)
        for _, stored in readable(source, rows):
            trained.predictor(to_float(stored, bench.device)).logits.argmax(1).cpu()

    def evaluated(methods: Sequence[str]) -> list[str]:
        found = evaluate_run(run, bench.manifest, methods=methods, device=str(bench.device))
        return list(dict.fromkeys(score.method for score in found.scores))

    works: dict[str, Callable[[], object]] = {"one pass": lambda: one_pass(everything)}
    images = bench.manifest.one_row_each(np.sort(everything))
    if len(images) < len(everything):  # then no image passes a network twice
        works["one pass, each image once"] = lambda: one_pass(images)
    for methods in asked:
        works[f"evaluate: {', '.join(evaluated(methods))}"] = partial(evaluated, methods)
    taken = bench.beside(works, 2)
    return [
        {"scored by": name, "rows": len(everything), "seconds": one, "x": one / taken["one pass"]}
        for name, one in taken.items()
    ]


def features(bench: Bench) -> list[Row]:
    """A backbone that stays as it is: extracted once, then trained on; and trained once more."""
    config = bench.config(**bench.frozen())
    ends = {}
    for name in ("features, extracted and trained", "features, trained again"):
        ends[name] = bench.trained(name, config)
    images = len(bench.manifest)
    return [
        {
            "work": name,
            "images": images,
            "seconds": seconds,
            "images/s": images / seconds,
            "images/s in steps": rate_of(run),
        }
        for name, (run, seconds) in ends.items()
    ]


def long_tail(bench: Bench) -> list[Row]:
    """Ten domains that draw the same images again and again, seven rows to an image."""
    rng = np.random.default_rng(0)
    folder = bench.folder / "long tail"
    make_images(folder / "images", bench.scale.tail // 4, side=64)
    base = Manifest.open(folder / "images")
    lines = ["image,label,domain"]
    for domain in range(10):
        for row in rng.permutation(len(base))[: int(0.7 * len(base))]:
            label = base.classes[base.label_index[row]]
            lines.append(f"{base.image_name(int(row))},{label},domain{domain}")
    (folder / "rows.csv").write_text("\n".join(lines))
    manifest = Manifest.from_table(folder / "rows.csv", root=base.root)
    scale = replace(bench.scale, size=min(bench.scale.size, 96))
    here = replace(bench, folder=folder, manifest=manifest, scale=scale)
    stretch = max(scale.steps // 3, 1)
    steps = 15 * stretch
    plan: dict[str, Any] = {
        "train.steps": 2 * steps,
        "train.evaluate_every": steps,
        "train.checkpoint_every": stretch,
    }
    with one_batch():  # what a process does once, on a GPU, before anything
        here.trained("warm", here.config(**{**NONE_KEPT, "train.steps": scale.warm}))
    with every_other(stretch):
        run, _ = here.trained("cached", here.config(**plan))
    rates = [float(loss.images_per_second or 0) for loss in RunFolder(run).records().losses]
    say("images/s, and of the step alone", [rates[::2], rates[1::2]])
    images = len(np.unique(manifest.image_ids))
    facts: Row = {"rows": len(manifest), "images": images}
    trained: list[Row] = []
    for name, first in ((f"{steps} steps", 0), ("the last fifth of them", len(rates) * 4 // 5)):
        ours, alone = (harmonic_mean(rates[place::2]) for place in (first, first + 1))
        trained.append({"work": name, **facts, "images/s": ours, "of ceiling": ours / alone})
    scored = scoring(here, ((), FIVE))
    return [*trained, *({"work": row.pop("scored by"), **row} for row in scored)]
