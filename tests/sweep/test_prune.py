"""Pruning deletes weights of runs that were not chosen, and nothing that is still needed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from acclimate.config import RunConfig, from_dict
from acclimate.data.manifest import Manifest
from acclimate.learn.model import Trained
from acclimate.records.folder import RunFolder, write_checksums
from acclimate.records.records import Finished, Score
from acclimate.rehearse.training import train
from acclimate.results.protocol import Job, Sweep
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep.definition import gather
from acclimate.sweep.driver import prune
from acclimate.sweep.jobs import define
from fixtures.settings import TINY


@pytest.fixture
def sweep(features: Manifest) -> Sweep:
    """Plain and adaptive, two unseen domains, two draws; chosen by the unseen domains."""
    asked = {"data": ("sites",), "test_domains": ("site-0", "site-1"), "rule": "oracle"}
    config = gather(None, {**asked, "draws": 2, "trials": 1, "settings": TINY})
    return define(config, {"sites": features})


def finish(folder: Path, job: Job) -> Path:
    """What a finished run leaves, written by hand; all have one accuracy."""
    place = SweepFolder(folder).run(job.id).path
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps({"config": job.config, "format": 1}))
    (place / "model.safetensors").write_bytes(b"w")
    if job.needs:
        (place / "embedding.safetensors").write_bytes(b"p")
    score = Score(
        moment="final", step=6, domain=job.held_out[0], role="test", split="all", n=18, top1=0.75,
        top5=None, method=job.methods[0],
    )  # fmt: skip
    RunFolder(place).append(score)
    finished = Finished(
        kept_step=6, kept_by="validation splits", kept_score=0.5, seconds=61.4, quarantined=2
    )
    RunFolder(place).append(finished)
    write_checksums(place, finished=True)
    return place


@pytest.fixture
def finished(sweep: Sweep, tmp_path: Path) -> Path:
    """The folder of the sweep, with each job and each Φ done."""
    for phi in sweep.embeddings:
        place = SweepFolder(tmp_path).embedding(phi.id).path
        place.mkdir(parents=True)
        (place / "embedding.safetensors").write_bytes(b"s")
    for job in sweep.jobs:
        finish(tmp_path, job)
    return tmp_path


def weights(folder: Path) -> dict[str, set[str]]:
    """The names of weight files, by the name of their folder."""
    names: dict[str, set[str]] = {}
    for path in folder.rglob("*.safetensors"):
        names.setdefault(path.parent.name, set()).add(path.name)
    return names


def test_only_the_chosen_weights_stay_and_every_job_stays_done(
    sweep: Sweep, finished: Path
) -> None:
    before = weights(finished)
    assert prune(finished, sweep) == ""
    chosen = {job.id for job in sweep.jobs if job.draw == 0}  # all accuracies are equal
    assert weights(finished) == {id: before[id] for id in chosen}
    assert {SweepFolder(finished).job_state(job.id) for job in sweep.jobs} == {"done"}
    gone = next(job for job in sweep.jobs if job.needs and job.draw == 1)
    note = json.loads((SweepFolder(finished).run(gone.id).path / "pruned.json").read_text())
    assert note["deleted"] == ["model.safetensors", "embedding.safetensors"]
    assert prune(finished, sweep) == ""
    assert set(weights(finished)) == chosen


def test_nothing_is_pruned_before_every_job_is_done(sweep: Sweep, finished: Path) -> None:
    (SweepFolder(finished).run(sweep.jobs[0].id).path / "checksums.json").unlink()
    before = weights(finished)
    assert prune(finished, sweep)
    assert weights(finished) == before


def test_nothing_is_pruned_where_the_rule_cannot_choose(sweep: Sweep, finished: Path) -> None:
    """These runs have no validation splits to be chosen by."""
    before = weights(finished)
    assert "training-domains" in prune(finished, replace(sweep, rule="training-domains"))
    assert weights(finished) == before


def test_nothing_is_pruned_in_place_of_what_is_gone(sweep: Sweep, finished: Path) -> None:
    """Another rule had other weights pruned than those that are chosen now."""
    for job in sweep.jobs:
        if job.draw == 0:
            SweepFolder(finished).run(job.id).prune()
    before = weights(finished)
    assert any(job.id in prune(finished, sweep) for job in sweep.jobs if job.draw == 0)
    assert weights(finished) == before


def test_the_note_comes_before_the_deed(
    sweep: Sweep, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    place = SweepFolder(finished).run(sweep.jobs[0].id)
    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        place.prune()
    assert (place.path / "pruned.json").exists()
    assert (place.path / "model.safetensors").exists()


def test_a_chosen_model_still_loads(sweep: Sweep, features: Manifest, tmp_path: Path) -> None:
    sweep = replace(sweep, jobs=tuple(job for job in sweep.jobs if job.algorithm == "erm"))
    for job in sweep.jobs:
        config = from_dict(RunConfig, job.config, where=job.id)
        train(config, features, SweepFolder(tmp_path).run(job.id).path, device="cpu")
    assert prune(tmp_path, sweep) == ""
    kept = weights(tmp_path)
    assert len(kept) == len(sweep.jobs) / 2
    for id in kept:
        Trained.load(SweepFolder(tmp_path).run(id).path)
