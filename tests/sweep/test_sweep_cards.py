"""Model cards say what the folder says, and pruning takes nothing that is still needed."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acclimate.config import RunConfig, as_dict, from_dict, merged
from acclimate.core.errors import SweepError
from acclimate.core.files import write_document
from acclimate.data.manifest import Manifest
from acclimate.learn.model import Trained
from acclimate.records.folder import write_checksums
from acclimate.records.records import Finished, Score, Started, append
from acclimate.rehearse.conclusion import Trial, conclude
from acclimate.rehearse.training import train
from acclimate.results.protocol import Job, Sweep
from acclimate.results.selection import Choice, candidates, select
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep.cards import prune, write_cards
from acclimate.sweep.conduct import choose, keep
from acclimate.sweep.definition import gather
from acclimate.sweep.driver import Tally
from acclimate.sweep.jobs import define
from fixtures.errors import refused
from fixtures.settings import TINY

VERSION, DEVICE, TIME = "9.9", "a machine", "2026-01-02T03:04:05.000000+00:00"


@pytest.fixture
def sweep(features: Manifest) -> Sweep:
    config = gather(
        None,
        {
            "data": ("sites",),
            "test_domains": ("site-0", "site-1"),
            "draws": 2,
            "trials": 1,
            "settings": TINY,
            "title": "Sites",
        },
    )
    return define(config, {"sites": features})


def job_of(sweep: Sweep, algorithm: str, target: str, draw: int = 0) -> Job:
    return next(
        job
        for job in sweep.jobs
        if (job.algorithm, job.groups, job.draw) == (algorithm, ((target,),), draw)
    )


def finish(folder: Path, job: Job, **changes: Any) -> Path:
    """What a finished run leaves, written by hand."""
    place = SweepFolder(folder).run(job.id).path
    place.mkdir(parents=True)
    run = {
        "config": {**job.config, **changes},
        "data": "d" * 64,
        "source": "sites.parquet",
        "classes": ["ant", "bee", "cat"],
        "train_domains": ["site-2", "site-3"],
        "val_domains": [],
        "test_domains": list(job.held_out),
    }
    (place / "run.json").write_text(json.dumps({**run, "format": 1}))
    (place / "model.safetensors").write_bytes(b"w" * 1000)
    if job.needs:
        (place / "embedding.safetensors").write_bytes(b"p" * 300)
    records = place / "records.jsonl"
    append(records, started("2026-01-01T00:00:00.000000+00:00"))
    append(records, started(TIME))
    for score in scores(job):
        append(records, score)
    finished = Finished(
        kept_step=6, kept_by="validation splits", kept_score=0.5, seconds=61.4, quarantined=2
    )
    append(records, finished)
    write_checksums(place)
    return place


def started(time: str) -> Started:
    return Started(
        time=time,
        version=VERSION,
        device=DEVICE,
        processes=1,
        resumed_at=None,
    )


def scores(job: Job) -> list[Score]:
    usual = "embedding" if job.needs else "none"
    adapted = {"adapted_on": "held-out", "adapt_n": 6} if job.needs else {}
    common: dict[str, Any] = {"step": 6, "n": 18, "top5": None, "split": "all"}
    target = job.held_out[0]
    return [
        Score(moment="validation", domain="site-2", role="val", top1=0.1, method=usual,
              **{**common, "split": "val"}),
        Score(moment="final", domain="site-2", role="train", top1=0.9, method=usual, **common),
        Score(moment="final", domain=target, role="test", top1=0.7512, method=usual,
              **common, **adapted),
        Score(moment="final", domain=target, role="test", top1=None,
              method="wrong-embedding" if job.needs else "oracle-prior", **common),
    ]  # fmt: skip


def choice(job: Job, **changes: Any) -> Choice:
    facts: dict[str, Any] = {
        "dataset": job.dataset,
        "algorithm": job.algorithm,
        "variant": job.variant,
        "method": job.methods[0],
        "trial": job.trial,
        "target": job.groups[0],
        "run": job.id,
        "draw": job.draw,
        "score": 0.625,
        "candidates": 2,
    }
    return Choice(**{**facts, **changes})


def section(text: str, title: str) -> str:
    return text.partition(f"## {title}\n\n")[2].partition("\n\n## ")[0]


class TestCards:
    def test_of_an_adaptive_model(self, sweep: Sweep, tmp_path: Path) -> None:
        job = job_of(sweep, "da-erm", "site-0", draw=1)
        own = {
            "algorithm": "da-erm",
            "model": {"weights": "/somewhere/else/r50.pth", "backbone": "resnet50"},
            "train": {"optimiser": {"lr": 0.5}},
        }
        place = finish(tmp_path, job, **merged(as_dict(RunConfig()), own))
        written = write_cards(tmp_path, sweep, [choice(job)], "training-domains")
        assert written == [place / "MODEL_CARD.md"]
        text = written[0].read_text(encoding="utf-8")
        assert "/somewhere" not in text
        assert text.startswith("# da-erm on sites\n")
        facts = {
            "Model and data": ("resnet50", "r50.pth", "sites.parquet", "d" * 64, "3 classes"),
            "How it was chosen": ("Sites", "training-domains", "site-0", "draw 1 of 2", "62.5 %"),
            "Made": ("9.9", "a machine", "2026-01-01", "61 s", "2 sessions", "step 6"),
        }
        for title, said in facts.items():
            assert [fact for fact in said if fact not in section(text, title)] == []
        assert "ant, bee, cat" in text and "site-2, site-3" in text
        assert section(text, "Scores on unseen domains").splitlines()[2:] == [
            "| site-0 | test | embedding (6 held-out) | 18 | 75.1 | – |",
            "| site-0 | test | wrong-embedding | 18 | – | – |",
        ]
        assert section(text, "Use").splitlines()[1:-1] == [
            f"acclimate adapt {job.id} new-domain/ --out new-domain.safetensors",
            f"acclimate predict {job.id} new-domain/ --domain new-domain.safetensors "
            "--out predictions.csv",
        ]
        assert section(text, "Settings that differ from the defaults").splitlines()[2:] == [
            "| `train.optimiser.lr` | 0.5 |"
        ]

    def test_a_plain_model_needs_no_adapting(self, sweep: Sweep, tmp_path: Path) -> None:
        job = job_of(sweep, "erm", "site-0")
        finish(tmp_path, job)
        (path,) = write_cards(tmp_path, sweep, [choice(job, score=None)], "oracle")
        text = path.read_text(encoding="utf-8")
        assert "acclimate adapt" not in text
        assert f"acclimate predict {job.id} new-domain/ --out predictions.csv" in text
        assert "| `train.steps` | 6 |" in text

    def test_no_use_is_shown_for_weights_that_are_gone(self, sweep: Sweep, tmp_path: Path) -> None:
        """Another rule may choose what was pruned before."""
        job = job_of(sweep, "da-erm", "site-0")
        finish(tmp_path, job)
        prune(tmp_path, sweep, set())
        (path,) = write_cards(tmp_path, sweep, [choice(job)], "oracle")
        use = section(path.read_text(), "Use")
        assert "pruned" in use and "acclimate" not in use

    def test_only_what_was_chosen_gets_one(self, sweep: Sweep, tmp_path: Path) -> None:
        one, other = job_of(sweep, "erm", "site-0"), job_of(sweep, "erm", "site-1")
        finish(tmp_path, one)
        nothing = choice(other, run=None, draw=None, reason="no finished run")
        assert len(write_cards(tmp_path, sweep, [choice(one), nothing], "oracle")) == 1
        assert not SweepFolder(tmp_path).run(other.id).path.exists()

    def test_written_again_it_is_the_same(self, sweep: Sweep, tmp_path: Path) -> None:
        job = job_of(sweep, "erm", "site-0")
        finish(tmp_path, job)
        (path,) = write_cards(tmp_path, sweep, [choice(job)], "oracle")
        first, moment = path.read_bytes(), path.stat().st_mtime_ns
        write_cards(tmp_path, sweep, [choice(job)], "oracle")
        assert (path.read_bytes(), path.stat().st_mtime_ns) == (first, moment)

    def test_a_run_that_is_chosen_no_more_loses_its_card(
        self, sweep: Sweep, tmp_path: Path
    ) -> None:
        one, other = job_of(sweep, "erm", "site-0"), job_of(sweep, "erm", "site-1")
        for job in (one, other):
            finish(tmp_path, job)
        (old,) = write_cards(tmp_path, sweep, [choice(one)], "oracle")
        (new,) = write_cards(tmp_path, sweep, [choice(other)], "oracle")
        assert (old.exists(), new.exists()) == (False, True)

    def test_an_unfinished_run(self, sweep: Sweep, tmp_path: Path) -> None:
        job = job_of(sweep, "erm", "site-0")
        place = finish(tmp_path, job)
        (place / "records.jsonl").unlink()
        (place / "checksums.json").unlink()
        with refused(SweepError, place):
            write_cards(tmp_path, sweep, [choice(job)], "oracle")

    def test_a_damaged_run(self, sweep: Sweep, tmp_path: Path) -> None:
        job = job_of(sweep, "erm", "site-0")
        place = finish(tmp_path, job)
        (place / "run.json").write_text("{")
        with refused(SweepError, place / "run.json"):
            write_cards(tmp_path, sweep, [choice(job)], "oracle")


@pytest.fixture
def half_done(sweep: Sweep, tmp_path: Path) -> Path:
    """site-0 is finished in both draws; of site-1, draw 0 is; draw 1 of it is under way."""
    for phi in sweep.embeddings:
        place = SweepFolder(tmp_path).embedding(phi.id).path
        place.mkdir(parents=True)
        (place / "embedding.safetensors").write_bytes(b"s" * 77)
    for job in sweep.jobs:
        place = finish(tmp_path, job)
        if job.groups == (("site-1",),) and job.draw == 1:
            (place / "checksums.json").unlink()
    return tmp_path


def weights(folder: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        found.setdefault(path.parent.name, set()).add(path.name)
    return found


class TestPrune:
    def test_keeps_the_chosen_and_the_unfinished(self, sweep: Sweep, half_done: Path) -> None:
        kept = job_of(sweep, "da-erm", "site-0", draw=1)
        before = weights(half_done)
        states = {job.id: SweepFolder(half_done).job_state(job.id) for job in sweep.jobs}
        freed = prune(half_done, sweep, {kept.id})
        unfinished = {job_of(sweep, name, "site-1", draw=1).id for name in ("erm", "da-erm")}
        still_needed = job_of(sweep, "da-erm", "site-1").needs
        assert still_needed is not None
        stays = {kept.id, *unfinished, still_needed}
        assert weights(half_done) == {name: before[name] for name in stays}
        # Gone: 5 finished runs' models, 2 of them adaptive, and the Φ of site-0.
        assert freed == 5 * 1000 + 2 * 300 + 77
        assert {job.id: SweepFolder(half_done).job_state(job.id) for job in sweep.jobs} == states

    def test_says_so_and_a_second_time_finds_nothing(self, sweep: Sweep, half_done: Path) -> None:
        gone = job_of(sweep, "da-erm", "site-0")
        prune(half_done, sweep, set())
        said = json.loads((SweepFolder(half_done).run(gone.id).path / "pruned.json").read_text())
        assert said["deleted"] == ["model.safetensors", "embedding.safetensors"]
        running = job_of(sweep, "erm", "site-1", draw=1)
        assert not (SweepFolder(half_done).run(running.id).path / "pruned.json").exists()
        assert prune(half_done, sweep, set()) == 0
        assert (
            json.loads((SweepFolder(half_done).run(gone.id).path / "pruned.json").read_text())
            == said
        )

    def test_the_note_comes_before_the_deed(
        self, sweep: Sweep, half_done: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(path: Path, missing_ok: bool = False) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", killed)
            with pytest.raises(KeyboardInterrupt):
                prune(half_done, sweep, set())
        first = SweepFolder(half_done).run(sweep.jobs[0].id).path
        assert (first / "pruned.json").exists()
        assert (first / "model.safetensors").exists()

    def test_bytes_under_another_name_are_not_freed(self, sweep: Sweep, tmp_path: Path) -> None:
        job = job_of(sweep, "da-erm", "site-0")
        place = finish(tmp_path, job)
        os.link(place / "embedding.safetensors", tmp_path / "another-name")
        assert prune(tmp_path, sweep, set()) == 1000

    def test_an_empty_sweep(self, sweep: Sweep, tmp_path: Path) -> None:
        assert prune(tmp_path, sweep, set()) == 0


def test_real_runs(features: Manifest, tmp_path: Path, sweep: Sweep) -> None:
    """Trained, chosen, described, pruned: the chosen model still loads."""
    for job in sweep.jobs:
        if job.groups == (("site-0",),):
            config = from_dict(RunConfig, job.config, where=job.id)
            train(config, features, SweepFolder(tmp_path).run(job.id).path, device="cpu")
    choices = select(candidates(tmp_path, sweep), "training-domains")
    chosen = {one.run for one in choices if one.run}
    assert len(chosen) == 2
    paths = write_cards(tmp_path, sweep, choices, "training-domains")
    assert {path.parent.name for path in paths} == chosen
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert "site-1, site-2, site-3, site-4\n" in text
        assert "| site-0 | test |" in text
        assert str(tmp_path) not in text
    assert prune(tmp_path, sweep, chosen) > 0
    for name in chosen:
        Trained.load(SweepFolder(tmp_path).run(name).path)
    pruned = {job.id for job in sweep.jobs if job.groups == (("site-0",),)} - chosen
    assert all(SweepFolder(tmp_path).job_state(name) == "done" for name in pruned)
    assert not any(
        list(SweepFolder(tmp_path).run(name).path.glob("model.safetensors")) for name in pruned
    )


# ---- what the command keeps ----------------------------------------------------------------------


def after(folder: Path, sweep: Sweep, *, done: int | None = None) -> str:
    """What `sweep --prune` does once its jobs have ended, and what it says."""
    jobs = len(sweep.jobs)
    tally = Tally(
        jobs=jobs, already=0, done=jobs if done is None else done, failures=(), blocked=()
    )
    return keep(folder, sweep, choose(folder, sweep), tally, weights=False)


def all_finished(folder: Path, sweep: Sweep) -> dict[str, set[str]]:
    for job in sweep.jobs:
        finish(folder, job)
    return weights(folder)


def test_with_one_draw_cross_validation_chooses_and_prunes_nothing(
    features: Manifest, tmp_path: Path
) -> None:
    asked = {"data": ("sites",), "test_domains": ("site-0", "site-1"), "trials": 1}
    config = gather(None, {**asked, "rule": "leave-one-out", "settings": TINY})
    sweep = define(config, {"sites": features})
    before = all_finished(tmp_path, sweep)
    after(tmp_path, sweep)
    assert weights(tmp_path) == before
    assert len(list(tmp_path.rglob("MODEL_CARD.md"))) == len(sweep.jobs) == 4


def test_nothing_is_pruned_where_the_rule_cannot_choose(sweep: Sweep, tmp_path: Path) -> None:
    """These runs have no validation splits to be chosen by."""
    before = all_finished(tmp_path, sweep)
    assert "training-domains" in after(tmp_path, sweep)
    assert weights(tmp_path) == before


def test_only_the_chosen_weights_stay(sweep: Sweep, tmp_path: Path) -> None:
    sweep = replace(sweep, rule="oracle")
    before = all_finished(tmp_path, sweep)
    said = after(tmp_path, sweep, done=len(sweep.jobs) - 1)
    assert weights(tmp_path) == before
    assert said
    assert after(tmp_path, sweep) == ""
    defaults = {job.id for job in sweep.jobs if job.draw == 0}  # all scores are equal
    assert set(weights(tmp_path)) == defaults
    assert {path.parent.name for path in tmp_path.rglob("MODEL_CARD.md")} == defaults


def test_nothing_is_pruned_in_place_of_what_is_gone(sweep: Sweep, tmp_path: Path) -> None:
    """Another rule had other weights pruned than those that are chosen now."""
    sweep = replace(sweep, rule="oracle")
    all_finished(tmp_path, sweep)
    others = {job.id for job in sweep.jobs if job.draw == 1}
    prune(tmp_path, sweep, others)
    first = job_of(sweep, "da-erm", "site-0")
    assert first.id in after(tmp_path, sweep)
    assert set(weights(tmp_path)) == others


def test_the_card_of_a_rehearsed_run_has_the_verdict(sweep: Sweep, tmp_path: Path) -> None:
    job = job_of(sweep, "erm", "site-0")
    place = finish(tmp_path, job)
    found = conclude(
        [
            Trial(domain=site, chain=chain, n=20, frequencies="as they are", accuracy=accuracy)
            for site, plain in {"north": 0.6, "south": 0.7, "east": 0.8}.items()
            for chain, accuracy in {"none": plain, "embedding": plain + 0.05}.items()
        ],
        {},
        exact=True,
    )
    write_document(place / "rehearsal.json", found.to_dict())
    (card,) = write_cards(tmp_path, sweep, [choice(job)], "training-domains")
    text = card.read_text()
    *sentences, _, _ = section(text, "Rehearsal").splitlines()
    assert any("embedding" in line and "+5.0 ± 0.0" in line for line in sentences)
    assert section(text, "Rehearsal").splitlines()[-2:] == [
        "| none | 20 | as they are | 70.0 | 0.0 ± 0.0 |",
        "| embedding \\* | 20 | as they are | 75.0 | +5.0 ± 0.0 |",
    ]
    assert f"acclimate adapt {place.name} new-domain/ --out new-domain.safetensors" in text
