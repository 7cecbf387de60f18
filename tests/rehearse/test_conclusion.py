"""What follows from a rehearsal, on trials made by hand."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from acclimate.core.errors import RunError
from acclimate.records.doubt import THRESHOLDS, forecasts
from acclimate.records.rehearsal import Promise, Rehearsal, unrehearsed, verdict
from acclimate.rehearse.conclusion import Trial, conclude, conclude_labels, with_controls
from fixtures.errors import refused

SITES = ("north", "south", "east", "west")


def trials(
    gains: dict[str, tuple[float, ...]],
    *,
    n: int = 100,
    frequencies: str = "as they are",
    plain: float = 0.7,
) -> list[Trial]:
    """Each site's plain accuracy is `plain`, and each chain's is better by its gain there."""
    return [
        Trial(
            domain=site,
            chain=chain,
            n=n,
            frequencies=frequencies,
            accuracy=plain + gain,
            settings=(("prior.strength", 30.0),) if "prior" in chain else (),
        )
        for chain, own in {"none": (0.0,) * len(SITES), **gains}.items()
        for site, gain in zip(SITES, own, strict=True)
    ]


def among(sites: int, given: list[Trial]) -> list[Trial]:
    """Those at the first few sites."""
    return [trial for trial in given if trial.domain in SITES[:sites]]


def concluded(*parts: list[Trial]) -> Rehearsal:
    temperatures = {"none": 2.0, "embedding": 3.0}
    return conclude([trial for part in parts for trial in part], temperatures, exact=True)


def plain_promise(n: int, told: Iterable[tuple[str, float, float]]) -> Promise:
    """Of the plain model, from sites, accuracies there and confidences, a triple for each draw."""
    trials = [
        Trial(
            domain=site,
            chain="none",
            n=n,
            frequencies="as they are",
            accuracy=accuracy,
            scores={"mean confidence": confidence},
        )
        for site, accuracy, confidence in told
    ]
    return conclude(trials, {}, exact=True).promise("none", n)


def test_a_gain_is_the_mean_over_domains_with_its_standard_error() -> None:
    promise = concluded(trials({"prior": (0.01, 0.03, 0.05, 0.07)})).promise("prior", 100)
    assert promise.gain == pytest.approx(0.04)
    assert promise.error == pytest.approx(math.sqrt(20 / 3) / 100 / 2)  # s = √(20/3) points, √4 = 2
    assert promise.accuracy == pytest.approx(0.74)
    assert promise.forecasts == forecasts((0.71, 0.73, 0.75, 0.77), [0] * 4, {})


GAINS = (0.03, 0.04, 0.05, 0.04)
# Where one is better everywhere, it does not matter how much the domains differ: both gains have a
# standard error of 0.6 points, and their difference of 0.5 has one of 0.04, or else one of 1.2.
RISING, MORE, NOW_AND_THEN = (
    (0.03, 0.04, 0.05, 0.06), (0.035, 0.046, 0.055, 0.064), (0.05, 0.03, 0.08, 0.04),
)  # fmt: skip


@pytest.mark.parametrize(
    ("gains", "chosen"),
    [
        ({"prior": GAINS}, "prior"),
        ({"prior": (0.05, -0.04, 0.03, -0.03)}, "none"),  # within noise
        ({"embedding": (0.2, 0.0, 0.0, 0.0)}, "none"),  # a single lucky domain
        # The simpler of two that do as well, and the better of two that do not.
        ({"prior": (0.03, 0.05, 0.04, 0.04), "embedding+prior": (0.01, 0.07, 0.05, 0.04)}, "prior"),
        ({"prior": (0.03, 0.05, 0.04, 0.04), "embedding": (0.13, 0.15, 0.14, 0.14)}, "embedding"),
        ({"prior": RISING, "embedding+prior": MORE}, "embedding+prior"),
        ({"prior": RISING, "embedding+prior": NOW_AND_THEN}, "prior"),
    ],
)
def test_what_gains_beyond_noise_is_chosen(gains: dict[str, Any], chosen: str) -> None:
    assert concluded(trials(gains)).chosen == {100: chosen}


def test_what_costs_where_frequencies_stay_is_not_chosen() -> None:
    harm = trials({"prior": (-0.01, -0.01, -0.02, -0.01)})
    help_ = trials({"prior": (0.1, 0.1, 0.12, 0.1)}, frequencies="drawn anew")
    assert concluded(harm, help_).chosen == {100: "none"}
    free = trials({"prior": (0.0, 0.0, 0.0, 0.0)})
    assert concluded(free, help_).chosen == {100: "prior"}


def test_the_number_of_images_decides() -> None:
    few = trials({"prior": (0.01, -0.01, 0.01, -0.01)}, n=5)
    many = trials({"prior": GAINS}, n=100)
    found = concluded(few, many)
    assert {found.chain_for(n) for n in (1, 5, 99)} == {"none"}
    assert {found.chain_for(n) for n in (100, 5000)} == {"prior"}
    assert found.settings_for("prior") == {"prior.strength": 30.0}
    assert found.settings_for("none") == {}


def test_a_domain_is_promised_what_the_others_strength_gives() -> None:
    """The best strength of all is 10, but for `north` alone 100 wins: the promise uses 10 there,
    and 10 elsewhere only if the others of that domain choose it."""
    by_strength = {10.0: (0.00, 0.06, 0.06, 0.06), 100.0: (0.09, 0.01, 0.01, 0.01)}
    rows = [
        replace(trial, settings=(("prior.strength", strength),))
        for strength, own in by_strength.items()
        for trial in trials({"prior": own})
        if trial.chain == "prior"
    ]
    found = concluded(trials({}), rows)
    assert found.settings_for("prior") == {"prior.strength": 10.0}
    assert found.promise("prior", 100).gain == pytest.approx((0.00 + 0.06 * 3) / 4)


def test_noise_is_judged_by_students_t() -> None:
    """Three domains: t(2) at 90 % is 1.886, and 1.28 is what the normal distribution has."""

    def three(*gains: float) -> Rehearsal:
        told = trials({"prior": (*gains, 0.0)})
        return concluded([t for t in told if t.domain in SITES[:3]])

    for gains, ratio, chosen in (
        ((0, 0.01, 0.03), 1.512, "none"),
        ((0.01, 0.02, 0.05), 2.219, "prior"),
    ):
        promise = three(*gains).promise("prior", 100)
        assert promise.error is not None
        assert promise.gain / promise.error == pytest.approx(ratio, abs=1e-3)
        assert three(*gains).chosen == {100: chosen}


def test_who_tries_more_chains_must_be_surer() -> None:
    """t(3) of the prior is 2.2: p = 0.058 by itself is below 0.1, not below a third of it (Holm).
    Once others are sure, it is compared with what is left."""
    prior, bad = (0.0, 0.01, 0.02, 0.03), (-0.02,) * 4
    alone = trials({"prior": tuple(gain - 0.0008 for gain in prior)})
    assert concluded(alone).chosen == {100: "prior"}
    others = {"embedding": bad, "embedding+prior": bad}
    some = [t for t in trials(others) if t.chain != "none"]
    assert concluded(alone, some).chosen == {100: "none"}


def test_real_and_synthetic_frequencies_are_not_averaged() -> None:
    """A loss that is not ruled out at the sites as they are is not made up for by any gain."""
    unsure = trials({"prior": (-0.03, 0.02, -0.02, 0.02)})
    gain = trials({"prior": (0.2, 0.21, 0.2, 0.22)}, frequencies="drawn anew")
    assert concluded(unsure, gain).chosen == {100: "none"}
    sure = trials({"prior": (-0.002, 0.001, 0.0, 0.001)})
    assert concluded(sure, gain).chosen == {100: "prior"}


def test_a_domain_tells_no_more_than_one_image_of_those_that_it_scored() -> None:
    """Gains of a point everywhere are sure of 1,000 images each, and chance of 40."""
    told = trials({"prior": (0.01,) * 4})
    for scored, error, chosen in ((1000, 0.001, "prior"), (40, 1 / 80, "none")):
        found = concluded([replace(trial, scored=scored) for trial in told])
        assert found.promise("prior", 100).error == pytest.approx(error)
        assert found.chosen == {100: chosen}


def test_a_strength_is_chosen_where_frequencies_are_shifted() -> None:
    """What it does at the sites as they are is to judge it."""
    rows = [
        replace(trial, settings=(("prior.strength", strength),))
        for kind, by_strength in (
            ("as they are", {100.0: (0.0,) * 4, 10.0: (-0.05, -0.04, -0.05, -0.05)}),
            ("drawn anew", {100.0: (0.01,) * 4, 10.0: (0.03,) * 4}),
        )
        for strength, own in by_strength.items()
        for trial in trials({"prior": own}, frequencies=kind)
        if trial.chain == "prior"
    ]
    plain = [*trials({}), *trials({}, frequencies="drawn anew")]
    found = concluded(plain, rows)
    assert found.settings_for("prior") == {"prior.strength": 10.0}
    assert found.chosen == {100: "none"}


def by_strength(n: int, first: float, second: float) -> list[Trial]:
    """What two strengths of the prior gain everywhere, the stronger first."""
    return [
        replace(trial, settings=(("prior.strength", strength),))
        for strength, gain in ((100.0, first), (10.0, second))
        for trial in trials({"prior": (gain,) * 4}, n=n)
        if trial.chain == "prior"
    ]


def test_each_number_of_images_has_its_strength() -> None:
    """Of strengths within half a point of the best, the one that changes the model least."""
    plain = [*trials({}, n=5), *trials({}, n=20), *trials({}, n=100)]
    few, more, many = (
        by_strength(5, 0.0, 0.006),
        by_strength(20, 0.0, 0.004),
        by_strength(100, 0.1, 0.0),
    )
    found = concluded(plain, few, more, many)
    strengths = [found.settings_for("prior", n)["prior.strength"] for n in (5, 19, 20, 500)]
    assert strengths == [10.0, 10.0, 100.0, 100.0]
    assert found.promise("prior", 20).gain == 0
    assert Rehearsal.from_dict(found.to_dict(), where="x") == found


def test_what_is_idle_is_never_chosen() -> None:
    told = trials({"prior": (0.1, 0.1, 0.12, 0.1), "embedding": (0.03, 0.04, 0.05, 0.04)})
    assert conclude(told, {}, exact=True, idle={"prior"}).chosen == {100: "embedding"}


def test_fewer_images_than_were_rehearsed_with_are_smoothed_by_more() -> None:
    found = concluded(trials({"prior": (0.03, 0.04, 0.05, 0.04)}, n=20))
    assert found.settings_for("prior", 300) == {"prior.strength": 30.0}
    assert found.settings_for("prior", 4) == {"prior.strength": 150.0}
    assert found.settings_for("bn+prior", 20) == {"prior.strength": 30.0}
    assert found.settings_for("embedding+prior", 20) == {}  # was not rehearsed


def test_a_size_that_few_domains_could_play_is_left_out() -> None:
    """One of four sites has images enough for 300: what it gains there decides nothing."""
    many = among(1, trials({"prior": (0.0,) * 4}, n=300))
    found = concluded(trials({"prior": GAINS}), many)
    assert found.chosen == {100: "prior"}
    assert found.chain_for(5000) == "prior"


def test_the_verdict_where_the_choice_changes_with_the_images() -> None:
    few, more = trials({"prior": GAINS}, n=20), trials({"embedding": (0.1, 0.1, 0.12, 0.1)}, n=100)
    found = concluded(trials({"prior": (0.0,) * 4}, n=5), few, more)
    assert found.chosen == {5: "none", 20: "prior", 100: "embedding"}
    assert verdict(found)[0] == (
        "Rehearsed on 4 sites, embedding gained +10.5 ± 0.5 points with 100 unlabelled images; "
        "`adapt` uses prior from 20 images on, embedding from 100 images on."
    )


def test_a_damaged_file_is_named() -> None:
    stored = concluded(trials({"prior": GAINS})).to_dict()
    del stored["promises"][0]["gain"]
    with refused(RunError, "rehearsal.json"):
        Rehearsal.from_dict(stored, where="run/rehearsal.json")


def test_the_verdict_where_it_pays() -> None:
    few = trials({"prior": (0.0, 0.0, 0.0, 0.0)}, n=5)
    assert verdict(concluded(few, trials({"prior": GAINS}))) == [
        "Rehearsed on 4 sites, prior gained +4.0 ± 0.4 points with 100 unlabelled images; "
        "`adapt` uses prior from 100 images on.",
        "Expected accuracy at a new site: 74.0 % (in nine of ten new sites at least 72.5 %).",
    ]


def test_what_of_a_gain_is_the_sites_own_images() -> None:
    """Controls are for the chain that is used, with so many images, at the sites as they are."""
    found = concluded(trials({"prior": GAINS}))
    controls = [
        replace(trial, chain=name, accuracy=trial.accuracy + more, settings=())
        for trial in trials({"prior": GAINS})
        if trial.chain == "none"
        for name, more in (("none", 0.0), ("neutral", 0.01), ("other", -0.02))
    ]
    found = with_controls(found, controls)
    used = found.promise("prior", 100)
    assert used.neutral == pytest.approx(0.01)
    assert used.other == pytest.approx(-0.02)
    assert "(+3.0 by the site's own images, −2.0 with another site's)" in verdict(found)[0]
    assert found.promise("none", 100).neutral is None


def test_the_cheapest_next_step() -> None:
    found = concluded(trials({"prior": GAINS}))
    promise = found.promise("prior", 100)
    few, many = (
        replace(promise, chain="labels", n=n, gain=gain, error=0.005)
        for n, gain in ((10, 0.004), (20, 0.06))
    )
    site = replace(promise, chain="logistic", n=0, gain=0.02, error=0.01)
    said = verdict(replace(found, labels=(few, many), another_site=site))[-1]
    assert said == (
        "What helps at a new site, in points: 20 labels of it (+6.0 ± 0.5), 100 unlabelled images "
        "(+4.0 ± 0.4), one more labelled site to train on (+2.0 ± 1.0)."
    )
    noise = replace(site, gain=0.001)
    plain = replace(found, labels=(few,), another_site=noise, chosen={5: "none", 100: "none"})
    assert "beyond noise" in verdict(plain)[-1]


def test_the_verdict_names_the_plain_head() -> None:
    found = concluded(trials({"prior": GAINS}))
    plain = found.promise("none", 100)
    heads = replace(plain, accuracy=0.957), replace(plain, chain="logistic C=1", accuracy=0.961)
    said = verdict(replace(found, head="logistic C=1", heads=heads))
    assert any("logistic C=1: 96.1 %" in line and "network 95.7 %" in line for line in said)


@pytest.mark.parametrize(("apart", "told"), [(0.08, True), (0.15, False)])
def test_a_floor_that_says_nothing_is_not_told(apart: float, told: bool) -> None:
    """Four sites at 70 % ± `apart`: the floor is 18 or 36 points below."""
    gains = (-apart, apart, -apart, apart)
    one = [t for t in trials({"prior": gains}) if t.chain == "prior"]
    found = concluded([replace(t, chain="none", settings=()) for t in one])
    (forecast,) = found.promise("none", 100).forecasts
    assert forecast.vague != told
    if told:
        assert verdict(found)[1] == f"Expected accuracy at a new site: {forecast}."
    else:
        assert verdict(found)[1] == (
            "Accuracy where a site was held out: 70.0 % on average; the sites are too few, or too "
            "unlike each other, to say what to expect at a new one."
        )


@pytest.mark.parametrize(
    ("gains", "best"),
    [
        (
            {"prior": (0.05, -0.04, 0.03, -0.02)},
            "made no difference: +0.5 ± 2.1 points at best (prior)",
        ),
        (
            {"prior": (-0.05, -0.04, -0.03, -0.02), "embedding": (-0.02,) * 4},
            "did not pay: −2.0 ± 0.1 points at best (embedding)",
        ),
    ],
)
def test_the_verdict_where_it_does_not(gains: dict[str, tuple[float, ...]], best: str) -> None:
    assert verdict(concluded(trials(gains))) == [
        f"With 4 sites adaptation {best}; the plain model is what `predict` uses.",
        "Expected accuracy at a new site: 70.0 % (in nine of ten new sites at least 70.0 %).",
    ]


def test_the_verdict_of_two_sites_is_that_they_cannot_tell() -> None:
    pair = among(2, trials({"prior": (0.05, 0.05, 0.0, 0.0)}))
    found = concluded(pair)
    assert found.chosen == {100: "none"}
    assert verdict(found) == [
        "Only 2 sites could play a new site, and it takes 3 to tell whether adaptation pays; the "
        "plain model is what `predict` uses.",
        "Accuracy where a site was held out: 70.0 %.",
    ]


def test_one_site_is_told_apart_from_small_ones() -> None:
    assert unrehearsed(1).startswith("With one site nothing can be rehearsed")
    assert unrehearsed(2).startswith("Nothing was rehearsed: the sites have too few images")


def test_accuracy_is_expected_by_a_score_where_that_says_more() -> None:
    """Five sites of 60 to 95 %, each within a point of what the classifier thinks: so is the next.
    Sites without the score, or where it tells nothing, leave the forecast for any site."""
    accuracies, sure = (0.6, 0.7, 0.8, 0.9, 0.95), (0.61, 0.71, 0.79, 0.89, 0.95)
    found = plain_promise(100, zip("abcde", accuracies, sure, strict=True))
    anywhere, narrow = found.forecasts
    assert found.expected() == found.expected({"other": 0.7}) == anywhere
    here = found.expected({"mean confidence": 0.7})
    assert here == narrow.at(0.7)
    assert here is not None and here.accuracy - here.floor < 0.1 < anywhere.accuracy - here.accuracy
    none = plain_promise(100, zip("abcde", (0.8,) * 5, sure, strict=True))
    assert none.expected({"mean confidence": 0.7}) == none.forecasts[0] == none.forecasts[-1]
    two = plain_promise(100, zip("ab", accuracies, sure, strict=False))
    assert two.expected() is None


def test_a_gain_is_expected_at_one_domain_and_on_average_over_several() -> None:
    found = concluded(trials({"prior": GAINS})).promise("prior", 100)
    spread = math.sqrt(2 / 3) / 100  # of the four gains
    one = 2.353363 * spread * math.sqrt(1.25)  # t(3)
    assert found.expected_gain() == pytest.approx((0.04 - one, 0.04 + one), abs=1e-6)
    four = 2.353363 * spread * math.sqrt(0.5)
    assert found.expected_gain(4) == pytest.approx((0.04 - four, 0.04 + four), abs=1e-6)
    alike = concluded(trials({"prior": (0.04, 0.04, 0.04, 0.04)})).promise("prior", 100)
    chance = 2.353363 * 0.002 * math.sqrt(1.25)  # errors are 0.1 points at least
    assert alike.expected_gain() == pytest.approx((0.04 - chance, 0.04 + chance), abs=1e-6)
    assert replace(found, error=None).expected_gain() is None


def test_how_frequencies_are_estimated_is_chosen_too() -> None:
    """Learned frequencies that gain more than any smoothing are what `adapt` is told."""
    some = trials({"prior": GAINS})
    more = [
        replace(trial, accuracy=trial.accuracy + 0.01, settings=(("prior.expect", "learned"),))
        for trial in some
        if trial.chain == "prior"
    ]
    found = concluded(some, more)
    assert found.settings_for("prior") == {"prior.expect": "learned"}
    assert found.promise("prior", 100).gain == pytest.approx(0.05)
    assert Rehearsal.from_dict(found.to_dict(), where="x") == found
    smoothed = concluded(some)
    assert smoothed.settings_for("prior") == {"prior.strength": 30.0}


def test_what_label_shift_explains_at_least() -> None:
    shares = {20: [0.9, 0.5, 0.8], 100: [0.9, 0.7, 0.8], 300: [0.9, 0.7]}
    told = [
        replace(trial, n=n, explained=share)
        for n, all_shares in shares.items()
        for trial, share in zip(trials({}), all_shares, strict=False)
    ]
    found = conclude(told, {}, exact=True)
    # Three domains are too few for 95 %: the lowest. Two tell nothing.
    assert found.explained == pytest.approx({20: 0.5, 100: 0.7})
    assert found.least_explained(5) is None
    assert found.least_explained(60) == pytest.approx(0.5)
    assert found.least_explained(4000) == pytest.approx(0.7)
    assert Rehearsal.from_dict(found.to_dict(), where="x") == found


def test_three_draws_of_a_site_are_more_images_and_one_score() -> None:
    """Of 40 images half score, three times: as good as 30. A new site's score is of one draw."""
    told = [
        Trial(
            domain=site,
            chain="none",
            n=20,
            frequencies="as they are",
            accuracy=accuracy + off,
            scored=20,
            scores={"mean confidence": accuracy + 2 * off},
            answers=((20, 10), (10, 9)) + ((0, 0),) * (len(THRESHOLDS) - 2),
        )
        for site, accuracy in zip("abcde", (0.5, 0.6, 0.7, 0.8, 0.9), strict=True)
        for off in (-0.03, 0.0, 0.03)
    ]
    found = conclude(told, {}, exact=True).promise("none", 20)
    sure = [accuracy - 0.06 for accuracy in (0.5, 0.6, 0.7, 0.8, 0.9)]
    expected = forecasts((0.5, 0.6, 0.7, 0.8, 0.9), [30] * 5, {"mean confidence": sure})
    assert len(found.forecasts) == len(expected) == 2
    for one, wanted in zip(found.forecasts, expected, strict=True):
        assert (one.floor, one.score) == pytest.approx((wanted.floor, wanted.score))
    assert [one.share for one in found.answers] == [1.0, 0.5]
    assert found.answers[1].right == pytest.approx(27.5 / 31, abs=1e-4)


def test_the_verdict_says_what_sure_images_promise() -> None:
    """Without a site that answers wrongly from the third threshold on."""
    counts = ((1000, 930), (800, 790), (600, 600)) + ((0, 0),) * (len(THRESHOLDS) - 3)
    found = concluded([replace(trial, answers=counts) for trial in trials({})])
    assert verdict(found)[-1] == (
        "With sure images alone, `predict --at-least` can promise 90.0 % right (100.0 % of images "
        "answered), 95.0 % right (80.0 % of images answered), 98.0 % right (80.0 % of images "
        "answered), 99.0 % right (60.0 % of images answered)."
    )
    fewer = concluded([replace(trial, answers=counts[:1] + counts[3:]) for trial in trials({})])
    assert verdict(fewer)[-1].endswith("(100.0 % of images answered), and not 95.0 %.")
    none = concluded([replace(t, answers=((1000, 700), *counts[3:])) for t in trials({})])
    assert verdict(none)[-1] == "`predict --at-least` cannot promise 90.0 % right answers."
    assert Rehearsal.from_dict(found.to_dict(), where="x") == found


def test_fewer_domains_with_more_images_do_not_unchoose() -> None:
    """Three of four sites have 300 images, or two: too few to pass, and no loss either."""
    few = trials({"prior": (0.05, 0.05, 0.05, 0.05)}, n=100)
    more = among(3, trials({"prior": (0.09, 0.01, 0.05, 0.0)}, n=300))
    assert concluded(few, more).chosen == {100: "prior", 300: "prior"}
    for gains, chosen in (((-0.09, 0.01, -0.05, 0), "prior"), ((-0.09, -0.03, -0.05, 0), "none")):
        worse = [t for t in trials({"prior": gains}, n=300) if t.domain != "west"]
        assert concluded(few, worse).chosen == {100: "prior", 300: chosen}
    two = [trial for trial in more if trial.domain != "east"]
    found = concluded(few, two)
    assert found.chosen == {100: "prior", 300: "prior"}
    assert "with 100 unlabelled images" in verdict(found)[0]  # two cannot tell
    one = [trial for trial in two if trial.domain == "north"]
    assert concluded(few, one).chosen == {100: "prior"}


def test_more_images_do_not_switch_adaptation_off() -> None:
    """As many sites, and no gain that is sure: only a loss that is would be a reason."""
    few = trials({"prior": (0.05, 0.05, 0.05, 0.05)}, n=5)
    for gains, chosen in (
        ((0.05, -0.04, 0.03, -0.04), "prior"),
        ((-0.02, -0.01, -0.02, -0.01), "none"),
    ):
        found = concluded(few, trials({"prior": gains}, n=20))
        assert found.chosen == {5: "prior", 20: chosen}


def label_trials(firm: tuple[float, ...], loose: tuple[float, ...]) -> list[Trial]:
    """Twenty labels at each site: none, and what two strengths gain."""
    gains = {None: (0.0,) * 4, 10.0: firm, 0.1: loose}
    return [
        Trial(
            domain=site,
            chain="none" if strength is None else "labels",
            n=20,
            frequencies="as they are",
            accuracy=0.7 + gain,
            scored=500,
            settings=() if strength is None else (("labels.strength", strength),),
        )
        for strength, own in gains.items()
        for site, gain in zip(SITES, own, strict=True)
    ]


@pytest.mark.parametrize(("ahead", "expected"), [(0.004, 10.0), (0.006, 0.1)])
def test_of_strengths_that_do_as_well_the_firmest_is_used(ahead: float, expected: float) -> None:
    """Half a point on average is as well, however the sites differ."""
    firm, apart = (0.03, 0.01, 0.05, 0.03), (0.04, -0.04, 0.02, -0.02)
    loose = tuple(one + ahead + other for one, other in zip(firm, apart, strict=True))
    promises, strengths = conclude_labels(label_trials(firm, loose))
    assert strengths == {20: expected}
    (promise,) = promises
    assert promise.domains == 4
