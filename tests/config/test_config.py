"""Settings: what is refused, with the whole message, and that nothing is lost on the way."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from acclimate.config import (
    OptimiserConfig,
    RunConfig,
    Search,
    as_dict,
    choice,
    flat,
    from_dict,
    gather,
    layered,
    merged,
    nested,
    parse_assignments,
    read_toml,
    setting,
    settings_of,
)
from acclimate.config.settings import PRESETS, preset
from acclimate.core.errors import ConfigError, UnknownName
from acclimate.learn.models.catalogue import LISTINGS
from fixtures.errors import refused


def run(values: dict[str, Any], where: str = "run.toml") -> RunConfig:
    return from_dict(RunConfig, values, where=where)


def set_(*assignments: str) -> RunConfig:
    return run(parse_assignments(assignments), where="--set")


@pytest.mark.parametrize(
    ("values", "name", "nearest"),
    [
        ({"sead": 1}, "'sead'", "'seed'?"),
        ({"trian": {}}, "'trian'", "'train'?"),
        ({"train": {"step": 1}}, "'train.step'", "'train.steps'?"),
        (
            {"embedding": {"optimiser": {"weight-decay": 0}}},
            "'embedding.optimiser.weight-decay'",
            "'embedding.optimiser.weight_decay'?",
        ),
        ({"colour": 1}, "'colour'", "there is adapt, algorithm, data, embedding, "),
        # The common prefix must not make a far name look near.
        (
            {"embedding": {"optimiser": {"zzz": 0}}},
            "'embedding.optimiser.zzz'",
            "there is embedding.optimiser.beta1, embedding.optimiser.clip, ",
        ),
    ],
)
def test_unknown_keys_name_the_nearest(values: dict[str, Any], name: str, nearest: str) -> None:
    with refused(UnknownName, "run.toml", name, nearest):
        run(values)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("seed", "one", "a whole number"),
        ("seed", 1.0, "a whole number"),
        ("seed", True, "a whole number"),
        ("seed", None, "a whole number"),
        ("train.epochs", True, "a number"),
        ("train.epochs", "2", "a number"),
        ("model.pretrained", 1, "true or false"),
        ("model.backbone", 50, "text"),
        ("test_domains", 3, "a list of names"),
        ("test_domains", ["a", 3], "a list of names"),
        ("hparams", 3, "a table"),
        ("train", 3, "settings of its own"),
        ("train.optimiser", "sgd", "settings of its own"),
        ("train.optimiser.name", "adamax", "one of adam, adamw, sgd"),
        ("seed", -1, "from 0 to 9.22337e+18"),
        ("train.per_domain", 0, "at least 1"),
        ("embedding.domains_per_step", 1, "at least 2"),
        ("embedding.support", 1.5, "from 0 to 1"),
        ("data.image_size", 5000, "from 0 to 4096"),
        ("train.optimiser.lr", -1.0, "at least 0"),
        ("train.epochs", math.nan, "a finite number"),
        ("train.optimiser.lr", math.inf, "a finite number"),
        ("train.optimiser.beta1", 1.0, "from 0 to 0.9999"),
        ("embedding.dim", 10**8, "from 1 to 65536"),
        ("data.workers", 100000, "from 0 to 1024"),
        ("train.steps", 10**11, "at most 1e+10"),
        ("train.optimiser.lr", 1e300, "at most 1e+10"),
        ("train.optimiser.lr", 10**400, "a number"),
    ],
    ids=str,
)
def test_what_no_run_can_mean_is_refused(key: str, value: Any, wanted: str) -> None:
    with refused(ConfigError, "run.toml", f"'{key}'", wanted, repr(value)):
        run(nested({key: value}))


def test_limits_themselves_are_allowed() -> None:
    config = run({"embedding": {"support": 1}, "data": {"image_size": 4096}, "seed": 0})
    assert (config.embedding.support, config.data.image_size, config.seed) == (1.0, 4096, 0)


def test_only_whole_numbers_are_converted() -> None:
    config = run({"train": {"epochs": 3, "optimiser": {"lr": 1}}, "test_domains": "photo"})
    assert config.train.epochs == 3.0
    assert isinstance(config.train.epochs, float)
    assert isinstance(config.train.optimiser.lr, float)
    assert config.test_domains == ("photo",)
    assert run({"train": {"optimiser": {"lr": None}}}).train.optimiser.lr is None


def test_assignments_of_every_kind() -> None:
    values = parse_assignments(
        [
            "train.steps=500",
            "train.optimiser.lr = 1e-3",
            "model.pretrained=false",
            "model.backbone=resnet50",
            "model.weights=",
            'test_domains=["photo", "sketch"]',
            "val_domains=art painting",
            "hparams.note=a=b",
            "data.max_pixels=1_000",
        ]
    )
    assert values == {
        "train": {"steps": 500, "optimiser": {"lr": 1e-3}},
        "model": {"pretrained": False, "backbone": "resnet50", "weights": ""},
        "test_domains": ["photo", "sketch"],
        "val_domains": "art painting",
        "hparams": {"note": "a=b"},
        "data": {"max_pixels": 1000},
    }
    config = run(values)
    assert config.test_domains == ("photo", "sketch")
    assert config.val_domains == ("art painting",)
    assert config.train.optimiser == OptimiserConfig(lr=1e-3)


def test_a_later_assignment_wins() -> None:
    assert set_("train.steps=5", "train.per_domain=8", "train.steps=6").train.steps == 6


@pytest.mark.parametrize("assignment", ["train.steps", "=5", " =5", ""])
def test_an_assignment_without_key_or_value(assignment: str) -> None:
    with refused(ConfigError, f"--set {assignment}", "key=value"):
        parse_assignments([assignment])


def test_bad_assignments_say_where_they_came_from() -> None:
    with refused(ConfigError, "--set", "'train.steps'", "'many'"):
        set_("train.steps=many")


def test_changes_are_laid_over_and_the_base_is_left() -> None:
    base = {"train": {"steps": 1, "optimiser": {"lr": 1.0}}, "seed": 1}
    over = {"train": {"optimiser": {"name": "sgd"}}, "seed": 2}
    assert merged(base, over) == {
        "train": {"steps": 1, "optimiser": {"lr": 1.0, "name": "sgd"}},
        "seed": 2,
    }
    assert base == {"train": {"steps": 1, "optimiser": {"lr": 1.0}}, "seed": 1}
    assert over == {"train": {"optimiser": {"name": "sgd"}}, "seed": 2}
    assert merged({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}
    assert merged({"a": {"b": 2}}, {"a": 1}) == {"a": 1}


def test_the_order_preset_file_assignments(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[train]\nper_domain = 16\nepochs = 2.0\n")
    config = gather("geo-yfcc", file, {}, parse_assignments(["train.per_domain=4"]))
    assert config.train.per_domain == 4  # assignment over file over preset
    assert config.train.epochs == 2.0  # file over preset
    assert config.train.optimiser.lr == 0.04  # preset over default
    assert config.train.keep == "best"  # default


def test_a_recipe_stands_where_neither_preset_nor_algorithm_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('algorithm = "coral"\n')
    recipe: dict[str, Any] = {"recipe": "rehearsed"}
    named = [
        gather("geo-yfcc", **recipe),
        gather(None, file, **recipe),
        gather(flags={"algorithm": "mmd"}, **recipe),
        gather(changes={"algorithm": "irm"}, **recipe),
        gather(),
        gather(flags={"algorithm": None, "seed": 3}, changes={"train": {"steps": 7}}, **recipe),
    ]
    assert [(config.algorithm, config.adapt.rehearse) for config in named] == [
        ("da-erm", False),
        ("coral", False),
        ("mmd", False),
        ("irm", False),
        ("da-erm", False),
        ("erm", True),
    ]
    assert (named[-1].seed, named[-1].train.steps) == (3, 7)


STEPS, EPOCHS, BOTH = ({"train": {"steps": 7}}, {"train": {"epochs": 2.0}},
    {"train": {"steps": 7, "epochs": 2.0}})  # fmt: skip


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([EPOCHS, STEPS], (7, 0.0)),  # the later source decides
        ([STEPS, EPOCHS], (7, 2.0)),
        ([BOTH], (7, 2.0)),  # in one source, epochs above 0 replace steps
        ([EPOCHS, BOTH], (7, 2.0)),
        ([EPOCHS, STEPS, {"seed": 1}], (7, 0.0)),
    ],
)
def test_steps_end_the_epochs_of_earlier_sources(
    sources: list[dict[str, Any]], expected: tuple[int, float]
) -> None:
    train = run(layered(*sources)).train
    assert (train.steps, train.epochs) == expected


def test_assigned_steps_go_before_the_epochs_of_a_preset() -> None:
    train = gather("lt-imagenet", changes=parse_assignments(["train.steps=100"])).train
    assert (train.steps, train.epochs) == (100, 0.0)


@pytest.mark.parametrize("name", [None, *PRESETS])
def test_round_trip(name: str | None) -> None:
    config = RunConfig() if name is None else run(preset(name))
    values = as_dict(config)
    assert run(values) == config
    assert values["test_domains"] == []  # as JSON and TOML hold it
    assert set(values) == {f.name for f in dataclasses.fields(RunConfig)}


def test_round_trip_of_what_was_set() -> None:
    config = run(
        {"test_domains": ["a", "b"], "hparams": {"penalty": 0.5}, "train": {"optimiser": {"lr": 2}}}
    )
    assert as_dict(config)["test_domains"] == ["a", "b"]
    assert run(as_dict(config)) == config


NAMES = ("small-scale", "lt-imagenet", "geo-yfcc")
PAPER: dict[str, tuple[Any, ...]] = {
    "model.backbone": ("resnet50.tv_in1k",) * 3,
    "embedding.dim": (1024,) * 3,
    "embedding.domains_per_step": (4,) * 3,
    "embedding.steps": (1000, 1300, 1300),
    "embedding.per_domain": (32, 100, 80),
    "embedding.support": (0.5, 0.5, 0.8),
    "embedding.points": (200, 300, 5000),
    "embedding.optimiser.name": ("adam", "sgd", "sgd"),
    "embedding.optimiser.lr": (1e-6, 1e-3, 2e-2),
    "embedding.optimiser.weight_decay": (1e-5,) * 3,
    "train.epochs": (0.0, 5.0, 6.0),
    "train.steps": (5000, 0, 0),
    "train.per_domain": (32, 100, 80),
    "train.optimiser.name": ("adam", "sgd", "sgd"),
    "train.optimiser.lr": (5e-5, 5e-3, 0.04),
    "train.optimiser.weight_decay": (0.0, 1e-5, 1e-5),
    "adapt.points": (200, 300, 5000),
    "adapt.source": ("test", "held-out", "held-out"),
    "model.head": ("linear", "linear", "linear"),
}


@pytest.mark.parametrize("key", PAPER)
def test_presets_are_the_papers(key: str) -> None:
    assert tuple(flat(as_dict(run(preset(name))))[key] for name in NAMES) == PAPER[key]


def test_one_preset_is_ours_and_three_are_of_others() -> None:
    ours = {"rehearsed", "erm-plus-plus", "fine-tuned-vit", "domainbed"}
    assert set(PRESETS) - set(NAMES) == ours
    found = run(preset("rehearsed"))
    assert (found.algorithm, found.adapt.rehearse, found.model.dropout) == ("erm", True, 0.5)
    baseline = run(preset("erm-plus-plus"))
    average = baseline.train.average
    theirs = run(preset("domainbed"))
    assert (theirs.model.head, theirs.adapt.source, theirs.data.keep_shared) == (
        *("linear", "test", True),
    )
    assert run({}).model.head == "mlp"  # as an adaptive predictor has; recipes keep their own
    assert {run(preset(name)).model.head for name in PRESETS} == {"linear"}
    assert (baseline.algorithm, baseline.model.freeze_batch_norm) == ("erm", "no")
    assert (average.kind, average.start * baseline.train.steps) == ("window", 600)
    vit = run(preset("fine-tuned-vit"))
    optimiser = vit.train.optimiser
    published = ("adamw", 0.05, 0.65, "cosine")
    assert (optimiser.name, optimiser.weight_decay, optimiser.layer_decay, optimiser.schedule) == (
        published
    )
    # 5e-4 for 256 images, and 5 of 100 epochs of warm-up
    assert optimiser.lr == pytest.approx(5e-4 * 3 * vit.train.per_domain / 256, rel=0.02)
    assert optimiser.warmup / vit.train.steps == 0.05
    assert vit.model.backbone in LISTINGS and vit.data.image_size % 14 == 0


def test_presets_hold_the_papers_grids() -> None:
    assert PRESETS["small-scale"].grids == {}  # DomainBed's ranges, which the fields declare
    assert PRESETS["lt-imagenet"].grids == {
        "embedding.optimiser.lr": choice(1e-1, 1e-2, 1e-3, 1e-4, 1e-5),
        "hparams.penalty": Search("uniform", 0.0, 5.0),
    }
    assert PRESETS["geo-yfcc"].grids == {
        "embedding.optimiser.lr": choice(1e-2, 1e-3, 1e-4, 1e-5),
        "embedding.optimiser.weight_decay": choice(1e-4, 1e-5, 1e-6),
        "train.epochs": choice(3.0, 6.0, 12.0, 25.0),
        "hparams.penalty": Search("uniform", 0.0, 1.5),
    }


def test_an_unknown_preset() -> None:
    with refused(UnknownName, "'geo-yfc'", "'geo-yfcc'?"):
        preset("geo-yfc")


FIELDS = {one.name: (one.facts, one.default) for one in settings_of(RunConfig())}


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_says_what_it_is_for(name: str) -> None:
    facts, default = FIELDS[name]
    assert len(facts["about"]) >= 5
    low, high = facts.get("at_least"), facts.get("at_most")
    if default is not None:
        assert low is None or default >= low
        assert high is None or default <= high
    assert high is None or low is not None, "the message for limits needs a lower one"


def range_of(search: Search) -> tuple[float, float]:
    base = {"log10": 10.0, "log2": 2.0}.get(search.scale)
    return (search.low, search.high) if base is None else (base**search.low, base**search.high)


@pytest.mark.parametrize("name", [n for n, (facts, _) in FIELDS.items() if facts.get("search")])
def test_search_ranges_fit_their_fields(name: str) -> None:
    facts, default = FIELDS[name]
    search = facts["search"]
    low = -math.inf if facts["at_least"] is None else facts["at_least"]
    high = math.inf if facts["at_most"] is None else facts["at_most"]
    if search.scale == "choice":
        assert default in search.options
        assert all(low <= option <= high for option in search.options)
        return
    lowest, highest = range_of(search)
    assert low <= lowest < highest <= high
    # A default may switch the thing off, or be left to the plan.
    assert default in (None, 0.0) or lowest <= default <= highest


def test_search_ranges_are_domainbeds() -> None:
    expected = {
        "train.optimiser.lr": Search("log10", -5, -3.5),
        "train.optimiser.weight_decay": Search("log10", -6, -2),
        "train.per_domain": Search("log2", 3, 5.5),
        "model.dropout": None,  # drawn only where asked for
    }
    assert {name: FIELDS[name][0]["search"] for name in expected} == expected


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().seed = 1  # type: ignore[misc]


def test_a_dataclass_of_ones_own() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Own:
        penalty: float = setting(1.0, "weight of the penalty", at_least=0)

    assert from_dict(Own, {"penalty": 2}, where="coral", prefix="hparams.") == Own(penalty=2.0)
    with refused(UnknownName, "coral", "'hparams.penality'", "'hparams.penalty'?"):
        from_dict(Own, {"penality": 2}, where="coral", prefix="hparams.")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"seed = \n", "line 1, column 8"),
        (b"seed = \xff\n", "0xff"),
        (b"a = " + b"[" * 100_000, "TOML"),
    ],
    ids=["missing", "broken", "binary", "nested beyond measure"],
)
def test_toml_that_cannot_be_read(content: bytes | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    if content is not None:
        path.write_bytes(content)
    with refused(ConfigError, path, reason):
        read_toml(path)


def test_an_assignment_that_is_no_toml_is_text() -> None:
    assert parse_assignments(["a=" + "[" * 100_000]) == {"a": "[" * 100_000}
