"""How often `acclimate watch` cries wolf, and how soon it notices that a site has changed.

    python benchmarks/watching.py          # both tables of docs/watch.md
    python benchmarks/watching.py --years 50 --cases 5 --out watching.json     # a quick look
    python benchmarks/watching.py --figure docs/images/watch.png

Sites are those of benchmarks/floors.py: made images (256 random non-negative features of Gaussian
classes, as of a frozen backbone) and scikit-learn's digits (20 principal components of real
images). A model is trained on six sites, and a new site is known by 500 images.

False alarms: site-years of 52 windows of 100 images in which nothing changes, each of a site of its
own. Beside `watch` stand tests that are repeated every week at 5 %: two of Kolmogorov and Smirnov,
of the scores `appearance` and `accuracy`, and a chi-squared test of predicted classes, which
compare each window with the sample of the site that `watch` ranks new images among. Two more rows
are not what is promised: bursts, where five images show one scene, and weeks whose class
frequencies scatter around the site's.

Delays: after 500 images the site becomes another one of its family, in label frequencies, in
offset and gain of features (covariate), or in which class is called which (conditional).
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import chi2_contingency, ks_2samp

from acclimate import AdaptiveClassifier
from acclimate.adapt.classifier import adapt
from acclimate.core.files import write_json
from acclimate.core.progress import unwatched
from acclimate.core.randomness import stream
from acclimate.core.text import DASH, percent
from acclimate.learn.model import Trained
from acclimate.report.figures.canvas import write_figure
from acclimate.watch import LOOKS, THRESHOLD, Baseline, Watch, Window, draw_watch
from acclimate.watch.baseline import SCORES
from acclimate.watch.evidence import SITE_YEAR, Ranked, Rare
from acclimate.watch.watch import USUAL_POOR
from floors import CLASSES, DIM, Family, Site
from pages import fill, made

PAGE = Path(__file__).resolve().parent.parent / "docs" / "watch.md"
SMALL = {"train.steps": 150, "adapt.site.batch": 128, "adapt.site.width": 64, "adapt.site.dim": 16}
KNOWN, WEEK, BEFORE, AFTER = 500, 100, 500, 3000  # images
TRAINED_ON, FEATURES, MOST_LEVELS = 6, 256, 64
DATA, DRIFTS, BATCHES = (
    ("made", "digits"),
    ("label", "covariate", "conditional"),
    (10, 30, 100, 300),
)
WAYS = ("as promised", "bursts of 5", "weeks differ")
BURST, SCATTER = 5, 50.0  # images of a scene; strength of the Dirichlet that weeks are drawn from
FAMILIES_OF = 4  # of each kind of drift
LEVEL = 0.05  # of the tests that are repeated
TESTS = {"appearance": "KS", "accuracy": "KS", "frequencies": "chi2"}
Draw = Callable[[int], np.ndarray]
Levels = Mapping[str, np.ndarray]  # by score


class DigitsFamily(Family):
    """Its images are real."""

    def show(self, y: np.ndarray) -> np.ndarray:
        return np.stack([self.rng.choice(self.groups[label]) for label in y.tolist()])


class TrainedFamily:
    """A family of sites, and a model that was trained on six of them."""

    def __init__(self, data: str, kind: str, seed: int) -> None:
        self.rng = stream(seed, "watching", data, kind)
        self.family = (DigitsFamily if data == "digits" else Family)(kind, self.rng)
        self.weights = self.rng.normal(size=(DIM, FEATURES)) / DIM**0.5
        self.shift, self.real = self.rng.normal(size=FEATURES), data == "digits"
        sites = [self.family.site()(200) for _ in range(TRAINED_ON)]
        x, y = (np.concatenate(part) for part in zip(*sites, strict=True))
        names = np.repeat([f"site-{number}" for number in range(TRAINED_ON)], 200)
        options: dict[str, Any] = {"settings": dict(SMALL), "device": "cpu", "watch": unwatched}
        model = AdaptiveClassifier(seed=seed, **options).fit(self.see(x), y.astype(int), names)
        self.trained: Trained = model.trained

    def see(self, x: np.ndarray) -> np.ndarray:
        """Features of images."""
        return np.asarray(x if self.real else np.maximum(x @ self.weights + self.shift, 0), "f4")

    def baseline(self, known: np.ndarray) -> Baseline:
        state = adapt(self.trained, known, method="none").state
        assert state is not None
        return Baseline.of(self.trained, state)

    def drawing(self, way: str) -> Draw:
        """A new site, whose images come in one of `WAYS`."""
        site = self.family.site()
        if way == "bursts of 5":
            return lambda n: self.see(_bursts(site, n, self.rng))
        if way == "weeks differ":
            return lambda n: self.see(_weeks(site, n, self.rng))
        return lambda n: self.see(site(n)[0])


def _bursts(site: Site, n: int, rng: np.random.Generator) -> np.ndarray:
    """Five images of each scene, which hardly differ, in windows whose images are in any order."""
    scenes = np.repeat(site(n // BURST)[0], BURST, axis=0)
    scenes += 0.02 * rng.normal(size=scenes.shape)
    weeks = np.arange(len(scenes)) // WEEK
    return np.asarray(scenes[np.lexsort((rng.random(len(scenes)), weeks))])


def _weeks(site: Site, n: int, rng: np.random.Generator) -> np.ndarray:
    """The class frequencies of each week are drawn around the site's."""
    x, y = site(4 * n)
    share, rows = np.bincount(y, minlength=CLASSES) / len(y), []
    for _ in range(n // WEEK):
        own = rng.dirichlet(np.maximum(SCATTER * share, 1e-3))[y] / share[y]
        rows.append(rng.choice(len(x), WEEK, p=own / own.sum()))
    return np.asarray(x[np.concatenate(rows)])


def window_of(rows: np.ndarray, first: int = 0) -> Window:
    hashes = torch.arange(first, first + len(rows))
    return Window(hashes, torch.from_numpy(rows), np.zeros(len(rows), bool))


class Year(NamedTuple):
    """A site's sample and new images, by the levels of their scores."""

    counts: Levels  # [L]: of the half of the sample that new images are ranked among
    new: Levels  # [n]
    bins: Mapping[str, int]

    def known(self, score: str) -> np.ndarray:
        """The levels of that half."""
        return np.repeat(np.arange(MOST_LEVELS), self.counts[score])


def levels_of(baseline: Baseline, new: np.ndarray) -> Year:
    counts = {
        name: np.pad(own, (0, MOST_LEVELS - len(own))) for name, own in baseline.counts.items()
    }
    levels = {name: own.astype("i2") for name, own in baseline.levels(window_of(new)).items()}
    return Year(counts, levels, {name: baseline.bins(name) for name in SCORES})


def a_year(world: TrainedFamily, way: str) -> Year:
    draw = world.drawing(way)
    return levels_of(world.baseline(draw(KNOWN)), draw(SITE_YEAR))


def stacked(years: Sequence[Year], part: str, score: str) -> np.ndarray:
    return np.stack([getattr(year, part)[score] for year in years])


def alarms(years: Sequence[Year], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """False alarms of each look in each site-year, where the evidence goes back to 0 after each."""
    counts: dict[str, np.ndarray] = {}
    looks: dict[str, Any] = {"quality": Rare(USUAL_POOR, np.zeros((len(years), 3)))}
    for name in SCORES:
        looks[name] = Ranked.start(stacked(years, "counts", name), years[0].bins[name])
    for name in LOOKS:
        own, counts[name] = looks[name], np.zeros(len(years), int)
        new = None if name == "quality" else stacked(years, "new", name)
        for week in range(0, SITE_YEAR, WEEK):
            random = rng.random((len(years), WEEK))
            some = [random < USUAL_POOR] if new is None else [new[:, week : week + WEEK], random]
            own, path = own.after(*some)
            alarm = (path >= THRESHOLD).any(1)
            counts[name] += alarm
            own.evidence[alarm] = 0
    return counts


def rejected(known: np.ndarray, new: np.ndarray, test: str) -> float:
    """The p value of a window against the site's images."""
    if test == "KS":
        return float(ks_2samp(known, new).pvalue)
    table = np.stack([np.bincount(own, minlength=MOST_LEVELS) for own in (known, new)])
    table = table[:, table.sum(0) > 0]
    return float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0


def weekly(year: Year, batch: int) -> np.ndarray:
    """p values of the repeated tests: [windows, tests]"""
    windows = len(year.new["accuracy"]) // batch
    return np.array(
        [
            [
                rejected(year.known(name), year.new[name][w * batch : (w + 1) * batch], test)
                for name, test in TESTS.items()
            ]
            for w in range(windows)
        ]
    )


def false_alarms(world: TrainedFamily, data: str, way: str, years: int) -> dict[str, Any]:
    some = [a_year(world, way) for _ in range(years)]
    own = alarms(some, world.rng)
    each = np.sum([own[name] for name in LOOKS], axis=0)
    p = np.stack([weekly(year, WEEK) for year in some[: max(years // 10, 1)]])
    return {
        "data": data,
        "way": way,
        "site-years": years,
        "alarms": {name: int(own[name].sum()) for name in LOOKS},
        "years with an alarm": float((each > 0).mean()),
        "per year": float(each.mean()),
        "one test, per year": float((p < LEVEL).sum(1).mean()),
        "any test, per year": float((p < LEVEL).any(2).sum(1).mean()),
        "years with an alarm of tests": float((p < LEVEL).any((1, 2)).mean()),
        "Bonferroni, years": float((p < LEVEL / p[0].size).any((1, 2)).mean()),
    }


def noticed(year: Year, rng: np.random.Generator) -> tuple[int | None, str]:
    """How many images came until an alarm, and of which look."""
    first: dict[str, int] = {}
    for name in SCORES:
        start = Ranked.start(year.counts[name], year.bins[name])
        levels = year.new[name]
        path = start.after(levels, rng.random(len(levels)))[1]
        if (path >= THRESHOLD).any():
            first[name] = int((path >= THRESHOLD).argmax()) + 1
    name = min(first, key=lambda name: first[name], default="")
    return first.get(name), name


def delays(data: str, kind: str, cases: int) -> Iterator[dict[str, Any]]:
    """Each case: a site, which becomes another one."""
    for seed in range(FAMILIES_OF):
        world = TrainedFamily(data, kind, seed)
        for _ in range(cases // FAMILIES_OF):
            draw, then = world.drawing("as promised"), world.drawing("as promised")
            before, later = draw(BEFORE), then(AFTER)
            baseline = world.baseline(draw(KNOWN))
            year = levels_of(baseline, np.concatenate([before, later]))
            at, look = noticed(year, world.rng)
            case: dict[str, Any] = {"data": data, "kind": kind, "look": look, "at": at}
            case["tests"] = {batch: _by_tests(year, batch) for batch in BATCHES}
            if at is not None and at > BEFORE:
                shown = min(-(-(at - BEFORE) // WEEK) * WEEK, AFTER)
                watch, _ = Watch.start(baseline).look(baseline, window_of(before, AFTER))
                case["outcome"] = watch.look(baseline, window_of(later[:shown]))[1].outcome
            yield case


def _by_tests(year: Year, batch: int) -> tuple[float, int | None]:
    """By the tests that are repeated: the share of windows before the change that alarm, and how
    many images came until a window after it did."""
    alarm = np.asarray((weekly(year, batch) < LEVEL).any(1))
    before = BEFORE // batch
    after = alarm[-(-BEFORE // batch) :]
    delay = int(after.argmax() + 1) * batch if after.any() else None
    return float(alarm[:before].mean()) if before else 0.0, delay


def alarm_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "| data | images | site-years | `watch`: alarms in a site-year | site-years with one, % "
        "| weekly tests: alarms in a site-year | site-years with one, % "
        "| Bonferroni over a year: site-years with one, % |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        yield (
            f"| {row['data']} | {row['way']} | {row['site-years']} | {row['per year']:.3f} | "
            f"{percent(row['years with an alarm'])} | {row['any test, per year']:.1f} | "
            f"{percent(row['years with an alarm of tests'])} | "
            f"{percent(row['Bonferroni, years'])} |"
        )


def delay_table(cases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "| data | drift | images in a window | noticed, % | median delay, images | first by "
        "| outcome | tests: noticed, % | median delay, images | false alarms in a site-year |"
    )
    yield "|---|---|---:|---:|---:|---|---|---:|---:|---:|"
    for data, kind, batch in product(DATA, DRIFTS, BATCHES):
        own = [case for case in cases if (case["data"], case["kind"]) == (data, kind)]
        valid = [case for case in own if case["at"] is None or case["at"] > BEFORE]
        late = [
            None if case["at"] is None else -(-(case["at"] - BEFORE) // batch) * batch
            for case in valid
        ]
        tests = [case["tests"][batch] for case in own]
        wolf = np.mean([share for share, _ in tests]) * SITE_YEAR / batch
        yield (
            f"| {data} | {kind} | {batch} | {_median(late)} | {_most(valid, 'look')} | "
            f"{_most(valid, 'outcome')} | {_median([delay for _, delay in tests])} | "
            f"{wolf if batch <= BEFORE else float('nan'):.0f} |"
        )


def _median(values: Sequence[int | None]) -> str:
    """The share that is known in percent, and the median of all, as far as it is known."""
    some = sorted(value for value in values if value is not None)
    middle = len(values) // 2
    return f"{percent(len(some) / len(values))} | {some[middle] if middle < len(some) else DASH}"


def _most(cases: Sequence[Mapping[str, Any]], what: str) -> str:
    names = [case[what] for case in cases if case.get(what)]
    if not names:
        return DASH
    counts = {name: names.count(name) for name in names}
    return ", ".join(
        f"{name} {percent(n / len(names))} %"
        for name, n in sorted(counts.items(), key=lambda item: -item[1])
    )


def draw_example(path: Path) -> None:
    """Five weeks as before, two in which half of the classes are missing, one in another place, and
    one whose files are damaged."""
    world = TrainedFamily("made", "covariate", 0)
    site, other = world.family.site(), world.family.site()
    x, y = site(400)
    few = x[y < CLASSES // 2][: 2 * WEEK]
    images = [*(site(WEEK)[0] for _ in range(5)), few[:WEEK], few[WEEK:], other(WEEK)[0]]
    baseline = world.baseline(world.see(site(KNOWN)[0]))
    watch = Watch.start(baseline)
    for week, rows in enumerate(images):
        watch, report = watch.look(baseline, window_of(world.see(rows), week * WEEK))
        print(f"week {week + 1}: {report.outcome}")
    nothing = window_of(world.see(x[:0]))
    damaged = replace(
        nothing, unreadable=torch.arange(len(images) * WEEK, (len(images) + 1) * WEEK)
    )
    watch, report = watch.look(baseline, damaged)
    print(f"week {len(images) + 1}: {report.outcome}")
    write_figure(draw_watch(watch), path, "png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--years", type=int, default=1000)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--out", type=Path, help="JSON instead of docs/watch.md")
    parser.add_argument("--figure", type=Path, help="draw nine weeks of a site, and no more")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.figure is not None:
        draw_example(args.figure)
        return
    rows = []
    for data in DATA:
        world = TrainedFamily(data, "all", 0)
        for way in WAYS:
            years = args.years if way == WAYS[0] else args.years // 10
            rows.append(false_alarms(world, data, way, years))
            print(rows[-1], flush=True)
    cases: list[dict[str, Any]] = []
    for data, kind in product(DATA, DRIFTS):
        cases += delays(data, kind, args.cases)
        print(cases[-1], flush=True)
    tables = "\n".join(["", *alarm_table(rows), "", *delay_table(cases)])
    print(tables)
    if args.out is not None:
        write_json(args.out, {"false alarms": rows, "delays": cases, "tables": tables})
        return
    by = made("benchmarks/watching.py", "benchmarks/floors.py", "src/acclimate/watch")
    for name, table in (("alarms", alarm_table(rows)), ("delays", delay_table(cases))):
        fill(PAGE, name, "\n".join([by, "", *table]))


if __name__ == "__main__":
    main()
