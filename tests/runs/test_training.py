"""Runs: resumed after any interruption, refused when changed, and honest about what they did."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from acclimate.config import RunConfig
from acclimate.core.errors import ConfigError, ManifestError, RunBusy, RunError, TooManyUnreadable
from acclimate.core.tensors import save_tensors
from acclimate.data.manifest import Manifest
from acclimate.learn.model import Trained
from acclimate.learn.models import Predictor
from acclimate.records.records import read
from acclimate.rehearse.training import train
from acclimate.runs import session
from fixtures.errors import refused
from fixtures.interruption import Killed, assert_same_weights, count_writes, stable, weights
from fixtures.settings import TINY, as_flags

Tiny = Callable[..., RunConfig]


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


def test_a_finished_run_is_left_alone(features: Manifest, tiny: Tiny, tmp_path: Path) -> None:
    config = tiny("erm")
    train(config, features, tmp_path / "run")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}
    assert train(config, features, tmp_path / "run").already
    assert before == {p.name: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}


def test_a_changed_setting_is_refused(features: Manifest, tiny: Tiny, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny("erm"), features, run)
    with refused(RunError, run, "train.steps is 6, not 7"):
        train(tiny("erm", **{"train.steps": 7}), features, run)
    with pytest.raises(RunError, match="its data differ"):
        train(tiny("erm"), features.without_domains("site-0"), run)


def test_a_run_that_never_started_can_be_mended(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    sgd = {"train.optimiser.name": "sgd", "train.optimiser.lr": 1e10}
    diverging = {**sgd, "train.checkpoint_every": 6}
    with pytest.raises(RunError, match="the loss of phase 'main' was not finite before step 6"):
        train(tiny("erm", **diverging), features, tmp_path / "run")
    assert not train(tiny("erm"), features, tmp_path / "run").already


def test_da_erm_needs_two_training_domains(features: Manifest, tiny: Tiny, tmp_path: Path) -> None:
    one = features.select(features.rows(domain="site-0"))
    with refused(ConfigError, "da-erm", "at least 2", "'site-0'"):
        train(tiny("da-erm"), one, tmp_path / "run")
    train(tiny("erm"), one, tmp_path / "run")


def test_a_class_in_no_training_domain_is_refused_or_dropped(tiny: Tiny, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y = np.tile(["ant", "bee"], 30)
    y[-1] = "yak"
    data = Manifest.from_arrays(X, y, np.repeat(["a", "b", "c"], 20))
    with refused(ManifestError, "'yak'", "'c'", "data.unseen_classes=drop"):
        train(tiny("erm", test_domains=["c"]), data, tmp_path / "run")
    drop = tiny("erm", test_domains=["c"], **{"data.unseen_classes": "drop"})
    train(drop, data, tmp_path / "run")
    scored = [s for s in read(tmp_path / "run" / "records.jsonl").scores if s.role == "test"]
    assert scored[0].n == 19 - 6  # 19 rows left, 6 of them adapted on


def test_bad_images_are_quarantined_and_too_many_stop_the_run(
    tree: Path, tiny: Tiny, tmp_path: Path
) -> None:
    import shutil

    root = tmp_path / "sites"
    shutil.copytree(tree, root)
    (root / "north" / "red" / "00.jpg").write_bytes(b"")
    (root / "south" / "blue" / "03.jpg").write_bytes(b"not an image")
    data = Manifest.from_folder(root)
    result = train(tiny("da-erm", test_domains=["west"]), data, tmp_path / "run")
    listed = [
        json.loads(line)["image"]
        for line in (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()
    ]
    assert sorted(listed) == ["north/red/00.jpg", "south/blue/03.jpg"]
    assert result.finished.quarantined == 2
    with pytest.raises(TooManyUnreadable, match=r"of 96"):
        strict = tiny("da-erm", **{"data.max_unreadable": 0.0})
        train(strict, data, tmp_path / "strict")


def test_validation_domains_choose_the_weights_and_are_not_trained_on(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    config = tiny("da-erm", test_domains=["site-4"], val_domains=["site-3"])
    result = train(config, features, tmp_path / "run")
    assert result.finished.kept_by == "validation domains"
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    assert stored["train_domains"] == ["site-0", "site-1", "site-2"]
    found = read(tmp_path / "run" / "records.jsonl").scores
    validations = [score for score in found if score.moment == "validation"]
    assert {score.domain for score in validations} == {"site-3"}
    best = max(validations, key=lambda score: (score.top1, -score.step))
    assert (result.finished.kept_step, result.finished.kept_score) == (best.step, best.top1)
    final = [score for score in found if score.domain == "site-3" and score.moment == "final"]
    assert next(s for s in final if s.method == "embedding").top1 == best.top1


@pytest.mark.parametrize("name", ["erm", "da-erm"])
@pytest.mark.parametrize("val_domains", [[], ["site-3"]])
def test_runs_can_be_chosen_by_the_training_domains_alone(
    features: Manifest, tiny: Tiny, tmp_path: Path, name: str, val_domains: list[str]
) -> None:
    """site-1 has a test split and no validation split, site-2 the other way round."""
    place = np.arange(len(features)) % 24
    splits = np.where(place < 16, "train", np.where(place < 20, "val", "test"))
    splits[(features.domain_names == "site-1") & (splits == "val")] = "train"
    splits[(features.domain_names == "site-2") & (splits == "test")] = "train"
    labels = np.array(features.classes)[features.label_index]
    data = Manifest.from_arrays(features.features(), labels, features.domain_names, splits=splits)
    config = tiny(name, test_domains=["site-4"], val_domains=val_domains)
    train(config, data, tmp_path / "run")
    scores = read(tmp_path / "run" / "records.jsonl").scores
    final = [s for s in scores if s.moment == "final" and s.role == "train"]
    found = {(s.domain, s.split, s.n) for s in final}
    assert len(found) == len(final)
    scored = {("site-0", "test", 4), ("site-1", "test", 4), ("site-2", "val", 4)}
    if val_domains:
        assert found == scored | {("site-0", "val", 4)}
    else:
        assert found == scored | {("site-3", "test", 4)}
    assert {s.method for s in final} == {"none" if name == "erm" else "embedding"}


def test_roles_of_the_manifest_are_the_default(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    import dataclasses

    import pyarrow as pa

    roles = ["test" if d == "site-1" else "train" for d in features.domain_names]
    table = features.table.append_column("role", pa.array(roles))
    train(tiny("erm"), dataclasses.replace(features, table=table), tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    assert stored["test_domains"] == ["site-1"]


@pytest.mark.parametrize(("source", "scored"), [("held-out", 18), ("test", 24)])
def test_scores_say_what_was_adapted_on(
    features: Manifest, tiny: Tiny, tmp_path: Path, source: str, scored: int
) -> None:
    config = tiny("da-erm", test_domains=["site-4"], **{"adapt.source": source})
    train(config, features, tmp_path / "run")
    final = [s for s in read(tmp_path / "run" / "records.jsonl").scores if s.moment == "final"]
    own = next(s for s in final if s.role == "test" and s.method == "embedding")
    assert (own.n, own.adapted_on, own.adapt_n, own.adapt_seed) == (scored, source, 6, 0)
    seen = next(s for s in final if s.role == "train")
    assert (seen.split, seen.adapted_on, seen.adapt_seed) == ("val", "training", None)


def test_plain_and_adaptive_are_scored_on_the_same_images(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    counts = []
    for name in ("erm", "da-erm"):
        train(tiny(name, test_domains=["site-4"]), features, tmp_path / name)
        scores = read(tmp_path / name / "records.jsonl").scores
        counts.append({(s.domain, s.n) for s in scores if s.moment == "final"})
    assert counts[0] == counts[1]


def test_a_model_of_one_domain_loads_again(features: Manifest, tiny: Tiny, tmp_path: Path) -> None:
    one = features.select(features.rows(domain="site-0"))
    train(tiny("erm"), one, tmp_path / "run")
    assert Trained.load(tmp_path / "run").train_domains == ("site-0",)


def test_images_are_trained_at_their_own_small_size(tree: Path, tiny: Tiny, tmp_path: Path) -> None:
    train(tiny("erm"), Manifest.from_folder(tree), tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert stored["model"]["backbone"] == "small-cnn"
    assert stored["data"]["image_size"] == 16
    assert stored["data"]["augment"] == "none"
    assert Trained.load(tmp_path / "run").size == 16


def test_large_images_get_the_pretrained_backbone_and_augmentation(
    tiny: Tiny, tmp_path: Path
) -> None:
    from acclimate.runs.plan import make_plan

    for domain in "ab":
        for label in "xy":
            for number in range(3):
                path = tmp_path / "data" / domain / label / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (100, 80), (number, 0, 0)).save(path)
    trained = tiny("erm", **{"model.freeze": "none"})
    plan = make_plan(trained, Manifest.from_folder(tmp_path / "data"))
    assert plan.config.model.backbone == "efficientnet-lite0"
    assert plan.config.data.augment == "domainbed"
    assert plan.config.train.optimiser.lr == 5e-5


def test_epochs_become_steps(features: Manifest, tiny: Tiny) -> None:
    from acclimate.runs.plan import make_plan

    plan = make_plan(tiny("erm", **{"train.epochs": 3.0}), features)
    rows = sum(len(rows) for rows in plan.train_rows)
    assert plan.config.train.steps == round(3 * rows / (5 * 4))


def test_an_unseen_domain_that_cannot_be_scored_is_refused_before_training(
    tiny: Tiny, tmp_path: Path
) -> None:
    X = np.random.default_rng(0).normal(size=(41, 3)).astype(np.float32)
    y = np.tile(["ant", "bee"], 21)[:41]
    data = Manifest.from_arrays(X, y, np.array(["a"] * 20 + ["b"] * 20 + ["c"]))
    with refused(ManifestError, "'c'", "1 image", "adapt.source=test"):
        train(tiny("erm", test_domains=["c"]), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(tiny("erm", test_domains=["c"], **{"adapt.source": "test"}), data, tmp_path / "run")


def test_reserved_domains_are_never_trained_on(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    import dataclasses

    import pyarrow as pa

    roles = {"site-1": "val", "site-2": "test", "site-3": "test"}
    column = pa.array([roles.get(d, "train") for d in features.domain_names])
    data = dataclasses.replace(features, table=features.table.append_column("role", column))
    train(tiny("erm", test_domains=["site-2"]), data, tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    assert stored["train_domains"] == ["site-0", "site-4"]
    assert (stored["val_domains"], stored["test_domains"]) == (["site-1"], ["site-2"])


def test_two_trainings_in_one_folder(features: Manifest, tiny: Tiny, tmp_path: Path) -> None:
    from acclimate.records.folder import RunFolder

    run = tmp_path / "run"
    with RunFolder(run).locked(), refused(RunBusy, run):
        train(tiny("erm"), features, run)
    assert not train(tiny("erm"), features, run).already


def test_features_far_from_zero_are_standardised(tiny: Tiny, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = (1e4 + rng.normal(size=(400, 3))).astype(np.float32)
    data = Manifest.from_arrays(X, np.tile(["a", "b"], 200), np.repeat(["p", "q"], 200))
    train(tiny("erm"), data, tmp_path / "run")
    learned = Trained.load(tmp_path / "run").predictor.head
    assert isinstance(learned, Predictor)
    backbone = learned.backbone
    rows = np.concatenate([data.rows(domain=d, split="train") for d in "pq"])
    np.testing.assert_allclose(backbone.mean, X[rows].astype(np.float64).mean(0), rtol=1e-6)
    np.testing.assert_allclose(backbone.std, X[rows].astype(np.float64).std(0), rtol=1e-3)


def test_weights_of_another_network_are_one_line(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(tiny("da-erm", **{"embedding.name": "mean"}), features, run)
    before = load_file(run / "model.safetensors")
    renamed = {
        key.replace("embedding.head.last", "embedding.classifier"): before[key] for key in before
    }
    save_tensors(run / "model.safetensors", renamed)
    with pytest.raises(RunError) as error:
        Trained.load(run)
    assert "model.safetensors holds weights of another network than model.json" in str(error.value)


@pytest.mark.parametrize("kind", ["ema", "window"])
def test_averaged_weights_are_kept(
    features: Manifest, tiny: Tiny, tmp_path: Path, kind: str
) -> None:
    plain = tiny("erm", **{"train.keep": "last"})
    averaged = tiny("erm", **{"train.keep": "last", "train.average.kind": kind})
    train(plain, features, tmp_path / "plain")
    train(averaged, features, tmp_path / "averaged")
    one, two = weights(tmp_path / "plain"), weights(tmp_path / "averaged")
    name = next(name for name in one if name.endswith("weight"))
    assert not torch.equal(one[name], two[name])


@pytest.mark.parametrize("name", ["dann", "da-group-dro", "irm", "mldg"])
@pytest.mark.parametrize("stop_at", [3, 5])
def test_methods_with_state_resume_to_the_same_weights(
    features: Manifest, tiny: Tiny, tmp_path: Path, name: str, stop_at: int
) -> None:
    config = tiny(name, test_domains=["site-4"], hparams={"anneal": 4} if name == "irm" else {})

    def stop(phase: str, done: int, total: int, note: str) -> None:
        if (phase, done) == ("main", stop_at):
            raise Killed

    train(config, features, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, features, tmp_path / "killed", watch=stop)
    train(config, features, tmp_path / "killed")
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


def test_seconds_are_those_of_all_sittings(
    features: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    config = tiny("da-erm", **{"train.checkpoint_every": 2, "train.steps": 6})
    for phase, last in (("embedding", 3), ("main", 1), ("main", 5)):
        with pytest.raises(Killed):
            train(config, features, tmp_path / "run", watch=until(phase, last))
        now += 500
    # Told after a step's checkpoint, which therefore knows of one second less: 1 of the first
    # sitting, then 1 of the second, then 3 of the third; the last one works 2 steps.
    result = train(config, features, tmp_path / "run", watch=until("none", 0))
    assert result.finished.seconds == 1 + 1 + 3 + 2


def test_a_pruned_run_says_so(features: Manifest, tiny: Tiny, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny("da-erm"), features, run)
    (run / "pruned.json").write_text("{}")
    Trained.load(run)  # nothing is missing yet
    for name in ("model.safetensors", "embedding.safetensors"):
        (run / name).unlink()
    before = sorted(path.name for path in run.iterdir())
    with refused(RunError, run, "pruned"):
        Trained.load(run)
    assert train(tiny("da-erm"), features, run).already
    assert sorted(path.name for path in run.iterdir()) == before


def test_comparing_domains_needs_two_in_a_batch(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    with refused(ConfigError, "coral", "train.domains_per_step from 1"):
        train(tiny("coral", **{"train.domains_per_step": 1}), features, tmp_path / "run")
