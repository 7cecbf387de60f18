"""What rehearsed runs promised for unseen domains, beside what happened there."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

from acclimate.records.rehearsal import Promise
from acclimate.results.runs import RunView, scores_of


@dataclass(frozen=True)
class Kept:
    """A run's promise for what `auto` does, and what came of it on its unseen test domains."""

    run: RunView
    promise: Promise
    domains: tuple[str, ...]
    plain: float  # accuracy, a mean over the domains
    auto: float

    @property
    def gain(self) -> float:
        return self.auto - self.plain


def rehearsed(runs: Iterable[RunView]) -> list[RunView]:
    return [run for run in runs if run.finished is not None and run.rehearsal is not None]


def speaker(runs: Iterable[RunView]) -> RunView | None:
    """The run whose rehearsal is shown: the first that has one."""
    return next(iter(rehearsed(runs)), None)


def kept(runs: Iterable[RunView]) -> Iterator[Kept]:
    """Of the runs that have unseen test domains."""
    for run in rehearsed(runs):
        assert run.rehearsal is not None
        scores = {(s.method, s.domain): s.top1 for s in scores_of(run, "test")}
        pairs = {
            domain: (plain, auto)
            for (method, domain), auto in scores.items()
            if method == "auto"
            and auto is not None
            and (plain := scores.get(("none", domain))) is not None
        }
        if pairs:
            images = int(run.config["adapt"]["points"])
            promise = run.rehearsal.promise(run.rehearsal.chain_for(images), images)
            plain, auto = (fmean(values) for values in zip(*pairs.values(), strict=True))
            yield Kept(run, promise, tuple(pairs), plain, auto)
