"""Runs: resumed after any interruption, refused when changed, and honest about what they did."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from acclimate.config import RunConfig
from acclimate.core.errors import (
    ConfigError,
    ManifestError,
    RunBusy,
    RunError,
    TooManyUnreadable,
    UnknownName,
)
from acclimate.core.tensors import save_tensors
from acclimate.data.manifest import Manifest
from acclimate.learn.model import Trained
from acclimate.learn.models import Predictor
from acclimate.records.folder import RunFolder
from acclimate.records.records import Score
from acclimate.rehearse.training import train
from acclimate.runs import session
from acclimate.runs.plan import make_plan
from fixtures.errors import refused
from fixtures.interruption import Killed, assert_same_weights, count_writes, stable
from fixtures.roles import with_roles
from fixtures.settings import TINY, as_flags

Tiny = Callable[..., RunConfig]
Fit = Callable[..., Path]


def final_scores(run: Path) -> list[Score]:
    return [score for score in RunFolder(run).records().scores if score.moment == "final"]


@pytest.mark.slow
def test_interrupted_at_every_write_it_resumes_to_the_same_weights(
    features: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("da-erm", test_domains=["site-4"])
    undisturbed = tmp_path / "undisturbed"
    writes = count_writes(monkeypatch)
    train(config, features, undisturbed)
    total = len(writes)
    assert total > 20
    for fatal in range(1, total + 1):
        run = tmp_path / f"killed-{fatal}"
        with monkeypatch.context() as patch:
            count_writes(patch, die_at=fatal)
            with pytest.raises(Killed):
                train(config, features, run)
        assert not train(config, features, run).already
        assert_same_weights(undisturbed, run)
        assert stable(run) == stable(undisturbed)
        assert not list(run.glob(".*")), "a temporary file was left behind"


@pytest.mark.slow
def test_killed_with_signal_9_it_resumes_to_the_same_weights(
    features: Manifest, tmp_path: Path
) -> None:
    data = tmp_path / "features.parquet"
    features.write(data)
    settings = TINY | {"train.steps": 1000, "embedding.steps": 300, "train.checkpoint_every": 10}
    flags = ["--test-domains", "site-4", "--algorithm", "da-erm", *as_flags(settings)]
    command = [sys.executable, "-m", "acclimate", "train", str(data), *flags, "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    rng = random.Random(0)
    killed = 0
    while True:
        process = subprocess.Popen(
            [*command, str(tmp_path / "killed")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        wait_for_progress(process, tmp_path / "killed", rng.uniform(0.0, 1.5))
        if killed < 5 and process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
        _, errors = process.communicate(timeout=300)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, errors.decode()
            break
    assert killed > 0
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    assert stable(tmp_path / "whole") == stable(tmp_path / "killed")


def wait_for_progress(process: subprocess.Popen[bytes], run: Path, seconds: float) -> None:
    """Wait until the process works in its run folder, then `seconds` more."""
    before = stamps(run)
    while process.poll() is None and stamps(run) == before:
        time.sleep(0.01)
    time.sleep(seconds)


def stamps(run: Path) -> dict[str, int]:
    found = {}
    for path in run.glob("*"):
        with suppress(FileNotFoundError):  # renamed meanwhile
            found[path.name] = path.stat().st_mtime_ns
    return found


def test_a_finished_run_is_left_alone_and_another_is_refused(
    fit: Fit, features: Manifest, tiny: Tiny
) -> None:
    run = fit("erm")
    before = stamps(run)
    assert train(tiny("erm"), features, run).already
    assert stamps(run) == before
    with refused(RunError, run, "train.steps is 6, not 7"):
        fit("erm", **{"train.steps": 7})
    with refused(RunError, run, "data"):
        fit("erm", features.without_domains("site-0"))


def test_a_run_that_never_started_can_be_mended(
    fit: Fit, features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    sgd = {"train.optimiser.name": "sgd", "train.optimiser.lr": 1e10}
    with refused(RunError, "'main'", "step 6", "(1e+10)", "train.optimiser.clip"):
        fit("erm", **sgd, **{"train.checkpoint_every": 6})
    assert not train(tiny("erm"), features, tmp_path / "run").already


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"algorithm": "da-erm", "val_domains": ["site-1", "site-2", "site-3", "site-4"]},
         ("da-erm", "at least 2", "'site-0'")),
        ({"algorithm": "coral", "train.domains_per_step": 1},
         ("coral", "train.domains_per_step from 1")),
        ({"algorithm": "erm", "train.average.kind": "swad"},
         ("3 validations", "6 steps have 2", "train.evaluate_every")),
    ],
)  # fmt: skip
def test_what_no_run_can_do_is_refused(
    settings: dict[str, Any], named: tuple[str, ...], features: Manifest, tiny: Tiny
) -> None:
    with refused(ConfigError, *named):
        make_plan(tiny(**settings), features)


def small_features(rows: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
    return X, np.resize(["ant", "bee"], rows)


def test_bad_images_are_quarantined_and_too_many_stop_the_run(
    tree: Path, fit: Fit, tmp_path: Path
) -> None:
    root = tmp_path / "sites"
    shutil.copytree(tree, root)
    (root / "north" / "red" / "00.jpg").write_bytes(b"")
    (root / "south" / "blue" / "03.jpg").write_bytes(b"not an image")
    data = Manifest.from_folder(root)
    run = RunFolder(fit("da-erm", data, test_domains=["west"]))
    assert sorted(image for image, _ in run.quarantined()) == [
        "north/red/00.jpg",
        "south/blue/03.jpg",
    ]
    assert run.finished is not None and run.finished.quarantined == 2
    with refused(TooManyUnreadable, "of 96"):
        fit("da-erm", data, to="strict", **{"data.max_unreadable": 0.0})


def test_validation_domains_choose_the_weights_and_are_not_trained_on(fit: Fit) -> None:
    run = fit("da-erm", test_domains=["site-4"], val_domains=["site-3"])
    finished, scores = RunFolder(run).finished, RunFolder(run).records().scores
    assert finished is not None and finished.kept_by == "validation domains"
    assert RunFolder(run).identity()["train_domains"] == ["site-0", "site-1", "site-2"]
    validations = [score for score in scores if score.moment == "validation"]
    assert {score.domain for score in validations} == {"site-3"}
    best = max(validations, key=lambda score: (score.top1, -score.step))
    assert (finished.kept_step, finished.kept_score) == (best.step, best.top1)
    final = [score for score in final_scores(run) if score.domain == "site-3"]
    assert next(s for s in final if s.method == "embedding").top1 == best.top1


def test_the_metric_chooses_the_weights(features: Manifest, fit: Fit, tiny: Tiny) -> None:
    """The smallest loss, which is seldom at the first of the best accuracies; one that has no
    value with these classes is refused before the first step."""
    run = fit("erm", test_domains=["site-4"], **{"train.metric": "nll", "train.evaluate_every": 1})
    scores, finished = RunFolder(run).records().scores, RunFolder(run).finished
    losses: dict[int, list[float]] = {}
    for score in (score for score in scores if score.moment == "validation"):
        losses.setdefault(score.step, []).append(score.loss or 0.0)
    means = {step: float(np.mean(own)) for step, own in losses.items()}
    assert finished is not None and finished.kept_score == min(means.values())
    assert finished.kept_step == min(means, key=means.__getitem__) and len(means) > 2
    with refused(ConfigError, "train.metric", "top-5", "3 classes"):
        make_plan(tiny("erm", **{"train.metric": "top-5"}), features)
    with refused(UnknownName, "macro-f2", "macro-f1"):
        make_plan(tiny("erm", **{"train.metric": "macro-f2"}), features)


def test_roles_of_the_manifest_are_the_default_and_never_trained_on(
    features: Manifest, tiny: Tiny
) -> None:
    roles = {"site-1": "val", "site-2": "test", "site-3": "test"}
    data = with_roles(features, roles)
    for asked, test in (((), ("site-2", "site-3")), (("site-2",), ("site-2",))):
        plan = make_plan(tiny("erm", test_domains=asked), data)
        assert plan.train_domains == ("site-0", "site-4")
        assert (plan.val_domains, plan.test_domains) == (("site-1",), test)


def test_a_model_of_one_domain_loads_again(features: Manifest, fit: Fit) -> None:
    run = fit("erm", features.select(features.rows(domain="site-0")))
    assert Trained.load(run).train_domains == ("site-0",)


def test_images_are_trained_at_their_own_small_size(tree: Path, fit: Fit) -> None:
    trained = Trained.load(fit("erm", Manifest.from_folder(tree)))
    assert trained.config.model.backbone == "small-cnn"
    assert (trained.config.data.image_size, trained.config.data.augment) == (16, "none")
    assert trained.size == 16


def test_large_images_get_the_pretrained_backbone_and_augmentation(
    tiny: Tiny, tmp_path: Path
) -> None:
    for name in ("a/x", "a/y", "b/x", "b/y"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(3):
            image = Image.new("RGB", (100, 80), (number, 0, 0))
            image.save(tmp_path / name / f"{number}.png")
    plan = make_plan(tiny("erm", **{"model.freeze": "none"}), Manifest.from_folder(tmp_path))
    assert plan.config.model.backbone == "efficientnet-lite0"
    assert plan.config.data.augment == "domainbed"
    assert plan.config.train.optimiser.lr == 5e-5


def test_epochs_become_steps(features: Manifest, tiny: Tiny) -> None:
    plan = make_plan(tiny("erm", **{"train.epochs": 3.0}), features)
    assert plan.config.train.steps == round(3 * sum(map(len, plan.train_rows)) / (5 * 4))


def test_a_run_that_ends_before_its_loss_is_complete_says_so(
    features: Manifest, tiny: Tiny
) -> None:
    for anneal, said in ((10, False), (11, False), (12, True)):
        plan = make_plan(tiny("vrex", hparams={"anneal": anneal}, **{"train.steps": 12}), features)
        lines = [line for line in plan.decided if "hparams.anneal" in line]
        assert len(lines) == said
        assert all("vrex" in line and "step 12" in line for line in lines)


def test_an_unseen_domain_that_cannot_be_scored_is_refused_before_training(
    fit: Fit, tmp_path: Path
) -> None:
    data = Manifest.from_arrays(*small_features(41), np.array(["a"] * 20 + ["b"] * 20 + ["c"]))
    with refused(ManifestError, "'c'", "1 image", "adapt.source=test"):
        fit("erm", data, test_domains=["c"])
    assert not (tmp_path / "run").exists()
    fit("erm", data, test_domains=["c"], **{"adapt.source": "test"})


def test_two_trainings_in_one_folder(fit: Fit, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunFolder(run).locked(), refused(RunBusy, run):
        fit("erm")
    assert RunFolder(fit("erm")).complete()


def test_features_far_from_zero_are_standardised(fit: Fit) -> None:
    rng = np.random.default_rng(0)
    X = (1e4 + rng.normal(size=(400, 3))).astype(np.float32)
    data = Manifest.from_arrays(X, np.tile(["a", "b"], 200), np.repeat(["p", "q"], 200))
    learned = Trained.load(fit("erm", data)).predictor.head
    assert isinstance(learned, Predictor)
    backbone = learned.backbone
    rows = np.concatenate([data.rows(domain=d, split="train") for d in "pq"])
    np.testing.assert_allclose(backbone.mean, X[rows].astype(np.float64).mean(0), rtol=1e-6)
    np.testing.assert_allclose(backbone.std, X[rows].astype(np.float64).std(0), rtol=1e-3)


def test_weights_of_another_network_are_refused(fit: Fit) -> None:
    path = fit("da-erm", **{"embedding.name": "mean"}) / "model.safetensors"
    renamed = {
        name.replace("embedding.head.last", "embedding.classifier"): value
        for name, value in load_file(path).items()
    }
    save_tensors(path, renamed)
    with refused(RunError, path, "model.json"):
        Trained.load(path.parent)


@pytest.mark.parametrize(
    "name",
    [
        "dann",
        "da-group-dro",
        "irm",
        "mldg",
        "fish",
        "da-fishr",
        "sagnet",
        "da-selfreg",
        "miro",
        "arm",
        "mtl",
    ],
)
@pytest.mark.parametrize("stop_at", [3, 5])
def test_methods_with_state_resume_to_the_same_weights(fit: Fit, name: str, stop_at: int) -> None:
    own = {
        "hparams": {"anneal": 4} if name in ("irm", "da-fishr") else {},
        "test_domains": ["site-4"],
    }

    def stop(phase: str, done: int, total: int, note: str) -> None:
        if (phase, done) == ("main", stop_at):
            raise Killed

    with pytest.raises(Killed):
        fit(name, to="killed", watch=stop, **own)
    assert_same_weights(fit(name, to="whole", **own), fit(name, to="killed", **own))


def test_seconds_are_those_of_all_sittings(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes a second of a clock that is ours; checkpoints come at even steps."""
    now = 1000.0
    monkeypatch.setattr(session, "time", SimpleNamespace(perf_counter=lambda: now))

    def until(phase: str, last: int) -> Callable[..., None]:
        def watch(at: str, done: int, total: int, note: str) -> None:
            nonlocal now
            if at in ("embedding", "main"):
                now += 1
            if (at, done) == (phase, last):
                raise Killed

        return watch

    steps = {"train.checkpoint_every": 2, "train.steps": 6}
    for phase, last in (("embedding", 3), ("main", 1), ("main", 5)):
        with pytest.raises(Killed):
            fit(watch=until(phase, last), **steps)
        now += 500
    # Told after a step's checkpoint, which therefore knows of one second less: 1 of the first
    # sitting, then 1 of the second, then 3 of the third; the last one works 2 steps.
    finished = RunFolder(fit(watch=until("none", 0), **steps)).finished
    assert finished is not None and finished.seconds == 1 + 1 + 3 + 2


def test_a_pruned_run_says_so(fit: Fit) -> None:
    run = fit()
    (run / "pruned.json").write_text("{}")
    Trained.load(run)  # nothing is missing yet
    for name in ("model.safetensors", "embedding.safetensors"):
        (run / name).unlink()
    before = stamps(run)
    with refused(RunError, run, "pruned"):
        Trained.load(run)
    assert stamps(fit()) == before
