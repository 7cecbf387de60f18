"""Do floors of the accuracy hold at new sites, and thresholds of confidence what they promise?

    python benchmarks/floors.py --seeds 20

Each case draws sites of a family and holds out each in turn. The product's own functions then say
what to expect at five new sites: an accuracy, its floor, and thresholds of confidence. Images are
Gaussian classes with the means and covariances of 20 principal components of scikit-learn's digits.
Heads are logistic regressions. How much sites differ, how noisy images are and how many images a
site has is drawn for each case. Sites differ in nothing, in label frequencies, in offset and gain
of features (covariate), in which of two classes is called which (conditional), or in all of it.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax, softmax, stdtrit
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from acclimate.core.randomness import stream
from acclimate.core.text import DASH, percent
from acclimate.records.doubt import TARGETS, answer_for, count_answers, scores_of
from acclimate.rehearse.conclusion import Trial, conclude
from pages import fill, made

PAGE = Path(__file__).resolve().parent.parent / "docs" / "rehearsal.md"
FAMILIES = ("none", "label", "covariate", "conditional", "all")
SITES = (3, 4, 6, 10, 20)
CLASSES, DIM = 10, 20
SEEN, SCORED = 100, 2000  # images of a new site
NEW = 5  # new sites of a case
TEMPERATURES = np.logspace(-1, 1, 41)
Data = tuple[np.ndarray, np.ndarray]  # features [n, d] and labels [n]
Site = Callable[[int], Data]


class Met(NamedTuple):
    """A new site, and what was promised of it."""

    family: str
    sites: int  # that were held out
    case: tuple[str, int, int]
    accuracy: float
    expected: float
    floor: float
    anywhere: float  # from the point down to the floor, without a look at the site's images
    width: float  # of the two-sided interval, as promised before,
    down: float  # and how far it reached down
    by: str
    answers: tuple[tuple[float, float] | None, ...]  # share answered and right, for each target


class Family:
    """Sites that are drawn alike."""

    def __init__(self, kind: str, rng: np.random.Generator) -> None:
        data = load_digits()
        x = PCA(DIM, random_state=0).fit_transform(data.data)
        x /= x.std()
        groups = [x[data.target == label] for label in range(CLASSES)]
        self.means = np.stack([own.mean(0) for own in groups])
        self.roots = np.stack([np.linalg.cholesky(np.cov(own.T)) for own in groups])
        self.kind, self.rng = kind, rng
        self.severity, self.noise = rng.uniform(0.3, 1.0), rng.uniform(0.5, 2.0)
        self.size = rng.uniform(80, 300)

    def site(self) -> Site:
        rng, own = self.rng, self.severity * self.rng.gamma(3) / 3
        frequencies, names = np.full(CLASSES, 1 / CLASSES), np.arange(CLASSES)
        offset, gain = np.zeros(DIM), np.ones(DIM)
        if self.kind in ("label", "all"):
            frequencies = rng.dirichlet(np.full(CLASSES, 0.5 / self.severity))
        if self.kind in ("covariate", "all"):
            offset = 0.6 * own * rng.normal(size=DIM)
            gain = np.exp(0.3 * own * rng.normal(size=DIM))
        if self.kind in ("conditional", "all"):
            swapped = rng.random(CLASSES // 2) < 0.15 * self.severity
            names = names ^ np.repeat(swapped, 2)

        def draw(n: int) -> Data:
            y, z = rng.choice(CLASSES, n, p=frequencies), rng.normal(size=(n, DIM))
            x = self.means[y] + self.noise * np.einsum("nij,nj->ni", self.roots[y], z)
            return gain * x + offset, names[y]

        return draw

    def images(self) -> int:
        return int(np.clip(self.size * np.exp(0.5 * self.rng.normal()), 30, 600))


def fit(parts: Sequence[Data]) -> Callable[[np.ndarray], np.ndarray]:
    """A head, as a function from features to logits of all classes."""
    x, y = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    head = LogisticRegression(max_iter=1000).fit(x, y)

    def logits(rows: np.ndarray) -> np.ndarray:
        out = np.full((len(rows), CLASSES), -30.0)
        out[:, head.classes_] = head.decision_function(rows)
        return out

    return logits


def losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Mean cross-entropy under each temperature."""
    rows = np.arange(len(labels))
    return np.array([-log_softmax(logits / t, axis=1)[rows, labels].mean() for t in TEMPERATURES])


def rehearse(data: Sequence[Data], prior: np.ndarray) -> tuple[list[Trial], float]:
    """Sites held out in turn, and the temperature for new ones."""
    folds = len(data) if len(data) <= 8 else 5
    logits = []
    for held_out, (x, _) in enumerate(data):
        others = [part for site, part in enumerate(data) if site % folds != held_out % folds]
        logits.append(fit(others)(x))
    table = np.stack([losses(own, y) for own, (_, y) in zip(logits, data, strict=True)])
    trials = []
    for number, (own, (_, y)) in enumerate(zip(logits, data, strict=True)):
        temperature = TEMPERATURES[(table.sum(0) - table[number]).argmin()]
        rows, half = softmax(own / temperature, axis=1), len(y) // 2
        right = rows[half:].argmax(1) == y[half:]
        trials.append(
            Trial(
                domain=f"site-{number}",
                chain="none",
                n=SEEN,
                frequencies="as they are",
                accuracy=float(right.mean()),
                scored=len(right),
                scores=scores_of(rows[: min(half, SEEN)], prior),
                answers=count_answers(rows[half:].max(1), right),
            )
        )
    return trials, float(TEMPERATURES[table.sum(0).argmin()])


def reach(accuracies: Sequence[float]) -> float:
    """Half the width of a two-sided 90 % interval by Student's t, as promised before."""
    m = len(accuracies)
    spread = max(float(np.std(accuracies, ddof=1)), 0.01)
    return float(stdtrit(m - 1, 0.95) * spread * np.sqrt(1 + 1 / m))


def meet(kind: str, sites: int, seed: int) -> Iterator[Met]:
    """A case: sites to train on, what they promise, and new sites."""
    family = Family(kind, stream(seed, "floors", kind, sites))
    data = [family.site()(family.images()) for _ in range(sites)]
    labels = [np.bincount(y, minlength=CLASSES) / len(y) for _, y in data]
    prior = np.mean(labels, axis=0)
    trials, temperature = rehearse(data, prior)
    promise = conclude(trials, {}, exact=True).promise("none", SEEN)
    known = [answer_for(promise.answers, target) for target in TARGETS]
    half, anywhere = reach([t.accuracy for t in trials]), promise.expected()
    head = fit(data)
    for _ in range(NEW):
        site = family.site()
        x, _ = site(SEEN)
        expected = promise.expected(scores_of(softmax(head(x) / temperature, axis=1), prior))
        x, y = site(SCORED)
        rows = softmax(head(x) / temperature, axis=1)
        sure, right = rows.max(1), rows.argmax(1) == y
        assert expected is not None and anywhere is not None
        yield Met(
            kind,
            sites,
            (kind, sites, seed),
            float(right.mean()),
            expected.accuracy,
            expected.floor,
            anywhere.accuracy - anywhere.floor,
            min(promise.accuracy + half, 1.0) - max(promise.accuracy - half, 0.0),
            min(half, promise.accuracy),
            expected.by,
            tuple(
                None
                if one is None
                else (
                    float((own := sure >= one.threshold).mean()),
                    float(right[own].mean() if own.any() else np.nan),
                )
                for one in known
            ),
        )


def share(kept: Sequence[Met], true: Callable[[Met], float]) -> str:
    """In percent, with the standard error over cases: sites of a case are promised one thing."""
    cases: dict[tuple[str, int, int], list[float]] = {}
    for met in kept:
        cases.setdefault(met.case, []).append(true(met))
    means = [fmean(own) for own in cases.values()]
    return f"{percent(fmean(means))} ± {percent(float(np.std(means, ddof=1)) / len(means) ** 0.5)}"


def floors(found: Sequence[Met]) -> Iterator[list[str]]:
    yield [
        "sites that differ in",
        "cases",
        "above the floor, %",
        "two-sided width before",
        "down",
        "floor below the point",
        "with images",
        "by a score, %",
    ]
    for name, kept in groups(found):
        yield [
            name,
            str(len(kept)),
            share(kept, lambda met: met.accuracy >= met.floor),
            *(
                percent(fmean(values))
                for values in zip(
                    *((m.width, m.down, m.anywhere, m.expected - m.floor) for m in kept),
                    strict=True,
                )
            ),
            percent(fmean(met.by != "" for met in kept)),
        ]


def thresholds(found: Sequence[Met]) -> Iterator[list[str]]:
    yield ["sites that differ in", *(f"{percent(target)} %" for target in TARGETS)]
    for name, kept in groups(found):
        yield [
            name,
            *(
                cell([m.answers[place] for m in kept], target)
                for place, target in enumerate(TARGETS)
            ),
        ]


def cell(answers: Sequence[tuple[float, float] | None], target: float) -> str:
    """In percent: sites with a promise; of these, the share of images answered, the answers that
    are right on average, and the sites that reach the target."""
    given = [one for one in answers if one is not None]
    if not given:
        return DASH
    right = [own for _, own in given if not np.isnan(own)]
    kept = fmean(own >= target for own in right)
    return " / ".join(
        map(
            percent, (len(given) / len(answers), fmean(own for own, _ in given), fmean(right), kept)
        )
    )


def groups(found: Sequence[Met]) -> Iterator[tuple[str, list[Met]]]:
    yield "all cases", list(found)
    for kind in FAMILIES:
        yield (
            {"none": "nothing", "all": "all of these"}.get(kind, kind),
            [m for m in found if m.family == kind],
        )
    for sites in SITES:
        yield f"{sites} sites", [m for m in found if m.sites == sites]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="cases of each family and number")
    parser.add_argument("--write", action="store_true", help="fill in docs/rehearsal.md")
    asked = parser.parse_args()
    found = [
        met
        for kind in FAMILIES
        for sites in SITES
        for seed in range(asked.seeds)
        for met in meet(kind, sites, seed)
    ]
    for name, rows in (("floors", floors(found)), ("thresholds", thresholds(found))):
        header, *lines = rows
        table = [header, ["---"] * len(header), *lines]
        text = "\n".join("| " + " | ".join(line) + " |" for line in table)
        print(f"{text}\n")
        if asked.write:
            text += "\n\n" + made("src/acclimate/records/doubt.py")
            fill(PAGE, name, text)


if __name__ == "__main__":
    main()
