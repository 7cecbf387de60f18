"""A site's images arrive in batches: is a state that they are added to as good as adapting anew?

    python benchmarks/stream.py --seeds 20

Models learn from made sites that do not differ (`none`), have class frequencies of their own
(`label`), or lie elsewhere (`covariate`). A new site sends 12 batches of 10 to 100 images; half-way
its class frequencies change or not. After each batch the model is adapted as rehearsal chose: to
the batch added to the state so far (`into`, also where that keeps 100 images), anew to all images
so far, and anew to the last batch. Each is scored on 2000 other images of the site as it is now.
Prints their accuracies, and how `into` differs from `all`, while the state keeps every image and
later.
"""

import argparse
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
import torch

from acclimate import AdaptiveClassifier, DomainState
from acclimate.core.progress import unwatched
from acclimate.core.randomness import stream
from acclimate.core.text import percent, signed

CLASSES, WIDTH, SITES, IMAGES = 6, 16, 12, 240  # of the training data
BATCHES, SCORED, CAP = 12, 2000, 100
FAMILIES, DRIFTS = ("none", "label", "covariate"), (False, True)
SETTINGS = {
    "train.steps": 150,
    "adapt.site.steps": 80,
    "adapt.site.batch": 128,
    "adapt.site.width": 32,
    "adapt.site.dim": 16,
}
Site = Callable[[int], tuple[np.ndarray, np.ndarray]]  # number of images -> features, classes
Accuracies = dict[str, float]


class Moment(NamedTuple):
    """After a batch."""

    family: str
    drift: bool
    seed: int
    batch: int
    whole: bool  # whether the state kept every image when the batch came
    accuracies: Accuracies


def replay(seed: int, family: str) -> list[Moment]:
    """All moments of both streams of one model."""
    torch.set_num_threads(1)
    draw = stream(seed, "stream", family)
    centres = draw.normal(size=(CLASSES, WIDTH)) * 0.6
    known = [new_site(draw, centres, family)[0](IMAGES) for _ in range(SITES)]
    rows, classes = zip(*known, strict=True)
    names = np.repeat([f"site-{number}" for number in range(SITES)], IMAGES)
    model = AdaptiveClassifier(seed=seed, settings=SETTINGS, watch=unwatched)
    model.fit(np.concatenate(rows), np.concatenate(classes), names)
    found = []
    for drift in DRIFTS:
        before, after = new_site(draw, centres, family)
        found += [
            Moment(family, drift, seed, batch, *moment)
            for batch, moment in enumerate(moments(model, draw, before, after if drift else before))
        ]
    return found


def new_site(draw: np.random.Generator, centres: np.ndarray, family: str) -> tuple[Site, Site]:
    """A site, and the same with other class frequencies."""
    place = draw.normal(size=WIDTH) * (0.7 if family == "covariate" else 0)
    even = np.full(CLASSES, 1 / CLASSES)

    def images(frequencies: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        y = draw.choice(CLASSES, count, p=frequencies)
        return (centres[y] + place + draw.normal(size=(count, WIDTH))).astype(np.float32), y

    first = draw.dirichlet(np.full(CLASSES, 0.5)) if family == "label" else even
    return partial(images, first), partial(images, draw.dirichlet(np.full(CLASSES, 0.5)))


def moments(
    model: AdaptiveClassifier, draw: np.random.Generator, before: Site, after: Site
) -> Iterator[tuple[bool, Accuracies]]:
    every = np.zeros((0, WIDTH), np.float32)
    state: DomainState | None = None
    capped: DomainState | None = None
    for batch in range(BATCHES):
        now = before if batch < BATCHES // 2 else after
        x = now(int(draw.integers(10, 101)))[0]
        every, whole = np.concatenate([every, x]), state is None or state.whole
        sites = {
            "none": model.adapt(x, method="none"),
            "into": model.adapt(x, into=state),
            f"into, {CAP} kept": model.adapt(x, into=capped, keep=CAP),
            "all": model.adapt(every),
            "last": model.adapt(x),
        }
        state, capped = sites["into"].state, sites[f"into, {CAP} kept"].state
        rows, y = now(SCORED)
        yield whole, {name: float(np.mean(site.predict(rows) == y)) for name, site in sites.items()}


def table(found: list[Moment]) -> Iterator[str]:
    names = list(found[0].accuracies)
    heads = ["family", "drift", *names, "into − all, ≤ 500 images", "… later"]
    yield f"| {' | '.join(heads)} |"
    yield f"|---|---|{'---:|' * (len(heads) - 2)}"
    for family, drift in product(FAMILIES, DRIFTS):
        for half in ("before", "after") if drift else ("",):
            own = [m for m in found if (m.family, m.drift) == (family, drift)]
            own = [m for m in own if not half or (m.batch >= BATCHES // 2) == (half == "after")]
            cells = [percent(fmean(m.accuracies[name] for m in own)) for name in names]
            cells += [gap([m for m in own if m.whole == whole]) for whole in (True, False)]
            yield f"| {family} | {half or 'no'} | {' | '.join(cells)} |"


def gap(found: list[Moment]) -> str:
    """The mean over seeds, its standard error, and the largest difference of a moment."""
    own: dict[int, list[float]] = {}
    for moment in found:
        difference = moment.accuracies["into"] - moment.accuracies["all"]
        own.setdefault(moment.seed, []).append(difference)
    if len(own) < 2:
        return "–"
    means = list(map(fmean, own.values()))
    largest = max(abs(difference) for part in own.values() for difference in part)
    error = stdev(means) / len(means) ** 0.5
    return f"{signed(fmean(means))} ± {percent(error)} (at most {percent(largest)})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    given = list(product(range(asked.seeds), FAMILIES))
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as workers:
        parts = workers.map(replay, *zip(*given, strict=True))
        found = [moment for part in parts for moment in part]
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
