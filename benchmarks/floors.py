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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax, softmax, stdtrit
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from acclimate.core.randomness import stream
from acclimate.core.text import DASH, percent
from acclimate.records.doubt import TARGETS, Answer, Forecast, answer_for, count_answers, scores_of
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
Answered = tuple[float, float | None]


class Met(NamedTuple):
    """A new site, and what was promised of it."""

    case: tuple[str, int, int]  # family, sites that were held out, seed
    accuracy: float
    expected: Forecast
    anywhere: Forecast  # without a look at the site's images
    before: tuple[float, float, float]
    answers: list[Answered | None]  # for each target


class Family:
    """Sites that are drawn alike."""

    def __init__(self, kind: str, rng: np.random.Generator) -> None:
        data = load_digits()
        x = PCA(DIM, random_state=0).fit_transform(data.data)
        x /= x.std()
        self.groups = [x[data.target == label] for label in range(CLASSES)]
        self.means = np.stack([own.mean(0) for own in self.groups])
        self.roots = np.stack([np.linalg.cholesky(np.cov(own.T)) for own in self.groups])
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
            y = rng.choice(CLASSES, n, p=frequencies)
            return gain * self.show(y) + offset, names[y]

        return draw

    def show(self, y: np.ndarray) -> np.ndarray:
        """An image of each class in `y` [n]: [n, d]"""
        z = self.rng.normal(size=(len(y), DIM))
        return np.asarray(self.means[y] + self.noise * np.einsum("nij,nj->ni", self.roots[y], z))

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


def before(trials: Sequence[Trial], confidence: float) -> tuple[float, float, float]:
    """The two-sided 90 % interval by Student's t that was promised before, with its middle: of
    accuracies, or of accuracies less confidences where that is narrower."""
    accuracies = np.array([trial.accuracy for trial in trials])
    beyond = accuracies - [trial.scores["mean confidence"] for trial in trials]
    m = len(trials)
    wide, narrow = (
        stdtrit(m - 1, 0.95) * max(own.std(ddof=1), 0.01) * np.sqrt(1 + 1 / m)
        for own in (accuracies, beyond)
    )
    middle, half = accuracies.mean(), wide
    if narrow < wide:
        middle, half = np.clip(confidence + beyond.mean(), 0, 1), narrow
    return float(max(middle - half, 0.0)), float(middle), float(min(middle + half, 1.0))


def meet(kind: str, sites: int, seed: int) -> Iterator[Met]:
    """A case: sites to train on, what they promise, and new sites."""
    family = Family(kind, stream(seed, "floors", kind, sites))
    data = [family.site()(family.images()) for _ in range(sites)]
    labels = [np.bincount(y, minlength=CLASSES) / len(y) for _, y in data]
    prior = np.mean(labels, axis=0)
    trials, temperature = rehearse(data, prior)
    promise = conclude(trials, {}, exact=True).promise("none", SEEN)
    anywhere, head = promise.expected(), fit(data)
    for _ in range(NEW):
        site = family.site()
        x, _ = site(SEEN)
        scores = scores_of(softmax(head(x) / temperature, axis=1), prior)
        x, y = site(SCORED)
        rows = softmax(head(x) / temperature, axis=1)
        sure, right = rows.max(1), rows.argmax(1) == y
        expected = promise.expected(scores)
        assert expected is not None and anywhere is not None
        yield Met(
            (kind, sites, seed),
            float(right.mean()),
            expected,
            anywhere,
            before(trials, scores["mean confidence"]),
            [answered(sure, right, answer_for(promise.answers, target)) for target in TARGETS],
        )


def answered(sure: np.ndarray, right: np.ndarray, answer: Answer | None) -> Answered | None:
    """The share of images that are answered, and the share of answers that are right."""
    if answer is None:
        return None
    own = sure >= answer.threshold
    return float(own.mean()), float(right[own].mean()) if own.any() else None


def share(kept: Sequence[Met], true: Callable[[Met], float]) -> str:
    """In percent, with the standard error over cases: sites of a case are promised one thing."""
    cases: dict[Any, list[float]] = {}
    for met in kept:
        cases.setdefault(met.case, []).append(true(met))
    means = [fmean(own) for own in cases.values()]
    return f"{percent(fmean(means))} ± {percent(float(np.std(means, ddof=1)) / len(means) ** 0.5)}"


FLOORS: dict[str, Callable[[Sequence[Met]], str]] = {
    "cases": lambda kept: str(len(kept)),
    "above the floor, %": lambda kept: share(kept, lambda met: met.accuracy >= met.expected.floor),
    "floor below the point": lambda kept: mean(
        m.expected.accuracy - m.expected.floor for m in kept
    ),
    "… without images": lambda kept: mean(m.anywhere.accuracy - m.anywhere.floor for m in kept),
    "by a score, %": lambda kept: mean(m.expected.by != "" for m in kept),
    "true less point": lambda kept: mean(m.accuracy - m.expected.accuracy for m in kept),
    "before: inside, %": lambda kept: share(
        kept, lambda met: met.before[0] <= met.accuracy <= met.before[2]
    ),
    "width": lambda kept: mean(m.before[2] - m.before[0] for m in kept),
    "down": lambda kept: mean(m.before[1] - m.before[0] for m in kept),
}


def mean(values: Iterable[float]) -> str:
    return f"{100 * fmean(values):.1f}"


def floors(found: Sequence[Met]) -> Iterator[list[str]]:
    yield ["sites that differ in", *FLOORS]
    for name, kept in groups(found):
        yield [name, *(value(kept) for value in FLOORS.values())]


def thresholds(found: Sequence[Met]) -> Iterator[list[str]]:
    """A cell for each target, in percent: sites with a promise; of these, the images answered, the
    answers that are right on average, and the sites that reach the target."""
    yield ["sites that differ in", *(f"{percent(target)} %" for target in TARGETS)]
    for name, kept in groups(found):
        columns = zip(*(met.answers for met in kept), strict=True)
        cells = (cell(column, target) for column, target in zip(columns, TARGETS, strict=True))
        yield [name, *cells]


def cell(answers: Sequence[Answered | None], target: float) -> str:
    given = [one for one in answers if one is not None]
    right = [right for _, right in given if right is not None]
    if not right:
        return DASH
    kept = mean(one >= target for one in right)
    shares = mean(one for one, _ in given)
    return " / ".join((percent(len(given) / len(answers)), shares, mean(right), kept))


def groups(found: Sequence[Met]) -> Iterator[tuple[str, list[Met]]]:
    yield "all cases", list(found)
    for kind in FAMILIES:
        yield (
            {"none": "nothing", "all": "all of these"}.get(kind, kind),
            [m for m in found if m.case[0] == kind],
        )
    for sites in SITES:
        yield f"{sites} sites", [m for m in found if m.case[1] == sites]


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
