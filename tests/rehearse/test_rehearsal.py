"""Domains held out in turn: on features made by hand, and as the end of a run."""

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from acclimate.adapt.choice import choose_method, explained_here
from acclimate.adapt.classifier import Adapted, adapt
from acclimate.config import RunConfig, SiteConfig
from acclimate.core.errors import ConfigError, RunError, StateMismatch
from acclimate.data.images import read_pixels
from acclimate.data.manifest import Manifest
from acclimate.learn import site as site_module
from acclimate.learn.images import Images
from acclimate.learn.model import Trained
from acclimate.learn.site import Features
from acclimate.records.folder import RunFolder, runs_below
from acclimate.records.rehearsal import NETWORK
from acclimate.rehearse import rehearsal as module
from acclimate.rehearse import training as retraining
from acclimate.rehearse.folds import RehearsalData, make_folds
from acclimate.rehearse.rehearsal import rehearse
from acclimate.rehearse.training import train
from acclimate.runs import plan as plans
from acclimate.runs.evaluate import evaluate_run
from acclimate.runs.plan import make_plan
from fixtures.errors import refused
from fixtures.interruption import Killed, assert_same_weights, stable
from fixtures.sites import rows_of, sites_on_a_line

Tiny = Callable[..., RunConfig]
SMALL = SiteConfig(steps=100, batch=64, lr=0.02, width=16, dim=4, dropout=0.0)
SITE = {f"adapt.site.{key}": value for key, value in asdict(SMALL).items()}


def make_data(sites: int, per_site: int = 80, **kind: bool) -> RehearsalData:
    x, y = rows_of(sites, per_site, **kind)
    domains = [np.arange(site * per_site, (site + 1) * per_site) for site in range(sites)]
    features = Features(torch.from_numpy(x), torch.from_numpy(y), domains, 3)
    every = np.ones(len(y), dtype=bool)
    names = [f"site-{site}" for site in range(sites)]
    images = np.arange(len(y))
    return RehearsalData(features, names, images, every, every, layers=False, exact=True)


def test_few_domains_are_shown_with_frequencies_anew_as_well() -> None:
    found = rehearse(make_data(3), SMALL, seed=0)
    assert found is not None
    assert {promise.frequencies for promise in found.promises} == {"as they are", "drawn anew"}
    chains = {promise.chain for promise in found.promises}
    assert chains == {"none", "prior", "shift", "t3a"}  # two sites to learn from are no path by μ


@pytest.mark.parametrize(
    "data",
    [
        make_data(1),
        make_data(4, per_site=8),
        replace(make_data(2), units=np.tile(np.arange(80), 2)),
    ],
    ids=["one domain", "too few images", "every image shared"],
)
def test_nothing_can_be_held_out(data: RehearsalData) -> None:
    assert rehearse(data, SMALL, seed=0) is None


@pytest.mark.slow
def test_a_domain_too_small_to_hold_out_is_learned_from() -> None:
    given = make_data(5)
    few = given.scored.copy()
    few[given.features.domains[2][6:]] = False
    found = rehearse(replace(given, scored=few), SMALL, seed=0)
    assert found is not None
    assert found.domains == 4
    assert "embedding" in found.chains


def test_no_image_of_a_held_out_domain_is_fitted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 0 of every site shows one image, and site 1 holds each image of site 0's first ten."""
    given = make_data(4)
    images = given.units.copy()
    images[[0, 80, 160, 240]] = 10_000
    images[80:90] = images[0:10]
    fitted: list[Features] = []
    fit = module.fit_plain

    def watched(rows: Features, *args: Any, **kwargs: Any) -> Any:
        fitted.append(rows)
        return fit(rows, *args, **kwargs)

    monkeypatch.setattr(module, "fit_plain", watched)
    rehearse(replace(given, units=images), SMALL, seed=0)
    assert len(fitted) == 4
    for rows in fitted:
        index = np.concatenate(rows.domains)
        held = {site for site in range(4) if not any(site == row // 80 for row in index)}
        assert len(held) == 1
        theirs = images[80 * min(held) : 80 * min(held) + 80]
        assert not np.isin(images[index], theirs).any()


def test_rows_of_one_image_are_on_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image has two labels: what was adapted on is not scored under the other one."""
    given = make_data(4)
    doubled = replace(given, units=given.units // 2)
    split = module.HeldOutDomain.split
    seen_twice = []

    def watched(domain: Any, rng: Any, *, anew: bool = False) -> Any:
        seen, scored = split(domain, rng, anew=anew)
        seen_twice.append(np.isin(domain.units[scored], domain.units[seen]).any())
        return seen, scored

    monkeypatch.setattr(module.HeldOutDomain, "split", watched)
    found = rehearse(doubled, SMALL, seed=0)
    assert found is not None
    assert max(found.chosen) == 20  # 40 images, of which 20 can adapt
    assert len(seen_twice) > 0
    assert not any(seen_twice)


@pytest.fixture(scope="module")
def sites() -> Manifest:
    """Eight sites whose conventions differ; the last two stay unseen."""
    return sites_on_a_line(8, 100, swapped=True)


def rehearsed(tiny: Tiny, **changes: Any) -> RunConfig:
    settings = {"test_domains": ["site-6", "site-7"], "adapt.rehearse": True, "adapt.points": 20}
    return tiny("erm", **{**settings, **SITE, **changes})


@pytest.fixture(scope="module")
def run(sites: Manifest, tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Path:
    folder = tmp_path_factory.mktemp("rehearsed") / "run"
    train(rehearsed(tiny, **{"train.steps": 150, "train.per_domain": 16}), sites, folder)
    return folder


@pytest.mark.slow
def test_a_trained_network_is_what_it_would_be_without(tiny: Tiny, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=420)
    images = rng.integers(0, 200, (420, 8, 8)).astype(np.uint8)
    images[y == 1, 2:6, 2:6] += 30
    names = np.repeat([f"site-{number}" for number in range(1, 8)], 60)
    sites = Manifest.from_arrays(images, np.array(["a", "b"])[y], names, val_share=0.5)
    train(rehearsed(tiny), sites, tmp_path / "with")
    train(rehearsed(tiny, **{"adapt.rehearse": False}), sites, tmp_path / "without")
    one, two = Trained.load(tmp_path / "with"), Trained.load(tmp_path / "without")
    assert one.site is not None
    assert two.site is None
    for name, value in two.predictor.state_dict().items():
        assert torch.equal(value, one.predictor.state_dict()[name]), name


@pytest.mark.slow
def test_a_network_on_features_is_fitted_as_in_the_folds(
    sites: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "choose_head", lambda trials: (NETWORK, ()))
    fitted, fit = [], module.fit_plain

    def fitting(rows: Features, *args: Any, **kwargs: Any) -> Any:
        fitted.append((len(rows.domains), fit(rows, *args, **kwargs)))
        return fitted[-1][1]

    monkeypatch.setattr(module, "fit_plain", fitting)
    train(rehearsed(tiny), sites, tmp_path / "run")
    assert sorted(domains for domains, _ in fitted) == [5] * 6 + [6]
    wanted = next(predictor for domains, predictor in fitted if domains == 6).state_dict()
    found = Trained.load(tmp_path / "run").predictor.head.state_dict()
    assert {*found} == {*wanted}
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())


@pytest.mark.slow
def test_auto_does_what_was_rehearsed(run: Path, sites: Manifest) -> None:
    trained = Trained.load(run)
    rows = sites.rows(domain="site-7")
    images, labels = sites.features()[rows], sites.label_index[rows]
    site = adapt(trained, images[:20])
    assert site.method == "embedding"
    assert "embedding was chosen by rehearsal on 6 sites: +" in site.notes[0]
    right = np.mean(site.predict_proba(images[20:]).argmax(1) == labels[20:])
    plain = adapt(trained, images[:20], method="none").predict_proba(images[20:]).argmax(1)
    assert right > np.mean(plain == labels[20:]) + 0.1


@pytest.mark.slow
def test_with_too_few_images_it_leaves_the_model_alone(run: Path) -> None:
    choice = choose_method(Trained.load(run), 2)
    assert choice.method == "none"
    assert re.search(r"^2 images .* 6 sites .* from 5 on", choice.why[0])


@pytest.mark.slow
def test_a_model_that_was_not_rehearsed(features: Manifest, tiny: Tiny, tmp_path: Path) -> None:
    train(tiny("erm"), features, tmp_path / "erm")
    site = adapt(Trained.load(tmp_path / "erm"), features.features()[:10])
    assert site.method == "none"
    assert ["adapt.rehearse" in note for note in site.notes] == [True]
    with refused(ConfigError, "'auto'", "--set adapt.rehearse=true"):
        evaluate_run(tmp_path / "erm", features.select(np.arange(24)), methods=["auto"])
        train(tiny("erm", test_domains=["site-0"]), features, tmp_path / "unseen")
        evaluate_run(tmp_path / "unseen", features, methods=["auto"])


@pytest.mark.slow
def test_images_of_the_test_split_are_left_for_the_final_scores(
    sites: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = np.where(np.arange(len(sites)) % 5 == 0, "test", sites.splits)
    table = sites.table.set_column(
        sites.table.column_names.index("split"), "split", pa.array(splits.tolist())
    )
    staged = watch_stages(monkeypatch)
    train(rehearsed(tiny), replace(sites, table=table), tmp_path / "run")
    assert not (staged[0].scored | staged[0].fitted)[splits == "test"].any()
    assert staged[0].scored.any()


@pytest.mark.slow
def test_an_adaptive_algorithm_is_not_rehearsed(
    sites: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    with refused(ConfigError, "adapt.rehearse", "--algorithm erm"):
        train(tiny("da-erm", **{"adapt.rehearse": True}), sites, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_how_to_adapt_is_chosen_anew_as_images_arrive(run: Path, sites: Manifest) -> None:
    """Two images are too few, ten and forty are not, and then the site is unlike all others."""
    trained, images = Trained.load(run), sites.features()[sites.rows(domain="site-7")]
    begun = adapt(trained, images[:2])
    assert begun.method == "none"
    ten = adapt(trained, images[2:10], into=begun.state)
    more = adapt(trained, images[10:40], into=ten.state)
    for site, n in ((ten, 10), (more, 40)):
        once = adapt(trained, images[:n])
        assert site.method == once.method == "embedding" and site.notes == once.notes
        assert site.trust == once.trust and site.changes == once.changes
        np.testing.assert_allclose(
            site.predict_proba(images), once.predict_proba(images), atol=1e-6
        )
    few = adapt(trained, images[:10], keep=4).state
    assert adapt(trained, images[10:40], into=few).method == "embedding"  # 40, of which it keeps 4
    none = adapt(trained, images[:10], keep=0).state
    assert adapt(trained, images[10:40], into=none).method == "embedding"
    assert trained.rehearsal is not None
    other = replace(trained, rehearsal=replace(trained.rehearsal, chosen={5: "prior"}))
    with refused(StateMismatch, "'prior'", "--keep 0"):
        adapt(other, images[10:40], into=none)
    gone = adapt(trained, images[40:80] + np.float32([0, 300, 0, 0]), into=more.state)
    assert gone.method == "none"
    assert re.search(r"[\d.]+ times as far .* adapted without embedding", gone.notes[-1])


@pytest.mark.slow
def test_a_site_far_from_all_others_is_adapted_to_without_its_embedding(
    run: Path, sites: Manifest
) -> None:
    trained, images = Trained.load(run), sites.features()[sites.rows(domain="site-7")]
    near = adapt(trained, images[:40])
    assert near.method == "embedding"
    # μ of few images scatters, which is no reason to leave it out.
    few = [adapt(trained, images[n : n + 5]).method for n in range(0, 60, 5)]
    assert sum("embedding" in method for method in few) >= 9
    assert near.trust is not None and near.trust.expected_accuracy is not None
    assert 0 < near.trust.expected_accuracy.floor < near.trust.expected_accuracy.accuracy < 1
    far = adapt(trained, images[:40] + np.float32([0, 100, 0, 0]))
    assert far.method == "none"
    assert far.notes[0] == near.notes[0]
    assert re.search(r"[\d.]+ times as far .* adapted without embedding", far.notes[1])


@pytest.mark.slow
def test_frequencies_that_explain_less_than_rehearsed_are_left_alone(
    run: Path, sites: Manifest
) -> None:
    trained, images = Trained.load(run), sites.features()[sites.rows(domain="site-7")]
    assert trained.confusion is not None and trained.rehearsal is not None
    known = replace(trained.rehearsal, chosen={5: "prior"})
    share = explained_here(trained, Images(torch.from_numpy(images[:40]), torch.device("cpu")))
    assert share is not None

    def adapted(least: float) -> Adapted:
        return adapt(replace(trained, rehearsal=replace(known, explained={5: least})), images[:40])

    assert adapted(min(share + 0.05, 1.0)).method == "prior"
    site = adapted(share + 0.2)
    assert site.method == "none"
    assert re.search(
        f" {share:.0%} of .* {share + 0.2:.0%} or more .* adapted without prior", site.notes[1]
    )


@pytest.mark.slow
def test_final_scores_have_auto_and_evaluate_repeats_them(run: Path, sites: Manifest) -> None:
    final = [s for s in RunFolder(run).records().scores if s.moment == "final"]
    auto = {s.domain: s.top1 for s in final if s.method == "auto"}
    assert set(auto) == {"site-6", "site-7"}
    again = evaluate_run(run, sites).scores
    assert {s.domain: s.top1 for s in again if s.method == "auto"} == auto


@pytest.mark.slow
def test_killed_in_a_fold_it_resumes_to_the_same(
    sites: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    """Folds are no runs of their own to anybody."""
    config = rehearsed(tiny, **{"adapt.depth": "whole", "train.steps": 6})
    train(config, sites, tmp_path / "whole")

    def killed(name: str, done: int, total: int, note: str) -> None:
        if name.startswith("rehearsal 3 of 6"):
            raise Killed

    with pytest.raises(Killed):
        train(config, sites, tmp_path / "killed", watch=killed)
    assert len(runs_below(tmp_path / "killed")) == 0
    train(config, sites, tmp_path / "killed")
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    assert stable(tmp_path / "whole") == stable(tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.parametrize(("at", "after"), [("rehearsal", 2 * module.PIECES), ("trials", 2)])
def test_killed_in_rehearsal_it_goes_on_to_the_same(
    at: str,
    after: int,
    sites: Manifest,
    tiny: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of six folds are done, or the trials at two sites: they are not made again."""
    config = rehearsed(tiny)
    train(config, sites, tmp_path / "whole")

    def killed(phase: str, done: int, total: int, note: str) -> None:
        if phase == at and done == after:
            raise Killed

    with pytest.raises(Killed):
        train(config, sites, tmp_path / "killed", watch=killed)
    assert runs_below(tmp_path / "killed") == [tmp_path / "killed"]
    # What is beside the second may be done, too.
    fitted = len([*(tmp_path / "killed").rglob("fold-*/plain.safetensors")])
    tried = len([*(tmp_path / "killed").rglob("trials-*.json")])
    assert min(fitted, tried if at == "trials" else fitted) >= 2
    written, made = [], []
    save, trials = site_module.save_tensors, module.HeldOutDomain.trials

    def saving(path: Path, *args: Any) -> None:
        written.append(path.name)
        save(path, *args)

    def making(domain: Any, *args: Any) -> Any:
        made.append(domain.name)
        return trials(domain, *args)

    monkeypatch.setattr(site_module, "save_tensors", saving)
    monkeypatch.setattr(module.HeldOutDomain, "trials", making)
    train(config, sites, tmp_path / "killed")
    assert (written.count("plain.safetensors"), len(made)) == (6 - fitted, 6 - tried)
    assert not (tmp_path / "killed" / retraining.FOLDER).exists()
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    assert stable(tmp_path / "whole") == stable(tmp_path / "killed")
    assert RunFolder(tmp_path / "whole").rehearsal() == RunFolder(tmp_path / "killed").rehearsal()


@pytest.mark.slow
def test_no_fold_is_trained_in_a_folder_of_something_else(
    sites: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with refused(RunError, tmp_path):
        train(rehearsed(tiny, **{"adapt.depth": "whole"}), sites, tmp_path)
    assert not (tmp_path / retraining.FOLDER).exists()


def watch_stages(monkeypatch: pytest.MonkeyPatch) -> list[RehearsalData]:
    """What runs rehearse on from now on."""
    staged: list[RehearsalData] = []

    def watched(data: RehearsalData, *args: Any, **kwargs: Any) -> Any:
        staged.append(data)
        return rehearse(data, *args, **kwargs)

    monkeypatch.setattr(module, "rehearse", watched)
    return staged


@pytest.mark.slow
def test_an_image_that_many_rows_show_is_passed_through_the_network_once(
    tree: Path, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = watch_stages(monkeypatch)
    once = Manifest.from_folder(tree)
    every = np.arange(len(once))
    names = once.table["domain"].to_pylist()
    both = once.select(np.concatenate([every, every])).table
    domains = pa.array([*names, *(f"{name}-too" for name in names)])
    place = both.column_names.index("domain")
    twice = replace(once, table=both.set_column(place, "domain", domains))
    train(tiny("erm", **{"adapt.rehearse": True, **SITE}), twice, tmp_path / "run")
    (stage,) = staged
    assert len(stage.features.x) == len(np.unique(once.image_ids))
    trained = Trained.load(tmp_path / "run")
    rows = np.concatenate([every[5:8], len(once) + every[5:8]])
    pixels = torch.stack(
        [torch.from_numpy(read_pixels(twice.image_source(int(r)), trained.size)) for r in rows]
    )
    with torch.no_grad():
        features = trained.predictor.backbone(pixels.float() / 255)
    torch.testing.assert_close(stage.features.at(rows), features, rtol=1e-3, atol=1e-3)


def test_rows_of_features_are_their_own_whatever_image_they_are_of(
    sites: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What several sites saw of one thing, say."""
    staged = watch_stages(monkeypatch)
    names = np.empty(len(sites), dtype=object)
    for domain in sites.domains:
        own = sites.rows(domain=domain)
        names[own] = [f"{'all' if n < 9 else domain}-{n}.jpg" for n in range(len(own))]
    of_images = replace(sites, table=sites.table.append_column("image", pa.array(names)))
    train(rehearsed(tiny, **{"train.steps": 2}), of_images, tmp_path / "run")
    rows = np.concatenate(staged[0].features.domains)
    assert torch.equal(staged[0].features.at(rows), torch.from_numpy(sites.features()[rows]))


def shared_pictures(sites: int, per_site: int, pictures: int) -> tuple[RehearsalData, np.ndarray]:
    """A fifth of each site is held back from fitting; others draw from few pictures, painted anew
    for each."""
    given = make_data(sites, per_site)
    rng = np.random.default_rng(1)
    shown = rng.integers(pictures, size=len(given.units))
    back = np.arange(len(shown)) % 5 == 0
    shown[back] = pictures + np.arange(back.sum())
    return replace(given, fitted=~back, units=shown), shown


def test_heads_know_no_held_out_picture_however_it_is_painted() -> None:
    given, shown = shared_pictures(4, 80, pictures=2000)
    arranged, folds = make_folds(given, seed=0)
    assert (arranged.scored == given.scored).all()
    assert len(folds) == 4
    for fold in folds:
        (held,) = fold.held_out
        theirs = shown[given.features.domains[held]]
        assert (fold.apart == ~np.isin(shown, theirs)).all()


def test_where_domains_share_their_pictures_others_are_held_out() -> None:
    given, _ = shared_pictures(4, 1000, pictures=100)
    arranged, folds = make_folds(given, seed=0)
    assert (arranged.scored == ~given.fitted).all()
    assert all(fold.apart[given.fitted].all() for fold in folds)
    few, _ = shared_pictures(4, 80, pictures=20)  # 16 others each: too few to hold out
    assert make_folds(few, seed=0)[1] == []
    assert rehearse(few, SMALL, seed=0) is None


def watch_held_out(monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """By held-out domain, the logits of the plain model for its rows, not calibrated yet."""
    logits: dict[str, torch.Tensor] = {}
    calibrate = module.HeldOutDomain.calibrate

    def watched(domain: Any, temperatures: Any) -> None:
        logits[domain.name] = domain.logits["none"]
        calibrate(domain, temperatures)

    monkeypatch.setattr(module.HeldOutDomain, "calibrate", watched)
    return logits


def test_a_held_out_domain_is_calibrated_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that are wrong at one site make the others' models less sure, and not its own."""
    given, sure = make_data(4), {}
    wrong = given.features.y.clone()
    wrong[:80] = (wrong[:80] + 1) % 3
    untaught = replace(given, fitted=np.arange(320) >= 80)
    trials = module.HeldOutDomain.trials

    def watched(domain: Any, *args: Any) -> Any:
        own = list(trials(domain, *args))
        plain = [t for t in own if (t.chain, t.frequencies) == ("none", "as they are")]
        sure[domain.name] = [trial.scores["mean confidence"] for trial in plain]
        return own

    monkeypatch.setattr(module.HeldOutDomain, "trials", watched)
    found = []
    for y in (given.features.y, wrong):
        rehearse(replace(untaught, features=replace(given.features, y=y)), SMALL, seed=0)
        found.append({**sure})
    before, after = found
    assert before["site-0"] == after["site-0"]
    assert np.mean(before["site-1"]) > np.mean(after["site-1"]) + 0.05


@pytest.mark.slow
def test_whole_rehearsal_uses_what_training_without_a_domain_gives(
    sites: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = watch_held_out(monkeypatch)
    monkeypatch.setattr(module, "choose_head", lambda trials: (NETWORK, ()))
    settings = {"train.steps": 20, "model.head": "linear"}
    config = rehearsed(tiny, **{"adapt.depth": "whole", **settings})
    seen: list[str] = []
    train(config, sites, tmp_path / "run", watch=lambda phase, *_: seen.append(phase))
    assert set(logits) == {f"site-{i}" for i in range(6)}
    assert any(phase.startswith("rehearsal 6 of 6, ") for phase in seen)
    assert not (tmp_path / "run" / retraining.FOLDER).exists()
    unseen = {"test_domains": ["site-3", "site-6", "site-7"], "adapt.rehearse": False}
    train(rehearsed(tiny, **settings, **unseen), sites, tmp_path / "without")
    alone = Trained.load(tmp_path / "without").predictor
    x = torch.from_numpy(sites.features()[sites.rows(domain="site-3")])
    with torch.no_grad():
        torch.testing.assert_close(logits["site-3"], alone(x).logits)


def test_a_fold_keeps_its_place_whichever_of_its_domains_are_large_enough() -> None:
    """Images may turn out unreadable between its training and its use."""
    whole = make_data(20, per_site=12)  # several to a fold
    before = make_folds(whole, seed=0)[1]
    assert any(len(fold.held_out) > 1 for fold in before)
    unread = np.ones(len(whole.units), dtype=bool)
    for fold in before:
        unread[whole.features.domains[fold.held_out[0]]] = False
    unread[whole.features.domains[before[1].held_out[1]]] = False
    after = make_folds(replace(whole, scored=whole.scored & unread), seed=0)[1]
    places = {tuple(s.held_out[1:]): retraining.fold_folder(Path("run"), s) for s in before}
    found = {tuple(s.held_out): retraining.fold_folder(Path("run"), s) for s in after}
    assert len(after) == len(before)
    assert len(set(places.values())) == len(before)
    for held, place in found.items():
        (same,) = (known for others, known in places.items() if set(held) <= set(others))
        assert place == same


def test_few_sites_and_a_gpu_are_rehearsed_whole(
    tree: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest.from_folder(tree)
    config = tiny("erm", **{"adapt.rehearse": True})
    here = make_plan(config, manifest)
    assert here.config.adapt.depth == "heads"
    monkeypatch.setattr(plans, "pick_device", lambda name: torch.device("cuda"))
    there = make_plan(config, manifest)
    assert there.config.adapt.depth == "whole"
    offers = [line for line in there.decided if "adapt.depth=heads" in line]
    assert len(offers) == 1 and "4 sites" in offers[0]
    assert not any("adapt.depth" in line for line in here.decided)
    plain = make_plan(tiny("erm"), manifest)
    assert plain.config.adapt.depth == "heads"
    coral = tiny("coral", **{"adapt.rehearse": True, "adapt.depth": "whole"})
    two = manifest.select(np.concatenate([manifest.rows(domain=d) for d in ("north", "south")]))
    with refused(ConfigError, "2", "1", "--set adapt.depth=heads"):
        make_plan(coral, two)


def test_labels_that_do_not_differ_leave_nothing_to_correct(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the prior seems to gain where frequencies are made up."""
    idle: list[Any] = []
    concluding = module.conclude

    def watched(*args: Any, **kwargs: Any) -> Any:
        idle.append(kwargs["idle"])
        return concluding(*args, **kwargs)

    monkeypatch.setattr(module, "conclude", watched)
    rehearse(make_data(3), SMALL, seed=0)
    rehearse(make_data(3, shifted=True), SMALL, seed=0)
    assert idle == [{"prior"}, ()]


@pytest.mark.slow
def test_a_trained_backbone_is_rehearsed_with_the_head_it_has(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its logits on the scale of the conditioned head's, so that both count alike."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=300)
    images = rng.integers(0, 60, (300, 8, 8)).astype(np.uint8)
    images[y == 1, 2:6, 2:6] += 120
    names = np.repeat([f"site-{i}" for i in range(5)], 60)
    manifest = Manifest.from_arrays(images, np.array(["a", "b"])[y], names, val_share=0.5)
    logits = watch_held_out(monkeypatch)
    settings = {"train.steps": 60, "train.optimiser.lr": 0.01, "model.head": "linear", **SITE}
    train(tiny("erm", **{"adapt.rehearse": True, **settings}), manifest, tmp_path / "run")
    trained = Trained.load(tmp_path / "run")
    assert trained.site is not None and trained.site.scale is not None
    assert set(logits) == set(names)
    spreads = []
    for number, name in enumerate(trained.site.table.states):
        rows = manifest.rows(domain=name, split="val")
        x = torch.from_numpy(images[rows])[:, None].expand(-1, 3, -1, -1).float() / 255
        with torch.no_grad():
            features = trained.predictor.backbone(x)
            plain = trained.predictor.head(features).logits
            mu = trained.site.table.means[number]
            conditioned = trained.site.predictor.fold(mu)(features).logits
        torch.testing.assert_close(logits[name], trained.site.scale * plain, rtol=1e-3, atol=1e-4)
        spreads.append((conditioned.std(1, correction=0), plain.std(1, correction=0)))
    both = [torch.cat(part).mean() for part in zip(*spreads, strict=True)]
    assert trained.site.scale == pytest.approx(float(both[0] / both[1]), rel=1e-3)
