"""From a file or flags to the list of jobs: counts by hand, pinned draws, errors by their facts."""

import shutil
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.config import RunConfig, Search, choice, flat, from_dict, log2, log10, nested
from acclimate.config.settings import PRESETS
from acclimate.config.values import parse_range
from acclimate.core.errors import (
    AcclimateError,
    ConfigError,
    ManifestError,
    UnknownName,
    WeightsError,
)
from acclimate.data.manifest import Manifest
from acclimate.learn.algorithms import ALGORITHMS, choose
from acclimate.results.protocol import Axis, Job, Sweep
from acclimate.runs.identity import embedding_identity
from acclimate.runs.plan import make_plan
from acclimate.sweep.contenders import contenders, draw, parse_search, ranges
from acclimate.sweep.definition import (
    data_name,
    gather,
    held_out,
    open_data,
    read_definition,
    scored_groups,
)
from acclimate.sweep.jobs import define, notes
from acclimate.sweep.settings import SweepConfig
from fixtures.errors import refused
from fixtures.roles import with_roles
from fixtures.settings import TINY

NAMES = ("art", "cartoon", "photo", "sketch")


def arrays(domains: tuple[str, ...] = NAMES, *, rows: int = 6, seed: int = 0) -> Manifest:
    """A little data: `rows` rows of two classes in each domain, 3 features."""
    rng = np.random.default_rng(seed)
    where = np.repeat(domains, rows)
    y = np.tile(["ant", "bee"], len(where) // 2)
    X = rng.normal(size=(len(where), 3)).astype(np.float32)
    splits = np.tile(["train", "train", "train", "train", "val", "val"], len(where) // 6)
    return Manifest.from_arrays(X, y, where, splits=splits)


def sweep_config(**values: Any) -> SweepConfig:
    return gather(None, {"data": ("pacs",), "trials": 1, "settings": nested(TINY), **values})


def defined(manifest: Manifest | None = None, **values: Any) -> Sweep:
    return define(sweep_config(**values), {"pacs": manifest or arrays()})


class TestDefinition:
    def test_defaults_then_the_file_then_flags(self, tmp_path: Path) -> None:
        file = tmp_path / "sweep.toml"
        file.write_text(
            'data = ["pacs", "/data/vlcs.parquet"]\nalgorithms = ["erm", "coral"]\ntrials = 2\n'
            'draws = 4\n[settings]\n"train.steps" = 5\nmodel.weights = "r50.pth"\n'
            '[settings.train.optimiser]\nlr = 0.1\n[search]\ntrain.per_domain = "log2(3, 4)"\n'
            '[per_algorithm.erm]\nmodel.head = "mlp"\n[variants."f = 0.1"]\nembedding.dim = 2\n'
        )
        config = gather(file, {"trials": 7, "seed": 0, "settings": {"train": {"steps": 9}}})
        assert config == SweepConfig(
            data=(str(tmp_path / "pacs"), "/data/vlcs.parquet"),
            algorithms=("erm", "coral"),
            trials=7,
            draws=4,
            settings={
                "train": {"steps": 9, "optimiser": {"lr": 0.1}},
                "model": {"weights": str(tmp_path / "r50.pth")},
            },
            search={"train.per_domain": "log2(3, 4)"},
            per_algorithm={"erm": {"model": {"head": "mlp"}}},
            variants={"f = 0.1": {"embedding": {"dim": 2}}},
        )

    def test_flags_left_out_do_not_count(self, tmp_path: Path) -> None:
        file = tmp_path / "sweep.toml"
        file.write_text('data = "a"\ntitle = "T"\nalgorithms = ["mmd"]\n')
        flags = {"title": None, "algorithms": (), "settings": {}, "rule": "", "data": ()}
        assert gather(file, flags) == gather(file, {})

    def test_paths_on_the_command_line_are_relative_to_the_working_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        config = gather(None, {"data": ("a/b",), "settings": {"model": {"weights": "w.pth"}}})
        assert config.data == (str(tmp_path / "a" / "b"),)
        assert config.settings == {"model": {"weights": str(tmp_path / "w.pth")}}

    @pytest.mark.parametrize(
        ("text", "kind", "facts"),
        [
            ("trails = 3", UnknownName, ("trails", "trials")),
            ("trials = 0", ConfigError, ("trials", 1, 0)),
            ("folds = 1", ConfigError, ("folds", 2)),
            ("seed = -1", ConfigError, ("seed", -1)),
            ('draws = "3"', ConfigError, ("draws", "'3'")),
            ("data = [1]", ConfigError, ("data", "[1]")),
            (
                "[settings]\ntrain.stepz = 5",
                UnknownName,
                ("settings.train.stepz", "settings.train.steps"),
            ),
            ("[settings]\nseed = 5", ConfigError, ("settings.seed",)),
            ("[variants]\nbig = 5", ConfigError, ("variants.big", 5)),
            (
                "[variants.big]\nmodel.dropout = 2",
                ConfigError,
                ("variants.big.model.dropout", 0.99, 2.0),
            ),
        ],
    )
    def test_errors_name_the_file(
        self, text: str, kind: type[AcclimateError], facts: tuple[object, ...], tmp_path: Path
    ) -> None:
        file = tmp_path / "sweep.toml"
        file.write_text(text)
        with refused(kind, file, *facts):
            read_definition(file)

    def test_a_mistaken_flag_is_not_blamed_on_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "sweep.toml"
        file.write_text('data = "a"')
        with refused(ConfigError, "draws", 1, 0) as caught:
            gather(file, {"draws": 0})
        assert str(file) not in str(caught.value)
        with refused(UnknownName, "'train.stps'", "'train.steps'"):  # as --set names it
            gather(None, {"data": ("x",), "settings": {"train": {"stps": 3}}})

    def test_names_of_data(self, tmp_path: Path) -> None:
        assert data_name("a/pacs.v2.parquet") == "pacs.v2"
        assert data_name("a/PACS") == data_name("a/PACS/") == "PACS"
        assert data_name("a/pacs.v2") == "pacs.v2"
        arrays().write(tmp_path / "pacs.parquet")
        opened = open_data(SweepConfig(data=(str(tmp_path / "pacs.parquet"),)))
        assert opened["pacs"].digest() == arrays().digest()

    def test_two_data_sets_of_one_name(self, tmp_path: Path) -> None:
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
            arrays().write(tmp_path / folder / "pacs.parquet")
        paths = tuple(str(tmp_path / folder / "pacs.parquet") for folder in ("a", "b"))
        with refused(ConfigError, "pacs", paths[1]):
            open_data(SweepConfig(data=paths))


class TestDraws:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("log10(-5, -3.5)", log10(-5, -3.5)),
            (" log2( 3,5.5 ) ", log2(3, 5.5)),
            ("uniform(0, 5)", Search("uniform", 0.0, 5.0)),
            ("choice(0.0, 0.1, 0.5)", choice(0.0, 0.1, 0.5)),
            ("choice('no', \"all\")", choice("no", "all")),
        ],
    )
    def test_ranges_as_text(self, text: str, expected: Search) -> None:
        assert parse_range(text, "k") == expected

    @pytest.mark.parametrize(
        "text",
        [
            *("", "log10(-5)", "log10(-3, -5)", "uniform(a, b)", "choice()", "log3(1, 2)"),
            *("uniform(1,", "uniform(true, 2)", "log10(1, 2, 3)", "log10(1, 2) or so"),
        ],
    )
    def test_what_is_no_range(self, text: str) -> None:
        with refused(ConfigError, "model.dropout", repr(text), "log10(low, high)"):
            parse_range(text, "model.dropout")

    def test_the_declared_ranges_and_nothing_of_phi(self) -> None:
        common = {
            "train.optimiser.lr": log10(-5, -3.5),
            "train.optimiser.weight_decay": log10(-6, -2),
            "train.per_domain": log2(3, 5.5),
        }
        assert ranges("erm") == ranges("da-erm") == common
        assert ranges("da-coral") == {**common, "hparams.penalty": log10(-1, 1)}

    def test_what_was_asked_goes_before_what_is_fixed_before_what_is_declared(self) -> None:
        searches = {"embedding.dim": choice(8, 16), "model.dropout": choice(0.2)}
        found = ranges("da-coral", fixed=["model.dropout", "hparams.penalty"], searches=searches)
        assert found["model.dropout"] == choice(0.2)
        assert found["embedding.dim"] == choice(8, 16)
        assert "hparams.penalty" not in found
        assert "embedding.dim" not in ranges("coral", searches=searches)  # it has no Φ

    def test_a_preset_that_was_searched_says_where(self) -> None:
        epochs = {"train.epochs": choice(3.0, 6.0, 12.0, 25.0)}
        plain = {"hparams.penalty": Search("uniform", 0.0, 1.5), **epochs}
        of_phi = {
            "embedding.optimiser.lr": choice(1e-2, 1e-3, 1e-4, 1e-5),
            "embedding.optimiser.weight_decay": choice(1e-4, 1e-5, 1e-6),
        }
        assert ranges("erm", preset="geo-yfcc") == epochs
        assert ranges("mmd", preset="geo-yfcc") == plain
        assert ranges("da-erm", preset="geo-yfcc") == {**of_phi, **epochs}
        assert ranges("da-mmd", preset="geo-yfcc") == {**of_phi, **plain}
        assert ranges("da-erm", preset="lt-imagenet") == {
            "embedding.optimiser.lr": choice(1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
        }
        assert ranges("erm", preset="small-scale") == ranges("erm")

    def test_what_a_preset_fixes_for_an_algorithm_is_not_drawn(self) -> None:
        for name in ("mmd", "coral"):
            plain, adaptive = (ranges(kind, preset="small-scale") for kind in (name, f"da-{name}"))
            assert plain == {**adaptive, "hparams.penalty": log10(-1, 1)}
            assert choose(f"da-{name}").settings.penalty == 1.0

    def test_the_papers_grids_of_phi_are_drawn(self) -> None:
        phi = "embedding.optimiser.lr"
        config = SweepConfig(algorithms=("erm", "da-erm"), draws=12, preset="lt-imagenet")
        erm, adaptive = contenders(config, {})
        assert (erm.draws, adaptive.draws) == (1, 12)  # nothing of ERM was searched there
        runs = [adaptive.run(config, draw_number=n, trial=0) for n in range(12)]
        rates = [run.embedding.optimiser.lr for run in runs]
        assert rates[0] == PRESETS["lt-imagenet"].settings[phi]
        assert set(rates) == {1e-1, 1e-2, 1e-3, 1e-4, 1e-5}
        assert {run.model.dropout for run in runs} == {0.0}

    def test_pinned(self) -> None:
        """These numbers are in people's sweeps: they must never change."""
        values = flat(draw(ranges("coral"), "coral", seed=0, draw=1, trial=0))
        assert values == {
            "hparams.penalty": 5.401107479559132,
            "train.optimiser.lr": 5.797364701354382e-05,
            "train.optimiser.weight_decay": 2.8452755216515303e-06,
            "train.per_domain": 35,
        }

    def test_the_same_for_the_adaptive_form_and_whatever_else_is_drawn(self) -> None:
        def of(algorithm: str, keys: list[str], **place: int) -> dict[str, Any]:
            found = {key: ranges("coral")[key] for key in keys}
            where = {"seed": 3, "draw": 2, "trial": 1, **place}
            return flat(draw(found, algorithm, **where))

        keys = ["train.optimiser.lr", "hparams.penalty"]
        one = of("coral", keys)
        assert of("da-coral", keys) == one
        assert of("coral", keys[:1]) == {keys[0]: one[keys[0]]}
        for place in ({"seed": 4}, {"draw": 1}, {"trial": 0}):
            assert of("coral", keys, **place) != one
        assert of("mmd", keys[:1]) != of("coral", keys[:1])

    @given(
        algorithm=st.sampled_from([*ALGORITHMS]),
        seed=st.integers(0, 2**40),
        number=st.integers(1, 500),
        trial=st.integers(0, 20),
        preset=st.sampled_from(["", "small-scale", "lt-imagenet", "geo-yfcc"]),
    )
    def test_within_range_and_limits(
        self, algorithm: str, seed: int, number: int, trial: int, preset: str
    ) -> None:
        found = ranges(algorithm, preset=preset)
        values = draw(found, algorithm, seed=seed, draw=number, trial=trial)
        assert set(flat(values)) == set(found)
        for key, value in flat(values).items():
            search = found[key]
            if search.scale == "choice":
                assert value in search.options
                continue
            base = {"log10": 10.0, "log2": 2.0}.get(search.scale)
            low, high = (base**x if base else x for x in (search.low, search.high))
            assert int(low) <= value <= high
        config = from_dict(RunConfig, values, where="test")
        from_dict(ALGORITHMS[algorithm][0].Config, config.hparams, where="test")
        if "train.per_domain" in found:
            assert isinstance(config.train.per_domain, int)

    @pytest.mark.parametrize(
        ("key", "text", "kind", "facts"),
        [
            ("train.optimizer.lr", "log10(-5, -3)", UnknownName, ("train.optimiser.lr",)),
            ("hparams.penalti", "log10(-5, -3)", UnknownName, ("hparams.penalty",)),
            ("seed", "choice(1)", ConfigError, ()),
        ],
    )
    def test_bad_search(
        self, key: str, text: str, kind: type[AcclimateError], facts: tuple[object, ...]
    ) -> None:
        with refused(kind, "search", key, *facts):
            parse_search({key: text}, ["erm", "coral"])


class TestGroups:
    def test_roles_are_the_default_where_there_are_any(self) -> None:
        manifest = with_roles(arrays(), {"sketch": "test", "art": "test", "photo": "val"})
        assert scored_groups(sweep_config(), manifest) == [("art", "sketch")]
        assert scored_groups(sweep_config(test_domains=("cartoon",)), manifest) == [("cartoon",)]

    def test_each_leaves_out_what_is_never_trained_on(self) -> None:
        manifest = with_roles(arrays(), {"sketch": "test"})
        config = sweep_config(test_domains=("each",), val_domains=("art",))
        assert scored_groups(config, manifest) == [("cartoon",), ("photo",)]

    def test_named_groups(self) -> None:
        config = sweep_config(test_domains=("sketch, art", "photo"))
        assert scored_groups(config, arrays()) == [("art", "sketch"), ("photo",)]
        commas = arrays(("a, b", "c", "d"))
        config = sweep_config(test_domains=("a, b", "c,d"))
        assert scored_groups(config, commas) == [("a, b",), ("c", "d")]

    def test_folds_share_out_all_domains_by_seed(self) -> None:
        manifest = arrays(tuple(f"s{i:02d}" for i in range(13)))
        groups = scored_groups(sweep_config(test_domains=("folds",)), manifest)
        assert sorted(map(len, groups)) == [2, 2, 3, 3, 3]
        assert sorted(name for group in groups for name in group) == list(manifest.domains)
        again = scored_groups(sweep_config(test_domains=("folds",), draws=3), manifest)
        assert again == groups
        other = scored_groups(sweep_config(test_domains=("folds",), seed=1), manifest)
        assert other != groups

    def test_pairs_are_shared(self) -> None:
        """n = 4: 4 + 6 runs a draw, each pair once."""
        held = held_out(sweep_config(), arrays(), "leave-one-out")
        assert held[:4] == [(("art",),), (("cartoon",),), (("photo",),), (("sketch",),)]
        singles = [(name,) for name in NAMES]
        assert held[4:] == list(combinations(singles, 2))
        assert len(held) == 4 + 6

    def test_pairs_of_folds(self) -> None:
        manifest = arrays(tuple(f"s{i:02d}" for i in range(9)))
        config = sweep_config(test_domains=("folds",), folds=3)
        held = held_out(config, manifest, "k-fold")
        groups = scored_groups(config, manifest)
        assert held == [*((group,) for group in groups), *combinations(groups, 2)]
        assert len(held) == 3 + 3

    def test_fixed_groups_take_each_training_domain_in_turn(self) -> None:
        manifest = with_roles(arrays(), {"sketch": "test"})
        held = held_out(sweep_config(), manifest, "leave-one-out")
        others = ("art", "cartoon", "photo")
        assert held == [(("sketch",),), *((("sketch",), (name,)) for name in others)]
        assert len(held) == 1 + 3

    def test_a_pair_of_two_named_groups_serves_both(self) -> None:
        config = sweep_config(test_domains=("art", "photo"))
        held = held_out(config, arrays(), "leave-one-out")
        art, cartoon, photo, sketch = ((name,) for name in NAMES)
        pairs = [(art, cartoon), (art, photo), (art, sketch), (photo, cartoon), (photo, sketch)]
        assert held == [(art,), (photo,), *pairs]

    def test_fixed_groups_take_folds_of_their_training_domains(self) -> None:
        manifest = with_roles(arrays(tuple(f"s{i}" for i in range(8))), {"s7": "test", "s6": "val"})
        held = held_out(sweep_config(folds=3), manifest, "k-fold")
        assert held[0] == (("s7",),)
        assert all(first == ("s7",) for first, _ in held[1:])
        folds = [fold for _, fold in held[1:]]
        assert sorted(name for fold in folds for name in fold) == [f"s{i}" for i in range(6)]
        assert len(held) == 1 + 3

    @pytest.mark.parametrize(("domains", "runs"), [(11, 11 + 55), (12, 12 + 12 * 5)])
    def test_k_fold_never_takes_more_runs_than_pairs(self, domains: int, runs: int) -> None:
        manifest = arrays(tuple(f"s{i:02d}" for i in range(domains)))
        held = held_out(sweep_config(), manifest, "k-fold")
        assert len(held) == runs
        for groups in held[domains:]:
            assert len(groups) == 2
            assert not set(groups[0]) & set(groups[1])


def places(job: Job) -> tuple[Any, ...]:
    return (job.dataset, job.variant, job.algorithm, job.groups, job.draw, job.trial)


class TestJobs:
    def test_all_of_them_in_order(self) -> None:
        sweep = defined(trials=2, draws=2, rule="leave-one-out")
        assert len(sweep.jobs) == 2 * 2 * (4 + 6) * 2
        assert len({places(job) for job in sweep.jobs}) == len({j.id for j in sweep.jobs}) == 80
        assert [(job.trial, job.draw) for job in sweep.jobs] == [
            (trial, number) for trial in (0, 1) for number in (0, 1) for _ in range(20)
        ]
        first = [(job.groups, job.algorithm) for job in sweep.jobs[:4]]
        assert first == [
            ((("art",),), "erm"),
            ((("art",),), "da-erm"),
            ((("cartoon",),), "erm"),
            ((("cartoon",),), "da-erm"),
        ]

    def test_a_job_says_what_is_run(self) -> None:
        sweep = defined(trials=2, seed=5, rule="oracle", title="T", baseline="da-erm")
        job = sweep.jobs[-1]
        assert (sweep.title, sweep.rule, sweep.baseline) == ("T", "oracle", "da-erm")
        assert job.id.startswith("da_erm-sketch-d0-t1-")
        config = from_dict(RunConfig, job.config, where="test")
        assert (config.algorithm, config.seed) == ("da-erm", 6)
        assert config.test_domains == job.held_out == ("sketch",)
        plan = make_plan(config, arrays())
        assert plan.train_domains == ("art", "cartoon", "photo")
        pair = next(j for j in defined(rule="k-fold", draws=2).jobs if len(j.groups) == 2)
        assert pair.config["test_domains"] == ["art", "cartoon"]
        assert pair.id.startswith("erm-art-cartoon-d0-t0-")

    def test_data_and_weights_may_lie_anywhere(self, tmp_path: Path) -> None:
        def ids(folder: Path, steps: int = 6) -> list[str]:
            folder.mkdir(exist_ok=True)
            arrays().write(folder / f"{folder.name}.parquet")
            weights = folder / f"{folder.name}.pth"
            weights.write_bytes(b"the same")
            flags = {"data": (str(folder / f"{folder.name}.parquet"),), "algorithms": ["da-erm"]}
            settings = {**TINY, "train.steps": steps, "model.weights": str(weights)}
            config = gather(None, {**flags, "settings": settings})
            opened = open_data(config)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("acclimate.sweep.jobs.build_backbone", lambda *a, **k: None)
                sweep = define(config, opened)
            assert sweep.datasets[0].source == str(folder / f"{folder.name}.parquet")
            return [job.id for job in sweep.jobs] + [phi.id for phi in sweep.embeddings]

        one, two = ids(tmp_path / "one"), ids(tmp_path / "two")
        assert one == two
        assert not set(one[:12]) & set(ids(tmp_path / "one", steps=7)[:12])
        shutil.rmtree(tmp_path / "one")

    def test_other_data_are_other_jobs(self) -> None:
        one = {job.id for job in defined().jobs}
        assert not one & {job.id for job in defined(arrays(seed=1)).jobs}

    def test_settings_lie_over_each_other(self) -> None:
        sweep = defined(
            algorithms=("erm", "coral"),
            preset="small-scale",
            settings={"train.steps": 7, "hparams.penalty": 3.0, "model.backbone": "mlp"},
            per_algorithm={"erm": {"model.head": "mlp", "train.steps": 8}},
            variants={"plain": {}, "wide": {"model.width": 99, "train.steps": 9}},
        )
        found = {(job.algorithm, job.variant): flat(job.config) for job in sweep.jobs}
        assert {key: value["train.steps"] for key, value in found.items()} == {
            ("erm", "plain"): 8,
            ("erm", "wide"): 9,
            ("coral", "plain"): 7,
            ("coral", "wide"): 9,
        }
        assert found["erm", "plain"]["model.head"] == "mlp"
        assert found["coral", "plain"]["model.head"] == "linear"
        assert found["coral", "wide"]["hparams.penalty"] == 3.0
        assert "hparams.penalty" not in found["erm", "plain"]
        assert found["coral", "wide"]["model.width"] == 99
        assert found["erm", "plain"]["adapt.source"] == "test"  # the preset's

    def test_steps_go_before_the_epochs_of_a_preset(self) -> None:
        own = {"train.steps": 7, "model.backbone": "mlp"}
        sweep = defined(algorithms=("mmd",), preset="geo-yfcc", draws=2, settings=own)
        assert {job.config["train"]["epochs"] for job in sweep.jobs} == {0.0}

    def test_steps_of_flags_and_variants_go_before_epochs_that_came_earlier(
        self, tmp_path: Path
    ) -> None:
        file = tmp_path / "sweep.toml"
        file.write_text('data = ["pacs"]\n[settings]\ntrain.epochs = 3.0\n')
        config = gather(file, {"settings": {"train": {"steps": 9}}})
        assert config.settings == {"train": {"steps": 9, "epochs": 0.0}}
        sweep = defined(
            algorithms=("erm",),
            settings={"train.epochs": 3.0, "model.backbone": "mlp"},
            variants={"short": {"train.steps": 5}},
        )
        assert {job.config["train"]["epochs"] for job in sweep.jobs} == {0.0}

    def test_draws_are_laid_over_the_rest_but_not_over_what_is_fixed(self) -> None:
        sweep = defined(
            draws=3, algorithms=("coral", "da-coral"), variants={"low": {"model.dropout": 0.3}}
        )
        for job in sweep.jobs:
            values = flat(job.config)
            assert values["model.dropout"] == 0.3
            assert values["train.per_domain"] == 4  # TINY's
            drawn = draw(
                {"train.optimiser.lr": log10(-5, -3.5)}, "coral", seed=0, draw=job.draw, trial=0
            )
            expected = flat(drawn).get("train.optimiser.lr")
            assert values["train.optimiser.lr"] == expected
        by_draw = Counter(flat(job.config)["train.optimiser.lr"] for job in sweep.jobs)
        assert sorted(by_draw.values()) == [8, 8, 8]  # the same for every domain and both forms

    def test_search_draws_even_what_is_fixed(self) -> None:
        sweep = defined(draws=2, search={"train.per_domain": "choice(5)"})
        assert {(j.draw, j.config["train"]["per_domain"]) for j in sweep.jobs} == {(0, 4), (1, 5)}

    def test_an_algorithm_without_anything_to_draw_runs_once(self) -> None:
        sweep = defined(
            draws=3,
            rule="leave-one-out",
            algorithms=("erm", "coral"),
            settings={
                **TINY,
                "train.optimiser.lr": 0.1,
                "train.optimiser.weight_decay": 0.0,
                "model.dropout": 0.0,
            },
        )
        counts = Counter(job.algorithm for job in sweep.jobs)
        assert counts == {"erm": 4, "coral": 3 * 10}

    def test_phi_is_learned_once_per_training_set_and_seed(self) -> None:
        sweep = defined(
            trials=2, draws=2, rule="leave-one-out", algorithms=("erm", "da-erm", "da-coral", "arm")
        )
        assert len(sweep.embeddings) == 2 * (4 + 6)
        needed = Counter(job.needs for job in sweep.jobs)
        assert needed.pop(None) == 2 * 2 * 2 * 10  # arm learns Φ with its predictor
        assert needed == {phi.id: 4 for phi in sweep.embeddings}  # two algorithms, two draws
        for job in sweep.jobs:
            if job.needs:
                phi = next(found for found in sweep.embeddings if found.id == job.needs)
                assert phi.config["test_domains"] == job.config["test_domains"]
                assert phi.config["seed"] == job.config["seed"]
        assert sweep.embeddings[0].id.startswith("phi-prototype-art-t0-")

    def test_phi_follows_the_domains_that_are_not_trained_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = []

        def spy(config: RunConfig, digest: str, held: list[str]) -> dict[str, Any]:
            seen.append((config.test_domains, held))
            return embedding_identity(config, digest, held)

        monkeypatch.setattr("acclimate.sweep.jobs.embedding_identity", spy)
        manifest = with_roles(arrays(("a", "b", "c", "d", "e")), {"e": "test"})
        defined(manifest, algorithms=("da-erm",), test_domains=("a",), val_domains=("b",))
        assert seen == [(("a",), ["a", "b", "e"])]

    def test_a_different_embedding_is_a_different_phi(self) -> None:
        variants = {"few": {"embedding.points": 2}, "many": {"embedding.points": 4}}
        sweep = defined(algorithms=("da-erm",), variants=variants)
        assert len(sweep.embeddings) == len(sweep.jobs) == 8

    def test_variants_with_data_of_their_own(self) -> None:
        data = {"all": arrays(), "three": arrays(NAMES[:3], seed=1)}
        axis = Axis(label="domains", places={"4": 4.0, "3": 3.0})
        config = sweep_config(algorithms=("erm",))
        own = {"4": "all", "3": "three"}
        sweep = define(config, data, data_of_variant=own, axis=axis)
        assert Counter((job.dataset, job.variant) for job in sweep.jobs) == {
            ("all", "4"): 4,
            ("three", "3"): 3,
        }
        assert sweep.axis == axis
        assert sweep.title == "all, three"
        assert len(define(config, data).jobs) == 7  # without, there is one line on both

    def test_equal_variants_stay_two(self) -> None:
        sweep = defined(algorithms=("erm",), variants={"a": {}, "b": {}})
        assert len({job.id for job in sweep.jobs}) == 8

    def test_rules_by_default(self) -> None:
        assert defined().rule == "training-domains"
        assert defined(val_domains=("art",)).rule == "validation-domains"
        assert defined(with_roles(arrays(), {"art": "val"})).rule == "validation-domains"
        both = {"a": arrays(), "b": with_roles(arrays(seed=1), {"art": "val"})}
        assert define(sweep_config(), both).rule == "training-domains"

    def test_many_jobs_are_quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A plan per data set, held-out domains and kind of algorithm, not one per job."""
        planned = []

        def spy(*args: Any, **kwargs: Any) -> Any:
            planned.append(kwargs)
            return make_plan(*args, **kwargs)

        monkeypatch.setattr("acclimate.sweep.jobs.make_plan", spy)
        sweep = defined(trials=5, draws=5, rule="leave-one-out", algorithms=("erm", "da-erm"))
        assert len(sweep.jobs) == 500
        assert len(planned) == 20
        # Images are opened once for plain models and once for adaptive ones.
        assert sum(one["check_files"] for one in planned) == 2

    def test_notes(self) -> None:
        assert notes(sweep_config(), {}) == []
        (said,) = notes(sweep_config(algorithms=("coral",)), {})
        assert "erm" in said


@pytest.mark.parametrize("rule", ["training-domains", "leave-one-out", "k-fold", "oracle"])
@pytest.mark.parametrize("draws", [1, 3])
def test_jobs_of_each_rule(rule: str, draws: int) -> None:
    """With one draw there is nothing to choose, and no pairs are run."""
    pairs = 6 if draws > 1 and rule in ("leave-one-out", "k-fold") else 0
    sweep = defined(rule=rule, draws=draws, trials=2)
    assert len(sweep.jobs) == 2 * 2 * draws * (4 + pairs)


class TestErrors:
    @pytest.mark.parametrize(
        ("values", "kind", "facts"),
        [
            ({"algorithms": ("erm", "erm")}, ConfigError, ("algorithms", "erm")),
            (
                {"draws": 2, "search": {"model.dropout": "uniform(4, 5)"}},
                ConfigError,
                ("model.dropout", 0.99),
            ),
            ({"search": {"model.dropout": [0, 1]}}, ConfigError, ("model.dropout", [0, 1])),
            ({"baseline": "emr"}, UnknownName, ("emr", "erm")),
            ({"preset": "geo-yfc"}, UnknownName, ("'geo-yfc'", "geo-yfcc")),
            ({"rule": "validation-domains"}, ConfigError, ("pacs", "val_domains")),
            ({"test_domains": ("skech",)}, UnknownName, ("arrays", "skech", "sketch")),
            ({"val_domains": ("arts",)}, UnknownName, ("arrays", "'arts'", "'art'")),
            ({"test_domains": ("art", "art")}, ConfigError, ("test_domains", "art")),
            ({"test_domains": (",",)}, ConfigError, ("test_domains",)),
            (
                {"test_domains": ("art,photo,sketch,cartoon",)},
                ConfigError,
                ("arrays", "art, cartoon, photo, sketch"),
            ),
            ({"test_domains": ("art",), "val_domains": ("art",)}, ConfigError, ("art",)),
            ({"test_domains": ("roles",)}, ConfigError, ("arrays", "'test'", "each")),
            ({"test_domains": ("folds",)}, ConfigError, ("arrays", 4, 5, "folds")),
            (
                {"test_domains": ("art",), "rule": "k-fold", "draws": 2},
                ConfigError,
                ("arrays", 3, 5, "folds"),
            ),
            ({"per_algorithm": {"coral": {}}}, UnknownName, ("per_algorithm", "coral", "da-erm")),
            (
                {"algorithms": ("erm", "mmd"), "settings": {"hparams.penalti": 1}},
                UnknownName,
                ("settings", "hparams.penalti", "hparams.penalty"),
            ),
            (
                {"algorithms": ("erm", "mmd"), "per_algorithm": {"mmd": {"hparams.penalti": 1}}},
                UnknownName,
                ("mmd", "hparams.penalti", "hparams.penalty"),
            ),
            ({"settings": {"embedding.name": "prototyp"}}, UnknownName, ("prototype",)),
            ({"settings": {"model.backbone": "small-cnn"}}, ConfigError, ("small-cnn", 3, "mlp")),
            (
                {"algorithms": ("erm", "mldg"), "settings": {"train.micro_batches": 2}},
                ConfigError,
                (2, "mldg"),
            ),
            ({"settings": {"model.weights": "/no/r50.pth"}}, WeightsError, ("/no/r50.pth",)),
            (
                {"variants": {"a b": {}, "a_b": {}}, "algorithms": ("erm",)},
                ConfigError,
                ("'a b'", "'a_b'", "erm-a_b-art-d0-t0-"),
            ),
            (
                {
                    "draws": 3,
                    "settings": {
                        "train": {"optimiser": {"lr": 0.1, "weight_decay": 0.0}, "per_domain": 4},
                        "model": {"dropout": 0.0},
                    },
                },
                ConfigError,
                ("draws = 3", "search"),
            ),
        ],
    )
    def test_one_line_before_anything_starts(
        self, values: dict[str, Any], kind: type[AcclimateError], facts: tuple[object, ...]
    ) -> None:
        with refused(kind, *facts):
            defined(**values)

    @pytest.mark.parametrize(
        ("domains", "values", "facts"),
        [
            (("art",), {}, ("fewer than two",)),
            # A pair that leaves nothing, and a run that could not start.
            (
                ("art", "photo"),
                {"algorithms": ("erm",), "draws": 2, "rule": "leave-one-out"},
                ("art, photo",),
            ),
            (("art", "photo"), {}, ("da-erm", 2, "'photo'", "--algorithm erm")),
            # A pair that leaves too few.
            (
                ("art", "photo", "sketch"),
                {"draws": 2, "rule": "leave-one-out"},
                ("art and photo", "da-erm", 2, "'sketch'", "training-domains"),
            ),
        ],
    )
    def test_too_few_domains(
        self, domains: tuple[str, ...], values: dict[str, Any], facts: tuple[object, ...]
    ) -> None:
        with refused(ConfigError, "arrays", *facts):
            defined(arrays(domains), **values)

    def test_a_class_that_one_held_out_group_alone_has(self) -> None:
        """Found for the last group too, which is planned from its rows alone."""
        y = np.array(["ant", "bee"] * 12)
        y[-1] = "yak"
        X = np.zeros((24, 3), dtype=np.float32)
        manifest = Manifest.from_arrays(X, y, np.repeat(NAMES, 6), splits=["train"] * 24)
        with refused(ManifestError, "'yak'", "'sketch'", "data.unseen_classes=drop"):
            defined(manifest)

    def test_files_are_looked_for(self, tree: Path, tmp_path: Path) -> None:
        copy = tmp_path / "sites"
        shutil.copytree(tree, copy)
        manifest = Manifest.open(copy)
        (copy / "west" / "red" / "03.jpg").unlink()
        with refused(ManifestError, "sites/", "west/red/03.jpg"):
            defined(manifest, algorithms=("erm",))

    def test_the_same_data_twice(self) -> None:
        with refused(ConfigError, "'a'", "'b'"):
            define(sweep_config(), {"a": arrays(), "b": arrays()})
