"""What a rehearsed model gains at a new site, by its images and by a few labels, beside promises.

    python benchmarks/labels.py PACS --seeds 3           # each domain unseen in turn
    python benchmarks/labels.py --seeds 3 --jobs 2       # made families of sites

Features of photographs are those of a frozen backbone. A new site gives half of its images (300 at
most) to adapt on, of which some are labelled: chosen at random, or as `acclimate suggest` does. The
other half is scored, by scikit-learn's logistic regression (C = 1), the plain model, `auto`, its
two controls, and with labels. Gains are compared with what rehearsal promised for them.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression

from acclimate import AdaptiveClassifier
from acclimate.adapt.methods import find_chain
from acclimate.adapt.methods.chain import adapt_model
from acclimate.adapt.suggest import spread
from acclimate.config import DataConfig
from acclimate.core.distributed import World
from acclimate.core.files import write_json
from acclimate.core.progress import unwatched
from acclimate.core.randomness import stream
from acclimate.core.text import percent, signed
from acclimate.data.manifest import Manifest
from acclimate.data.source import Quarantine
from acclimate.learn.frozen import Extraction
from acclimate.learn.images import Images
from acclimate.learn.models import build_backbone
from acclimate.records.rehearsal import Promise
from floors import FAMILIES, Family

ROOT = Path(__file__).resolve().parent.parent
LABELS, MOST = (10, 20, 50), 300
FEW_SITES, NEW = (4, 6, 10, 20), 5
SMALL = {"train.steps": 200, "adapt.site.batch": 128, "adapt.site.width": 64, "adapt.site.dim": 16}
Rows = tuple[np.ndarray, np.ndarray]  # features [n, f], labels [n]


class Case(NamedTuple):
    """Sites to train on, and new ones."""

    name: str
    seed: int
    train: tuple[np.ndarray, np.ndarray, np.ndarray]  # features, labels, domains
    new: Sequence[Rows]
    settings: Mapping[str, Any]


class Outcome(NamedTuple):
    """A new site: accuracies, and for some gains what was promised: (low, mean, high)."""

    name: str
    seed: int
    sites: int
    accuracies: Mapping[str, float]
    promises: Mapping[str, tuple[float, float, float]]


def photographs(folder: Path, seeds: Sequence[int], size: int) -> Iterator[Case]:
    """Each domain of a folder unseen in turn."""
    manifest, backbone = Manifest.open(folder), build_backbone("efficientnet-lite0")
    every = {domain: manifest.rows(domain=domain) for domain in manifest.domains}
    keep = [stream(0, "some", name).permutation(own)[:size] for name, own in every.items()]
    rows = np.sort(np.concatenate(keep))
    network = Extraction(backbone.requires_grad_(False).eval(), "efficientnet-lite0", backbone.size)
    source = network.extract(
        manifest, rows, DataConfig(), Quarantine(), beside=Path.cwd(), world=World()
    )
    x, y = source.take(rows)[0].numpy(), manifest.label_index[rows]
    domain = np.array(manifest.domain_names)[rows]
    for seed, unseen in product(seeds, manifest.domains):
        mine = domain == unseen
        train = x[~mine], y[~mine], domain[~mine]
        yield Case(unseen, seed, train, [(x[mine], y[mine])], {})


def made(seeds: Sequence[int]) -> Iterator[Case]:
    """Sites of made families, and five new ones of each."""
    for seed, sites, kind in product(seeds, FEW_SITES, FAMILIES):
        family = Family(kind, stream(seed, "labels", kind, sites))
        known = [family.site()(max(family.images(), 60)) for _ in range(sites)]
        x, y = (np.concatenate(part).astype("f4") for part in zip(*known, strict=True))
        names = np.repeat([f"site-{i:02}" for i in range(sites)], [len(own) for _, own in known])
        new = [family.site()(800) for _ in range(NEW)]
        yield Case(kind, seed, (x, y.astype(int), names), new, SMALL)


def measure(case: Case) -> list[Outcome]:
    torch.set_num_threads(1)
    x, y, domains = case.train
    own: dict[str, Any] = {"settings": dict(case.settings), "device": "cpu"}
    model = AdaptiveClassifier(seed=case.seed, **own, watch=unwatched).fit(x, y, domains)
    regression = LogisticRegression(max_iter=2000).fit(x, y)
    return [
        _at(case, model, regression, place, rows.astype("f4"), labels)
        for place, (rows, labels) in enumerate(case.new)
    ]


def _at(
    case: Case,
    model: AdaptiveClassifier,
    regression: LogisticRegression,
    place: int,
    x: np.ndarray,
    y: np.ndarray,
) -> Outcome:
    """A new site."""
    draw = stream(case.seed, "half", case.name, place)
    order = draw.permutation(len(x))
    seen, scored = order[: min(len(x) // 2, MOST)], order[len(x) // 2 :]
    trained, rehearsal = model.trained, model.trained.rehearsal
    auto = model.adapt(x[seen])
    chain = find_chain(auto.method)
    start = trained.start(embedding=chain.embedding)
    rows, _, domains = case.train
    other = Images(torch.from_numpy(rows[domains == domains[0]][:MOST]), trained.device)
    settings = {} if rehearsal is None else rehearsal.settings_for(auto.method, len(other))
    wrong = adapt_model(start, other, find_chain(auto.method, settings=settings))[0]
    kinds = {"plain": trained.start(embedding=False).predictor, "auto": auto.predictor}
    kinds |= {"neutral": start.at(None), "other": wrong}
    found = {"logistic C=1": float((regression.predict(x[scored]) == y[scored]).mean())}
    for name, predictor in kinds.items():
        found[name] = _accuracy(predictor, x[scored], y[scored])
    with torch.no_grad():
        hidden = auto.predictor(torch.from_numpy(x[seen])).hidden
    for count in LABELS:
        ways = {"suggested": spread(hidden, count), "random": draw.permutation(len(seen))[:count]}
        for way, chosen in ways.items():
            labels: list[Any] = [None] * len(seen)
            for one in chosen:
                labels[one] = y[seen[one]]
            site = model.adapt(x[seen], labels=labels)
            found[f"{count} {way}"] = _accuracy(site.predictor, x[scored], y[scored])
    promises = {}
    if rehearsal is not None:
        own = [rehearsal.with_labels(count) for count in LABELS]
        named = {f"{count} suggested": one for count, one in zip(LABELS, own, strict=True)}
        if auto.method != "none":
            named["auto"] = rehearsal.promise(auto.method, len(seen))
        promises = {name: told for name, one in named.items() if (told := _promised(one))}
    return Outcome(case.name, case.seed, len(set(case.train[2])), found, promises)


def _promised(promise: Promise | None) -> tuple[float, float, float] | None:
    interval = None if promise is None else promise.expected_gain()
    return None if promise is None or interval is None else (interval[0], promise.gain, interval[1])


@torch.no_grad()
def _accuracy(predictor: Any, x: np.ndarray, y: np.ndarray) -> float:
    return float((predictor(torch.from_numpy(x)).logits.argmax(1).numpy() == y).mean())


def gain(outcome: Outcome, name: str) -> float:
    """Of `auto` over the plain model, and of labels over `auto`."""
    return outcome.accuracies[name] - outcome.accuracies["plain" if name == "auto" else "auto"]


def table(outcomes: Sequence[Outcome], by: str) -> Iterable[str]:
    groups: dict[Any, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        groups[getattr(one, by)].append(one)
    names = list(outcomes[0].accuracies)
    yield f"| {by} | cases | {' | '.join(names)} |"
    yield f"|---|---:|{'---:|' * len(names)}"
    for key, own in {**groups, "all": list(outcomes)}.items():
        cells = [percent(fmean(one.accuracies[name] for one in own)) for name in names]
        yield f"| {key} | {len(own)} | {' | '.join(cells)} |"


def pairs(outcomes: Sequence[Outcome]) -> Iterable[str]:
    """Promised gains beside measured ones."""
    met = [(told, gain(one, name)) for one in outcomes for name, told in one.promises.items()]
    if len(met) < 3:
        return
    inside = [low <= true <= high for (low, _, high), true in met]
    rank = spearmanr([mean for (_, mean, _), _ in met], [true for _, true in met]).statistic
    error = stdev(map(float, inside)) / len(inside) ** 0.5
    off = [true - mean for (_, mean, _), true in met]
    yield (
        f"{len(met)} promised gains: rank correlation {rank:.2f}; in their 90 % interval "
        f"{percent(fmean(inside))} ± {percent(error)} %; measured less promised "
        f"{signed(fmean(off))} points"
    )
    for count in LABELS:
        own = [
            one.accuracies[f"{count} suggested"] - one.accuracies[f"{count} random"]
            for one in outcomes
        ]
        noise = stdev(own) / len(own) ** 0.5 if len(own) > 1 else 0.0
        said = f"{signed(fmean(own))} ± {percent(noise)} points"
        yield f"{count} labels, suggested less random: {said}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="domain/class/image folder")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=700, help="images of each domain")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "labels" / "labels.json")
    asked = parser.parse_args()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    cases = photographs(asked.data, seeds, asked.size) if asked.data else made(seeds)
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as workers:
        for some in workers.map(measure, list(cases)):
            outcomes += some
            write_json(asked.out, {"outcomes": [one._asdict() for one in outcomes]})
    for by in ("name",) if asked.data else ("name", "sites"):
        print(*table(outcomes, by), "", sep="\n")
    print(*pairs(outcomes), sep="\n")


if __name__ == "__main__":
    main()
