"""Selection rules against hand-made records with known answers."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.core.errors import UnknownName
from acclimate.records.folder import RunFolder
from acclimate.records.records import Record, Records, Score
from acclimate.results.protocol import RULES, targets
from acclimate.results.selection import (
    RULES_BY_NAME,
    Candidate,
    Choice,
    candidates,
    candidates_of,
    choices_by_rule,
    named,
    select,
)
from acclimate.results.sweep_folder import SweepFolder
from fixtures.errors import refused
from fixtures.run_folders import END
from fixtures.run_folders import score as scored
from fixtures.sweeps import job, sweep_of

NAN = float("nan")


def run(
    draw: int,
    *held_out: str,
    training: float | None = None,
    validation: float | None = None,
    trial: int = 0,
    dataset: str = "pacs",
    algorithm: str = "erm",
    variant: str = "",
    method: str = "none",
    **unseen: float | None,
) -> Candidate:
    """A run whose groups are written as "a" or "a b"."""
    groups = tuple(tuple(group.split()) for group in held_out)
    name = f"{dataset}-{algorithm}{variant}-{'+'.join(held_out)}-{trial}-{draw}"
    kind = {"dataset": dataset, "algorithm": algorithm, "variant": variant}
    return Candidate(
        job=job(name, **kind, trial=trial, draw=draw, groups=groups),
        method=method,
        training=training,
        validation=validation,
        unseen=unseen,
    )


def as_job(one: Candidate, **changes: Any) -> Candidate:
    return replace(one, job=replace(one.job, **changes))


def only(choices: list[Choice]) -> Choice:
    assert len(choices) == 1
    return choices[0]


def chosen(choices: list[Choice]) -> dict[str, int | None]:
    return {" ".join(choice.target): choice.draw for choice in choices}


# --- training domains, validation domains, oracle


def test_training_domains_take_the_largest_validation_accuracy() -> None:
    runs = [
        run(0, "a", training=0.7, a=0.9),
        run(1, "a", training=0.9, a=0.1),
        run(2, "a", training=0.8, a=0.95),
    ]
    assert only(select(runs, "training-domains")) == Choice(
        dataset="pacs",
        algorithm="erm",
        variant="",
        method="none",
        trial=0,
        target=("a",),
        run="pacs-erm-a-0-1",
        draw=1,
        score=0.9,
        candidates=3,
    )


def test_validation_domains_and_oracle_look_at_theirs_alone() -> None:
    runs = [
        run(0, "a", training=0.9, validation=0.3, a=0.5),
        run(1, "a", training=0.8, validation=0.6, a=0.4),
        run(2, "a", training=0.7, validation=0.5, a=0.6),
    ]
    picked = {rule: only(select(runs, rule)).draw for rule in RULES if rule not in CROSS}
    assert picked == {
        "training-domains": 0,
        "one-setting": 0,  # of one target: the same
        "validation-domains": 1,
        "oracle": 2,
    }


def test_oracle_averages_the_domains_of_a_group() -> None:
    runs = [run(0, "a b", a=0.2, b=0.9), run(1, "a b", a=0.6, b=0.6)]
    choice = only(select(runs, "oracle"))
    assert (choice.draw, choice.score) == (1, pytest.approx(0.6))


@pytest.mark.parametrize("rule", ["training-domains", "validation-domains", "oracle"])
def test_the_smallest_draw_wins_a_tie(rule: str) -> None:
    runs = [run(draw, "a", training=0.5, validation=0.5, a=0.5) for draw in (3, 1, 2)]
    assert only(select(runs, rule)).draw == 1


@pytest.mark.parametrize("bad", [NAN, None, math.inf])
def test_what_is_not_a_number_is_never_chosen(bad: float | None) -> None:
    runs = [run(0, "a", training=bad, a=0.9), run(1, "a", training=0.0, a=0.5)]
    choice = only(select(runs, "training-domains"))
    assert (choice.draw, choice.candidates) == (1, 1)


@pytest.mark.parametrize("bad", [NAN, None])
def test_a_draw_whose_own_score_is_broken_cannot_be_chosen(bad: float | None) -> None:
    runs = [run(0, "a", training=0.9, a=bad), run(1, "a", training=0.1, a=0.5)]
    assert only(select(runs, "training-domains")).draw == 1


def test_no_draw_qualifies_and_the_reason_says_why() -> None:
    nowhere = run(0, "a", training=0.9, validation=0.9, a=NAN)
    assert only(select([nowhere], "oracle")).reason == "no finished run has an accuracy on a"
    silent = run(0, "a b", a=0.5, b=0.5)
    reasons = {rule: only(select([silent], rule)).reason for rule in RULES}
    assert [rule for rule in RULES if reasons[rule]] == ["training-domains", "validation-domains"]
    assert reasons["training-domains"].endswith(RULES["training-domains"])
    for kind in ("training-domains", "one-setting"):  # of one target, and of several
        two = [run(draw, "a", a=0.5) for draw in (0, 1)]
        assert only(select(two, kind)).reason.endswith(RULES[kind])
        two.append(run(0, "b", b=0.5))
        reason = select(two, kind)[0].reason
        assert ("each of the 2 unseen groups" in reason) == (kind == "one-setting")
    missing = only(select([silent], "training-domains"))
    assert (missing.run, missing.draw, missing.score, missing.candidates) == (None, None, None, 0)


def test_a_domain_with_nothing_to_score_is_left_out_for_all_or_for_none() -> None:
    everywhere = [run(0, "a b", a=0.5, b=None), run(1, "a b", a=0.6, b=None)]
    assert only(select(everywhere, "oracle")).score == pytest.approx(0.6)
    here_only = [run(0, "a b", a=0.5, b=0.1), run(1, "a b", a=0.6, b=None)]
    assert only(select(here_only, "oracle")).draw == 0


def test_an_unknown_rule_is_named() -> None:
    with refused(UnknownName, "'orakel'", "'oracle'"):
        select([], "orakel")


def test_every_rule_of_the_protocol_has_its_function() -> None:
    assert list(RULES_BY_NAME) == list(RULES)


# --- one setting for all targets


def three_targets() -> list[Candidate]:
    """Validation accuracy over the training domains; a, b and c are unseen in turn."""
    training = {0: (0.70, 0.80, 0.60), 1: (0.90, 0.50, 0.64), 2: (0.60, 0.95, 0.61)}
    return [
        run(draw, target, training=value, **{target: 0.5})
        for draw, values in training.items()
        for target, value in zip("abc", values, strict=True)
    ]


def test_one_setting_is_the_largest_mean_over_all_runs() -> None:
    """The paper's letter: (0.6 + 0.95 + 0.61) / 3 = 0.72, against 2.10 / 3 and 2.04 / 3."""
    runs = three_targets()
    choices = select(runs, "one-setting")
    assert chosen(choices) == {"a": 2, "b": 2, "c": 2}
    assert [choice.score for choice in choices] == pytest.approx([0.72] * 3)
    assert [choice.run for choice in choices] == [f"pacs-erm-{t}-0-2" for t in "abc"]
    assert chosen(select(runs, "training-domains")) == {"a": 1, "b": 2, "c": 1}
    # Runs that hold out a further domain beside are DomainBed's, and nothing to it.
    further = run(1, "a", "b", training=1.0, a=1.0, b=1.0)
    assert select([*runs, further], "one-setting") == choices


@pytest.mark.parametrize(
    "broken", [{"training": None, "b": 0.5}, {"training": NAN, "b": 0.5}, {"b": NAN}, {}]
)
def test_one_setting_is_one_that_every_target_has(broken: dict[str, float | None]) -> None:
    runs = [one for one in three_targets() if one.job.id != "pacs-erm-b-0-2"]
    runs += [run(2, "b", **{"training": 0.95, **broken})] if broken else []
    choices = select(runs, "one-setting")
    assert chosen(choices) == {"a": 0, "b": 0, "c": 0}
    assert [choice.candidates for choice in choices] == [2] * 3
    # A target that no run is done for is known from the sweep.
    left = [one for one in runs if one.job.groups != (("b",),)]
    assert chosen(select(left, "one-setting")) == {"a": 1, "c": 1}
    planned = select(left, "one-setting", expected=[one.job for one in three_targets()])
    assert chosen(planned) == {"a": None, "b": None, "c": None}
    assert planned[0].reason == "no draw has a finished run for each of the 3 unseen groups"


# --- cross-validation

CROSS = ("leave-one-out", "k-fold")


def three_domains() -> list[Candidate]:
    """Draw 0 is best for target a (0.6 against 0.55), draw 1 for b and c."""
    return [
        run(0, "a", a=0.11),
        run(0, "b", b=0.12),
        run(0, "c", c=0.13),
        run(0, "a", "b", a=0.10, b=0.50),
        run(0, "a", "c", a=0.30, c=0.70),
        run(0, "b", "c", b=0.20, c=0.40),
        run(1, "a", a=0.21),
        run(1, "b", b=0.22),
        run(1, "c", c=0.23),
        run(1, "a", "b", a=0.20, b=0.40),
        run(1, "a", "c", a=0.50, c=0.70),
        run(1, "b", "c", b=0.30, c=0.50),
    ]


def test_a_pair_serves_both_of_its_domains() -> None:
    choices = select(three_domains(), "leave-one-out")
    assert chosen(choices) == {"a": 0, "b": 1, "c": 1}
    # a: (b of ab + c of ac) / 2; b: (a of ab + c of bc) / 2; c: (a of ac + b of bc) / 2
    assert [choice.score for choice in choices] == pytest.approx([0.60, 0.35, 0.40])
    assert [choice.run for choice in choices] == [
        "pacs-erm-a-0-0",
        "pacs-erm-b-0-1",
        "pacs-erm-c-0-1",
    ]
    turned = [as_job(one, groups=one.job.groups[::-1]) for one in three_domains()]
    assert chosen(select(turned, "leave-one-out")) == {"a": 0, "b": 1, "c": 1}


def test_a_draw_without_every_fold_is_no_candidate() -> None:
    runs = [one for one in three_domains() if not one.job.id.endswith("a+b-0-0")]
    choices = select(runs, "leave-one-out")
    assert chosen(choices) == {"a": 1, "b": 1, "c": 1}
    assert [choice.candidates for choice in choices] == [1, 1, 2]


@pytest.mark.parametrize("bad", [NAN, None])
def test_a_fold_that_is_not_a_number_takes_the_draw_out(bad: float | None) -> None:
    runs = three_domains()
    runs[4] = replace(runs[4], unseen={"a": 0.3, "c": bad})
    assert chosen(select(runs, "leave-one-out")) == {"a": 1, "b": 1, "c": 1}


def test_a_draw_without_its_scored_run_cannot_be_chosen() -> None:
    runs = [one for one in three_domains() if one.job.id != "pacs-erm-b-0-1"]
    choices = select(runs, "leave-one-out")
    assert chosen(choices) == {"a": 0, "b": 0, "c": 1}


def test_expected_jobs_say_which_folds_are_missing() -> None:
    """No draw has finished a pair with c: without the plan, nothing says that there is one."""
    runs = [
        one for one in three_domains() if len(one.job.groups) == 1 or ("c",) not in one.job.groups
    ]
    blind = select(runs, "leave-one-out")
    assert chosen(blind)["a"] == 0
    planned = select(runs, "leave-one-out", expected=[one.job for one in three_domains()])
    assert chosen(planned) == {"a": None, "b": None, "c": None}
    assert planned[0].reason == "no draw has an accuracy for each of the 2 further folds"


def test_expected_jobs_name_targets_without_a_run() -> None:
    jobs = [one.job for one in three_domains()]
    runs = [one for one in three_domains() if one.job.groups != (("b",),)]
    choices = select(runs, "oracle", expected=jobs)
    assert chosen(choices) == {"a": 1, "b": None, "c": 1}
    assert choices[1].reason == "no finished run has an accuracy on b"
    assert [choice.run for choice in select([], "oracle", expected=jobs)] == [None] * 3


def test_with_one_draw_there_is_nothing_to_choose() -> None:
    alone = [run(0, "a", a=0.5), run(0, "b", b=0.6)]
    for rule in (*CROSS, "one-setting"):
        choices = select(alone, rule)
        assert [(c.draw, c.score, c.candidates) for c in choices] == [(0, None, 1)] * 2
    two = [*alone, run(1, "a", a=0.7)]
    first = select(two, "leave-one-out")[0]
    assert first.draw is None
    assert first.reason == "no run holds out a further domain beside a"
    planned = select(alone, "leave-one-out", expected=[one.job for one in two])
    assert chosen(planned) == {"a": None, "b": None}
    assert select([run(0, "a", a=NAN)], "leave-one-out")[0].draw is None


def test_k_fold_averages_within_a_fold_first() -> None:
    runs = [
        run(0, "t", t=0.5),
        run(0, "t", "a b c", t=0.0, a=0.9, b=0.9, c=0.9),
        run(0, "t", "d", t=0.0, d=0.1),
        run(1, "t", t=0.5),
        run(1, "t", "a b c", t=1.0, a=0.6, b=0.6, c=0.6),
        run(1, "t", "d", t=1.0, d=0.5),
    ]
    choice = only(select(runs, "k-fold"))
    assert (choice.draw, choice.score) == (1, pytest.approx(0.55))  # by domain it would be draw 0


def test_a_pair_made_for_another_target_does_not_overlap_the_folds_of_this_one() -> None:
    """b's folds are {a, c} and {d}; a's fold {b} is another partition's, and not b's business."""
    runs = [
        run(0, "a", a=0.5),
        run(0, "b", b=0.5),
        run(0, "a", "b", a=0.0, b=0.9),
        run(0, "a", "c d", a=0.0, c=0.9, d=0.9),
        run(0, "b", "a c", b=0.0, a=0.4, c=0.6),
        run(0, "b", "d", b=0.0, d=0.7),
    ]
    scores = {choice.target: choice.score for choice in select(runs, "k-fold")}
    assert scores == {("a",): pytest.approx(0.9), ("b",): pytest.approx(0.6)}


# --- apart from each other


def test_trials_algorithms_variants_and_data_sets_are_chosen_apart() -> None:
    kinds: list[dict[str, object]] = [
        {},
        {"trial": 1},
        {"algorithm": "coral"},
        {"variant": "f=0.5"},
        {"dataset": "vlcs"},
    ]
    runs = []
    for winner, kind in enumerate(kinds):
        for draw in range(len(kinds)):
            accuracy = 0.9 if draw == winner else 0.1 * draw
            runs.append(run(draw, "a", training=accuracy, a=0.5, **kind))
    choices = select(runs, "training-domains")
    found = {(c.dataset, c.algorithm, c.variant, c.trial): c.draw for c in choices}
    assert found == {
        ("pacs", "erm", "", 0): 0,
        ("pacs", "erm", "", 1): 1,
        ("pacs", "coral", "", 0): 2,
        ("pacs", "erm", "f=0.5", 0): 3,
        ("vlcs", "erm", "", 0): 4,
    }


def test_the_pairs_of_another_trial_do_not_help() -> None:
    runs = three_domains()
    moved = [
        as_job(one, trial=1) if len(one.job.groups) == 2 and one.job.draw == 0 else one
        for one in runs
    ]
    assert chosen(select(moved, "leave-one-out")) == {"a": 1, "b": 1, "c": 1}


# --- which rules apply


def test_rules_that_can_choose() -> None:
    def rules(runs: list[Candidate], asked: str, *planned: Candidate) -> list[str]:
        return list(choices_by_rule(runs, asked, [one.job for one in (*runs, *planned)]))

    assert rules([], "oracle") == ["oracle"]  # asked for, though there is nothing to choose from
    assert rules([run(0, "a", a=0.5)], "oracle") == ["oracle"]
    both = run(0, "a", training=0.5, validation=0.4, a=0.5)
    assert rules([both], "oracle") == ["oracle", "training-domains", "validation-domains"]
    # One setting for all is a rule of its own where there are several of both.
    four = [run(draw, t, training=0.5, **{t: 0.5}) for draw in (0, 1) for t in "ab"]
    assert rules(four, "k-fold") == ["k-fold", "training-domains", "one-setting", "oracle"]
    for alike in (four[:2], four[::2]):
        assert rules(alike, "k-fold") == ["k-fold", "training-domains", "oracle"]
    # Only sweeps that ask for cross-validation have runs for it.
    assert rules(three_domains(), "oracle") == ["oracle"]
    assert rules(three_domains(), "k-fold") == ["k-fold", "oracle"]
    planned = choices_by_rule(four[:2], "oracle", [one.job for one in four])
    assert chosen(list(planned["oracle"])) == {"a": 0, "b": 0}
    assert chosen(list(choices_by_rule([], "oracle", [four[0].job])["oracle"])) == {"a": None}
    folds = [run(0, "t", t=0.5), run(0, "t", "a b", a=0.5, b=0.5)]
    assert rules(folds, "training-domains") == ["training-domains", "oracle"]


# --- properties

ACCURACY = st.one_of(st.none(), st.just(NAN), st.integers(0, 4).map(lambda n: n / 4))


@st.composite
def grids(draw: st.DrawFn) -> list[Candidate]:
    """Some of the runs of a leave-one-out sweep, with few distinct accuracies, so ties are many."""
    runs = []
    domains = "abcd"[: draw(st.integers(2, 4))]
    for number in range(draw(st.integers(1, 4))):
        for held_out in [*combinations(domains, 1), *combinations(domains, 2)]:
            if draw(st.integers(0, 9)):
                accuracies = {domain: draw(ACCURACY) for domain in held_out}
                training = draw(ACCURACY)
                runs.append(run(number, *held_out, training=training, **accuracies))
    return runs


def brute_force(runs: list[Candidate]) -> dict[str, int | None]:
    """Leave-one-out for singletons, by tables of accuracies and a search through all draws."""
    table = {
        (one.job.draw, frozenset(one.unseen), domain): value
        for one in runs
        for domain, value in one.unseen.items()
    }
    draws = sorted({one.job.draw for one in runs})
    found: dict[str, int | None] = {}
    for target in sorted({group for (group,) in targets([one.job for one in runs])}):
        pairs = {frozenset(one.unseen) for one in runs} - {frozenset(target)}
        others = sorted({other for pair in pairs if target in pair for other in pair - {target}})
        best, winner = -1.0, None
        for number in draws:
            own = table.get((number, frozenset(target), target))
            values = [table.get((number, frozenset({target, o}), o)) for o in others]
            if own is None or math.isnan(own):
                continue
            if not others and len(draws) == 1:
                winner = number
            if not others or any(v is None or math.isnan(v) for v in values):
                continue
            mean = sum(v for v in values if v is not None) / len(values)
            if mean > best + 1e-9:
                best, winner = mean, number
        found[target] = winner
    return found


@pytest.mark.slow
@settings(max_examples=300)
@given(grids())
def test_leave_one_out_equals_brute_force(runs: list[Candidate]) -> None:
    assert chosen(select(runs, "leave-one-out")) == brute_force(runs)


@settings(max_examples=60)
@given(grids(), st.randoms(), st.sampled_from(sorted(RULES)))
def test_the_order_of_the_runs_does_not_matter(
    runs: list[Candidate], random: Random, rule: str
) -> None:
    shuffled = list(runs)
    random.shuffle(shuffled)
    assert select(shuffled, rule) == select(runs, rule)


def test_draws_that_differ_beyond_the_twelfth_digit_tie() -> None:
    for gap, winner in ((2e-13, 0), (2e-12, 1)):
        runs = [run(0, "a", training=0.5, a=0.5), run(1, "a", training=0.5 + gap, a=0.5)]
        assert only(select(runs, "training-domains")).draw == winner


def test_of_many_domains_the_first_is_named() -> None:
    assert named(("a",)) == "a"
    assert named(("a", "b", "c")) == "a and b and c"
    assert named(("a", "b", "c", "d")) == "a and 3 more"


# --- from records


def score(
    moment: str, step: int, domain: str, role: str, split: str, top1: float | None, method: str
) -> Score:
    return replace(scored(domain, top1, method, role), moment=moment, step=step, split=split, n=10)


def recorded(method: str = "none") -> Iterator[Record]:
    yield score("validation", 10, "a", "train", "val", 0.1, method)
    yield score("validation", 10, "b", "train", "val", 0.1, method)
    yield score("validation", 20, "a", "train", "val", 0.6, method)
    yield score("validation", 20, "b", "train", "val", 0.8, method)
    yield score("validation", 30, "a", "train", "val", 1.0, method)
    yield score("final", 20, "a", "train", "test", 0.9, method)
    yield score("final", 20, "b", "train", "test", 0.9, method)
    yield score("final", 20, "t", "test", "all", 0.5, method)
    yield score("final", 20, "t", "test", "all", 0.2, "wrong-embedding")
    yield score("final", 20, "t", "test", "all", 0.99, "oracle-prior")
    yield score("final", 20, "other", "test", "all", 0.3, method)
    yield END


JOB = job("erm-3", variant="v", groups=(("t",),), draw=3, trial=1)


@pytest.mark.parametrize(("algorithm", "method"), [("erm", "none"), ("da-erm", "embedding")])
def test_a_run_is_read_as_its_algorithm_is_used(algorithm: str, method: str) -> None:
    records = Records(tuple(recorded(method)))
    job = replace(JOB, algorithm=algorithm)
    assert candidates_of(job, records) == [
        Candidate(
            job=job,
            method=method,
            training=pytest.approx(0.7),
            validation=None,
            unseen={"t": 0.5},
        )
    ]


def test_a_run_serves_each_method_that_it_was_to_be_scored_by() -> None:
    """Validation domains and unseen ones by the method itself; training domains as meant."""
    records = [
        *list(recorded())[:-1],
        score("validation", 20, "v", "val", "all", 0.4, "none"),
        score("final", 20, "v", "val", "all", 0.4, "none"),
        score("final", 20, "v", "val", "all", 0.6, "prior"),
        score("final", 20, "t", "test", "all", 0.7, "prior"),
        score("final", 20, "v", "val", "all", 0.9, "auto"),
        END,
    ]
    job = replace(JOB, config={"adapt": {"methods": ["prior", "t3a"]}})
    plain, prior, t3a = candidates_of(job, Records(tuple(records)))
    seen = pytest.approx(0.7)
    assert (plain.training, plain.validation, plain.unseen) == (seen, 0.4, {"t": 0.5})
    assert (prior.training, prior.validation, prior.unseen) == (seen, 0.6, {"t": 0.7})
    assert (t3a.training, t3a.validation, t3a.unseen) == (seen, None, {})
    assert [one.method for one in (plain, prior, t3a)] == ["none", "prior", "t3a"]


def test_each_method_is_chosen_by_its_own_scores() -> None:
    runs = [
        run(0, "a", training=0.9, validation=0.5, a=0.1),
        run(1, "a", training=0.8, validation=0.6, a=0.2),
        run(0, "a", training=0.9, validation=0.7, a=0.3, method="prior"),
        run(1, "a", training=0.8, validation=0.6, a=0.4, method="prior"),
    ]

    def by(rule: str) -> dict[str, int | None]:
        return {one.method: one.draw for one in select(runs, rule)}

    assert by("validation-domains") == {"none": 1, "prior": 0}
    assert by("training-domains") == {"none": 0, "prior": 0}
    helping = [
        run(draw, "a", "b", b=top1, method=method)
        for method, found in {"none": (0.5, 0.6), "prior": (0.9, 0.8)}.items()
        for draw, top1 in enumerate(found)
    ]
    chosen = select([*runs, *helping], "leave-one-out")
    assert {(one.target, one.method): one.draw for one in chosen} == {
        (("a",), "none"): 1,
        (("a",), "prior"): 0,
    }


def test_another_metric_chooses_other_draws() -> None:
    """The smallest loss wins, and the smaller draw where two are equal."""
    values = {"training": (0.9, 0.4, 0.4), "validation": (0.5, 0.6, 0.4)}
    runs = [
        replace(
            run(draw, "a", a=draw / 10, **{name: own[draw] for name, own in values.items()}),
            metric=metric,
        )
        for metric in ("top-1", "nll")
        for draw in range(3)
    ]
    rules = ("training-domains", "validation-domains", "oracle")
    by_top_1, by_nll = (
        [select(own, rule)[0].draw for rule in rules] for own in (runs[:3], runs[3:])
    )
    assert (by_top_1, by_nll) == ([0, 1, 2], [1, 2, 0])


def test_a_run_is_read_by_the_metric_that_its_sweep_names() -> None:
    """Or by the one that is asked for."""
    values = {"nll": 0.6, "macro-f1": 0.3}
    records = [
        replace(one, metrics=values, loss=values["nll"]) if isinstance(one, Score) else one
        for one in recorded()
    ]
    job = replace(JOB, config={"train": {"metric": "nll"}})
    (own,) = candidates_of(job, Records(tuple(records)))
    assert (own.training, own.unseen, own.metric) == (pytest.approx(0.6), {"t": 0.6}, "nll")
    (asked,) = candidates_of(job, Records(tuple(records)), "macro-f1")
    assert (asked.training, asked.unseen) == (pytest.approx(0.3), {"t": 0.3})
    (older,) = candidates_of(job, Records(tuple(recorded())), "macro-f1")
    assert (older.training, older.unseen) == (None, {"t": None})


def test_a_method_that_no_run_was_scored_by_is_missing_by_name() -> None:
    jobs = [replace(JOB, config={"adapt": {"methods": ["prior"]}})]
    found = select([], "oracle", expected=jobs)
    assert [(one.method, one.run) for one in found] == [("none", None), ("prior", None)]


def test_averaged_weights_are_judged_by_what_was_looked_at_with_them() -> None:
    averaged = [score("averaged", 20, name, "train", "val", 0.9, "none") for name in ("a", "b")]
    (found,) = candidates_of(JOB, Records((*recorded(), *averaged)))
    assert found.training == pytest.approx(0.9)


def test_with_validation_domains_the_training_domains_are_read_from_the_final_scores() -> None:
    records: list[Record] = [
        score("validation", 10, "v", "val", "all", 0.9, "none"),
        score("validation", 20, "v", "val", "all", 0.4, "none"),
        score("validation", 20, "w", "val", "all", 0.6, "none"),
        score("final", 20, "a", "train", "val", 0.6, "none"),
        score("final", 20, "b", "train", "val", None, "none"),
        score("final", 20, "c", "train", "test", 0.1, "none"),
        score("final", 20, "v", "val", "all", 0.41, "none"),
        score("final", 20, "t", "test", "all", 0.5, "none"),
        END,
    ]
    (found,) = candidates_of(JOB, Records(tuple(records)))
    assert (found.training, found.validation) == (0.6, pytest.approx(0.5))


def test_the_finished_runs_of_a_folder(tmp_path: Path) -> None:
    jobs = (JOB, replace(JOB, id="unfinished", draw=4), replace(JOB, id="waiting", draw=5))
    for one, records in zip(jobs, (list(recorded()), list(recorded())[:-1]), strict=False):
        folder = SweepFolder(tmp_path).run(one.id).path
        folder.mkdir(parents=True)
        for record in records:
            RunFolder(folder).append(record)
    sweep = sweep_of(jobs, rule="oracle")
    found = candidates(tmp_path, sweep)
    assert [one.job.id for one in found] == ["erm-3"]
    choice = only(select(found, sweep.rule, expected=sweep.jobs))
    assert (choice.run, choice.draw, choice.score, choice.candidates) == ("erm-3", 3, 0.5, 1)
