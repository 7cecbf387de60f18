"""Ablations: what a value changes, what stays as it was, and a verdict that claims no noise."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from acclimate.build.long_tail import facts
from acclimate.cli import main
from acclimate.config import flat
from acclimate.core.errors import ConfigError, SweepError, UnknownName
from acclimate.data.manifest import Manifest
from acclimate.paper.ablations.study import Asked, prepare, write_data
from acclimate.paper.ablations.subsets import first_domains, thinned
from acclimate.paper.ablations.table import ABLATIONS
from acclimate.paper.ablations.verdict import Level, gap, verdict
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep.driver import SweepPlan, check_folder
from acclimate.sweep.jobs import define
from acclimate.sweep.settings import SweepConfig
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
    role = {"val-site": "val", "test-site": "test"}
    roles = pa.array([role.get(name, "train") for name in domains])
    path = tmp_path_factory.mktemp("data") / "sites.parquet"
    Manifest(
        manifest.table.append_column("role", roles), manifest.classes, manifest.root, "sites"
    ).write(path)
    return path


def asked(name: str, data: Path | None, out: Path, **changes: Any) -> Asked:
    return Asked(name=name, data=data, out=out, **changes)


def rows_of(manifest: Manifest, domain: str) -> set[bytes]:
    """Rows by what they hold, whatever their place in the table."""
    return {manifest.features()[row].tobytes() for row in manifest.rows(domain=domain)}


def of_values(study: SweepPlan) -> dict[str, Manifest]:
    return {job.variant: study.manifests[job.dataset] for job in study.sweep.jobs}


def trained_on(manifest: Manifest) -> set[str]:
    return {name for name, role in manifest.roles().items() if role == "train"}


def test_subsets_of_domains_are_nested_and_unseen_domains_stay(sites: Path, tmp_path: Path) -> None:
    study = prepare(asked("domains", sites, tmp_path / "out"))
    found = of_values(study)
    assert list(found) == ["2", "4", "6"]  # doubling, then all of them
    whole = Manifest.read(sites)
    subsets = [trained_on(manifest) for manifest in found.values()]
    assert [len(one) for one in subsets] == [2, 4, 6]
    assert subsets[0] < subsets[1] < subsets[2]
    for manifest in found.values():
        for name in (*trained_on(manifest), "val-site", "test-site"):
            assert rows_of(manifest, name) == rows_of(whole, name)
    other = prepare(asked("domains", sites, tmp_path / "out", seed=1))
    assert trained_on(of_values(other)["2"]) != subsets[0]
    assert not (tmp_path / "out").exists()


def test_constant_totals(sites: Path, tmp_path: Path) -> None:
    study = prepare(asked("domains-constant", sites, tmp_path / "out", values=("2", "3", "6")))
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
    with pytest.raises(ConfigError) as error:
        first_domains(manifest, TRAINING, 7, seed=0)
    assert str(error.value) == ("sites.parquet has 6 training domains, not 7; choose from 1 to 6")
    with pytest.raises(ConfigError) as error:
        thinned(manifest, TRAINING[:2], 6 * 32, seed=0)
    assert str(error.value) == (
        "domain 'site-0' of sites.parquet has 32 training images and cannot be cut to 96; "
        "choose other numbers of domains"
    )


def test_runs_of_every_size_have_the_same_batches(sites: Path, tmp_path: Path) -> None:
    study = prepare(asked("domains", sites, tmp_path))
    batches = {
        job.variant: (job.config["train"]["domains_per_step"], job.config["train"]["per_domain"])
        for job in study.sweep.jobs
    }
    assert batches == {"2": (2, 48), "4": (4, 24), "6": (6, 16)}
    mine = prepare(asked("domains", sites, tmp_path, settings={"train": {"per_domain": 5}}))
    assert {job.config["train"]["per_domain"] for job in mine.sweep.jobs} == {5}
    assert {job.config["train"]["domains_per_step"] for job in mine.sweep.jobs} == {0}


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [("tail", "tail", (0.1, 0.5)), ("heads", "heads", (1, 2)), ("per-class", "per_class", (5, 9))],
)
def test_long_tails(
    sites: Path, tmp_path: Path, name: str, key: str, values: tuple[float, ...]
) -> None:
    texts = tuple(f"{value:g}" for value in values)
    study = prepare(asked(name, sites, tmp_path, values=texts))
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


def test_embeddings_are_compared_with_none(sites: Path, tmp_path: Path) -> None:
    study = prepare(asked("embeddings", sites, tmp_path, trials=2))
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
    axis = study.sweep.axis
    assert axis is not None
    assert axis.places == dict.fromkeys(("none", "mean", "softmax", "prototype", "posterior"))
    with pytest.raises(ConfigError) as error:
        prepare(
            asked("embeddings", sites, tmp_path, algorithms=("erm",), values=("mean", "softmax"))
        )
    assert str(error.value) == (
        "nothing to run: 'none' is for plain algorithms and every embedding for adaptive ones; "
        "add the other kind to --algorithms or --values"
    )


def test_points_count_in_training_and_after(sites: Path, tmp_path: Path) -> None:
    study = prepare(asked("points", sites, tmp_path, values=("8", "16", "32")))
    settings = {job.variant: flat(job.config) for job in study.sweep.jobs}
    for label in ("8", "16", "32"):
        assert settings[label]["embedding.points"] == int(label)
        assert settings[label]["adapt.points"] == int(label)
    assert study.paths == {"sites": sites}
    axis = study.sweep.axis
    assert axis is not None
    assert axis.places == {"8": 8.0, "16": 16.0, "32": 32.0}


def test_domains_per_step(sites: Path, tmp_path: Path) -> None:
    study = prepare(asked("domains-per-step", sites, tmp_path))
    found = {job.variant: job.config["embedding"]["domains_per_step"] for job in study.sweep.jobs}
    assert found == {"3": 3, "4": 4, "5": 5, "6": 6}  # 7 and 8 are more than there are
    assert {job.algorithm for job in study.sweep.jobs} == {"da-erm"}


def test_plain_models_have_heads_of_the_same_size(sites: Path, tmp_path: Path) -> None:
    study = prepare(asked("points", sites, tmp_path, values=("8", "16")))
    assert {job.config["model"]["head"] for job in study.sweep.jobs} == {"mlp"}
    linear = {"model": {"head": "linear"}}
    study = prepare(asked("points", sites, tmp_path, values=("8", "16"), settings=linear))
    assert {job.config["model"]["head"] for job in study.sweep.jobs} == {"linear"}


def test_values_with_the_same_data_are_left_out_and_said(sites: Path, tmp_path: Path) -> None:
    # A pool of 80 images a class gives 56 at most: 60 and 70 are the same data.
    study = prepare(asked("per-class", sites, tmp_path, values=("20", "600", "700")))
    assert list(of_values(study)) == ["20", "600"]
    assert study.notes == ("700 is left out: the data are those of per-class-600",)
    assert {job.variant for job in study.sweep.jobs} == {"20", "600"}


def test_built_data_are_written_once_and_found_again(sites: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    study = prepare(asked("domains", sites, out))
    write_data(study, out)
    stamps = {path: path.stat().st_mtime_ns for path in study.paths.values()}
    for name, path in study.paths.items():
        assert path.stem == name
        assert Manifest.read(path).digest() == study.manifests[name].digest()
    write_data(prepare(asked("domains", sites, out)), out)
    assert {path: path.stat().st_mtime_ns for path in study.paths.values()} == stamps
    # Data of one's own stay where they are.
    write_data(prepare(asked("points", sites, tmp_path / "two", values=("4", "8"))), tmp_path)
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "domains",
            {"values": ("2", "9")},
            "--values: 9 for 'domains' is out of reach for sites.parquet; choose from 2 to 6",
        ),
        (
            "points",
            {"values": ("2", "900")},
            "--values: 900 for 'points' is out of reach for sites.parquet; choose from 1 to 32",
        ),
        ("domains", {"values": ("2.5",)}, "--values: 'domains' takes whole numbers, not '2.5'"),
        ("tail", {"values": ("much",)}, "--values: 'tail' takes numbers, not 'much'"),
        (
            "tail",
            {"values": ("0.1", "0.1")},
            "sites.parquet leaves fewer than two values to compare for 'tail'; give --values",
        ),
        (
            "points",
            {"settings": {"adapt": {"points": 3}}},
            "--set adapt.points: the ablation 'points' varies this itself; use --values",
        ),
    ],
)
def test_what_cannot_be_asked(
    sites: Path, tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        prepare(asked(name, sites, tmp_path / "out", **changes))
    assert str(error.value) == message
    assert not (tmp_path / "out").exists()


def test_names_of_ablations(tmp_path: Path) -> None:
    with pytest.raises(UnknownName) as error:
        prepare(asked("tails", None, tmp_path))
    assert str(error.value) == "there is no ablation 'tails'; did you mean 'tail'?"


def test_taking_domains_away_needs_others_to_test_on(features: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    features.write(path)
    with pytest.raises(ConfigError) as error:
        prepare(asked("domains", path, tmp_path / "out"))
    assert str(error.value) == (
        "'domains' takes training domains away and needs others to test on, and plain.parquet "
        "gives none the role 'test'; name some with --test-domains"
    )
    study = prepare(asked("domains", path, tmp_path / "out", test_domains=("site-0", "site-3")))
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


def test_every_ablation_has_values_for_the_digits() -> None:
    for name, ablation in ABLATIONS.items():
        assert len(ablation.embedded) >= 5, name
        assert ablation.about and ablation.label


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object) -> tuple[int | str, str]:
        monkeypatch.setattr(sys, "argv", ["acclimate", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, capsys.readouterr().out

    return run


def test_the_list(cli: Any) -> None:
    code, text = cli("list", "ablations", "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(text)["ablations"]] == list(ABLATIONS)


def test_a_dry_run_writes_nothing(cli: Any, sites: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, text = cli("ablate", "domains", sites, "--out", out, "--dry-run", *as_flags(TINY))
    assert code == 0
    assert "runs: 18" in text
    assert not out.exists()


@pytest.mark.slow
def test_an_ablation_from_end_to_end(cli: Any, sites: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tiny = {key: value for key, value in TINY.items() if key != "train.per_domain"}
    command = ["ablate", "domains", sites, "--out", out, "--values", "2,4", "--trials", 2]
    command += ["--max-parallel", 2, *as_flags(tiny)]
    code, text = cli(*command, "--json")
    assert code == 0
    said = json.loads(text)
    assert said["failures"] == []
    usual = [one for one in said["levels"] if one["method"] in ("none", "embedding")]
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
    for name in ("ablation.png", "ablation.pdf"):
        assert (out / name).stat().st_size > 1000
    before = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    code, text = cli(*command)
    assert code == 0
    assert "top-1 on unseen domains" in text
    assert {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")} == before
    code, _ = cli(*command[:5], "--values", "2,6", "--out", out, *as_flags(tiny))
    assert str(code).startswith(f"error: {out} holds another sweep (")


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
    sites: Path, tmp_path: Path, name: str, values: tuple[str, ...]
) -> None:
    study = prepare(asked(name, sites, tmp_path, values=values))
    found = draws_of(study)
    for value in values:
        trials = {found[value, trial] for trial in range(3)}
        # All six domains are all six however they are drawn.
        assert len(trials) == (1 if (name, value) == ("domains", "6") else 3)
    assert draws_of(prepare(asked(name, sites, tmp_path, values=values))) == found
    # The second trial is drawn as the first of the next seed is.
    other = draws_of(prepare(asked(name, sites, tmp_path, values=values, seed=1)))
    assert other[values[0], 0] == found[values[0], 1]
    # Results are still one data set's for each value, with the same unseen domains.
    assert {job.dataset for job in study.sweep.jobs} == {f"{name}-{value}" for value in values}
    assert len({job.groups for job in study.sweep.jobs}) == 1
    assert [data.name for data in study.sweep.datasets] == [f"{name}-{value}" for value in values]


def test_one_draw_for_all_trials_has_the_jobs_it_always_had(sites: Path, tmp_path: Path) -> None:
    study = prepare(asked("tail", sites, tmp_path, values=("0.1", "0.5"), one_draw=True))
    assert {job.drawn for job in study.sweep.jobs} == {""}
    assert study.sweep.draws == ()
    anew = prepare(asked("tail", sites, tmp_path, values=("0.1", "0.5")))
    kept = {job.id for job in study.sweep.jobs} & {job.id for job in anew.sweep.jobs}
    assert kept == {job.id for job in study.sweep.jobs if job.trial == 0}
    folder = SweepFolder(tmp_path / "drawn once")
    folder.write(study.sweep)
    check_folder(folder.path, study.sweep)
    with pytest.raises(SweepError, match="holds another sweep"):
        check_folder(folder.path, anew.sweep)


def test_data_of_ones_own_are_not_drawn(sites: Path, tmp_path: Path) -> None:
    study = prepare(asked("points", sites, tmp_path, values=("8", "16")))
    assert set(draws_of(study).values()) == {Manifest.read(sites).digest()}
    assert study.paths == {"sites": sites}


def test_digits_are_other_digits_in_each_trial(tmp_path: Path) -> None:
    study = prepare(asked("points", None, tmp_path, values=("5", "10"), trials=2, seed=6))
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
    with pytest.raises(ConfigError) as error:
        define(config, {"one": features, "one-t1": other}, drawn={"one": ("one", "one-t1")})
    assert str(error.value) == (
        "the draws 'one' and 'one-t1' hold out different domains; give the unseen domains of each "
        "draw the same names"
    )
