"""A Φ that runs share: the same results as learning it in each, whatever happens on the way."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acclimate.config import RunConfig, as_dict, flat, setting
from acclimate.core.errors import ConfigError, RunError, WeightsError
from acclimate.core.tensors import save_tensors
from acclimate.data.manifest import Manifest
from acclimate.learn.embeddings import EMBEDDINGS
from acclimate.learn.models import build_backbone
from acclimate.records.folder import RunFolder
from acclimate.records.records import Started
from acclimate.rehearse.training import train
from acclimate.runs.identity import embedding_identity, weights_digest
from acclimate.runs.training import train_embedding
from fixtures.errors import refused
from fixtures.interruption import Killed, assert_same_weights, count_writes, stable

Tiny = Callable[..., RunConfig]
Fit = Callable[..., Path]
UNSEEN: dict[str, Any] = {"test_domains": ["site-4"]}
# Settings that Step A does not depend on, each with a value that differs from `tiny`'s.
REHEARSED: dict[str, Any] = {
    "adapt.rehearse": True,
    "adapt.depth": "whole",
    "adapt.rehearse_backbone": ["bn"],
    "adapt.site.steps": 7,
    "adapt.site.batch": 9,
    "adapt.site.lr": 0.1,
    "adapt.site.weight_decay": 0.1,
    "adapt.site.width": 5,
    "adapt.site.dropout": 0.1,
    "adapt.site.dim": 3,
}
LATER: dict[str, Any] = REHEARSED | {
    "algorithm": "da-dann",
    "data.cache_gib": 0.0,
    "data.keep_shared": True,
    "data.pack_gib": 0.0,
    "data.max_unreadable": 0.5,
    "data.unseen_classes": "drop",
    "data.workers": 1,
    "model.condition": "film",
    "model.dropout": 0.5,
    "model.head": "linear",
    "model.hidden": 5,
    "model.width": 7,
    "train.steps": 3,
    "train.epochs": 1.0,
    "train.per_domain": 2,
    "train.domains_per_step": 2,
    "train.evaluate_every": 2,
    "train.checkpoint_every": 3,
    "train.compile": "off",
    "train.keep": "last",
    "train.metric": "macro-f1",
    "train.prior_aware": True,
    "train.average.kind": "ema",
    "train.average.decay": 0.5,
    "train.average.start": 0.1,
    "train.average.patience": 2,
    "train.average.tolerance": 2,
    "train.average.ratio": 2.0,
    "train.optimiser.name": "sgd",
    "train.optimiser.lr": 0.1,
    "train.optimiser.weight_decay": 0.1,
    "train.optimiser.momentum": 0.1,
    "train.optimiser.beta1": 0.5,
    "train.optimiser.schedule": "cosine",
    "train.optimiser.warmup": 2,
    "train.optimiser.clip": 1.0,
    "train.optimiser.layer_decay": 0.5,
    "train.micro_batches": 2,
    "adapt.points": 3,
    "adapt.source": "test",
    "adapt.score": "test",
    "adapt.methods": ["prior"],
}
PROTOTYPES_ONLY = {"embedding.mixup": "off", "embedding.support": 0.25}
# Step A is then the run `erm`, which has a budget of its own.
NOT_IN_ERM = (
    PROTOTYPES_ONLY
    | REHEARSED
    | {
        "algorithm": "da-dann",
        "embedding.dim": 9,
        "embedding.steps": 5,
        "embedding.domains_per_step": 2,
        "embedding.per_domain": 6,
        "embedding.optimiser.lr": 0.3,
        "model.condition": "film",
        "data.workers": 1,
        "train.checkpoint_every": 3,
        "adapt.methods": ["prior"],
    }
)
NOT_IN_STEP_A = {
    "prototype": LATER,
    "softmax": PROTOTYPES_ONLY,
    "posterior": NOT_IN_ERM,
    "mean": NOT_IN_ERM,
}


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_a_shared_phi_gives_the_very_same_run(fit: Fit, fit_phi: Fit, name: str) -> None:
    settings = {**UNSEEN, "embedding.name": name, "model.dropout": 0.5}
    own = fit("da-coral", to="own", **settings)
    later = {"train.steps": 3} if name in ("prototype", "softmax") else {}
    made = fit_phi("da-erm", **settings, **later)
    shared = fit("da-coral", to="shared", embedding=made.parent, **settings)
    assert_same_weights(own, shared)
    assert stable(own) == stable(shared)
    assert (shared / "embedding.safetensors").samefile(made)
    for file in ("embedding.safetensors", "consistency.json"):
        assert (shared / file).read_bytes() == (own / file).read_bytes()


def test_a_copy_does_where_links_do_not_work(
    fit: Fit, fit_phi: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: Path, path: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    made = fit_phi()
    monkeypatch.setattr(os, "link", refused)
    copied = fit(embedding=made.parent) / "embedding.safetensors"
    assert copied.read_bytes() == made.read_bytes()
    assert not copied.samefile(made)


@pytest.mark.slow
def test_interrupted_at_every_write_the_shared_phi_is_the_same(
    fit_phi: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        writes = count_writes(patch)
        whole = fit_phi(to="whole", **UNSEEN)
    assert len(writes) == 11  # identity, start, two losses and checkpoints, consistency, Φ; ends
    for fatal in range(1, len(writes) + 1):
        out = tmp_path / f"killed-{fatal}"
        with monkeypatch.context() as patch:
            count_writes(patch, die_at=fatal)
            with pytest.raises(Killed):
                fit_phi(to=out.name, **UNSEEN)
        assert fit_phi(to=out.name, **UNSEEN).read_bytes() == whole.read_bytes()
        assert stable(out) == stable(whole.parent)
        assert {p.name for p in out.iterdir()} == {p.name for p in whole.parent.iterdir()}


@pytest.mark.slow
def test_interrupted_while_it_takes_over_phi_a_run_ends_the_same(
    fit: Fit, fit_phi: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phi, own = fit_phi(**UNSEEN).parent, fit(to="own", **UNSEEN)

    def dying_link(source: Path, path: Path) -> None:
        raise Killed

    for fatal in range(9):  # 0 stands for the links, which come after the seventh write
        run = tmp_path / f"killed-{fatal}"
        with monkeypatch.context() as patch:
            writes = count_writes(patch, die_at=fatal)
            if fatal == 0:
                patch.setattr(os, "link", dying_link)
            with pytest.raises(Killed):
                fit(to=run.name, embedding=phi, **UNSEEN)
        assert len(writes) == (fatal or 7)
        assert (run / "embedding.safetensors").exists() == (fatal == 8)
        fit(to=run.name, embedding=phi, **UNSEEN)
        assert_same_weights(own, run)
        assert stable(own) == stable(run)
        assert RunFolder(run).records().duplicates == 0


def test_only_what_step_a_depends_on_is_its_identity(tiny: Tiny) -> None:
    config = tiny("da-erm")
    inside = set(flat(embedding_identity(config, "data", [])["config"]))
    # By content; for rehearsal alone; as training domains.
    asked = {"model.weights", "model.class_vectors"}
    asked |= {"test_domains", "val_domains", "data.min_images"}
    assert set(flat(as_dict(config))) - inside - asked == LATER.keys()


@pytest.mark.parametrize("name", ["mean", "posterior"])
def test_phi_of_the_erm_run_depends_on_that_run(tiny: Tiny, name: str) -> None:
    """All that it depends on: a Φ of another ERM run is another Φ."""
    config = tiny("da-erm", **{"embedding.name": name})
    # Of no Step A at all.
    own = {"data.cache_gib", "data.pack_gib", "data.max_unreadable", "data.unseen_classes"}
    for key in LATER.keys() - NOT_IN_ERM.keys() - own:
        other = tiny("da-erm", **{"embedding.name": name, key: LATER[key]})
        assert embedding_identity(config, "d", ["a"]) != embedding_identity(other, "d", ["a"]), key
    for unseen in ("val_domains", "test_domains"):
        other = tiny("da-erm", **{"embedding.name": name, unseen: ["a"]})
        assert embedding_identity(config, "d", ["a"]) != embedding_identity(other, "d", ["a"])


@pytest.mark.parametrize("name", NOT_IN_STEP_A)
def test_what_is_not_in_the_identity_does_not_change_phi(
    fit_phi: Fit, tiny: Tiny, name: str
) -> None:
    config, changes = tiny(**{"embedding.name": name}), NOT_IN_STEP_A[name]
    for key, value in changes.items():
        other = tiny(**{"embedding.name": name, key: value})
        assert as_dict(config) != as_dict(other), key
        assert embedding_identity(config, "d", ["a"]) == embedding_identity(other, "d", ["a"]), key
    # All of them at once, but for what adaptive algorithms refuse.
    changed = {"embedding.name": name, "algorithm": "da-erm", **changes, "adapt.rehearse": False}
    one = fit_phi(to="one", **{"embedding.name": name})
    assert one.read_bytes() == fit_phi(to="two", **changed).read_bytes()
    assert fit_phi(to="one", **changed) == one


def test_an_embedding_under_a_new_name_is_known_by_the_settings_it_uses(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two Φ that are learned with and without mixup, or with other settings of its own, differ."""

    @dataclass(frozen=True, kw_only=True)
    class SharpConfig:
        scale: float = setting(2.0, "what the features are multiplied by")

    class Sharp(EMBEDDINGS["prototype"].build):  # type: ignore[misc]
        Config = SharpConfig

    def identity(**settings: Any) -> dict[str, Any]:
        config = tiny(**{"embedding.name": "sharp", **settings})
        return embedding_identity(config, "d", ["a"])

    monkeypatch.setitem(EMBEDDINGS, "sharp", replace(EMBEDDINGS["prototype"], build=Sharp))
    assert identity(**{"embedding.mixup": "on"}) != identity(**{"embedding.mixup": "off"})
    assert identity(**{"embedding.support": 0.25}) != identity()
    assert identity(**{"embedding.sharp.scale": 3.0}) != identity()
    assert identity(**{"embedding.sharp.scale": 2.0}) == identity()
    assert identity(**{"embedding.mean.scale": 3.0}) == identity()


def test_the_role_of_a_held_out_domain_does_not_matter(fit: Fit, fit_phi: Fit, tiny: Tiny) -> None:
    both = {"test_domains": ["site-3", "site-4"]}
    split = {"test_domains": ["site-4"], "val_domains": ["site-3"]}
    fit(embedding=fit_phi(**both).parent, **split)
    one, two = tiny(**both), tiny(**split)
    whole = embedding_identity(one, "d", ["site-3", "site-4"])
    assert whole == embedding_identity(two, "d", ["site-4", "site-3"])
    assert whole != embedding_identity(one, "e", ["site-3", "site-4"])
    assert whole != embedding_identity(one, "d", ["site-3"])
    assert json.loads(json.dumps(whole)) == whole


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"embedding.steps": 5}, "its embedding.steps is 4, not 5"),
        ({"embedding.points": 7}, "its embedding.points is 1000, not 7"),
        ({"embedding.name": "mean"}, "its embedding.name is 'prototype', not 'mean'"),
        ({"embedding.optimiser.lr": 0.5}, "its embedding.optimiser.lr is 0.001, not 0.5"),
        ({"seed": 1}, "its seed is 0, not 1"),
        ({"train.precision": "bf16"}, "its train.precision is 'auto', not 'bf16'"),
        ({"model.freeze_batch_norm": "all"}, "its model.freeze_batch_norm is 'no', not 'all'"),
        ({"test_domains": ["site-3"]}, "its training domains differ"),
    ],
)
def test_another_phi_is_refused(
    fit: Fit, fit_phi: Fit, tmp_path: Path, changes: dict[str, Any], difference: str
) -> None:
    phi = fit_phi(**UNSEEN).parent
    with refused(RunError, phi, difference):
        fit(embedding=phi, **(UNSEEN | changes))
    assert not (tmp_path / "run").exists()
    with refused(RunError, phi, difference):
        fit_phi(**(UNSEEN | changes))


def test_the_data_are_those_given_not_those_left(fit: Fit, fit_phi: Fit) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y = np.tile(["ant", "bee"], 30)
    y[-1] = "yak"
    data = Manifest.from_arrays(X, y, np.repeat(["a", "b", "c"], 20))
    settings = {"test_domains": ["c"], "data.unseen_classes": "drop"}
    phi = fit_phi("da-erm", data, **settings).parent
    stored = json.loads((phi / "embedding.json").read_text())
    assert (stored["data"], stored["format"]) == (data.digest(), 1)
    shared = fit("da-erm", data, to="shared", embedding=phi, **settings)
    assert_same_weights(fit("da-erm", data, to="own", **settings), shared)


def test_a_phi_that_is_not_there_or_not_needed(fit: Fit, fit_phi: Fit, tmp_path: Path) -> None:
    phi, run = tmp_path / "phi", tmp_path / "run"
    with refused(RunError, phi, "train_embedding"):
        fit(embedding=phi)
    fit_phi()
    for make in (lambda: fit("erm", embedding=phi), lambda: fit_phi("erm", to="run")):
        with refused(ConfigError, "erm", "da-erm"):
            make()
    assert not run.exists()
    fit(embedding=phi)
    shutil.rmtree(phi)
    before = RunFolder(run).records()
    assert RunFolder(fit(embedding=phi)).records() == before


def test_a_finished_phi_is_left_alone(fit_phi: Fit) -> None:
    phi = fit_phi().parent
    before = {path.name: path.stat().st_mtime_ns for path in phi.iterdir()}
    names = ["consistency.json", "embedding.json", "embedding.safetensors"]
    assert sorted(before) == [*names, "records.end", "records.jsonl"]
    fit_phi()
    assert before == {path.name: path.stat().st_mtime_ns for path in phi.iterdir()}
    found = RunFolder(phi, shared=True).records()
    assert [type(record) for record in found.all if record not in found.losses] == [Started]
    steps = [(loss.phase, loss.step) for loss in found.losses]
    assert steps == [("embedding", 2), ("embedding", 4)]


def test_a_folder_of_something_else_is_refused(fit: Fit, fit_phi: Fit) -> None:
    with refused(RunError, fit(), "no embedding"):
        fit_phi(to="run")
    with refused(RunError, fit_phi().parent, "no run", "--out"):
        fit(to="phi")


def test_a_damaged_phi_is_named_where_it_lies(fit: Fit, fit_phi: Fit) -> None:
    made = fit_phi()
    whole = made.read_bytes()
    for place in range(0, len(whole), len(whole) // 6):
        made.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with refused(RunError, made, "damaged"):
            fit(embedding=made.parent)
    made.unlink()
    assert fit_phi().read_bytes() == whole
    assert RunFolder(fit(embedding=made.parent)).complete()


def test_images_that_only_step_a_met_are_quarantined_too(
    tree: Path, fit: Fit, fit_phi: Fit, tmp_path: Path
) -> None:
    shutil.copytree(tree, tmp_path / "sites")
    (tmp_path / "sites" / "north" / "red" / "00.jpg").write_bytes(b"")
    data = Manifest.from_folder(tmp_path / "sites")
    settings = {"test_domains": ["west"], "train.steps": 1, "train.per_domain": 1}
    own = fit("da-erm", data, to="own", **settings)
    phi = fit_phi("da-erm", data, **settings).parent
    shared = fit("da-erm", data, to="shared", embedding=phi, **settings)
    for run in (own, shared):
        assert [image for image, _ in RunFolder(run).quarantined()] == ["north/red/00.jpg"]
    assert_same_weights(own, shared)


@pytest.fixture
def weights_file(tmp_path: Path) -> Path:
    path = tmp_path / "here.safetensors"
    save_tensors(path, build_backbone("mlp", in_features=5).body.state_dict())
    return path


def test_weights_are_known_by_content(
    features: Manifest, tiny: Tiny, tmp_path: Path, weights_file: Path
) -> None:
    run, phi, elsewhere = tmp_path / "run", tmp_path / "phi", tmp_path / "there.safetensors"
    shutil.copyfile(weights_file, elsewhere)
    here, there = (tiny(**{"model.weights": str(path)}) for path in (weights_file, elsewhere))

    def stop(phase: str, done: int, total: int, note: str) -> None:
        if (phase, done) == ("main", 5):
            raise Killed

    scratch = tiny(**{"model.weights": str(elsewhere), "model.pretrained": False})
    for other in (there, scratch):  # a weights file goes before pretrained weights
        assert embedding_identity(here, "d", []) == embedding_identity(other, "d", [])
    train_embedding(here, features, phi)
    with pytest.raises(Killed):
        train(here, features, run, embedding=phi, watch=stop)
    weights_file.unlink()
    with pytest.raises(WeightsError):
        train(here, features, run)
    assert not train(there, features, run).already
    assert train(here, features, run).already  # finished: the file is not needed any more
    assert train_embedding(here, features, phi).exists()
    assert json.loads((run / "run.json").read_text())["weights"] == weights_digest(str(elsewhere))
    other = build_backbone("mlp", in_features=5).body.state_dict()
    save_tensors(elsewhere, {key: value + 1 for key, value in other.items()})
    with refused(RunError, run, "model.weights"):
        train(there, features, run)


def test_digests_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (weights_digest(""), weights_digest(str(path))) == ("", known)
    path.write_bytes(b"abd")
    assert weights_digest(str(path)) != known
    for missing in (tmp_path / "none", tmp_path):
        with refused(WeightsError, missing):
            weights_digest(str(missing))


def test_a_run_that_another_process_finished_meanwhile_is_left_alone(
    features: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from acclimate.runs import session as module

    build, run = module.Networks, tmp_path / "run"

    def finish_it_first(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(module, "Networks", build)
        assert not train(tiny(), features, run).already
        return build(*arguments, **named)

    monkeypatch.setattr(module, "Networks", finish_it_first)
    assert train(tiny(), features, run).already
    assert RunFolder(run).records().duplicates == 0
