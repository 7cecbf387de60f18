"""Ablations: what a value changes, what stays as it was, and a verdict that claims no noise."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acclimate.build.long_tail import facts
from acclimate.config import flat
from acclimate.core.errors import ConfigError, SweepError, UnknownName
from acclimate.data.manifest import Manifest
from acclimate.paper.ablations.study import AblationRequest, prepare_ablation, write_data
from acclimate.paper.ablations.subsets import first_domains, thinned
from acclimate.paper.ablations.verdict import Level, gap, verdict
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep.driver import SweepPlan, check_folder
from acclimate.sweep.jobs import define
from acclimate.sweep.settings import SweepConfig
from fixtures.command_line import command
from fixtures.errors import refused
from fixtures.roles import with_roles
from fixtures.settings import TINY, as_flags

TRAINING = tuple(f"site-{number}" for number in range(6))


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six training domains of 40 rows, a validation and a test domain; 4 classes, 5 features."""
    rng = np.random.default_rng(0)
    names = [*TRAINING, "val-site", "test-site"]
    domains, y = np.repeat(names, 40), np.tile(["a", "b", "c", "d"], 80)
    X = rng.normal(size=(320, 5)).astype(np.float32)
    X[:, 0] += np.unique(y, return_inverse=True)[1]
    manifest = Manifest.from_arrays(X, y, domains)
    path = tmp_path_factory.mktemp("data") / "sites.parquet"
    with_roles(manifest, {"val-site": "val", "test-site": "test"}).write(path)
    return path


Study = Callable[..., SweepPlan]


@pytest.fixture
def ablation(sites: Path, tmp_path: Path) -> Study:
    """Prepares an ablation of the sites, by its name and what is asked besides."""

    def prepared(name: str, **changes: Any) -> SweepPlan:
        request = {"data": sites, "out": tmp_path / "out", **changes}
        return prepare_ablation(AblationRequest(name=name, **request))

    return prepared


def rows_of(manifest: Manifest, domain: str) -> set[bytes]:
    """Rows by what they hold, whatever their place in the table."""
    return {manifest.features()[row].tobytes() for row in manifest.rows(domain=domain)}


def of_values(study: SweepPlan) -> dict[str, Manifest]:
    return {job.variant: study.manifests[job.dataset] for job in study.sweep.jobs}


def trained_on(manifest: Manifest) -> set[str]:
    return {name for name, role in manifest.roles().items() if role == "train"}


def test_subsets_of_domains_are_nested_and_unseen_domains_stay(
    ablation: Study, sites: Path, tmp_path: Path
) -> None:
    study = ablation("domains")
    found = of_values(study)
    assert list(found) == ["2", "4", "6"]  # doubling, then all of them
    whole = Manifest.read(sites)
    subsets = [trained_on(manifest) for manifest in found.values()]
    assert [len(one) for one in subsets] == [2, 4, 6]
    assert subsets[0] < subsets[1] < subsets[2]
    for manifest in found.values():
        for name in (*trained_on(manifest), "val-site", "test-site"):
            assert rows_of(manifest, name) == rows_of(whole, name)
    other = ablation("domains", seed=1)
    assert trained_on(of_values(other)["2"]) != subsets[0]
    assert not (tmp_path / "out").exists()


def test_constant_totals(ablation: Study, sites: Path) -> None:
    study = ablation("domains-constant", values=("2", "3", "6"))
    whole, kept = Manifest.read(sites), {}
    for label, manifest in of_values(study).items():
        domains = trained_on(manifest)
        assert len(domains) == int(label)
        sizes = {name: len(manifest.rows(domain=name, split="train")) for name in domains}
        assert sum(sizes.values()) == 2 * 32  # two domains' 80 % of 40 rows
        assert max(sizes.values()) - min(sizes.values()) <= 1
        for name in ("val-site", "test-site"):
            assert rows_of(manifest, name) == rows_of(whole, name)
        kept[label] = {name: rows_of(manifest, name) for name in domains}
    # What a domain keeps of fewer is part of what it keeps of more.
    assert all(kept["6"][name] < kept["2"][name] for name in kept["2"])
    # Validation rows in proportion: 8 of 40, cut to 64 / 6 of 32.
    manifest = of_values(study)["6"]
    sizes = [len(manifest.rows(domain=name, split="val")) for name in trained_on(manifest)]
    assert set(sizes) <= {2, 3}


def test_subsets_that_cannot_be(sites: Path) -> None:
    manifest = Manifest.read(sites)
    with refused(ConfigError, "sites.parquet", "6", "7"):
        first_domains(manifest, TRAINING, 7, seed=0)
    with refused(ConfigError, "'site-0'", "sites.parquet", "32", "96"):
        thinned(manifest, TRAINING[:2], 6 * 32, seed=0)


def test_runs_of_every_size_have_the_same_batches(ablation: Study) -> None:
    study = ablation("domains")
    batches = {
        job.variant: (job.config["train"]["domains_per_step"], job.config["train"]["per_domain"])
        for job in study.sweep.jobs
    }
    assert batches == {"2": (2, 48), "4": (4, 24), "6": (6, 16)}
    mine = ablation("domains", settings={"train": {"per_domain": 5}})
    assert {job.config["train"]["per_domain"] for job in mine.sweep.jobs} == {5}
    assert {job.config["train"]["domains_per_step"] for job in mine.sweep.jobs} == {0}


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [("tail", "tail", (0.1, 0.5)), ("heads", "heads", (1, 2)), ("per-class", "per_class", (5, 9))],
)
def test_long_tails(ablation: Study, name: str, key: str, values: tuple[float, ...]) -> None:
    texts = tuple(f"{value:g}" for value in values)
    study = ablation(name, values=texts)
    found = of_values(study)
    assert list(found) == list(texts)
    made = [facts(manifest)["settings"] for manifest in found.values()]
    assert [one[key] for one in made] == list(values)
    # Nothing else differs, and what is not varied is scaled to the data: 4 classes of 80 images.
    others = [{k: v for k, v in one.items() if k != key} for one in made]
    assert others[0] == others[1]
    assert {"heads": 1, "per_class": 28, "tail": 0.1}.items() <= (
        made[0] | {key: {"tail": 0.1, "heads": 1, "per_class": 28}[key]}
    ).items()
    for manifest in found.values():
        train = {manifest.features()[row].tobytes() for row in manifest.rows(split="train")}
        assert not train & {
            manifest.features()[row].tobytes() for row in manifest.rows(split="test")
        }
    assert {job.groups[0][0] for job in study.sweep.jobs} == {"test-000"}


def test_embeddings_are_compared_with_none(ablation: Study) -> None:
    study = ablation("embeddings", trials=2)
    jobs = {(job.algorithm, job.variant): job for job in study.sweep.jobs}
    assert set(jobs) == {
        ("erm", "none"),
        *(("da-erm", name) for name in ("mean", "softmax", "prototype", "posterior")),
    }
    assert [job.trial for job in study.sweep.jobs] == [0] * 5 + [1] * 5
    assert all(
        jobs["da-erm", name].config["embedding"]["name"] == name
        for name in ("mean", "softmax", "prototype", "posterior")
    )
    assert {job.needs for job in study.sweep.jobs} - {None} == {
        found.id for found in study.sweep.embeddings
    }
    assert study.sweep.axis is not None
    assert study.sweep.axis.places == dict.fromkeys(
        ("none", "mean", "softmax", "prototype", "posterior")
    )
    with refused(ConfigError, "none", "--algorithms", "--values"):
        ablation("embeddings", algorithms=("erm",), values=("mean", "softmax"))


def test_points_count_in_training_and_after(ablation: Study, sites: Path) -> None:
    study = ablation("points", values=("8", "16", "32"))
    settings = {job.variant: flat(job.config) for job in study.sweep.jobs}
    for label in ("8", "16", "32"):
        assert settings[label]["embedding.points"] == int(label)
        assert settings[label]["adapt.points"] == int(label)
    assert study.paths == {"sites": sites}
    assert study.sweep.axis is not None
    assert study.sweep.axis.places == {"8": 8.0, "16": 16.0, "32": 32.0}


def test_domains_per_step(ablation: Study) -> None:
    study = ablation("domains-per-step")
    found = {job.variant: job.config["embedding"]["domains_per_step"] for job in study.sweep.jobs}
    assert found == {"3": 3, "4": 4, "5": 5, "6": 6}  # 7 and 8 are more than there are
    assert {job.algorithm for job in study.sweep.jobs} == {"da-erm"}


def test_plain_models_have_heads_of_the_same_size(ablation: Study) -> None:
    study = ablation("points", values=("8", "16"))
    assert {job.config["model"]["head"] for job in study.sweep.jobs} == {"mlp"}
    linear = {"model": {"head": "linear"}}
    study = ablation("points", values=("8", "16"), settings=linear)
    assert {job.config["model"]["head"] for job in study.sweep.jobs} == {"linear"}


def test_values_with_the_same_data_are_left_out_and_said(ablation: Study) -> None:
    # A pool of 80 images a class gives 56 at most: 60 and 70 are the same data.
    study = ablation("per-class", values=("20", "600", "700"))
    assert list(of_values(study)) == ["20", "600"]
    assert study.notes == ("700 is left out: the data are those of per-class-600",)
    assert {job.variant for job in study.sweep.jobs} == {"20", "600"}


def test_built_data_are_written_once_and_found_again(ablation: Study, tmp_path: Path) -> None:
    study = ablation("domains")
    write_data(study, tmp_path / "out")
    stamps = {path: path.stat().st_mtime_ns for path in study.paths.values()}
    for name, path in study.paths.items():
        assert path.stem == name
        assert Manifest.read(path).digest() == study.manifests[name].digest()
    write_data(ablation("domains"), tmp_path / "out")
    assert {path: path.stat().st_mtime_ns for path in study.paths.values()} == stamps
    # Data of one's own stay where they are.
    write_data(ablation("points", out=tmp_path / "two", values=("4", "8")), tmp_path)
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize(
    ("name", "changes", "facts"),
    [
        ("domains", {"values": ("2", "9")}, ("--values", 9, "domains", "sites.parquet", "2 to 6")),
        ("points", {"values": ("2", "900")}, ("--values", 900, "points", "1 to 32")),
        ("domains", {"values": ("2.5",)}, ("--values", "whole numbers", "2.5")),
        ("tail", {"values": ("much",)}, ("--values", "much")),
        ("tail", {"values": ("0.1", "0.1")}, ("sites.parquet", "tail", "--values")),
        ("points", {"settings": {"adapt": {"points": 3}}}, ("--set adapt.points", "--values")),
        ("tails", {}, ("tails", "tail")),
    ],
)
def test_what_cannot_be_asked(
    ablation: Study, tmp_path: Path, name: str, changes: dict[str, Any], facts: tuple[object, ...]
) -> None:
    with refused((ConfigError, UnknownName), *facts):
        ablation(name, **changes)
    assert not (tmp_path / "out").exists()


def test_taking_domains_away_needs_others_to_test_on(
    ablation: Study, features: Manifest, tmp_path: Path
) -> None:
    path = tmp_path / "plain.parquet"
    features.write(path)
    with refused(ConfigError, "domains", "plain.parquet", "--test-domains"):
        ablation("domains", data=path)
    study = ablation("domains", data=path, test_domains=("site-0", "site-3"))
    assert {job.groups for job in study.sweep.jobs} == {(("site-0", "site-3"),)}
    assert list(of_values(study)) == ["2", "3"]


def level(algorithm: str, variant: str, *values: float, method: str = "none") -> Level:
    return Level(algorithm, variant, method, dict(enumerate(values)))


def test_gaps_are_paired_by_trial() -> None:
    found = gap(level("a", "1", 0.5, 0.6, 0.7), level("b", "1", 0.4, 0.5, 0.6))
    assert found is not None
    assert found.mean == pytest.approx(0.1)
    assert found.se == pytest.approx(0.0, abs=1e-12)
    assert found.clear
    # Differences 0.1, 0.0 and 0.2: t = 0.1 / (0.1 / √3) = 1.73, below 4.30.
    found = gap(level("a", "1", 0.5, 0.5, 0.8), level("b", "1", 0.4, 0.5, 0.6))
    assert found is not None
    assert found.se == pytest.approx(0.1 / 3**0.5)
    assert not found.clear
    two = gap(level("a", "1", 0.5, 0.6), level("b", "1", 0.4, 0.5))
    assert two is not None and two.n == 2 and not two.clear  # however well they agree
    one = gap(level("a", "1", 0.5), level("b", "1", 0.4))
    assert one is not None and one.se is None and not one.clear
    assert gap(Level("a", "1", "none", {0: 0.5}), Level("b", "1", "none", {1: 0.4})) is None


def test_a_verdict_in_words() -> None:
    found = [
        level("erm", "6", 0.50, 0.51, 0.52),
        level("erm", "60", 0.60, 0.61, 0.62),
        level("erm", "90", 0.605, 0.60, 0.63),
        level("da-erm", "6", 0.49, 0.53, 0.50, method="embedding"),
        level("da-erm", "60", 0.70, 0.72, 0.71, method="embedding"),
        level("da-erm", "60", 0.50, 0.52, 0.52, method="wrong-embedding"),
    ]
    assert verdict(found, "erm") == [
        "erm: best at 90 (61.2 ± 0.9 %), with 60 within noise of it; "
        "worst at 6, −10.2 ± 0.6 points.",
        "da-erm: best at 60 (71.0 ± 0.6 %); worst at 6, −20.3 ± 0.7 points.",
        "da-erm against erm: −0.3 ± 1.2 points at 6 (within noise), +10.0 ± 0.6 points at 60.",
        "da-erm with another domain's embedding (random): −19.7 ± 0.3 points at 60.",
    ]
    noise = [level("erm", "1", 0.5, 0.6, 0.7), level("erm", "2", 0.6, 0.5, 0.72)]
    assert verdict(noise, "erm") == [
        "erm: best at 2 (60.7 ± 6.4 %), but no value differs from it by more than noise."
    ]
    assert verdict([level("erm", "1", 0.5), level("erm", "2", 0.6)], "erm") == [
        "erm: best at 2 (60.0 %).",
        "With one trial nothing can be said about noise; use --trials 3 or more.",
    ]
    two = [level("erm", "1", 0.5, 0.5), level("da-erm", "1", 0.6, 0.6, method="embedding")]
    assert verdict([*two, level("erm", "2", 0.7, 0.7)], "erm") == [
        "erm: best at 2 (70.0 ± 0.0 %).",
        "da-erm against erm: +10.0 ± 0.0 points at 1.",
        "With 2 trials nothing can be said about noise; use --trials 3 or more.",
    ]


def test_a_verdict_stands_up_to_all_that_was_compared() -> None:
    """Differences 0.01, 0.02 and 0.03: t = 3.46 → p = 0.074; 0.03, 0.04, 0.05: t = 6.93, p = 0.020.
    On its own the latter is beyond noise; with five algorithms compared, 5 · 0.020 is not."""
    base = level("erm", "1", 0.5, 0.5, 0.5)

    def others(count: int, *values: float) -> list[Level]:
        return [level(f"da-{n}", "1", *values, method="embedding") for n in range(count)]

    clear, noise = "+4.0 ± 0.6 points at 1.", "+4.0 ± 0.6 points at 1 (within noise)."
    one = verdict([base, *others(1, 0.53, 0.54, 0.55)], "erm")
    assert one == [f"da-0 against erm: {clear}"]
    five = verdict([base, *others(5, 0.53, 0.54, 0.55)], "erm")
    assert five == [f"da-{n} against erm: {noise}" for n in range(5)]
    # Holm: the smallest of 3 is held against 0.05 / 3, the next against 0.05 / 2.
    sure = level("da-sure", "1", 0.60, 0.601, 0.602, method="embedding")
    mixed = verdict([base, sure, *others(2, 0.53, 0.54, 0.55)], "erm")
    assert mixed[0] == "da-sure against erm: +10.1 ± 0.1 points at 1."
    assert mixed[1:] == [f"da-{n} against erm: {clear}" for n in range(2)]


def test_a_dry_run_writes_nothing(sites: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "runs: 18" in command(
        "ablate", "domains", sites, "--out", out, "--dry-run", *as_flags(TINY)
    )
    assert not out.exists()


@pytest.mark.slow
def test_an_ablation_from_end_to_end(sites: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tiny = {key: value for key, value in TINY.items() if key != "train.per_domain"}
    flags = ["ablate", "domains", sites, "--out", out, "--trials", 2]
    flags += ["--max-parallel", 2, *as_flags(tiny)]
    facts = json.loads(command(*flags, "--values", "2,4", "--json"))
    assert facts["failures"] == []
    usual = [one for one in facts["levels"] if one["method"] in ("none", "embedding")]
    assert {(one["algorithm"], one["variant"]) for one in usual} == {
        (algorithm, value) for algorithm in ("erm", "da-erm") for value in ("2", "4")
    }
    assert all(len(one["by_trial"]) == 2 for one in usual)
    # Each run was on its trial's draw, and trials are compared as of one data set.
    sweep = SweepFolder(out).read()
    ran_on = {job.id: SweepFolder(out).run(job.id).identity()["data"] for job in sweep.jobs}
    assert ran_on == {job.id: sweep.dataset(job.data).digest for job in sweep.jobs}
    assert len(set(ran_on.values())) == 4
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "training domains N" in page
    assert page.count('id="ablation"') <= 1
    assert facts["written"] == [str(out / name) for name in ("ablation.png", "ablation.pdf")]
    assert all(Path(path).stat().st_size > 1000 for path in facts["written"])
    before = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    assert "top-1 on unseen domains" in command(*flags, "--values", "2,4")
    assert {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")} == before
    with refused(SweepError, out, "another sweep"):
        command(*flags, "--values", "2,6")


def draws_of(study: SweepPlan) -> dict[tuple[str, int], str]:
    """(value, trial) -> digest of the data that its jobs run on, which all of them share."""
    found: dict[tuple[str, int], set[str]] = {}
    for job in study.sweep.jobs:
        digest = study.sweep.dataset(job.data).digest
        assert digest == study.manifests[job.data].digest()
        found.setdefault((job.variant, job.trial), set()).add(digest)
    assert all(len(digests) == 1 for digests in found.values())  # paired within a draw
    return {place: digests.pop() for place, digests in found.items()}


@pytest.mark.parametrize(
    ("name", "values"), [("tail", ("0.1", "0.5")), ("domains", ("2", "4", "6"))]
)
def test_each_trial_draws_its_data_anew(
    ablation: Study, name: str, values: tuple[str, ...]
) -> None:
    study = ablation(name, values=values)
    found = draws_of(study)
    for value in values:
        trials = {found[value, trial] for trial in range(3)}
        # All six domains are all six however they are drawn.
        assert len(trials) == (1 if (name, value) == ("domains", "6") else 3)
    assert draws_of(ablation(name, values=values)) == found
    # The second trial is drawn as the first of the next seed is.
    other = draws_of(ablation(name, values=values, seed=1))
    assert other[values[0], 0] == found[values[0], 1]
    # Results are still one data set's for each value, with the same unseen domains.
    assert {job.dataset for job in study.sweep.jobs} == {f"{name}-{value}" for value in values}
    assert len({job.groups for job in study.sweep.jobs}) == 1
    assert [data.name for data in study.sweep.datasets] == [f"{name}-{value}" for value in values]


def test_one_draw_for_all_trials_has_the_jobs_it_always_had(
    ablation: Study, tmp_path: Path
) -> None:
    study = ablation("tail", values=("0.1", "0.5"), one_draw=True)
    assert {job.drawn for job in study.sweep.jobs} == {""}
    assert study.sweep.draws == ()
    anew = ablation("tail", values=("0.1", "0.5"))
    kept = {job.id for job in study.sweep.jobs} & {job.id for job in anew.sweep.jobs}
    assert kept == {job.id for job in study.sweep.jobs if job.trial == 0}
    folder = SweepFolder(tmp_path / "drawn once")
    folder.write(study.sweep)
    check_folder(folder.path, study.sweep)
    with refused(SweepError, folder.path):
        check_folder(folder.path, anew.sweep)


def test_data_of_ones_own_are_not_drawn(ablation: Study, sites: Path) -> None:
    study = ablation("points", values=("8", "16"))
    assert set(draws_of(study).values()) == {Manifest.read(sites).digest()}
    assert study.paths == {"sites": sites}


def test_digits_are_other_digits_in_each_trial(ablation: Study) -> None:
    study = ablation("points", data=None, values=("5", "10"), trials=2, seed=6)
    first, second = (study.manifests[name] for name in ("digits", "digits-t1"))
    assert first.domains == second.domains
    assert "test-6-003" in second.domains
    assert first.roles() == second.roles()
    assert first.digest() != second.digest()
    phis = {phi.id: phi for phi in study.sweep.embeddings}
    assert {phis[job.needs].data for job in study.sweep.jobs if job.needs and job.trial} == {
        "digits-t1"
    }


def test_draws_with_other_unseen_domains_are_refused(features: Manifest) -> None:
    other = features.without_domains("site-4")
    config = SweepConfig(data=("one",), trials=2, algorithms=("erm",))
    with refused(ConfigError, "'one'", "'one-t1'"):
        define(config, {"one": features, "one-t1": other}, drawn={"one": ("one", "one-t1")})
