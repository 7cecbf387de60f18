"""A sweep of DomainBed as a `Report`, so that people can bring their history."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from acclimate.core.errors import unknown
from acclimate.results import missing
from acclimate.results.domainbed import RULES_BY_NAME, History, Outcome, read_domainbed, selected
from acclimate.results.material import Report
from acclimate.results.observations import Frame, Observation, domains_of_a_trial
from acclimate.results.published_rows import with_published
from acclimate.results.runs import ERM, Key
from acclimate.results.summary import Summary, summary_of
from acclimate.results.tabulate import tabulate


def load_domainbed(
    folder: Path,
    *,
    title: str | None = None,
    baseline: Key | None = None,
    published: bool = False,
) -> Report:
    """A sweep of DomainBed under those of its selection rules that can choose something."""
    history = read_domainbed(folder)
    every = {rule: selected(history, rule) for rule in RULES_BY_NAME}
    able = {
        rule: found for rule, found in every.items() if any(one.top1 is not None for one in found)
    }
    outcomes = able or every
    known = {one.algorithm for found in outcomes.values() for one in found}
    if baseline is not None and baseline.algorithm not in known:
        name = baseline.algorithm
        raise unknown(f"{folder} has no runs of '{name}' to be the baseline", name, known)
    baseline = baseline or ERM
    report = Report(
        folder=folder,
        title=title or f"DomainBed sweep in {folder.resolve().name}",
        rules=tuple(outcomes),
        summaries={rule: _summary(found, baseline) for rule, found in outcomes.items()},
        results={
            rule: tabulate(_observations(found), _frames(found), rule=rule, baseline=baseline)
            for rule, found in outcomes.items()
        },
        choices=dict.fromkeys(outcomes, ()),
        notes=tuple(_notes(history, outcomes)),
    )
    return with_published(report) if published else report


def _observations(outcomes: Iterable[Outcome]) -> list[Observation]:
    return [
        Observation(one.dataset, Key.usual(one.algorithm), "", one.trial, one.domain, one.top1)
        for one in outcomes
        if one.top1 is not None
    ]


def _summary(outcomes: Sequence[Outcome], baseline: Key) -> Summary:
    """A line's runs are its trials on each data set, each of all their domains together."""
    trials = {(one.dataset, one.algorithm, one.trial) for one in outcomes}
    made = Counter(Key.usual(algorithm) for _, algorithm, _ in trials)
    expected = domains_of_a_trial(_frames(outcomes).values())
    return summary_of(_observations(outcomes), made, baseline, expected)


def _frames(outcomes: Iterable[Outcome]) -> dict[str, Frame]:
    columns: dict[str, dict[str, None]] = defaultdict(dict)
    keys: dict[str, dict[Key, None]] = defaultdict(dict)
    for one in sorted(outcomes, key=lambda one: (one.dataset, one.domain)):
        columns[one.dataset][one.domain] = None
        keys[one.dataset][Key.usual(one.algorithm)] = None
    return {name: Frame(tuple(columns[name]), tuple(keys[name])) for name in columns}


def _notes(history: History, outcomes: Mapping[str, Sequence[Outcome]]) -> Iterable[str]:
    yield 'Accuracies are those that DomainBed\'s own collector selects, on its "in" splits.'
    if history.empty:
        yield f"Without results, and left out: {missing.named(history.empty)}."
    if history.torn:
        yield f"The last line is cut off, and left out: {missing.named(history.torn)}."
    for rule, found in outcomes.items():
        expected = [(one.dataset, Key.usual(one.algorithm), "", one.trial) for one in found]
        for sentence in missing.of_scores(
            _observations(found), _frames(found), expected=expected, trial="trial"
        ):
            yield f"Under {rule}, {sentence}"
