"""Test-time methods as rows of a sweep: one run serves them all, and each chooses for itself."""

from pathlib import Path
from typing import Any

import pytest

from acclimate.config import RunConfig, from_dict, nested
from acclimate.core.errors import AcclimateError, ConfigError
from acclimate.data.manifest import Manifest
from acclimate.records.folder import RunFolder
from acclimate.rehearse.training import train
from acclimate.report.export import to_dict
from acclimate.report.sentences import notes
from acclimate.results.load import load_report
from acclimate.results.protocol import Sweep
from acclimate.results.runs import Key
from acclimate.results.sweep_folder import SweepFolder
from acclimate.runs.evaluate import evaluate_run
from acclimate.sweep.contenders import contenders
from acclimate.sweep.definition import gather
from acclimate.sweep.jobs import define
from fixtures import sweeps
from fixtures.errors import refused
from fixtures.run_folders import make_run, score
from fixtures.settings import TINY

METHODS = ("none", "prior", "embedding+prior")


def asked(**changes: Any) -> Any:
    flags = {"data": ("sites",), "settings": TINY, "trials": 1, "methods": METHODS}
    return gather(None, {**flags, **changes})


@pytest.fixture(scope="module")
def swept(features: Manifest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sweep]:
    """One unseen domain, two draws, chosen by a validation domain; trained."""
    config = asked(test_domains=("site-0",), val_domains=("site-2",), draws=2)
    folder, sweep = tmp_path_factory.mktemp("sweep"), define(config, {"sites": features})
    SweepFolder(folder).write(sweep)
    for job in sweep.jobs:
        run = from_dict(RunConfig, job.config, where=job.id)
        train(run, features, SweepFolder(folder).run(job.id).path, device="cpu")
    return folder, sweep


def test_each_algorithm_gets_the_methods_that_it_can_be_used_by(features: Manifest) -> None:
    plain, adaptive = contenders(asked(), {})
    assert plain.settings["adapt"]["methods"] == ["prior"]  # "none" is how it is used anyway
    assert adaptive.settings["adapt"]["methods"] == ["none", "prior", "embedding+prior"]
    jobs = define(asked(), {"sites": features}).jobs
    assert len(jobs) == len(define(asked(methods=()), {"sites": features}).jobs)
    assert {job.methods for job in jobs} == {
        ("none", "prior"),
        ("embedding", "none", "prior", "embedding+prior"),
    }


@pytest.mark.parametrize(
    ("methods", "algorithms", "facts"),
    [
        (("priro",), ("erm",), ("'priro'", "'prior'")),
        (("prior", "prior"), ("erm",), ("methods", "'prior'")),
        (("embedding+prior",), ("erm", "coral"), ("'embedding+prior'", "da-erm")),
        (("bn",), ("erm",), ("'bn'", "prior", "t3a")),
    ],
)
def test_methods_that_could_not_be_scored_are_refused_before_any_run(
    features: Manifest,
    methods: tuple[str, ...],
    algorithms: tuple[str, ...],
    facts: tuple[str, ...],
) -> None:
    with refused(AcclimateError, *facts):
        define(asked(methods=methods, algorithms=algorithms), {"sites": features})


def test_a_run_on_its_own_refuses_them_before_it_trains(features: Manifest, tmp_path: Path) -> None:
    config = from_dict(
        RunConfig, {"algorithm": "erm", "adapt": {"methods": ["embedding"]}}, where=""
    )
    with refused(ConfigError, "erm", "embedding"):
        train(config, features, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_every_method_has_a_row_with_its_own_choice_and_test(swept: tuple[Path, Sweep]) -> None:
    folder, _ = swept
    report = load_report(folder)
    (results,) = report.tables
    labels = {row.key.label: row for row in results.rows if row.key.kind == "method"}
    assert {"ERM", "ERM, prior", "DA-ERM", "DA-ERM, not adapted", "DA-ERM, embedding+prior"} <= {
        *labels
    }
    assert all(row.difference for name, row in labels.items() if name != "ERM")
    # As it is meant, before other methods.
    assert report.overall.contenders[0].key.label == "DA-ERM"
    assert not [note for note in notes(report) if "adapt.methods" in note]
    values = to_dict(report)
    chosen = {(one["algorithm"], one["method"]) for one in values["choices"]["validation-domains"]}
    assert ("da-erm", "embedding+prior") in chosen and ("erm", "prior") in chosen


def test_evaluating_such_a_run_scores_by_its_methods_again(
    swept: tuple[Path, Sweep], features: Manifest
) -> None:
    folder, sweep = swept
    job = next(job for job in sweep.jobs if job.algorithm == "da-erm")
    run = SweepFolder(folder).run(job.id)
    again = evaluate_run(run.path, features, device="cpu").scores
    was = [score for score in run.records().scores if score.moment == "final"]
    assert {(s.domain, s.split, s.method): s.top1 for s in again} == {
        (s.domain, s.split, s.method): s.top1 for s in was
    }


@pytest.mark.parametrize(("points", "scored"), [(1, False), (2, True)])
def test_too_few_images_for_a_method_are_a_dash_and_no_failure(
    tree: Path, tmp_path: Path, points: int, scored: bool
) -> None:
    changes = {"adapt.methods": ["tent", "prior"], "adapt.points": points, "train.steps": 1}
    values = {**TINY, **changes, "algorithm": "erm", "test_domains": ["west"]}
    config = from_dict(RunConfig, nested(values), where="")
    train(config, Manifest.open(tree), tmp_path / "run", device="cpu")
    found = {s.method: s for s in RunFolder(tmp_path / "run").records().scores if s.role == "test"}
    assert found["prior"].top1 is not None and found["prior"].adapt_n == points
    assert (found["tent"].top1 is not None) is scored and found["tent"].adapt_n == points


def test_a_run_counts_for_the_rows_that_chose_it(tmp_path: Path) -> None:
    """The plain row takes draw 0 and prior takes draw 1; the ceiling goes with the plain row."""
    accuracies = {
        0: {"none": (0.9, 0.1), "prior": (0.1, 0.2), "oracle-prior": (0.0, 0.95)},
        1: {"none": (0.5, 0.3), "prior": (0.8, 0.4), "oracle-prior": (0.0, 0.15)},
    }
    jobs = []
    for draw, methods in accuracies.items():
        settings = {"adapt": {"methods": ["prior"]}, "test_domains": ["t"], "algorithm": "erm"}
        config = from_dict(RunConfig, settings, where="")
        jobs.append(sweeps.job(f"erm-{draw}", config, draw=draw))
        scores = [
            score(domain, top1, method, role)
            for method, both in methods.items()
            for domain, role, top1 in zip(("v", "t"), ("val", "test"), both, strict=True)
        ]
        make_run(SweepFolder(tmp_path).run(f"erm-{draw}").path, "erm", 0, scores, settings=settings)
    SweepFolder(tmp_path).write(sweeps.sweep_of(jobs, digest="d1", rule="validation-domains"))
    report = load_report(tmp_path)
    (results,) = report.tables
    found = {row.key.method: row.cells["t"] for row in results.rows}
    assert {name: cell and cell.mean for name, cell in found.items()} == {
        "none": 0.1,
        "prior": 0.4,
        "oracle-prior": 0.95,
    }
    line = report.overall.row(Key("erm", "prior"))
    assert line is not None and (line.runs, line.domains) == (1, 1)
    assert line.average is not None and line.average.mean == 0.4
    assert {one.method: one.draw for one in report.choices["validation-domains"]} == {
        "none": 0,
        "prior": 1,
    }
