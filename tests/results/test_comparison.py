"""The one comparison, by hand, on observations alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from acclimate.results.comparison import (
    Comparison,
    Difference,
    Expected,
    Observation,
    Row,
    compare,
    expected_of_runs,
)
from acclimate.results.runs import ERM, Key
from acclimate.results.statistics import Estimate

DA = Key("da-erm", "embedding")
CORAL = Key("coral", "none")
WRONG = Key("da-erm", "wrong-embedding")
ORACLE = Key("erm", "oracle-prior")
TOP1 = Mapping[str, Sequence[float]]  # domain -> by trial


def scored(key: Key, top1: TOP1, **more: object) -> list[Observation]:
    """A method's scores, each on 100 images."""
    one = Observation("x", key, "", 0, "a", 0.0, images=100)
    return [
        replace(one, **{"domain": domain, "trial": trial, "value": value, **more})  # type: ignore[arg-type]
        for domain, values in top1.items()
        for trial, value in enumerate(values)
    ]


def compared(found: Sequence[Observation], metric: str = "top-1") -> Comparison:
    (table,) = compare(found, expected_of_runs(found), metric=metric)
    return table


def line(found: Comparison, key: Key) -> Row:
    row = found.row(key)
    assert row is not None
    return row


def difference(found: Sequence[Observation], key: Key = DA) -> Difference:
    result = line(compared(found), key).difference
    assert result is not None
    return result


def close(mean: float, se: float, n: int) -> Estimate:
    return Estimate(pytest.approx(mean), pytest.approx(se), n)


def test_of_nothing_there_is_one_empty_table() -> None:
    assert compare([], []) == (Comparison("", "", (), (), ERM),)
    assert compare([], [], rule="oracle", baseline=CORAL)[0].rule == "oracle"


def test_what_runs_should_have_scored_is_in_the_order_of_names() -> None:
    """Every domain of a data set for every trial of it, by data set, domain, data and method."""
    places = [("y", "d2", "a"), ("x", "d1", "c"), ("x", "d2", "b")]
    places += [("x", data, "d") for data in ("d6", "d1", "d3", "d5", "d4", "d2")]
    variant = Key("erm", "none", "N = 3")
    found = [
        Observation(dataset, key, data, 0, domain, 0.5)
        for dataset, data, domain in places
        for key in (variant, ERM, Key("erm", "prior"))  # one that not every run was scored by
    ]
    wanted = [("x", "d2", "b"), ("x", "d1", "c")]
    wanted += [("x", f"d{number}", "d") for number in range(1, 7)] + [("y", "d2", "a")]
    assert expected_of_runs(found) == [
        Expected(dataset, key, data, 0, domain)
        for dataset, data, domain in wanted
        for key in (ERM, variant)
    ]


BOTH = scored(ERM, {"a": (0.5, 0.5), "b": (0.6, 0.7)})
BETTER = scored(DA, {"a": (0.6, 0.7), "b": (0.6, 0.7)})


def test_a_difference_by_hand() -> None:
    """Means 0.60 and 0.70 against 0.55 and 0.60; on b there is no difference."""
    assert difference([*BOTH, *BETTER]) == Difference(
        line=DA,
        against=ERM,
        gain=close(0.075, 0.025, 2),
        before=pytest.approx(0.575),
        after=pytest.approx(0.65),
        pairs=4,
        improved=2,
        changes={
            "a": (pytest.approx(0.5), pytest.approx(0.65)),
            "b": (pytest.approx(0.65), pytest.approx(0.65)),
        },
    )


SEEDS = "only 1 of 2 seeds could be paired"
DOMAINS = "only the test domains that both scored are compared"
IMAGES = "they were scored on different numbers of images"


@pytest.mark.parametrize(
    ("other", "unequal"),
    [
        (BETTER[:1] + BETTER[2:3], [SEEDS]),  # a trial less
        (BETTER[:3], [DOMAINS]),  # b of the second trial less
        (BETTER[:1], [SEEDS, DOMAINS]),
        ([*BETTER[:3], replace(BETTER[3], images=50)], [IMAGES]),
        ([replace(BETTER[0], images=50)], [SEEDS, DOMAINS, IMAGES]),
    ],
)
def test_what_is_unequal_about_pairs_is_remarked(
    other: list[Observation], unequal: list[str]
) -> None:
    found = difference([*BOTH, *other])
    assert found.remark == f"DA-ERM and ERM: {'; '.join(unequal)}"
    assert found.pairs == len(other)


@pytest.mark.parametrize(
    "apart", [{"domain": "z"}, {"data": "other"}, {"trial": 7}], ids=["domain", "data", "trial"]
)
def test_what_cannot_be_paired_has_a_remark_alone(apart: dict[str, object]) -> None:
    found = difference([*scored(ERM, {"a": [0.5]}), *scored(DA, {"a": [0.6]}, **apart)])
    remark = "DA-ERM and ERM have no data, seed and test domain in common"
    assert found == Difference(DA, ERM, remark=remark)
    assert found.verdict == "unpaired"


def test_without_a_run_of_the_baseline_there_is_no_pair() -> None:
    found = scored(DA, {"a": [0.6]}) + scored(ORACLE, {"a": (0.7, 0.8, 0.9)})
    assert difference(found) == Difference(DA, ERM, remark="there is no finished run of ERM")
    assert line(compared(found), DA).gap_closed is None


def test_a_verdict_goes_by_the_corrected_p_where_there_is_one() -> None:
    gain = Estimate(0.1, 0.01, 3)
    assert Difference(WRONG, DA, gain, p=0.01).verdict == "better"
    assert Difference(DA, ERM, gain, p=0.01, p_holm=0.06).verdict == "noise"


def test_the_gap_to_the_highest_ceiling_of_the_baseline_by_hand() -> None:
    """Parts 0.1 each of wholes 0.3, 0.3, 0.4, means 0.1 and 1/3: 30 %. Left over are 0.01, 0.01 and
    −0.02, whose error is 0.01, 3 % of the whole. Another algorithm's ceiling does not count."""
    found = [
        *scored(ERM, {"a": (0.5, 0.5, 0.5)}),
        *scored(DA, {"a": (0.6, 0.6, 0.6)}),
        *scored(WRONG, {"a": (0.4, 0.4, 0.4)}),
        *scored(ORACLE, {"a": (0.8, 0.8, 0.9)}),
        *scored(Key("erm", "oracle-truth"), {"a": (0.6, 0.7, 0.7)}),
        *scored(CORAL, {"a": (0.5, 0.5, 0.5)}),
        *scored(Key("coral", "oracle-prior"), {"a": (0.9, 0.9, 1.0)}),
    ]
    closed = {row.key: row.gap_closed for row in compared(found).rows if row.gap_closed}
    assert closed == {DA: close(0.3, 0.03, 3), CORAL: Estimate(0.0, 0.0, 3)}
    apart = [replace(one, trial=one.trial + 9) if one.key == ORACLE else one for one in found]
    assert line(compared(apart), DA).gap_closed is None  # the highest ceiling has other trials
    two = [one for one in found if one.trial < 2]
    assert all(row.gap_closed is None for row in compared(two).rows)  # too few to say there is one


def test_other_metrics_are_averaged_over_complete_trials() -> None:
    """Trials: (0.7 + 0.9) / 2 = 0.8 and 0.6; in the third b has no value; the fourth lacks b."""
    values = [(0, "a", 0.7), (0, "b", 0.9), (1, "a", 0.5), (1, "b", 0.7)]
    values += [(2, "a", 0.1), (2, "b", None), (3, "a", 0.0)]
    found = [
        Observation("x", ERM, "", trial, domain, 0.5, {"top-5": value, "auroc": None})
        for trial, domain, value in values
    ]
    assert line(compared(found), ERM).metrics == {"top-5": close(0.7, 0.1, 2)}
    assert line(compared(scored(ERM, {"a": [0.5]})), ERM).metrics == {}
    # A domain without a value under any method, as one with a single class, is in no mean.
    found += [replace(one, domain="c", others={"top-5": None}) for one in found]
    assert line(compared(found), ERM).metrics == {"top-5": close(0.7, 0.1, 2)}


def test_contenders_are_methods_with_the_baselines_adaptive_version_first() -> None:
    """Not by score, without controls and ceilings, and without the baseline's own variants."""
    tops = {CORAL: 0.9, DA: 0.6, WRONG: 0.3, ORACLE: 0.8, Key("irm", "none"): 0.7, ERM: 0.5}
    tops[Key("erm", "none", "N = 3")] = 0.55
    found = compared([one for key, top1 in tops.items() for one in scored(key, {"a": [top1]})])
    assert [row.key for row in found.contenders] == [DA, CORAL, Key("irm", "none")]


def test_a_table_is_tested_if_a_method_has_a_rival() -> None:
    alone = scored(ERM, {"a": [0.5]}) + scored(ORACLE, {"a": [0.8]})
    assert not compared(alone).tested  # though the ceiling has a difference
    assert line(compared(alone), ORACLE).gain is not None
    assert compared([*alone, *scored(CORAL, {"a": [0.4]})]).tested


def test_variants_with_a_data_set_each_in_one_table_have_no_best() -> None:
    """Each trial has the domains of its own data set, and is complete with those."""
    found = []
    for size, domain in (("3", "a"), ("9", "b")):
        for key, top1 in ((ERM, 0.5), (DA, 0.6)):
            own = replace(key, variant=size)
            found += scored(own, {domain: [top1, top1]}, dataset=f"x-{size}")
    (table,) = compare(found, expected_of_runs(found), together="x")
    assert (table.dataset, table.columns) == ("x", ("a", "b"))
    averages = {row.key.label: row.average and row.average.mean for row in table.rows}
    assert averages == {
        "DA-ERM (3)": 0.6, "DA-ERM (9)": 0.6, "ERM (3)": 0.5, "ERM (9)": 0.5,
    }  # fmt: skip
    assert not table.comparable and table.best == {}
    assert compare(found, expected_of_runs(found))[0].comparable


def test_of_one_score_or_none_there_is_no_best() -> None:
    found = scored(ERM, {"a": [0.5], "b": [0.5]}) + scored(DA, {"a": [0.6]})
    planned = [*expected_of_runs(found), Expected("x", ERM, "", 0, "c")]
    (table,) = compare(found, planned)
    assert table.best == {"a": {DA}, "b": set(), "c": set(), "average": set()}
    assert table.is_best(line(table, DA), "a") and not table.is_best(line(table, ERM), "b")


def test_of_a_loss_the_lower_is_better() -> None:
    """DA-ERM lowers it by 0.10, 0.12 and 0.14 (with a ceiling 0.3 below): better, the best of the
    column, and improved; the worst domain is that with the largest loss."""
    tops = {ERM: [0.9, 0.8, 0.7], DA: [0.8, 0.68, 0.56], ORACLE: [0.6, 0.5, 0.4]}
    found = [one for key, own in tops.items() for one in scored(key, {"a": own, "b": own[:1] * 3})]
    table = compared(found, "nll")
    row, loss = line(table, DA), line(compared(found), DA).difference
    assert row.difference is not None and loss is not None and row.gap_closed is not None
    assert row.difference.gain == loss.gain == close(-0.11, 0.01 / 3**0.5, 3)
    assert (row.difference.verdict, loss.verdict) == ("better", "worse")
    assert (row.difference.improved, loss.improved) == (6, 0)
    assert table.best["a"] == table.best["average"] == {DA}
    assert compared(found).best["a"] == {ERM}
    assert row.worst == close(0.8, 0.0, 3) and row.gap_closed.mean == pytest.approx(0.11 / 0.3)
    assert row.difference.metric == table.metric == "nll"


def test_the_best_by_each_metric() -> None:
    """Each by its own end; of a domain without a value under any method nothing is missing."""
    values = {ERM: (0.3, 0.6), DA: (0.2, 0.7), WRONG: (0.1, 0.9)}
    found = [
        replace(one, others={"nll": loss, "auroc": area, "top-5": None})
        for key, (loss, area) in values.items()
        for one in scored(key, {"a": [0.5, 0.5]})
    ]
    assert compared(found).best_by == {"auroc": {DA}, "nll": {DA}}
    assert list(compared(found).best_by) == ["auroc", "nll"]  # in the order of their table


def test_the_bootstrap_is_over_domains() -> None:
    """Each domain by its mean over trials: with equal ones there is no width, with few nothing."""
    names = "abcde"
    gains = {ERM: 0.0, DA: 0.1}
    found = [
        one
        for key, gain in gains.items()
        for one in scored(key, {name: [0.4 + gain, 0.6 + gain] for name in names})
    ]
    assert difference(found).bootstrap == pytest.approx((0.1, 0.1))
    few = [one for one in found if one.domain != "e"]
    assert difference(few).bootstrap is None
    apart = [replace(one, value=one.value + 0.1 * (one.domain == "a")) for one in found]
    own = [
        replace(one, value=found[i].value) if one.key == ERM else one for i, one in enumerate(apart)
    ]
    low, high = difference(own).bootstrap or (0, 0)
    assert low == pytest.approx(0.1) and 0.12 < high <= 0.2
