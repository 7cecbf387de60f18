"""From sweeps, runs and DomainBed sweeps to tables with errors and significance."""

import csv
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from acclimate.core.errors import (
    ConfigError,
    RunError,
    SchemaError,
    SweepError,
    UnknownName,
)
from acclimate.paper.published import with_published
from acclimate.report import export, sentences, tables
from acclimate.report.sentences import headline
from acclimate.results import comparison as results
from acclimate.results import runs
from acclimate.results.load import load_domainbed, load_merged, load_report
from acclimate.results.protocol import Axis, DataSet, EmbeddingJob, Job, Sweep
from acclimate.results.runs import ERM, Key, find_runs
from acclimate.results.statistics import Estimate
from acclimate.results.sweep_folder import DomainLabels, Failure, LabelCounts, SweepFolder
from fixtures.command_line import command
from fixtures.errors import refused
from fixtures.run_folders import make_run, score

DA = Key("da-erm", "embedding")
CORAL = Key("coral", "none")
DOMAINS = ("a", "b")
Scores = Mapping[
    tuple[str, int], Mapping[str, float | None]
]  # (algorithm, trial) -> domain -> top1

# ERM: a 0.50 0.60, b 0.70 0.80. DA-ERM: a 0.60 0.62, b 0.72 0.86.
SCORES: Scores = {
    ("erm", 0): {"a": 0.50, "b": 0.70},
    ("erm", 1): {"a": 0.60, "b": 0.80},
    ("da-erm", 0): {"a": 0.60, "b": 0.72},
    ("da-erm", 1): {"a": 0.62, "b": 0.86},
}


def method_of(algorithm: str) -> str:
    return "embedding" if algorithm.startswith("da-") else "none"


def job(
    algorithm: str, domain: str, trial: int, draw: int = 0, dataset: str = "toy", **more
) -> Job:
    name = f"{dataset}-{algorithm}-{more.get('variant', '')}-{domain}-{draw}-{trial}"
    groups = tuple((one,) for one in domain.split("+"))
    config = {"algorithm": algorithm, "seed": trial}
    return Job(
        id=name, dataset=dataset, algorithm=algorithm, groups=groups, draw=draw, trial=trial,
        config=config, **more,
    )  # fmt: skip


def run_job(folder: Path, one: Job, top1: Mapping[str, float | None], val: float = 0.5) -> None:
    """The run of a job: its scores on held-out domains, and on a training domain's val split."""
    method = method_of(one.algorithm)
    scores = [score(domain, value, method) for domain, value in top1.items()]
    training = replace(score("t1", val, method, role="train"), split="val")
    wrong = [
        replace(s, method="wrong-embedding", top1=s.top1 and 0.1)
        for s in scores
        if method != "none"
    ]
    make_run(
        SweepFolder(folder).run(one.id).path, one.algorithm, one.trial, [*scores, *wrong, training],
        data=f"digest of {one.dataset}", settings={"draw": one.draw},
    )  # fmt: skip


def sweep_of(jobs: list[Job], **more: object) -> Sweep:
    names = dict.fromkeys(one.dataset for one in jobs)
    datasets = tuple(
        DataSet(name=name, digest=f"digest of {name}", source=f"/{name}", domains=("t1", *DOMAINS))
        for name in names
    )
    settings = {"title": "Toy", "rule": "training-domains", "baseline": "erm", "embeddings": ()}
    return Sweep(datasets=datasets, jobs=tuple(jobs), **{**settings, **more})  # type: ignore[arg-type]


def make_sweep(folder: Path, scores: Scores = SCORES, dataset: str = "toy", **more: object) -> Path:
    jobs = [job(a, d, trial, dataset=dataset) for (a, trial), row in scores.items() for d in row]
    SweepFolder(folder).write(sweep_of(jobs, **more))
    for one in jobs:
        (domain,) = one.groups[0]
        run_job(folder, one, {domain: scores[one.algorithm, one.trial][domain]})
    return folder


def forget(run: Path) -> None:
    for path in run.glob("records.*"):
        path.unlink()


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return make_sweep(tmp_path / "sweep")


def table(folder: Path, **options: object) -> results.Comparison:
    report = load_report(folder, **options)  # type: ignore[arg-type]
    return report.results[report.rules[0]][0]


def row_of(found: results.Comparison, key: Key) -> results.Row:
    return next(row for row in found.rows if row.key == key)


def test_means_and_errors_are_over_trials(sweep: Path) -> None:
    report = load_report(sweep)
    assert report.rules == ("training-domains",) and list(report.results) == [
        *report.rules,
        "oracle",
    ]
    (found,) = report.results["training-domains"]
    assert (found.dataset, found.columns, found.baseline) == ("toy", ("a", "b"), ERM)
    assert [row.key for row in found.rows] == [ERM, DA, Key("da-erm", "wrong-embedding")]
    erm = row_of(found, ERM)
    # Sample deviation of (0.5, 0.6) is 0.1/√2, over √2 trials 0.05.
    a, average = erm.cells["a"], erm.average
    assert a is not None and average is not None
    assert (a.mean, a.se, a.n) == pytest.approx((0.55, 0.05, 2))
    # Trials average 0.6 and 0.7 over domains: the error is theirs, not that of four numbers.
    assert (average.mean, average.se, average.n) == pytest.approx((0.65, 0.05, 2))
    assert erm.difference is None
    assert found.best == {"a": {DA}, "b": {DA}, "average": {DA}}
    assert report.overall == found and row_of(found, DA).trials == 2


def test_differences_are_paired_over_domains_and_trials(sweep: Path) -> None:
    test = row_of(table(sweep), DA).difference
    assert test is not None and test.gain is not None
    # Trial 0: mean of +0.10 and +0.02; trial 1: of +0.02 and +0.06. So 0.06 and 0.04.
    assert (test.gain.mean, test.gain.se, test.gain.n) == pytest.approx((0.05, 0.01, 2))
    assert test.pairs == 4 and test.improved == 4
    assert (test.before, test.after) == pytest.approx((0.65, 0.70))
    assert test.changes == {"a": pytest.approx((0.55, 0.61)), "b": pytest.approx((0.75, 0.79))}
    (control,) = table(sweep).controls
    assert (control.line, control.against) == (Key("da-erm", "wrong-embedding"), DA)
    assert control.gain is not None and control.gain.mean == pytest.approx(-0.6)
    assert (test.p, test.p_holm, test.verdict) == (None, None, "few seeds")


THREE: Scores = {
    **SCORES,
    ("erm", 2): {"a": 0.5, "b": 0.5},
    ("da-erm", 2): {"a": 0.51, "b": 0.52},
    ("coral", 0): {"a": 0.51, "b": 0.69},
    ("coral", 1): {"a": 0.63, "b": 0.82},
    ("coral", 2): {"a": 0.53, "b": 0.51},
}


def test_p_is_over_trials_and_corrected_for_the_methods_of_a_table(tmp_path: Path) -> None:
    found = table(make_sweep(tmp_path, THREE))
    tests = {row.key: row.difference for row in found.rows}
    da, coral, wrong = tests[DA], tests[CORAL], tests[Key("da-erm", "wrong-embedding")]
    assert da and coral and wrong and da.p and coral.p
    assert da.p == pytest.approx(stats.ttest_1samp([0.06, 0.04, 0.015], 0).pvalue)
    assert coral.p == pytest.approx(stats.ttest_1samp([0.0, 0.025, 0.02], 0).pvalue)
    low, high = sorted([da.p, coral.p])
    fixed = {low: min(1.0, 2 * low), high: max(min(1.0, 2 * low), high)}
    assert (da.p_holm, coral.p_holm) == pytest.approx((fixed[da.p], fixed[coral.p]))
    assert wrong.p is not None and wrong.p_holm is None


def test_words_go_by_the_p_that_is_shown(tmp_path: Path) -> None:
    """Alone beyond noise; one of three that are compared, it is not."""
    gains = {"da-erm": (0.05, 0.06, 0.08), "coral": (0.04, -0.05, 0.0), "mmd": (-0.03, 0.0, 0.02)}
    scores = {("erm", trial): {"a": 0.5} for trial in range(3)}
    for names, verdict in ((("da-erm",), "better"), (tuple(gains), "noise")):
        for name in names:
            scores |= {(name, trial): {"a": 0.5 + gain} for trial, gain in enumerate(gains[name])}
        report = load_report(make_sweep(tmp_path / verdict, scores))
        test = row_of(report.overall, DA).difference
        assert test is not None and test.p is not None and test.p_holm is not None
        assert test.p < 0.05 and (test.p_holm < 0.05) == (verdict == "better")
        assert test.verdict == verdict
        assert ("beyond noise" in headline(report)) == (verdict == "noise")


def test_a_missing_run_is_a_dash_and_leaves_no_average(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path)
    forget(SweepFolder(folder).run("toy-da-erm--b-0-1").path)
    report = load_report(folder)
    (found,) = report.results["training-domains"]
    da = row_of(found, DA)
    assert da.cells["b"] == Estimate(0.72, None, 1)
    assert da.average == Estimate(pytest.approx(0.66), None, 1)  # of trial 0 alone
    assert da.difference is not None and da.difference.pairs == 3
    assert report.waiting == 1
    assert report.notes[0] == "Selection by oracle chooses the same runs."
    assert mentions(report.notes[1], "training-domains", "1 of 8", "DA-ERM on toy b in trial 1")
    # A mean over other domains is another quantity.
    assert da.worst == Estimate(pytest.approx(0.60), None, 1)
    (remark,) = sentences.notes(report)  # once: its controls lack the same
    assert mentions(remark, "DA-ERM and ERM", "domains that both scored")
    forget(SweepFolder(folder).run("toy-da-erm--b-0-0").path)
    da = row_of(table(folder), DA)
    assert da.cells["b"] is None and da.average is None
    assert [cell.text for cell in tables.results_grid(table(folder)).rows[1]] == [
        "DA-ERM", "61.0 ± 1.0", "–", "–",
    ]  # fmt: skip


def mentions(text: str, *facts: str) -> bool:
    missing = [fact for fact in facts if fact not in text]
    assert not missing, f"{missing} not in: {text}"
    return True


def test_a_method_without_a_complete_trial_has_no_mean_in_words(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path, {("da-erm", 0): {"a": 0.6, "b": 0.7}})
    forget(SweepFolder(folder).run("toy-da-erm--b-0-0").path)
    said = headline(load_report(folder))
    assert mentions(said, "No trial of DA-ERM", "no finished ERM run") and "%" not in said


def test_many_missing_domains_do_not_flood_a_note(tmp_path: Path) -> None:
    names = tuple(f"d{i:02d}" for i in range(60))
    one = replace(job("erm", "x", 0), groups=(names,))
    SweepFolder(tmp_path).write(sweep_of([one]))
    (note,) = load_report(tmp_path).notes
    assert (
        mentions(note, "60 of 60", "ERM on toy d00 in trial 0", "and 56 more") and "d05" not in note
    )


def test_a_domain_without_rows_is_in_no_average(tmp_path: Path) -> None:
    scores = {key: {**row, "c": None} for key, row in SCORES.items()}
    report = load_report(make_sweep(tmp_path, scores))
    (found,) = report.results["training-domains"]
    assert found.columns == ("a", "b")
    assert found.rows[0].average == Estimate(pytest.approx(0.65), pytest.approx(0.05), 2)
    assert report.notes[0].startswith("toy: c ")


def test_ties_at_printed_precision_are_best_together(tmp_path: Path) -> None:
    scores = {
        ("erm", 0): {"a": 0.6001, "b": 0.7},
        ("da-erm", 0): {"a": 0.6004, "b": 0.5},
        ("coral", 0): {"a": 0.5994, "b": 0.699},
    }
    found = table(make_sweep(tmp_path, scores))
    assert found.best == {"a": {ERM, DA}, "b": {ERM}, "average": {ERM}}
    markdown = export.to_markdown(load_report(tmp_path)).splitlines()
    assert "| ERM | **60.0** | **70.0** | **65.0** |" in markdown
    assert "| DA-ERM | **60.0** | 50.0 | 55.0 |" in markdown
    assert r"| DA-ERM, wrong domain's embedding \[control\] | 10.0 | 10.0 | 10.0 |" in markdown


def seen(
    key: Key, top1: float, *, dataset: str = "x", data: str = "", trial: int = 0
) -> results.Observation:
    return results.Observation(dataset, key, data, trial, "a", top1)


def test_a_ceiling_is_never_the_best() -> None:
    oracle = Key("erm", "oracle-prior")
    found = [seen(ERM, 0.5), seen(DA, 0.6), seen(oracle, 0.9)]
    (one,) = results.compare(found, results.expected_of_runs(found))
    assert one.best == {"a": {DA}, "average": {DA}}
    assert [row.key for row in one.rows] == [ERM, DA, oracle]


def test_trials_of_several_data_sets_meet_whatever_their_data() -> None:
    gains = {("x", "d1"): 0.1, ("y", "d2"): 0.3}
    found = [
        seen(key, 0.5 + (gain if key == DA else 0), dataset=dataset, data=data, trial=7)
        for (dataset, data), gain in gains.items()
        for key in (ERM, DA)
    ]
    every = results.compare(found, results.expected_of_runs(found))[-1]
    assert row_of(every, DA).gain == Estimate(pytest.approx(0.2), None, 1)
    assert row_of(every, DA).average == Estimate(pytest.approx(0.7), None, 1)


def test_no_number_in_plain_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "r", "erm", 0, [score("a", math.nan), score("b", 0.5)])
    assert table(tmp_path).rows[0].average == Estimate(0.5, None, 1)
    assert table(tmp_path).columns == ("b",)


def test_only_the_chosen_runs_count(tmp_path: Path) -> None:
    jobs = [job("erm", "a", 0, draw) for draw in (0, 1)] + [job("erm", "a+b", 0)]
    SweepFolder(tmp_path).write(sweep_of(jobs))
    run_job(tmp_path, jobs[0], {"a": 0.9}, val=0.5)
    run_job(tmp_path, jobs[1], {"a": 0.4}, val=0.6)  # validation likes it better
    run_job(tmp_path, jobs[2], {"a": 0.0, "b": 0.0})
    stray = make_run(tmp_path / "embeddings" / "x", "erm", 0, [score("a", 0.0)])
    report = load_report(tmp_path)
    assert stray.exists() and len(report.runs) == 3 == len(find_runs(tmp_path))
    assert [(run.draw, run.groups) for run in report.runs] == [
        (0, (("a",),)), (1, (("a",),)), (0, (("a",), ("b",))),
    ]  # fmt: skip
    assert [len(own) for own in report.chosen.values()] == [1] * len(report.rules)
    means = {rule: report.results[rule][0].rows[0].cells["a"] for rule in report.rules}
    assert means["training-domains"] == Estimate(0.4, None, 1)
    assert means["oracle"] == Estimate(0.9, None, 1)
    assert [choice.draw for choice in report.choices["training-domains"]] == [1]
    oracle = report.limited(["oracle"])
    assert not any("differ" in note for note in sentences.notes(oracle))


def test_all_data_sets(tmp_path: Path) -> None:
    small = {("erm", 0): {"a": 0.4}, ("erm", 1): {"a": 0.5}, ("da-erm", 0): {"a": 0.5}}
    jobs = [job(a, d, t) for (a, t), row in SCORES.items() for d in row]
    more = [job(a, d, t, dataset="mini") for (a, t), row in small.items() for d in row]
    SweepFolder(tmp_path).write(sweep_of([*jobs, *more]))
    for one in [*jobs, *more]:
        (domain,) = one.groups[0]
        values = SCORES if one.dataset == "toy" else small
        run_job(tmp_path, one, {domain: values[one.algorithm, one.trial][domain]})
    report = load_report(tmp_path)
    toy, mini, every = report.results["training-domains"]
    assert (toy.dataset, mini.dataset) == ("toy", "mini")
    assert (every.dataset, every.columns) == ("all data sets", ("toy", "mini"))
    erm, da = row_of(every, ERM), row_of(every, DA)
    assert erm.cells["toy"] == row_of(toy, ERM).average
    # Trials: (0.6 + 0.4)/2 and (0.7 + 0.5)/2; a data set counts as one, however many domains.
    assert erm.average == Estimate(pytest.approx(0.55), pytest.approx(0.05), 2)
    assert da.average == Estimate(pytest.approx(0.58), None, 1)  # trial 1 lacks mini
    assert da.difference is not None and da.difference.pairs == 5
    # Trial 0: mean of +0.06 and +0.10; trial 1: +0.04.
    assert da.gain == Estimate(pytest.approx(0.06), pytest.approx(0.02), 2)
    assert (erm.trials, erm.runs, erm.domains) == (2, 6, 3)  # trials, not those of each data set
    # Domains of one name are kept apart.
    assert list(da.difference.changes) == ["mini: a", "toy: a", "toy: b"]
    assert erm.worst == Estimate(pytest.approx(0.45), pytest.approx(0.05), 2)
    # What a sentence says is what the table over all data sets says.
    assert report.overall == every


def test_variants_are_compared_with_their_own_baseline(tmp_path: Path) -> None:
    jobs = [
        job("erm", "a", 0), job("erm", "a", 0, variant="f = 0.1"),
        *(job("da-erm", "a", 0, variant=f"f = {f}") for f in ("0.1", "0.05")),
    ]  # fmt: skip
    axis = Axis(label="f", places={"f = 0.1": 0.1, "f = 0.05": 0.05})
    SweepFolder(tmp_path).write(sweep_of(jobs, axis=axis))
    for one, top1 in zip(jobs, (0.5, 0.6, 0.7, 0.8), strict=True):
        run_job(tmp_path, one, {"a": top1})
    report = load_report(tmp_path)
    found = report.results["training-domains"][0]
    labels = [row.key.label for row in found.rows if row.key.kind == "method"]
    assert labels == ["ERM", "DA-ERM (f = 0.05)", "DA-ERM (f = 0.1)", "ERM (f = 0.1)"]
    gains = {row.key.label: row.gain.mean for row in found.rows if row.gain}
    assert gains["DA-ERM (f = 0.1)"] == pytest.approx(0.1)  # to ERM (f = 0.1)
    assert gains["DA-ERM (f = 0.05)"] == pytest.approx(0.3)  # to ERM: no other has f = 0.05
    versus = row_of(found, Key("da-erm", "embedding", "f = 0.1")).difference
    assert versus is not None and versus.against == Key("erm", "none", "f = 0.1")


def ablation(folder: Path, scores: Mapping[tuple[str, str], tuple[float, ...]], axis: Axis) -> Path:
    """(algorithm, variant) -> top1 of each trial on `a`; a data set for each numbered variant."""
    jobs = []
    for (name, variant), found in scores.items():
        dataset = "toy" if axis.places[variant] is None else f"toy-{variant}"
        for trial, top1 in enumerate(found):
            jobs.append(job(name, "a", trial, variant=variant, dataset=dataset))
            run_job(folder, jobs[-1], {"a": top1})
    SweepFolder(folder).write(sweep_of(jobs, axis=axis))
    return folder


NUMBERS = {
    ("erm", "12"): (0.60, 0.61, 0.62),
    ("erm", "3"): (0.50, 0.52, 0.54),
    ("da-erm", "3"): (0.52, 0.53, 0.57),
    ("da-erm", "12"): (0.70, 0.74, 0.75),
}


def test_holm_is_over_all_values_of_an_ablation(tmp_path: Path) -> None:
    axis = Axis(label="domains N", places={"3": 3.0, "12": 12.0})
    (found,) = load_report(ablation(tmp_path, NUMBERS, axis)).results["training-domains"]
    raw, fixed = {}, {}
    for variant in ("3", "12"):
        test = row_of(found, Key("da-erm", "embedding", variant)).difference
        assert test is not None
        raw[variant], fixed[variant] = test.p, test.p_holm
        mine, theirs = (NUMBERS[name, variant] for name in ("da-erm", "erm"))
        assert test.p == pytest.approx(stats.ttest_rel(mine, theirs).pvalue)
    low, high = sorted(raw.values())  # type: ignore[type-var]
    assert sorted(fixed.values()) == pytest.approx([2 * low, max(high, 2 * low)])  # type: ignore[type-var]
    assert "at the same value" in export.tests_caption(found)


def test_plain_models_under_one_value_are_the_baseline_of_all(tmp_path: Path) -> None:
    scores = {
        ("erm", "none"): (0.50, 0.52),
        ("da-erm", "mean"): (0.54, 0.58),
        ("da-erm", "prototype"): (0.50, 0.50),
    }
    axis = Axis(label="embedding", places=dict.fromkeys(("none", "mean", "prototype")))
    report = load_report(ablation(tmp_path, scores, axis))
    (found,) = report.results["training-domains"]
    gains = {row.key.variant: row.gain for row in found.rows if row.key.kind == "method"}
    assert gains["none"] is None and found.baseline.label == "ERM (none)"
    assert gains["mean"] is not None and gains["mean"].mean == pytest.approx(0.05)
    assert any("−1.0 ± 1.0 points" in sentence for sentence in sentences.findings(found))


def test_rules_that_choose_the_same_runs(tmp_path: Path, sweep: Path) -> None:
    same = load_report(sweep)
    assert same.rules == ("training-domains",)
    assert same.notes == ("Selection by oracle chooses the same runs.",)
    assert "Models selected by oracle" in export.to_latex(same.limited(["oracle"]))
    jobs = [job("erm", "a", 0, draw) for draw in (0, 1)]
    SweepFolder(tmp_path).write(sweep_of(jobs))
    for one, top1, val in zip(jobs, (0.5, 0.6), (0.9, 0.8), strict=True):
        run_job(tmp_path, one, {"a": top1}, val)
    assert load_report(tmp_path).rules == ("training-domains", "oracle")


def test_runs_that_differ_in_settings_are_not_pooled(tmp_path: Path) -> None:
    for seed in (0, 1):
        for backbone, top1 in (("small-cnn", 0.4), ("mlp", 0.6)):
            folder = tmp_path / f"{backbone}-{seed}"
            settings = {"model": {"backbone": backbone}, "train": {"steps": 5 + seed}}
            make_run(folder, "erm", seed, [score("a", top1)], settings=settings)
    make_run(tmp_path / "da", "da-erm", 0, [score("a", 0.7, "embedding")])
    report = load_report(tmp_path)
    lines = {line.key.label: line.average for line in report.overall.lines}
    assert lines == {
        "ERM (backbone=mlp)": Estimate(0.6, 0.0, 2),
        "ERM (backbone=small-cnn)": Estimate(0.4, 0.0, 2),
        "DA-ERM": Estimate(0.7, None, 1),
    }
    assert [note for note in sentences.notes(report) if "differ in more" in note] == [
        "The runs of ERM (backbone=mlp) differ in more than the seed: train.steps.",
        "The runs of ERM (backbone=small-cnn) differ in more than the seed: train.steps.",
    ]
    assert [row.key.label for row in report.results[""][0].rows] == [
        "DA-ERM", "ERM (backbone=mlp)", "ERM (backbone=small-cnn)",
    ]  # fmt: skip
    da = row_of(report.results[""][0], DA)
    assert da.gain is None  # neither ERM is the one to compare with


def test_settings_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for number, lr in enumerate((0.1, None)):
        settings = {"train": {"lr": lr}, "embedding": {"lr": number}, "w": f"/far/away/{number}.pt"}
        make_run(tmp_path / str(number), "erm", 0, [score("a", 0.5)], settings=settings)
    assert [run.variant for run in runs.name_variants(find_runs(tmp_path))] == [
        "embedding.lr=0, train.lr=0.1, w=0.pt",
        "embedding.lr=1, train.lr=unset, w=1.pt",
    ]


def test_a_test_split_speaks_for_a_training_domain(tmp_path: Path) -> None:
    train = score("t1", 0.9, role="train")
    both = [replace(train, split="test", top1=0.6), replace(train, split="val")]
    make_run(tmp_path / "r", "erm", 0, [score("a", 0.5), *both])
    assert table(tmp_path).rows[0].seen == Estimate(0.6, None, 1)


def test_plain_runs_have_a_table_too(tmp_path: Path) -> None:
    for seed, top1 in ((0, {"a": 0.5, "b": 0.7}), (1, {"a": 0.6})):
        scores = [score(domain, value) for domain, value in top1.items()]
        make_run(tmp_path / f"erm-{seed}", "erm", seed, scores)
    # A data set of its own, with domains of its own, is complete in itself.
    make_run(tmp_path / "erm-2", "erm", 2, [score("c", 0.9)], data="d2")
    report = load_report(tmp_path, title="Mine")
    assert (report.title, report.rules, report.sweep) == ("Mine", ("",), None)
    (found,) = report.results[""]
    assert found.columns == ("a", "b", "c") and found.dataset == "toy"
    assert found.rows[0].average == Estimate(pytest.approx(0.75), pytest.approx(0.15), 2)
    (note,) = report.notes
    assert mentions(note, "1 of 5", "ERM on toy b in seed 1")


def test_failures_waiting_and_labels(tmp_path: Path) -> None:
    phi = EmbeddingJob(id="phi", dataset="toy", config={})
    folder = make_sweep(tmp_path, embeddings=(phi,))
    lost = "toy-da-erm--b-0-1"
    forget(SweepFolder(folder).run(lost).path)
    for name in (lost, "toy-erm--a-0-0", "phi"):  # the second succeeded since
        failure = Failure(job=name, error="Boom", traceback="…", time="now", attempts=2)
        SweepFolder(folder).write_failure(failure)
    (folder / "labels").mkdir()
    (folder / "labels" / "x.json").write_text(
        json.dumps(
            {
                "name": "toy",
                "classes": ["cat", "dog"],
                "domains": {"a": {"role": None, "counts": [3, 4]}},
            }
        )
    )
    (folder / "labels" / "y.json").write_text("{")
    report = load_report(folder)
    assert [failure.job for failure in report.failures] == ["phi", lost]
    assert report.waiting == 0
    domains = {"a": DomainLabels(None, (3, 4))}
    assert report.labels == (LabelCounts("toy", ("cat", "dog"), domains),)


def test_a_sweep_without_a_finished_run(tmp_path: Path) -> None:
    SweepFolder(tmp_path).write(
        sweep_of([job("erm", "a", 0), job("erm", "b", 0)], rule="leave-one-out")
    )
    report = load_report(tmp_path)
    assert report.rules == ("leave-one-out",) and report.waiting == 2
    (found,) = report.results["leave-one-out"]
    assert found.rows == (results.Row(ERM, {"a": None, "b": None}),)
    assert "No run is finished" in headline(report)


def test_a_damaged_run_is_not_counted_but_another_schema_is_refused(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path)
    records = SweepFolder(folder).run("toy-erm--a-0-0").path / "records.jsonl"
    whole = records.read_text()
    records.write_text(whole + "{}\n")
    report = load_report(folder)
    (damaged,) = [run for run in report.runs if run.problem]
    assert damaged.name == "runs/toy-erm--a-0-0" and damaged.algorithm == "erm"
    assert report.waiting == 0
    assert row_of(report.results["training-domains"][0], ERM).cells["a"] == Estimate(0.6, None, 1)
    records.write_text(whole.replace('"format": 1', '"format": 7'))
    with pytest.raises(SchemaError):
        load_report(folder)
    with pytest.raises(SchemaError):
        find_runs(folder)


def test_what_cannot_be_reported(tmp_path: Path) -> None:
    with refused(RunError, tmp_path / "gone"):
        load_report(tmp_path / "gone")
    with refused(RunError, tmp_path, "run.json", "acclimate train"):
        load_report(tmp_path)
    make_sweep(tmp_path / "one")
    with refused(RunError, tmp_path, "sweeps: one"):
        load_report(tmp_path)
    with refused(UnknownName, tmp_path / "one", "da-emr", "'da-erm'"):
        load_report(tmp_path / "one", baseline=Key.usual("da-emr"))
    with refused(UnknownName, "oracel", "'oracle'"):
        load_report(tmp_path / "one").limited(["oracel"])
    with refused(ConfigError, "t.docx", ".md, .tex, .csv, .json"):
        export.format_of(Path("t.docx"))
    (tmp_path / "one" / "sweep.json").write_text("{")
    with refused(SweepError, tmp_path / "one" / "sweep.json", "damaged"):
        load_report(tmp_path / "one")


def test_runs_beside_a_sweep(tmp_path: Path) -> None:
    make_sweep(tmp_path / "one")
    make_run(tmp_path / "run", "erm", 0, [score("a", 0.5)])
    report = load_report(tmp_path)
    assert [run.name for run in report.runs] == ["run"]
    assert report.notes == ("Sweeps below this folder are left out: one.",)


def balanced(text: str) -> None:
    """As far as a reader without LaTeX can tell: groups, environments, columns, no bare marks."""
    plain = re.sub(r"\\\\|\\[&%$#_{}]", "", "\n".join(text.splitlines()[1:]))
    depth = 0
    for mark in plain:
        depth += {"{": 1, "}": -1}.get(mark, 0)
        assert depth >= 0
    assert depth == 0
    marks = re.findall(r"(begin|end)\{(\w+)\}", text)
    whole = [("begin", "table"), ("begin", "tabular"), ("end", "tabular"), ("end", "table")]
    assert marks == 2 * whole  # the results, and the differences
    for part in text.split(r"\begin{tabular}")[1:]:
        columns = re.match(r"\{(l?c*)\}", part)
        rows = [line for line in part.splitlines() if line.endswith(r"\\")]
        assert columns and rows
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(columns[1])}
    assert plain.count("$") % 2 == 0
    assert not re.search(r"[%#±−–√]", plain)
    outside = re.sub(r"\$[^$]*\$", "", plain)
    assert not re.search(r"[_^<>|~]", outside.replace("tab:", ""))


def test_latex(tmp_path: Path) -> None:
    odd = "50%_of $x & {y}^~<|>\\#"
    scores = {
        ("erm", 0): {odd: 0.5, "b": 0.7},
        ("erm", 1): {odd: 0.6, "b": 0.8},
        ("da-erm", 0): {odd: 0.6, "b": 0.7},
    }
    report = load_report(make_sweep(tmp_path, scores))
    text = export.to_latex(report.limited(["training-domains"]))
    balanced(text)
    lines = text.splitlines()
    header = next(line for line in lines if line.startswith("Method"))
    assert header == (
        r"Method & 50\%\_of \$x \& \{y\}\textasciicircum{}\textasciitilde{}\textless{}"
        r"\textbar{}\textgreater{}\textbackslash{}\# & b & Average \\"
    )
    assert r"ERM & 55.0 $\pm$ 5.0 & \textbf{75.0} $\pm$ 5.0 & \textbf{65.0} $\pm$ 5.0 \\" in lines
    assert r"DA-ERM & \textbf{60.0} & 70.0 & \textbf{65.0} \\" in lines
    assert lines.count(r"\midrule") == 4  # under each header, and before each control
    caption, tests = [line for line in lines if line.startswith(r"\caption")]
    assert mentions(caption, "toy", "training-domains", r"$\pm$", r"$\surd$n", "Bold")
    assert mentions(tests, "Holm", "Differences to ERM")
    assert r"\label{tab:toy-training-domains}" in lines
    assert r"DA-ERM & +5.0 \\" in lines


def test_csv_and_json_hold_everything(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path)
    forget(SweepFolder(folder).run("toy-da-erm--b-0-0").path)
    forget(SweepFolder(folder).run("toy-da-erm--b-0-1").path)
    report = load_report(folder)
    rows = list(csv.DictReader(io.StringIO(export.to_csv(report))))
    assert list(rows[0]) == [
        "rule", "dataset", "algorithm", "method", "variant", "column", "mean", "se", "n",
        "published", "metric",
    ]  # fmt: skip
    assert len(rows) == 3 * 3  # methods, columns with the average
    values = {(r["rule"], r["algorithm"], r["method"], r["column"]): r for r in rows}
    erm = values["training-domains", "erm", "none", "average"]
    assert float(erm["mean"]) == pytest.approx(0.65) and erm["n"] == "2"
    missing = values["training-domains", "da-erm", "embedding", "b"]
    assert (missing["mean"], missing["se"], missing["n"]) == ("", "", "0")
    stored = json.loads(json.dumps(export.to_dict(report.limited(["oracle"])), allow_nan=False))
    (found,) = stored["results"]
    assert stored["rules"] == ["oracle"] and list(stored["choices"]) == ["oracle"]
    assert found["rows"][0]["cells"]["a"]["mean"] == pytest.approx(0.55)
    assert found["rows"][1]["cells"]["b"] is None and found["rows"][1]["average"] is None
    assert found["rows"][1]["best"] == ["a"]
    assert stored["waiting"] == 2 and stored["failures"] == []


@pytest.mark.parametrize("domains", [4, 10, 60])
def test_text_fits_the_terminal(tmp_path: Path, domains: int) -> None:
    names = [f"domain {i:02}" for i in range(domains)]
    for seed in (0, 1):
        scores = [score(name, 0.5 + 0.1 * seed) for name in names]
        make_run(tmp_path / f"e{seed}", "erm", seed, scores)
        adapted = [replace(s, method="wrong-embedding", top1=0.2) for s in scores]
        make_run(tmp_path / f"d{seed}", "da-erm", seed, adapted)
    text = tables.results_grid(table(tmp_path)).to_text(width=100)
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("Average") == 1
    if domains < 60:
        assert all(text.count(name) == 1 for name in names)
    else:
        assert text.endswith("(60 columns are left out here)\n")


def test_the_best_has_a_star(sweep: Path) -> None:
    assert tables.results_grid(table(sweep)).to_text().splitlines()[2:4] == [
        "ERM                                          55.0 ± 5.0   75.0 ± 5.0   65.0 ± 5.0",
        "DA-ERM                                      *61.0 ± 1.0  *79.0 ± 7.0  *70.0 ± 4.0",
    ]


def test_published_rows_stand_beside_and_are_never_best(tmp_path: Path) -> None:
    report = with_published(load_report(make_sweep(tmp_path, dataset="PACS")))
    for rule in report.rules:
        (found,) = report.results[rule]
        every = [row for row in found.rows if row.published]
        assert len(every) == 32 and all(row.difference is None for row in every)
        later = {row.key.label: row for row in every if row.key.variant}
        assert later["ERM (DomainBed 2021)"].average == Estimate(
            pytest.approx(0.855), pytest.approx(0.002), 3
        )
        assert later["CORAL+SWAD (2021)"].average == Estimate(pytest.approx(0.883), None, 3)
        assert "Shu et al., ICML 2023, CLIP ViT-B/16" in later["CLIPood (2023)"].note
        rows = [row for row in every if not row.key.variant]
        assert len(rows) == 11
        best = max((row for row in rows if row.average), key=lambda row: row.average.mean)
        assert best.key == Key.usual("da-coral")
        assert best.average == Estimate(pytest.approx(0.845), pytest.approx(0.007), 8)
        assert set(best.cells.values()) == {None}
        assert best.note.startswith("published by Dubey et al., CVPR 2021, Table 1 (leave-one-out)")
        assert found.best["average"] == {DA}
        grid = tables.results_grid(found)
        assert [r[0].text for r in grid.rows if any(c.best for c in r)] == ["DA-ERM"]
    text = export.to_latex(report.limited(["oracle"]))
    balanced(text)
    assert r"DA-CORAL$^\dagger$ & -- & -- & 84.5 $\pm$ 0.7 \\" in text
    assert r"DA-ERM$^\dagger$ & -- & -- & 84.1 $\pm$ 0.5 \\" in text  # not bold, as ours is
    source = "Published by Dubey et al., CVPR 2021, Table 1 (leave-one-out), not measured here."
    assert rf" $^\dagger${source}" in text
    assert source in export.to_markdown(report)
    rows = list(csv.DictReader(io.StringIO(export.to_csv(report))))
    assert sum(row["published"] == "true" for row in rows) == 32 * 3


def test_published_averages_stand_for_their_five_data_sets_only(tmp_path: Path) -> None:
    small = ("VLCS", "PACS", "OfficeHome", "DomainNet", "TerraIncognita")
    for names in (small, small[:2]):
        folder = tmp_path / str(len(names))
        jobs = [job("erm", "a", 0, dataset=name) for name in names]
        SweepFolder(folder).write(sweep_of(jobs))
        for one in jobs:
            run_job(folder, one, {"a": 0.5})
        every = with_published(load_report(folder)).results["training-domains"][-1]
        row = next(row for row in every.rows if row.published and row.key == ERM)
        assert every.dataset == results.ALL
        assert row.cells["PACS"] == Estimate(pytest.approx(0.832), pytest.approx(0.007), 8)
        whole = Estimate(pytest.approx(0.629), pytest.approx(0.006), 8)
        assert row.average == (whole if len(names) == 5 else None)


def test_nothing_is_published_on_toys(sweep: Path) -> None:
    report = with_published(load_report(sweep))
    assert report.notes[-1] == "No published rows for toy."


def domainbed_run(folder: Path, name: str, accuracy: float, *, env: int, trial: int) -> None:
    """One run of DomainBed on PACS, with two checkpoints; validation likes the second."""
    lines = []
    for step, shift in ((0, 0.2), (100, 0.0)):
        line: dict[str, object] = {
            "args": {
                "dataset": "PACS", "algorithm": name, "test_envs": [env], "hparams_seed": 0,
                "trial_seed": trial,
            },
            "step": step,
        }  # fmt: skip
        for other in range(4):
            line[f"env{other}_in_acc"] = accuracy + shift if other == env else 0.9
            line[f"env{other}_out_acc"] = 0.8 - shift
        lines.append(json.dumps(line))
    run = folder / f"{name}-{env}-{trial}"
    run.mkdir(parents=True)
    (run / "results.jsonl").write_text("\n".join(lines) + "\n")


def test_a_domainbed_sweep_end_to_end(tmp_path: Path) -> None:
    for trial in (0, 1):
        for env in range(4):
            domainbed_run(tmp_path, "ERM", 0.5 + 0.1 * trial, env=env, trial=trial)
            if (env, trial) != (3, 1):
                domainbed_run(tmp_path, "ANDMask", 0.52 + 0.02 * env, env=env, trial=trial)
    (tmp_path / "empty").mkdir()
    report = load_domainbed(tmp_path)
    assert report.rules == ("training-domains", "oracle") and report.runs == ()
    (found,) = report.results["training-domains"]
    assert found.dataset == "PACS"
    assert found.columns == ("art_painting", "cartoon", "photo", "sketch")
    erm, mask = found.rows
    assert erm.average == Estimate(pytest.approx(0.55), pytest.approx(0.05), 2)
    assert mask.key.label == "ANDMask"
    assert mask.average == Estimate(pytest.approx(0.55), None, 1)  # trial 1 lacks sketch
    assert mask.difference is not None and mask.difference.pairs == 7
    assert (mask.key, mask.trials, mask.runs) == (Key("ANDMask", "none"), 2, 2)
    _, empty, lacking = report.notes  # what oracle lacks as well is said once
    assert "empty" in empty
    assert mentions(lacking, "training-domains", "1 of 16", "ANDMask on PACS sketch in trial 1")
    with_rows = with_published(load_domainbed(tmp_path, baseline=Key.usual("ANDMask")))
    assert sum(row.published for row in with_rows.results["oracle"][0].rows) == 32
    assert with_rows.results["oracle"][0].rows[0].key == Key("ANDMask", "none")


def test_domainbed_folders_are_recognised_and_sorted_by_name(tmp_path: Path) -> None:
    for name in ("SagNet", "CORAL", "ERM"):
        domainbed_run(tmp_path, name, 0.5, env=0, trial=0)
    with refused(RunError, tmp_path, "--from-domainbed"):
        load_report(tmp_path)
    (found, *_) = load_domainbed(tmp_path).results["training-domains"]
    assert [row.key.label for row in found.rows] == ["ERM", "CORAL", "SagNet"]


def test_a_domainbed_trial_without_any_number_is_named(tmp_path: Path) -> None:
    domainbed_run(tmp_path, "ERM", 0.5, env=0, trial=0)
    domainbed_run(tmp_path, "MMD", math.nan, env=0, trial=0)
    report = load_domainbed(tmp_path)
    assert mentions(report.notes[1], "training-domains", "MMD on PACS art_painting in trial 0")
    assert row_of(report.results["oracle"][0], Key("mmd", "none")).average is None


@pytest.mark.slow
def test_the_command(sweep: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"t.{ending}" for ending in ("md", "tex", "csv", "json")]
    wanted = [part for path in files for part in ("--table", path)]
    forget(SweepFolder(sweep).run("toy-da-erm--b-0-1").path)
    lost = Failure(job="toy-da-erm--b-0-1", error="Boom", traceback="", time="", attempts=1)
    SweepFolder(sweep).write_failure(lost)
    shown = command("report", sweep, *wanted, "--figures", tmp_path / "figures", "--format", "svg")
    tables_shown = shown.partition("* the best")[0]
    assert max(map(len, tables_shown.splitlines())) <= 100
    for part in (
        "toy, selected by training-domains\n",
        "Difference to ERM",
        "+4.0 ± 2.0",  # trial 0: +10 and +2; trial 1: +2
        "* the best of a column.",
        "failed: toy-da-erm--b-0-1: Boom",
        "note: Selection by oracle chooses the same runs.",
        f"report: {sweep}/report.html",
        f"{tmp_path}/t.tex",
    ):
        assert part in shown
    assert all(path.stat().st_size for path in files)
    assert [path.suffix for path in (tmp_path / "figures").iterdir()].count(".svg") > 0
    assert "<html" in (sweep / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_command_as_json_with_one_rule(sweep: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    stored = json.loads(
        command(
            "report", sweep, "--rule", "oracle", "--out", page, "--baseline", "da-erm", "--json"
        )
    )
    assert stored["rules"] == ["oracle"] and stored["report"] == str(page)
    assert stored["baseline"] == {"algorithm": "da-erm", "method": "embedding", "variant": ""}
    assert stored["headline"].startswith("On 2 domains never seen in training, ERM scores 65.0 %")


def test_the_command_reads_domainbed(tmp_path: Path) -> None:
    domainbed_run(tmp_path, "ERM", 0.5, env=0, trial=0)
    shown = command("report", "--from-domainbed", tmp_path, "--published")
    assert "PACS, selected by training-domains" in shown
    assert "DA-CORAL [published]" in shown


MORE: Scores = {("coral", 0): {"a": 0.55, "b": 0.75}, ("coral", 1): {"a": 0.65, "b": 0.85}}


def test_two_sweeps_are_one(sweep: Path, tmp_path: Path) -> None:
    """Tests are those of one sweep of all: pairs by trial, and Holm over every method."""
    other = make_sweep(tmp_path / "more", MORE, command="acclimate sweep toy", left_out=("x: y",))
    found = load_merged([sweep, other])
    whole = load_report(make_sweep(tmp_path / "whole", {**SCORES, **MORE}))
    assert found.rules == whole.rules
    for mine, theirs in zip(found.overall.rows, whole.overall.rows, strict=True):
        assert mine == theirs
    assert CORAL in {row.key for row in found.overall.contenders if row.gain}
    assert found.sweep is not None and found.sweep.command == "acclimate sweep toy"
    assert "x: y." in found.notes and found.waiting == 0
    assert {run.name.split("/")[0] for run in found.runs} == {"runs", "more"}
    assert load_merged([sweep]).results == load_report(sweep).results


def test_what_both_ran_counts_once(sweep: Path, tmp_path: Path) -> None:
    again = make_sweep(tmp_path / "again")
    forget(SweepFolder(sweep).run("toy-erm--a-0-0").path)  # unfinished here, finished there
    found = load_merged([sweep, again])
    assert found.results == load_report(again).results
    assert len(found.runs) == len(SCORES) * 2 and found.waiting == 0


def test_other_settings_are_rows_of_their_own(sweep: Path, tmp_path: Path) -> None:
    folder = tmp_path / "wide"
    jobs = [replace(job("erm", d, t), id=f"wide-{d}-{t}") for d in DOMAINS for t in (0, 1)]
    SweepFolder(folder).write(sweep_of(jobs))
    for one in jobs:
        run_job(folder, one, {one.groups[0][0]: 0.9})
    found = load_merged([sweep, folder]).overall
    means = {row.key.label: row.average.mean for row in found.lines if row.key.kind == "method"}
    assert means == pytest.approx({"ERM": 0.65, "DA-ERM": 0.7, "ERM (wide)": 0.9})
    (wide,) = (row for row in found.lines if row.key.variant == "wide")
    assert wide.gain is not None and wide.gain.mean == pytest.approx(0.25)


def test_sweeps_that_are_not_of_one_kind(sweep: Path, tmp_path: Path) -> None:
    place = tmp_path / "data"
    made = sweep_of([job("erm", "a", 0)])
    data = (replace(made.datasets[0], digest="other"),)
    SweepFolder(place).write(replace(made, datasets=data))
    with refused(SweepError, place, "'toy'"):
        load_merged([sweep, place])
    place = make_sweep(tmp_path / "rule", rule="oracle")
    with refused(SweepError, place, "rule", "oracle", "training-domains"):
        load_merged([sweep, place])
    with refused(SweepError, tmp_path / "none"):
        load_merged([sweep, tmp_path / "none"])


def test_merged_by_the_command_line(sweep: Path, tmp_path: Path) -> None:
    other = make_sweep(tmp_path / "more", MORE)
    with refused(ConfigError, "--merge", 2):
        command("report", sweep, other)
    with refused(ConfigError, "--merge"):
        command("report", sweep, "--merge", "--from-domainbed")
    said = command("report", "--merge", sweep, other)
    assert f"report: {sweep / 'merged.html'}" in said and "CORAL" in said
    assert not (sweep / "report.html").exists()
