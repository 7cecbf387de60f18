"""A sweep of DomainBed as a `Report`, so that people can bring their history."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from acclimate.core.errors import unknown
from acclimate.results import missing
from acclimate.results.published_rows import with_published
from acclimate.results.domainbed import RULES_BY_NAME, History, Outcome, read_domainbed, selected
from acclimate.results.tabulate import Frame, Report, domains_of_a_trial, observations, tabulate
from acclimate.results.summary import ERM, Key, RunView, summarise
from acclimate.runs.records import Finished, Records, Score


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
    views = {rule: _views(folder, found) for rule, found in outcomes.items()}
    frames = {rule: _frames(found) for rule, found in outcomes.items()}
    report = Report(
        folder=folder,
        title=title or f"DomainBed sweep in {folder.resolve().name}",
        runs=(),
        sweep=None,
        rules=tuple(outcomes),
        # They are no run folders: nobody should look for curves or maps in them.
        summaries={
            rule: replace(
                summarise(found, baseline, domains_of_a_trial(frames[rule].values())), runs=()
            )
            for rule, found in views.items()
        },
        results={
            rule: tabulate(observations(found), frames[rule], rule=rule, baseline=baseline)
            for rule, found in views.items()
        },
        choices=dict.fromkeys(outcomes, ()),
        failures=(),
        waiting=0,
        labels=(),
        notes=tuple(_notes(history, outcomes, views)),
    )
    return with_published(report) if published else report


def _views(folder: Path, outcomes: Iterable[Outcome]) -> list[RunView]:
    """Outcomes as runs that a summary can be made of, one per data set, algorithm and trial."""
    trials: dict[tuple[str, str, int], list[Score]] = defaultdict(list)
    for one in outcomes:
        trials[one.dataset, one.algorithm, one.trial].append(
            Score(
                moment="final",
                step=0,
                domain=one.domain,
                role="test",
                split="all",
                n=0,
                top1=one.top1,
                top5=None,
                method=Key.usual(one.algorithm).method,
            )
        )
    end = Finished(kept_step=0, kept_by="", kept_score=None, seconds=0.0, quarantined=0)
    return [
        RunView(
            name=f"{dataset}, {algorithm}, trial {trial}",
            folder=folder,
            algorithm=algorithm,
            dataset=dataset,
            trial=trial,
            records=Records((*scores, end)),
        )
        for (dataset, algorithm, trial), scores in trials.items()
    ]


def _frames(outcomes: Iterable[Outcome]) -> dict[str, Frame]:
    columns: dict[str, dict[str, None]] = defaultdict(dict)
    keys: dict[str, dict[Key, None]] = defaultdict(dict)
    for one in sorted(outcomes, key=lambda one: (one.dataset, one.domain)):
        columns[one.dataset][one.domain] = None
        keys[one.dataset][Key.usual(one.algorithm)] = None
    return {name: Frame(tuple(columns[name]), tuple(keys[name])) for name in columns}


def _notes(
    history: History,
    outcomes: Mapping[str, Sequence[Outcome]],
    views: Mapping[str, Sequence[RunView]],
) -> Iterable[str]:
    yield 'Accuracies are those that DomainBed\'s own collector selects, on its "in" splits.'
    if history.empty:
        yield f"Without results, and left out: {missing.named(history.empty)}."
    if history.torn:
        yield f"The last line is cut off, and left out: {missing.named(history.torn)}."
    for rule, found in outcomes.items():
        expected = [(one.dataset, Key.usual(one.algorithm), "", one.trial) for one in found]
        for sentence in missing.of_scores(
            observations(views[rule]), _frames(found), expected=expected, trial="trial"
        ):
            yield f"Under {rule}, {sentence}"
