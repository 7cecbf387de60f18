"""From a TOML file or flags to the list of jobs: counts by hand, draws pinned, whole messages."""

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.config import RunConfig, Search, choice, flat, from_dict, log2, log10, merged, nested
from acclimate.config.presets import PRESETS
from acclimate.core.errors import AcclimateError, ConfigError, UnknownName
from acclimate.data.manifest import Manifest
from acclimate.learn.algorithms import ALGORITHMS, choose
from acclimate.results.protocol import Axis, Job, Sweep
from acclimate.results.sweep_folder import SweepFolder
from acclimate.runs.identity import embedding_identity
from acclimate.runs.plan import make_plan
from acclimate.sweep.contenders import contenders, draw, parse_range, parse_search, ranges
from acclimate.sweep.definition import (
    SweepConfig,
    data_name,
    gather,
    open_data,
    read_definition,
)
from acclimate.sweep.estimate import FROM_RUNS, FROM_STEPS, estimate
from acclimate.sweep.groups import held_out, scored_groups
from acclimate.sweep.jobs import count, define, notes
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


def with_roles(manifest: Manifest, **roles: str) -> Manifest:
    import pyarrow as pa

    column = pa.array([roles.get(name, "train") for name in manifest.domain_names])
    return replace(manifest, table=manifest.table.append_column("role", column))


def sweep_config(**values: Any) -> SweepConfig:
    return gather(None, {"data": ("pacs",), "trials": 1, "settings": nested(TINY), **values})


def defined(manifest: Manifest | None = None, **values: Any) -> Sweep:
    return define(sweep_config(**values), {"pacs": manifest or arrays()})


def message(act: Callable[[], object]) -> str:
    with pytest.raises(AcclimateError) as caught:
        act()
    return str(caught.value)


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
        ("text", "expected"),
        [
            ("trails = 3", "{file}: there is no setting 'trails'; did you mean 'trials'?"),
            ("trials = 0", "{file}: 'trials' must be at least 1, not 0"),
            ("folds = 1", "{file}: 'folds' must be at least 2, not 1"),
            ("seed = -1", "{file}: 'seed' must be at least 0, not -1"),
            ('draws = "3"', "{file}: 'draws' must be a whole number, not '3'"),
            ("data = [1]", "{file}: 'data' must be a list of names, not [1]"),
            (
                "[settings]\ntrain.stepz = 5",
                "{file}: there is no setting 'settings.train.stepz'; did you mean "
                "'settings.train.steps'?",
            ),
            (
                "[settings]\nseed = 5",
                "{file}: 'settings.seed' is for the sweep to set; see the sweep's own settings",
            ),
            (
                "[variants]\nbig = 5",
                "{file}: 'variants.big' must be a table of settings, not 5",
            ),
            (
                "[variants.big]\nmodel.dropout = 2",
                "{file}: 'variants.big.model.dropout' must be from 0 to 0.99, not 2.0",
            ),
            (
                "[search]\nmodel.dropout = [0, 1]",
                "{file}: 'search.model.dropout' must be a range in quotes, such as "
                '"log10(-5, -3.5)", not [0, 1]',
            ),
        ],
    )
    def test_errors_name_the_file(self, text: str, expected: str, tmp_path: Path) -> None:
        file = tmp_path / "sweep.toml"
        file.write_text(text)
        assert message(lambda: read_definition(file)) == expected.format(file=file)

    def test_a_mistaken_flag_is_not_blamed_on_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "sweep.toml"
        file.write_text('data = "a"')
        assert message(lambda: gather(file, {"draws": 0})) == (
            "sweep: 'draws' must be at least 1, not 0"
        )

    def test_no_data(self) -> None:
        assert message(lambda: gather(None, {})) == (
            "the sweep names no data; give manifests or folders on the command line, or as "
            "data = [...] in its file"
        )

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
        assert message(lambda: open_data(SweepConfig(data=paths))) == (
            f"two data sets are called 'pacs'; rename the file or folder {paths[1]}"
        )


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
        assert message(lambda: parse_range(text, "model.dropout")) == (
            f"search: 'model.dropout' cannot be drawn from {text!r}; write log10(low, high), "
            "log2(low, high), uniform(low, high) or choice(one, another)"
        )

    def test_the_declared_ranges_and_nothing_of_phi(self) -> None:
        common = {
            "train.optimiser.lr": log10(-5, -3.5),
            "train.optimiser.weight_decay": log10(-6, -2),
            "train.per_domain": log2(3, 5.5),
        }
        assert ranges("erm") == ranges("da-erm") == common
        assert ranges("da-coral") == {**common, "hparams.penalty": log10(-1, 1)}

    def test_what_was_asked_goes_before_what_is_fixed_before_what_is_declared(self) -> None:
        asked = {"embedding.dim": choice(8, 16), "model.dropout": choice(0.2)}
        found = ranges("da-coral", fixed=["model.dropout", "hparams.penalty"], asked=asked)
        assert found["model.dropout"] == choice(0.2)
        assert found["embedding.dim"] == choice(8, 16)
        assert "hparams.penalty" not in found
        assert "embedding.dim" not in ranges("coral", asked=asked)  # it has no Φ

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

    def test_draw_0_is_what_was_given(self) -> None:
        assert draw(ranges("dann"), "dann", seed=1, draw=0, trial=5) == {}

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
            low, high = (
                {"log10": 10.0**x, "log2": 2.0**x}.get(search.scale, x)
                for x in (search.low, search.high)
            )
            assert int(low) <= value <= high
        config = from_dict(RunConfig, values, where="test")
        from_dict(ALGORITHMS[algorithm][0].Config, config.hparams, where="test")
        if "train.per_domain" in found:
            assert isinstance(config.train.per_domain, int)

    def test_spread_over_the_whole_range(self) -> None:
        found = {"train.optimiser.lr": log10(-5, -3.5), "train.per_domain": log2(3, 5.5)}
        drawn = [flat(draw(found, "erm", seed=0, draw=h, trial=0)) for h in range(1, 401)]
        logs = np.log10([one["train.optimiser.lr"] for one in drawn])
        assert abs(logs.mean() + 4.25) < 0.1
        assert logs.min() < -4.9
        assert logs.max() > -3.6
        sizes = {one["train.per_domain"] for one in drawn}
        assert min(sizes) == 8
        assert max(sizes) in (44, 45)

    def test_fields_of_whole_numbers_are_cut(self) -> None:
        found = {"hparams.anneal": log10(0, 4), "hparams.penalty": log10(-1, 5)}
        for h in range(1, 30):
            values = flat(draw(found, "irm", seed=0, draw=h, trial=0))
            assert isinstance(values["hparams.anneal"], int)
            assert isinstance(values["hparams.penalty"], float)

    @pytest.mark.parametrize(
        ("search", "expected"),
        [
            (
                {"train.optimizer.lr": "log10(-5, -3)"},
                "search: there is no setting 'train.optimizer.lr'; did you mean "
                "'train.optimiser.lr'?",
            ),
            (
                {"hparams.penalti": "log10(-5, -3)"},
                "search: there is no setting 'hparams.penalti'; did you mean 'hparams.penalty'?",
            ),
            ({"seed": "choice(1)"}, "search: 'seed' is for the sweep to set and cannot be drawn"),
            (
                {"model.dropout": "uniform(0, 5)"},
                "search: 'model.dropout' must be from 0 to 0.99, not 5.0",
            ),
            (
                {"train.per_domain": "log2(-1, 5)"},
                "search: 'train.per_domain' must be at least 1, not 0",
            ),
            (
                {"model.head": "choice('linear', 'big')"},
                "search: 'model.head' must be one of linear, mlp, not 'big'",
            ),
            (
                {"hparams.penalty": "uniform(-1, 1)"},
                "search: 'hparams.penalty' must be at least 0, not -1.0",
            ),
        ],
    )
    def test_bad_search(self, search: dict[str, str], expected: str) -> None:
        assert message(lambda: parse_search(search, ["erm", "coral"])) == expected


class TestGroups:
    def test_each_is_the_default_without_roles(self) -> None:
        assert scored_groups(sweep_config(), arrays()) == [(name,) for name in NAMES]

    def test_roles_are_the_default_where_there_are_any(self) -> None:
        manifest = with_roles(arrays(), sketch="test", art="test", photo="val")
        assert scored_groups(sweep_config(), manifest) == [("art", "sketch")]
        assert scored_groups(sweep_config(test_domains=("cartoon",)), manifest) == [("cartoon",)]

    def test_each_leaves_out_what_is_never_trained_on(self) -> None:
        manifest = with_roles(arrays(), sketch="test")
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
        manifest = with_roles(arrays(), sketch="test")
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
        manifest = with_roles(arrays(tuple(f"s{i}" for i in range(8))), s7="test", s6="val")
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

    def test_other_rules_hold_out_nothing_further(self) -> None:
        for rule in ("training-domains", "validation-domains", "oracle"):
            assert len(held_out(sweep_config(), arrays(), rule)) == 4


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
                patch.setattr("acclimate.sweep.checks.build_backbone", lambda *a, **k: None)
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
            trials=2, draws=2, rule="leave-one-out", algorithms=("erm", "da-erm", "da-coral")
        )
        assert len(sweep.embeddings) == 2 * (4 + 6)
        needed = Counter(job.needs for job in sweep.jobs)
        assert needed.pop(None) == 2 * 2 * 10
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
        manifest = with_roles(arrays(("a", "b", "c", "d", "e")), e="test")
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
        assert count(config, data, data_of_variant=own)["oracle"] == 7
        assert len(define(config, data).jobs) == 7  # without, there is one line on both

    def test_equal_variants_stay_two(self) -> None:
        sweep = defined(algorithms=("erm",), variants={"a": {}, "b": {}})
        assert len({job.id for job in sweep.jobs}) == 8

    def test_written_and_read(self, tmp_path: Path) -> None:
        five = arrays((*NAMES, "quilt"))
        sweep = defined(five, draws=2, rule="leave-one-out", val_domains=("art",))
        SweepFolder(tmp_path).write(sweep)
        assert SweepFolder(tmp_path).read() == sweep

    def test_rules_by_default(self) -> None:
        assert defined().rule == "training-domains"
        assert defined(val_domains=("art",)).rule == "validation-domains"
        assert defined(with_roles(arrays(), art="val")).rule == "validation-domains"
        both = {"a": arrays(), "b": with_roles(arrays(seed=1), art="val")}
        assert define(sweep_config(), both).rule == "training-domains"

    def test_many_jobs_are_quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A plan per data set, held-out domains and kind of algorithm, not one per job."""
        planned = []

        def spy(*args: Any, **kwargs: Any) -> Any:
            planned.append(kwargs)
            return make_plan(*args, **kwargs)

        monkeypatch.setattr("acclimate.sweep.checks.make_plan", spy)
        sweep = defined(trials=5, draws=5, rule="leave-one-out", algorithms=("erm", "da-erm"))
        assert len(sweep.jobs) == 500
        assert len(planned) == 20
        assert [one["check_files"] for one in planned] == [True, *[False] * 19]

    def test_notes(self) -> None:
        assert notes(sweep_config(), {}) == []
        assert notes(sweep_config(algorithms=("coral",)), {}) == [
            "the baseline erm is not among the algorithms: no differences are shown"
        ]


class TestCount:
    def test_by_hand(self) -> None:
        config = sweep_config(draws=3, trials=2)
        assert count(config, {"pacs": arrays()}) == {
            "training-domains": 2 * 2 * 3 * 4,
            "leave-one-out": 2 * 2 * 3 * (4 + 6),
            "k-fold": 2 * 2 * 3 * (4 + 6),
            "oracle": 2 * 2 * 3 * 4,
        }
        with_val = count(replace(config, val_domains=("art",)), {"pacs": arrays()})
        assert with_val["validation-domains"] == 2 * 2 * 3 * 3

    def test_with_one_draw_there_is_nothing_to_choose(self) -> None:
        counts = count(sweep_config(), {"pacs": arrays()})
        assert set(counts.values()) == {2 * 4}

    @pytest.mark.parametrize("rule", ["training-domains", "leave-one-out", "k-fold", "oracle"])
    @pytest.mark.parametrize("draws", [1, 3])
    def test_equals_the_jobs(self, rule: str, draws: int) -> None:
        config = sweep_config(rule=rule, draws=draws)
        data = {"pacs": arrays()}
        found = count(config, data)[rule]
        pairs = 6 if draws > 1 and rule in ("leave-one-out", "k-fold") else 0
        assert found == len(define(config, data).jobs) == 2 * draws * (4 + pairs)

    def test_rules_that_do_not_fit_are_left_out(self) -> None:
        manifest = with_roles(arrays(), sketch="test")
        counts = count(sweep_config(draws=2), {"pacs": manifest})
        assert counts == {"training-domains": 4, "leave-one-out": 4 + 12, "oracle": 4}


class TestErrors:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            (
                {"algorithms": ("erm", "corall")},
                "there is no algorithm 'corall'; did you mean 'coral'?",
            ),
            ({"algorithms": ("erm", "erm")}, "algorithms names 'erm' twice; name it once"),
            ({"baseline": "emr"}, "there is no algorithm 'emr'; did you mean 'erm'?"),
            (
                {"rule": "leave-one"},
                "there is no selection rule 'leave-one'; did you mean 'leave-one-out'?",
            ),
            ({"preset": "geo-yfc"}, "there is no preset 'geo-yfc'; did you mean 'geo-yfcc'?"),
            (
                {"rule": "validation-domains"},
                "the rule validation-domains needs validation domains, and pacs has none; name "
                "them as val_domains, or choose another rule",
            ),
            (
                {"test_domains": ("skech",)},
                "arrays has no domain 'skech'; did you mean 'sketch'?",
            ),
            ({"val_domains": ("arts",)}, "arrays has no domain 'arts'; did you mean 'art'?"),
            (
                {"test_domains": ("art", "art")},
                "test_domains names 'art' twice; name it once",
            ),
            (
                {"test_domains": (",",)},
                "test_domains has an entry without a name; leave it out",
            ),
            (
                {"test_domains": ("art,photo,sketch,cartoon",)},
                "arrays has no training domain left once art, cartoon, photo, sketch are held "
                "out; hold out fewer, or add domains",
            ),
            (
                {"test_domains": ("art",), "val_domains": ("art",)},
                "'art' is both a validation and a test domain; choose one of them",
            ),
            (
                {"test_domains": ("roles",)},
                "arrays gives no domain the role 'test'; name the test domains, or use each",
            ),
            (
                {"test_domains": ("folds",)},
                "arrays has 4 domains for 5 folds; lower folds",
            ),
            (
                {"test_domains": ("art",), "rule": "k-fold", "draws": 2},
                "arrays has 3 domains for 5 folds; lower folds",
            ),
            (
                {"per_algorithm": {"coral": {}}},
                "per_algorithm: 'coral' is not among the algorithms; there is da-erm, erm",
            ),
            (
                {"algorithms": ("erm", "mmd"), "settings": {"hparams.penalti": 1}},
                "settings: no algorithm here has a setting 'hparams.penalti'; did you mean "
                "'hparams.penalty'?",
            ),
            (
                {"algorithms": ("erm", "mmd"), "per_algorithm": {"mmd": {"hparams.penalti": 1}}},
                "mmd: there is no setting 'hparams.penalti'; did you mean 'hparams.penalty'?",
            ),
            (
                {"settings": {"embedding.name": "prototyp"}},
                "there is no embedding 'prototyp'; did you mean 'prototype'?",
            ),
            (
                {"settings": {"model.backbone": "small-cnn"}},
                "backbone 'small-cnn' works on images, not on 3 features; use 'mlp'",
            ),
            (
                {"settings": {"train.per_domain": 4, "train.optimiser.accumulate": 3}},
                "4 images of a domain cannot be worked off in 3 equal parts; make the "
                "optimiser's accumulate a divisor of 4",
            ),
            (
                {"settings": {"embedding": {"per_domain": 4, "optimiser": {"accumulate": 3}}}},
                "4 images of a domain cannot be worked off in 3 equal parts; make the "
                "optimiser's accumulate a divisor of 4",
            ),
            (
                {"settings": {"model.weights": "/nowhere/r50.pth"}},
                "there is no weights file /nowhere/r50.pth; check the path",
            ),
            (
                {"variants": {"a b": {}, "a_b": {}}, "algorithms": ("erm",)},
                "variants 'a b' and 'a_b' would share the run folder {job}; give them names that "
                "differ in letters or digits",
            ),
        ],
    )
    def test_one_line_before_anything_starts(self, values: dict[str, Any], expected: str) -> None:
        if "{job}" in expected:
            alone = defined(variants={"a b": {}}, algorithms=("erm",))
            expected = expected.format(job=alone.jobs[0].id)
        assert message(lambda: defined(**values)) == expected

    def test_nothing_to_draw(self) -> None:
        fixed = {
            "train.optimiser.lr": 0.1,
            "train.optimiser.weight_decay": 0.0,
            "train.per_domain": 4,
            "model.dropout": 0.0,
        }
        assert message(lambda: defined(draws=3, settings=fixed)) == (
            "draws = 3, but every setting that could be drawn is fixed; name ranges under search, "
            "or use draws = 1"
        )

    def test_each_with_one_domain(self) -> None:
        assert message(lambda: defined(arrays(("art",)))) == (
            "arrays has fewer than two domains to train on, too few to hold out each in turn; add "
            "domains, or name the test domains"
        )

    def test_a_pair_that_leaves_nothing(self) -> None:
        two = arrays(("art", "photo"))
        assert message(
            lambda: defined(two, algorithms=("erm",), draws=2, rule="leave-one-out")
        ) == (
            "arrays has no training domain left once art, photo are held out; hold out fewer, or "
            "add domains"
        )

    def test_a_run_that_could_not_start_is_refused_now(self) -> None:
        assert message(lambda: defined(arrays(("art", "photo")))) == (
            "da-erm needs at least 2 training domains, and arrays leaves only 'photo' once "
            "validation and test domains are set aside; use --algorithm erm, or add domains"
        )

    def test_a_pair_that_leaves_too_few_is_named(self) -> None:
        three = arrays(("art", "photo", "sketch"))
        assert message(lambda: defined(three, draws=2, rule="leave-one-out")) == (
            "cross-validation also holds out art and photo together, and then da-erm needs at "
            "least 2 training domains, and arrays leaves only 'sketch' once validation and test "
            "domains are set aside; use --algorithm erm, or add domains; or choose the rule "
            "training-domains, which holds out one group at a time"
        )

    def test_a_flag_is_named_as_it_was_given(self) -> None:
        flags = {"data": ("x",), "settings": {"train": {"stps": 3}}}
        assert message(lambda: gather(None, flags)) == (
            "sweep: there is no setting 'train.stps'; did you mean 'train.steps'?"
        )

    def test_a_class_that_one_held_out_group_alone_has(self) -> None:
        """Found for the last group too, which is planned from its rows alone."""
        y = np.array(["ant", "bee"] * 12)
        y[-1] = "yak"
        X = np.zeros((24, 3), dtype=np.float32)
        manifest = Manifest.from_arrays(X, y, np.repeat(NAMES, 6), splits=["train"] * 24)
        assert message(lambda: defined(manifest)) == (
            "class 'yak' is present in no training domain (only in 'sketch'), so it cannot be "
            "learned; drop such rows with --set data.unseen_classes=drop, or train on a domain "
            "that has it"
        )

    def test_files_are_looked_for(self, tree: Path, tmp_path: Path) -> None:
        copy = tmp_path / "sites"
        shutil.copytree(tree, copy)
        manifest = Manifest.open(copy)
        (copy / "west" / "red" / "03.jpg").unlink()
        found = message(lambda: defined(manifest, algorithms=("erm",)))
        assert "west/red/03.jpg" in found
        assert found.startswith("sites/ has a problem: ")

    def test_the_same_data_twice(self) -> None:
        twice = {"a": arrays(), "b": arrays()}
        assert message(lambda: define(sweep_config(), twice)) == (
            "'a' and 'b' hold the same data; name one of them"
        )

    def test_a_variant_without_its_data(self) -> None:
        own = {"4": "pacss"}
        assert message(lambda: define(sweep_config(), {"pacs": arrays()}, data_of_variant=own)) == (
            "variant '4' has no data set 'pacss' to run on; add it"
        )

    def test_kinds(self) -> None:
        with pytest.raises(UnknownName):
            defined(test_domains=("skech",))
        with pytest.raises(ConfigError):
            defined(algorithms=("erm", "erm"))


class TestEstimate:
    def test_from_finished_runs(self) -> None:
        """Per algorithm; one without any takes the mean of the others, Φ that of adaptive runs."""
        sweep = defined(algorithms=("erm", "coral", "da-erm"), settings=TINY)
        by = {(job.algorithm, job.groups[0][0]): job.id for job in sweep.jobs}
        done = {by["erm", "art"]: 10.0, by["erm", "photo"]: 20.0, by["da-erm", "art"]: 35.0}
        found = estimate(sweep, {}, max_parallel=2, done=done)
        # erm 15 each, da-erm 35, coral (15 + 35) / 2, Φ 35; one Φ is learned already.
        assert found.how == FROM_RUNS
        assert found.left == 2 * 15 + 4 * 25 + 3 * 35 + 3 * 35
        assert found.total == found.left + 10 + 20 + 35 + 35
        assert found.wall == found.left / 2
        # What the runs took has in it that they shared a device.
        assert estimate(sweep, {}, max_parallel=2, full_speed=1, done=done).wall == found.wall

    def test_no_quicker_than_the_longest_job_with_its_phi(self) -> None:
        sweep = defined(algorithms=("erm", "da-erm"), settings=TINY)
        by = {(job.algorithm, job.groups[0][0]): job.id for job in sweep.jobs}
        done = {by["erm", "art"]: 10.0, by["da-erm", "art"]: 35.0}
        found = estimate(sweep, {}, max_parallel=100, done=done)
        assert found.wall == 35 + 35
        only_erm_left = {**dict.fromkeys(by.values(), 35.0), by["erm", "art"]: 10.0}
        del only_erm_left[by["erm", "photo"]]
        found = estimate(sweep, {}, max_parallel=100, done=only_erm_left)
        assert found.wall == found.left

    def test_known_seconds_of_phi(self) -> None:
        sweep = defined(algorithms=("da-erm",), settings=TINY)
        done = {sweep.jobs[0].id: 10.0, sweep.embeddings[0].id: 4.0}
        found = estimate(sweep, {}, done=done)
        assert (found.total, found.left) == (4 * 10 + 4 * 4, 3 * 10 + 3 * 4)

    def test_from_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Images through each part of a run, counted by hand, at one second each."""
        from acclimate.runs.timing import Timing

        second = Timing(step_a=1.0, step_b=1.0, forward=1.0)
        monkeypatch.setattr("acclimate.sweep.estimate.time_plan", lambda plan, device: second)
        sweep = defined(algorithms=("erm", "da-erm"), settings=TINY)
        found = estimate(sweep, {"pacs": arrays()}, device="cpu")
        # Step B: 6 steps × 3 domains × 4; 2 validations and a last one × 3 domains × 2; 2 × 6.
        step_b = 6 * 3 * 4 + 3 * 3 * 2 + 2 * 6
        # Step A: 4 steps × 3 domains × 4, then μ of 3 domains from 4 training rows each.
        step_a = 4 * 3 * 4 + 3 * 4
        assert found.total == found.left == 8 * step_b + 4 * step_a
        assert found.how == FROM_STEPS

    def test_validation_domains_are_what_is_scored_on_the_way(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from acclimate.runs.timing import Timing

        forward = Timing(step_a=0.0, step_b=0.0, forward=1.0)
        monkeypatch.setattr("acclimate.sweep.estimate.time_plan", lambda plan, device: forward)
        sweep = defined(algorithms=("erm",), val_domains=("art",), test_domains=("photo",))
        found = estimate(sweep, {"pacs": arrays()}, device="cpu")
        assert found.total == 2 * 6 + 2 * 2 + 2 * (6 + 6)

    @pytest.mark.parametrize("algorithm", [*ALGORITHMS, "da-erm", "da-dann"])
    def test_timed_for_real(self, algorithm: str) -> None:
        sweep = defined(algorithms=(algorithm,), settings=TINY, test_domains=("art",))
        found = estimate(sweep, {"pacs": arrays()}, device="cpu", max_parallel=4)
        assert 0 < found.left < 60
        assert found.left / 4 <= found.wall <= found.left

    def test_steps_are_timed_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from acclimate.runs.timing import Timing

        second = Timing(step_a=1.0, step_b=1.0, forward=1.0)
        monkeypatch.setattr("acclimate.sweep.estimate.time_plan", lambda plan, device: second)
        data = {"pacs": arrays()}
        found = estimate(defined(settings=TINY), data, max_parallel=8, full_speed=2, device="cpu")
        assert found.wall == found.left / 2

    def test_timed_in_half_precision(self) -> None:
        settings = {**TINY, "train.precision": "bf16"}
        sweep = defined(algorithms=("da-coral",), settings=settings, test_domains=("art",))
        assert estimate(sweep, {"pacs": arrays()}, device="cpu").left > 0

    def test_timed_on_large_images(self) -> None:
        rng = np.random.default_rng(0)
        X = rng.integers(0, 255, (24, 72, 72, 3), dtype=np.uint8)
        manifest = Manifest.from_arrays(X, np.array(["ant", "bee"] * 12), np.repeat(NAMES, 6))
        large = {"model.backbone": "small-cnn", "data.image_size": 72}
        settings = merged(nested(TINY), nested(large))
        sweep = defined(manifest, algorithms=("da-erm",), settings=settings)
        found = estimate(sweep, {"pacs": manifest}, device="cpu")
        assert found.left > 0
