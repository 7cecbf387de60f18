"""A head that learns before the rest, and a last fit on all rows: against references, resumed, and
honest about what is still held out."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from acclimate.config import EmbeddingConfig, RunConfig, TrainConfig
from acclimate.config.settings import ProbeConfig
from acclimate.core.distributed import World
from acclimate.core.errors import ManifestError
from acclimate.core.randomness import derive
from acclimate.data.batches import DomainSampler, label_counts, label_prior
from acclimate.data.manifest import Manifest
from acclimate.learn.algorithms import names
from acclimate.learn.model import Trained, build_networks
from acclimate.learn.models.backbones import freeze_batch_norm, held_still
from acclimate.runs.evaluate import evaluate_run
from acclimate.runs.folder import RunFolder
from acclimate.runs.plan import make_plan
from acclimate.runs.records import Score, Validated, read
from acclimate.runs.scoring import Evaluator
from acclimate.runs.session import set_statistics
from acclimate.runs.timing import _learning
from acclimate.runs.training import train
from fixtures.interruption import assert_same_weights, stable, weights
from fixtures.settings import as_flags

Tiny = Callable[..., RunConfig]
UNSEEN: dict[str, Any] = {"test_domains": ["site-4"]}
EVERYTHING: dict[str, Any] = {
    "train.average.kind": "swad",
    "train.average.patience": 1,
    "train.evaluate_every": 1,
    "train.probe.steps": 3,
    "train.probe.lr": 0.05,
    "train.last_fit": True,
    "train.optimiser.lr": 0.02,
}


class Stop(Exception):
    pass


def stopped(at: str, step: int) -> Callable[[str, int, int, str], None]:
    def watch(phase: str, done: int, total: int, note: str) -> None:
        if (phase, done) == (at, step):
            raise Stop

    return watch


def test_a_module_that_is_held_still() -> None:
    """No gradients and no statistics of batches, whoever says train(); afterwards as before."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.BatchNorm1d(4)))
    freeze_batch_norm(module[2])
    outer = nn.Sequential(module, nn.Linear(4, 2))
    flags = [parameter.requires_grad for parameter in outer.parameters()]
    before = {name: value.clone() for name, value in outer.state_dict().items()}
    modes = [part.training for part in outer.modules()]
    with held_still(module):
        outer.train()
        assert outer.training and not any(part.training for part in module.modules())
        outer(torch.randn(8, 3)).sum().backward()
        learned = [name for name, p in outer.named_parameters() if p.grad is not None]
        assert learned == ["1.weight", "1.bias"]
        assert all(torch.equal(value, before[n]) for n, value in outer.state_dict().items())
    assert [parameter.requires_grad for parameter in outer.parameters()] == flags
    assert [part.training for part in outer.modules()] == modes
    outer(torch.randn(8, 3))
    assert not torch.equal(module[1].running_mean, before["0.1.running_mean"])
    assert torch.equal(module[2][0].running_mean, before["0.2.0.running_mean"])


def test_a_probe_is_a_classifier_on_fixed_features(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    """Written out: features of the first weights, a linear layer, Adam, a rate along a cosine."""
    config = tiny("erm", **UNSEEN, **{"train.probe.steps": 5, "train.probe.lr": 0.05})
    with pytest.raises(Stop):
        train(config, features, tmp_path / "run", watch=stopped("main", 1))
    stored = load_file(tmp_path / "run" / "checkpoint-main-probe.safetensors")

    plan = make_plan(config, features)
    torch.manual_seed(derive(0, "initial weights"))
    predictor, _ = build_networks(plan.config, 3, 4, 5, pretrained=True, world=World())
    learned_from = features.features()[np.concatenate(plan.train_rows)]
    set_statistics(lambda: iter([learned_from]), [predictor])
    with torch.no_grad():
        fixed = predictor.backbone(torch.from_numpy(features.features()))
    head = nn.Linear(256, 3)
    head.load_state_dict(predictor.head.last.state_dict())
    optimiser = torch.optim.Adam(head.parameters())
    sampler = DomainSampler(
        plan.train_rows, per_domain=4, domains_per_step=4, seed=derive(0, "probe")
    )
    for step in range(5):
        rows = torch.from_numpy(sampler.rows(step)[0])
        optimiser.param_groups[0]["lr"] = 0.05 * 0.5 * (1 + np.cos(np.pi * step / 5))
        optimiser.zero_grad()
        y = torch.from_numpy(features.label_index)[rows]
        F.cross_entropy(head(fixed[rows]), y).backward()
        optimiser.step()
    for name, value in head.state_dict().items():
        found = stored[f"module/predictor.head.last.{name}"]
        torch.testing.assert_close(found, value, rtol=0, atol=1e-5)
    for name, value in predictor.backbone.state_dict().items():
        assert torch.equal(stored[f"module/predictor.backbone.{name}"], value), name
    rates = [loss.lr for loss in RunFolder(tmp_path / "run").records().losses]
    assert rates == pytest.approx([0.05 * 0.5 * (1 + np.cos(np.pi * at / 5)) for at in (1, 3, 4)])


def all_trained_on(manifest: Manifest) -> Manifest:
    """The same rows, none of them held out."""
    table = manifest.table
    place = table.column_names.index("split")
    whole = pa.array(["train"] * len(manifest), table.schema.field("split").type)
    return replace(manifest, table=table.set_column(place, table.schema.field("split"), whole))


def scores(run: Path, moment: str, role: str) -> list[Score]:
    found = read(run / "records.jsonl").scores
    return [score for score in found if (score.moment, score.role) == (moment, role)]


def test_a_last_fit_is_a_training_on_all_rows_of_the_steps_that_were_chosen(
    tree: Path, tiny: Tiny, tmp_path: Path
) -> None:
    """What it says of held-out rows is what the run without it says."""
    data = Manifest.from_folder(tree)
    settings = {"test_domains": ["west"], "train.evaluate_every": 1, "train.probe.steps": 2}
    settings |= {"seed": 1, "train.probe.lr": 1e-4, "train.optimiser.lr": 1e-3}
    run, without = tmp_path / "run", tmp_path / "without"
    train(tiny("erm", **settings, **{"train.last_fit": True}), data, run)
    train(tiny("erm", **settings), data, without)
    ends = [read(folder / "records.jsonl").finished for folder in (run, without)]
    assert ends[0] is not None and ends[1] is not None
    kept = ends[0].kept_step
    assert 1 < kept < 6, "the length is chosen, not given"
    assert (kept, ends[0].kept_score) == (ends[1].kept_step, ends[1].kept_score)
    assert ends[0].kept_by == "validation splits, then fitted on all rows"

    whole = tmp_path / "whole"
    asked = tiny("erm", **{**settings, "train.steps": kept, "train.keep": "last"})
    train(asked, all_trained_on(data), whole)
    assert_same_weights(run, whole)
    for moment in ("validation", "final"):
        assert scores(run, moment, "train") == scores(without, moment, "train")
    assert scores(run, "final", "test") == scores(whole, "final", "test")
    assert scores(run, "final", "test") != scores(without, "final", "test")
    assert all(one.loss is not None for one in scores(run, "validation", "train"))


def test_a_last_fit_follows_the_schedule_and_the_window_that_were_there(
    features: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rates are the first ones of the run's cosine, and its mean is over the same steps."""
    run, losses = tmp_path / "run", [9, 5, 6, 5.5, 9, 9, 9, 9, 9]
    validation = Evaluator.validation

    def scripted(self: Evaluator, step: int) -> Validated:
        return validation(self, step)._replace(loss=losses[step - 1])

    monkeypatch.setattr(Evaluator, "validation", scripted)
    changes = {"train.steps": 9, "train.checkpoint_every": 1, "train.optimiser.schedule": "cosine"}
    changes |= {"train.average.patience": 2, "train.average.tolerance": 3}
    config = tiny("erm", **UNSEEN, **{**EVERYTHING, **changes})
    path: list[dict[str, torch.Tensor]] = []

    def watch(phase: str, done: int, total: int, note: str) -> None:
        if phase == "main-last":
            stored = load_file(run / "checkpoint-main-last.safetensors")
            path.append({name: value.double() for name, value in stored.items()})

    train(config, features, run, watch=watch)
    records = read(run / "records.jsonl")
    end = records.finished
    assert end is not None and (end.kept_from, end.kept_step) == (2, 4)
    first, last = (
        [loss.lr for loss in records.losses if loss.phase == phase]
        for phase in ("main", "main-last")
    )
    assert last == first[:4] and len(first) == 9 and len(path) == 4
    for name, value in weights(run).items():
        mean = torch.stack([stored[f"module/{name}"] for stored in path[1:]]).mean(0)
        torch.testing.assert_close(value.double(), mean, rtol=0, atol=1e-6)


def test_frequencies_are_those_of_all_rows(features: Manifest, tiny: Tiny) -> None:
    plan = make_plan(tiny("erm", **UNSEEN, **{"train.last_fit": True}), features)
    rows = [
        features.rows(domain=name)[features.splits[features.rows(domain=name)] != "test"]
        for name in plan.train_domains
    ]
    assert [part.tolist() for part in plan.fitted_rows] == [part.tolist() for part in rows]
    counts = label_counts(features.label_index, rows, 3)
    assert plan.label_prior().tolist() == label_prior(counts).tolist()
    fewer = label_counts(features.label_index, plan.train_rows, 3)
    assert counts.sum() > fewer.sum()


def test_nothing_that_was_fitted_is_scored_as_if_it_were_new(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(tiny("erm", **UNSEEN, **{"train.last_fit": True}), features, run)
    found = evaluate_run(run, features, methods=["prior"]).scores
    assert {score.domain for score in found} == {"site-4"}
    # The confusion matrix of the black-box check would be of fitted rows.
    assert {score.method for score in found} == {"none", "oracle-prior", "prior"}
    # Of other data nothing is known to have been fitted.
    other = features.select(np.flatnonzero(features.domain_names == "site-0")[:20])
    assert {score.domain for score in evaluate_run(run, other).scores} == {"site-0"}

    alone = tmp_path / "alone"
    train(tiny("erm", **{"train.last_fit": True}), features, alone)
    assert len(scores(alone, "final", "train")) == 5
    with pytest.raises(ManifestError) as caught:
        evaluate_run(alone, features)
    assert str(caught.value) == (
        f"the last fit of {alone} took in all rows of arrays, and leaves none to score; "
        "its records have the scores of before, or give other data"
    )


def test_without_validation_rows_there_is_nothing_to_take_in(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    with pytest.raises(ManifestError) as caught:
        train(tiny("erm", **{"train.last_fit": True}), all_trained_on(features), tmp_path / "run")
    assert str(caught.value) == (
        "the training domains of arrays have no rows in split 'val' that a last fit could take in; "
        "leave out train.last_fit"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_algorithm_resumes_to_the_same_weights(
    features: Manifest, tiny: Tiny, tmp_path: Path, name: str
) -> None:
    config = tiny(name, **UNSEEN, **EVERYTHING)
    train(config, features, tmp_path / "whole")
    places = [("main-probe", 3), ("main", 4), ("main-last-probe", 2), ("main-last", 1)]
    for phase, step in places if name in ("erm", "da-erm") else places[3:]:
        with pytest.raises(Stop):
            train(config, features, tmp_path / "stopped", watch=stopped(phase, step))
    train(config, features, tmp_path / "stopped")
    assert_same_weights(tmp_path / "whole", tmp_path / "stopped")
    assert stable(tmp_path / "whole") == stable(tmp_path / "stopped")


@pytest.mark.slow
def test_rehearsal_is_over_before_the_last_fit(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    """What it found is what the run without a last fit finds; the model is the last fit's."""
    found = {}
    for last in (False, True):
        run = tmp_path / f"{last}"
        settings = {"adapt.rehearse": True, "adapt.site.steps": 20, "train.last_fit": last}
        train(tiny("erm", **UNSEEN, **settings), features, run)
        found[last] = json.loads((run / "rehearsal.json").read_text())
    assert found[True] == found[False]
    one, two = (Trained.load(tmp_path / f"{last}") for last in (False, True))
    assert (one.site is None) == (two.site is None)
    assert not torch.equal(one.predictor.head.last.weight, two.predictor.head.last.weight)


def test_estimates_count_the_probe_and_the_last_fit() -> None:
    """6 images a step: 10 steps at 1 s, 5 of the probe at 0.1 s, and all of it twice."""
    train = TrainConfig(
        steps=10, per_domain=2, domains_per_step=3, probe=ProbeConfig(steps=5), last_fit=True
    )
    assert _learning(train, 1.0, 0.1) == pytest.approx(2 * 6 * (10 + 0.5))
    assert _learning(replace(train, last_fit=False), 1.0, 0.1) == pytest.approx(6 * 10.5)
    phi = EmbeddingConfig(steps=10, per_domain=2, domains_per_step=3)
    assert _learning(phi, 1.0, 0.1) == pytest.approx(60)


ROWS: dict[str, dict[str, Any]] = {
    "ERM": {},
    "+ SWAD": {"train.average.kind": "swad"},
    "+ probe": {"train.probe.steps": 3},
    "+ last fit": {"train.last_fit": True},
    "+ probe + SWAD": {"train.average.kind": "swad", "train.probe.steps": 3},
    "all three": {
        "train.average.kind": "swad",
        "train.probe.steps": 3,
        "train.last_fit": True,
    },
}


@pytest.mark.slow
def test_the_benchmark_s_rows_are_those_of_runs_of_their_own(
    tree: Path, tiny: Tiny, tmp_path: Path
) -> None:
    """Though trainings are shared by rows; what time cuts off goes on where it was."""
    script = Path(__file__).parents[2] / "benchmarks" / "base.py"
    own = {"train.per_domain": 4, "train.average.patience": 1, "train.optimiser.lr": 3e-4}
    asked = ["--domains=west", "--seeds=1", "--steps=8", "--evaluate-every=1", "--probe=3"]
    command = [sys.executable, script, tree, *asked, *as_flags(own), "--out", tmp_path / "bench"]
    for minutes in ("0.00001", "0"):
        said = subprocess.run(
            list(map(str, [*command, "--minutes", minutes])),
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        assert ("time was up: 6 scores are missing" in said) == (minutes != "0")
    found = json.loads((tmp_path / "bench" / "base.json").read_text())
    tops = {row["row"]: row["top1"] for row in found["rows"]}
    assert tops.keys() == ROWS.keys()
    shared = {"train.steps": 8, "train.evaluate_every": 1, "adapt.source": "test"}
    shared |= {"test_domains": ["west"], **own}
    for row, settings in ROWS.items():
        config = tiny("erm", **shared, **settings)
        train(config, Manifest.from_folder(tree), tmp_path / row)
        (score,) = (s for s in scores(tmp_path / row, "final", "test") if s.method == "none")
        assert score.top1 == tops[row], row
        assert found["summary"][row]["west"] == {"mean": tops[row], "se": None, "n": 1}
    assert len(set(tops.values())) > 2, "rows that differ show that they are not mixed up"
