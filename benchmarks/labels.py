"""What a rehearsed model gains at a new site, by its images and by a few labels, beside promises.

    python benchmarks/labels.py PACS --seeds 3           # each domain unseen in turn
    python benchmarks/labels.py label/*.parquet --px 96 --seeds 1   # their unseen domains
    python benchmarks/labels.py --seeds 3 --jobs 2       # made families of sites

Features of photographs are those of a frozen backbone. A new site gives half of its images (300 at
most) to adapt on, of which some are labelled: chosen at random, or as `acclimate suggest` does. The
other half is scored, by scikit-learn's logistic regression (C = 1), the plain model, `auto`, its
two controls, every method that was rehearsed, and with labels. Gains are split into what a better
head gains without an image of the site (`neutral`) and what the site's images add, and compared
with what rehearsal promised for them. ± is a standard error over seeds and manifests.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
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
from acclimate.data.readers import read_arrays
from acclimate.data.source import Quarantine
from acclimate.learn.frozen import Extraction
from acclimate.learn.images import Images
from acclimate.learn.models import build_backbone
from acclimate.records.rehearsal import Promise
from acclimate.results.statistics import Estimate
from floors import FAMILIES, Family

ROOT = Path(__file__).resolve().parent.parent
LABELS, MOST = (10, 20, 50), 300
SHOWN = (
    *("logistic C=1", "plain", "auto", "neutral", "other"),
    *(f"{count} {way}" for count in LABELS for way in ("suggested", "random")),
)
FEW_SITES, NEW = (4, 6, 10, 20), 5
PARTS = {  # of a gain, in the order of the table: which accuracy less which
    "auto − plain": ("auto", "plain"),
    "a better head": ("neutral", "plain"),
    "the site's images": ("auto", "neutral"),
    "another site's images": ("other", "plain"),
    "plain − logistic C=1": ("plain", "logistic C=1"),
}
SMALL = {"train.steps": 200, "adapt.site.batch": 128, "adapt.site.width": 64, "adapt.site.dim": 16}
Rows = tuple[np.ndarray, np.ndarray]  # features [n, f], labels [n]


class Case(NamedTuple):
    """Sites to train on, and new ones."""

    name: str
    seed: int
    train: tuple[np.ndarray, np.ndarray, np.ndarray]  # features, labels, domains
    new: Sequence[Rows]
    settings: Mapping[str, Any]
    pictures: np.ndarray | None = None  # that the rows of `train` show, where several show one
    draw: str = ""  # the manifest, where several are of one name

    @property
    def manifest(self) -> Manifest:
        x, y, domains = self.train
        table, classes = read_arrays(x, np.array([f"{label:04}" for label in y]), domains, None)
        if self.pictures is not None:
            table = table.append_column("group", pa.array(self.pictures.astype(str)))
        return Manifest.from_rows(
            table, Path.cwd(), "arrays", classes=classes, val_share=0.2, seed=0
        )


class Outcome(NamedTuple):
    """A new site: accuracies, and for some gains what was promised: (low, mean, high)."""

    name: str
    seed: int
    draw: str
    sites: int
    accuracies: Mapping[str, float]
    promises: Mapping[str, tuple[float, float, float]]


def photographs(data: Path, seeds: Sequence[int], size: int, pixels: int | None) -> Iterator[Case]:
    """The unseen domains of a manifest that has some; otherwise each domain unseen in turn."""
    manifest, backbone = Manifest.open(data), build_backbone("efficientnet-lite0")
    roles = manifest.roles()
    tests = [name for name, role in roles.items() if role == "test"]
    known = [name for name in manifest.domains if roles.get(name, "train") == "train"]
    every = {domain: manifest.rows(domain=domain) for domain in (*known, *tests)}
    keep = [stream(0, "some", name).permutation(own)[:size] for name, own in every.items()]
    rows = np.sort(np.concatenate(keep))
    frozen = backbone.requires_grad_(False).eval()
    network = Extraction(frozen, "efficientnet-lite0", pixels or backbone.size)
    source = network.extract(
        manifest, rows, DataConfig(), Quarantine(), beside=Path.cwd(), world=World()
    )
    x, y = source.take(rows)[0].numpy(), manifest.label_index[rows]
    domain = np.array(manifest.domain_names)[rows]
    for seed, unseen in product(seeds, [tests] if tests else [[name] for name in known]):
        mine = np.isin(domain, unseen)
        train = x[~mine], y[~mine], domain[~mine]
        new = [(x[domain == name], y[domain == name]) for name in unseen]
        name, shown = data.parent.name if tests else unseen[0], manifest.unit_ids[rows][~mine]
        yield Case(name, seed, train, new, {}, shown, data.stem)


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
    x, y, _ = case.train
    own: dict[str, Any] = {"settings": dict(case.settings), "device": "cpu"}
    model = AdaptiveClassifier(seed=case.seed, **own, watch=unwatched).fit(case.manifest)
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
    start = trained.start(embedding=find_chain(auto.method).embedding)
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
                labels[one] = trained.classes[y[seen[one]]]
            site = model.adapt(x[seen], labels=labels)
            found[f"{count} {way}"] = _accuracy(site.predictor, x[scored], y[scored])
    promises: dict[str, Promise | None] = {}
    if rehearsal is not None:
        promises = {f"{count} suggested": rehearsal.with_labels(count) for count in LABELS}
        for name in (one for one in rehearsal.chains if one != "none"):
            method = find_chain(name, settings=rehearsal.settings_for(name, len(seen)))
            images = Images(torch.from_numpy(x[seen]), trained.device)
            adapted = adapt_model(trained.start(embedding=method.embedding), images, method)[0]
            found[name] = _accuracy(adapted, x[scored], y[scored])
            promises[name] = rehearsal.promise(name, len(seen))
        if auto.method != "none":
            promises["auto"] = promises[auto.method]
    told = {name: told for name, one in promises.items() if (told := _promised(one))}
    return Outcome(case.name, case.seed, case.draw, len(set(case.train[2])), found, told)


def _promised(promise: Promise | None) -> tuple[float, float, float] | None:
    interval = None if promise is None else promise.expected_gain()
    return None if promise is None or interval is None else (interval[0], promise.gain, interval[1])


@torch.no_grad()
def _accuracy(predictor: Any, x: np.ndarray, y: np.ndarray) -> float:
    return float((predictor(torch.from_numpy(x)).logits.argmax(1).numpy() == y).mean())


def gain(outcome: Outcome, name: str) -> float:
    """Of a method over the plain model, and of labels over `auto`."""
    labels = name.endswith("suggested")
    return outcome.accuracies[name] - outcome.accuracies["auto" if labels else "plain"]


def grouped(outcomes: Sequence[Outcome], by: str) -> dict[Any, list[Outcome]]:
    groups: dict[Any, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        groups[getattr(one, by)].append(one)
    return {**groups, "all": list(outcomes)}


def table(outcomes: Sequence[Outcome], by: str) -> Iterable[str]:
    yield f"| {by} | cases | {' | '.join(SHOWN)} |"
    yield f"|---|---:|{'---:|' * len(SHOWN)}"
    for key, own in grouped(outcomes, by).items():
        cells = [percent(fmean(one.accuracies[name] for one in own)) for name in SHOWN]
        yield f"| {key} | {len(own)} | {' | '.join(cells)} |"


def parts(outcomes: Sequence[Outcome], by: str) -> Iterable[str]:
    """Which part of a gain is whose, in points."""
    yield f"| {by} | {' | '.join(PARTS)} |"
    yield f"|---|{'---:|' * len(PARTS)}"
    for key, own in grouped(outcomes, by).items():
        draws: dict[Any, list[Outcome]] = defaultdict(list)
        for one in own:
            draws[one.draw, one.seed].append(one)
        cells = []
        for mine, less in PARTS.values():
            gaps = [
                fmean(one.accuracies[mine] - one.accuracies[less] for one in draw)
                for draw in draws.values()
            ]
            gap = Estimate.of(gaps)
            assert gap is not None
            noise = "" if gap.se is None else f" ± {percent(gap.se)}"
            cells.append(signed(gap.mean) + noise)
        yield f"| {key} | {' | '.join(cells)} |"


def promised(outcomes: Sequence[Outcome], by: str) -> Iterable[str]:
    """Mean promised and true gains, in points."""
    names = ["auto", *(f"{count} suggested" for count in LABELS)]
    yield f"| {by}: promised, true gain | {' | '.join(names)} |"
    yield f"|---|{'---:|' * len(names)}"
    for key, own in grouped(outcomes, by).items():
        cells = []
        for name in names:
            met = [(one.promises[name][1], gain(one, name)) for one in own if name in one.promises]
            means = [signed(fmean(part)) for part in zip(*met, strict=True)]
            cells.append(f"{', '.join(means)} ({len(met)})" if met else "–")
        yield f"| {key} | {' | '.join(cells)} |"


def pairs(outcomes: Sequence[Outcome]) -> Iterable[str]:
    """Promised gains beside measured ones, at single sites."""
    every = [
        (name, told, gain(one, name))
        for one in outcomes
        for name, told in one.promises.items()
        if name != "auto"  # one of the methods
    ]
    labels = [met for met in every if met[0].endswith("suggested")]
    chosen = [
        ("auto", one.promises["auto"], gain(one, "auto"))
        for one in outcomes
        if "auto" in one.promises
    ]
    kinds = {"methods and labels": every, "labels": labels, "what auto chose": chosen}
    for name, met in kinds.items():
        if len(met) > 2:
            yield f"{name}: {_compared([told for _, told, _ in met], [true for *_, true in met])}"
    for count in LABELS:
        own = [
            one.accuracies[f"{count} suggested"] - one.accuracies[f"{count} random"]
            for one in outcomes
        ]
        noise = stdev(own) / len(own) ** 0.5 if len(own) > 1 else 0.0
        said = f"{signed(fmean(own))} ± {percent(noise)} points"
        yield f"{count} labels, suggested less random: {said}"


def _compared(told: Sequence[tuple[float, float, float]], true: Sequence[float]) -> str:
    inside = [low <= one <= high for (low, _, high), one in zip(told, true, strict=True)]
    means = [mean for _, mean, _ in told]
    off = [one - mean for one, mean in zip(true, means, strict=True)]
    error = stdev(map(float, inside)) / len(inside) ** 0.5
    return (
        f"{len(told)} promised gains, rank correlation {spearmanr(means, true).statistic:.2f}; in "
        f"their 90 % interval {percent(fmean(inside))} ± {percent(error)} %; measured less "
        f"promised {signed(fmean(off))} points"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", type=Path, help="domain/class/image folder, manifests")
    parser.add_argument("--px", type=int, help="side of images; the backbone's own otherwise")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=700, help="images of each domain")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "labels" / "labels.json")
    asked = parser.parse_args()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    given = (photographs(data, seeds, asked.size, asked.px) for data in asked.data)
    cases = chain.from_iterable(given) if asked.data else made(seeds)
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as workers:
        for some in workers.map(measure, list(cases)):
            outcomes += some
            write_json(asked.out, {"outcomes": [one._asdict() for one in outcomes]})
    for by in ("name",) if asked.data else ("name", "sites"):
        for lines in (table, parts, promised):
            print(*lines(outcomes, by), "", sep="\n")
    print(*pairs(outcomes), sep="\n")


if __name__ == "__main__":
    main()
