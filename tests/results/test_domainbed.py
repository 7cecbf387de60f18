"""DomainBed sweeps. The expected accuracies of the hand-made sweeps are its own collector's."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from acclimate.core.errors import RecordError, UnknownName
from acclimate.results.comparison import Expected
from acclimate.results.domainbed import (
    ALGORITHMS,
    History,
    domain_name,
    label,
    read_domainbed,
    selected,
)
from acclimate.results.runs import Key
from fixtures.errors import refused

NAN = float("nan")
RULES = ("training-domains", "leave-one-out", "oracle")
Line = Mapping[str, Any]


def line(
    step: int,
    test_envs: Sequence[int],
    seed: int,
    inside: Sequence[float],
    outside: Sequence[float],
    *,
    trial: int = 0,
    dataset: str = "PACS",
    algorithm: str = "ERM",
) -> Line:
    args = {"algorithm": algorithm, "dataset": dataset, "test_envs": list(test_envs), "steps": 300}
    return {
        "args": {**args, "hparams_seed": seed, "trial_seed": trial},
        "step": step,
        "epoch": 0.5,
        "hparams": {"lr": 5e-05},
        "loss": 0.1,
        **{f"env{env}_in_acc": value for env, value in enumerate(inside)},
        **{f"env{env}_out_acc": value for env, value in enumerate(outside)},
    }


def write(folder: Path, *runs: Sequence[Line]) -> Path:
    for number, lines in enumerate(runs):
        run = folder / f"run{number:03d}"
        run.mkdir(parents=True)
        text = "".join(json.dumps(one) + "\n" for one in lines)
        (run / "results.jsonl").write_text(text, encoding="utf-8")
    return folder


def top1(history: History, rule: str) -> dict[str, float | None]:
    return {place.domain: value for place, value in selected(history, rule).items()}


def grid() -> list[list[Line]]:
    """Three environments, two settings, two steps; the rules choose (setting, step) apart.

    Test environment 0:
      training-domains: setting 0 at step 300 (mean of 0.8 and 0.9 outside) -> 0.32
      leave-one-out: setting 1 at step 0 ((0.7 + 0.9) / 2) -> 0.41
      oracle: last steps only, 0.30 against 0.35 outside -> setting 1, 0.42
    """
    return [
        [
            line(0, [0], 0, [0.31, 0.9, 0.9], [0.90, 0.6, 0.7]),
            line(300, [0], 0, [0.32, 0.9, 0.9], [0.30, 0.8, 0.9]),
        ],
        [
            line(0, [0], 1, [0.41, 0.9, 0.9], [0.80, 0.8, 0.8]),
            line(300, [0], 1, [0.42, 0.9, 0.9], [0.35, 0.8, 0.8]),
        ],
        [
            line(0, [0, 1], 0, [0.1, 0.5, 0.9], [0.1, 0.1, 0.1]),
            line(300, [0, 1], 0, [0.2, 0.6, 0.9], [0.1, 0.1, 0.1]),
        ],
        [
            line(0, [2, 0], 0, [0.3, 0.9, 0.5], [0.1, 0.1, 0.1]),
            line(300, [2, 0], 0, [0.4, 0.9, 0.6], [0.1, 0.1, 0.1]),
        ],
        [
            line(0, [0, 1], 1, [0.1, 0.7, 0.9], [0.1, 0.1, 0.1]),
            line(300, [0, 1], 1, [0.1, 0.5, 0.9], [0.1, 0.1, 0.1]),
        ],
        [
            line(0, [0, 2], 1, [0.1, 0.9, 0.9], [0.1, 0.1, 0.1]),
            line(300, [0, 2], 1, [0.1, 0.9, 0.1], [0.1, 0.1, 0.1]),
        ],
    ]


def test_the_rules_choose_setting_and_step(tmp_path: Path) -> None:
    history = read_domainbed(write(tmp_path, *grid()))
    first = Expected("PACS", Key("erm", "none"), "", 0, "art_painting")
    assert selected(history, "training-domains")[first] == 0.32
    # Environments 1 and 2 were held out only in pairs: no run is scored on them.
    assert top1(history, "training-domains") == {
        "art_painting": 0.32,
        "cartoon": None,
        "photo": None,
    }
    assert top1(history, "leave-one-out")["art_painting"] == 0.41
    assert top1(history, "oracle")["art_painting"] == 0.42


def test_ties_the_first_step_and_the_largest_seed(tmp_path: Path) -> None:
    write(
        tmp_path,
        *(
            [
                line(step, [0], seed, [0.1 * seed + step / 10000, 0.5], [0.5, 0.5])
                for step in (0, 300, 600)
            ]
            for seed in (0, 2, 1)
        ),
        *(
            [line(step, [0, 1], seed, [0.5, 0.5], [0.5, 0.5]) for step in (0, 300, 600)]
            for seed in (0, 2, 1)
        ),
    )
    history = read_domainbed(tmp_path)
    found = {rule: top1(history, rule)["art_painting"] for rule in RULES}
    assert found == {"training-domains": 0.2, "leave-one-out": 0.2, "oracle": 0.2 + 0.06}


def test_incomplete_sweeps(tmp_path: Path) -> None:
    """Setting 1, the better one, lacks the pair with environment 2."""
    runs = grid()
    runs[5] = runs[5][:0]
    assert top1(read_domainbed(write(tmp_path / "no pair", *runs)), "leave-one-out") == {
        "art_painting": 0.32,
        "cartoon": None,
        "photo": None,
    }
    runs[3] = runs[3][:1]  # setting 0: the pair stopped after the first step
    history = read_domainbed(write(tmp_path / "short pair", *runs))
    assert top1(history, "leave-one-out")["art_painting"] == 0.31
    runs[2] = []
    history = read_domainbed(write(tmp_path / "none complete", *runs))
    assert top1(history, "leave-one-out")["art_painting"] is None
    assert history.empty == ("run002", "run005")


def test_a_run_that_is_there_twice_and_steps_out_of_order(tmp_path: Path) -> None:
    """Its leave-one-out passes over a setting whose scored run is not there exactly once."""
    runs = [*grid(), grid()[1]]
    assert top1(read_domainbed(write(tmp_path / "twice", *runs)), "leave-one-out") == {
        "art_painting": 0.32,
        "cartoon": None,
        "photo": None,
    }
    turned = [run[::-1] for run in grid()]
    history = read_domainbed(write(tmp_path / "turned", *turned))
    found = {rule: top1(history, rule)["art_painting"] for rule in RULES}
    assert found == {"training-domains": 0.32, "leave-one-out": 0.41, "oracle": 0.42}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # A first step that is not a number is not beaten by later ones, and loses to setting 1.
        ([[(0, 0.1, NAN), (300, 0.2, 0.9)], [(0, 0.3, 0.1)]], 0.3),
        ([[(0, 0.1, 0.2), (300, 0.2, NAN)], [(0, 0.3, 0.1)]], 0.1),
        ([[(0, 0.1, 0.9)], [(0, 1.1, NAN)], [(0, 2.1, 0.1)]], 0.1),
        ([[(0, NAN, 0.9)]], None),
    ],
)
def test_not_a_number_as_its_collector_takes_it(
    tmp_path: Path, settings: list[list[tuple[int, float, float]]], expected: float | None
) -> None:
    """(step, accuracy on the test environment, validation accuracy on the other one)"""
    runs = [
        [line(step, [0], seed, [inside, 0.9], [0.5, outside]) for step, inside, outside in steps]
        for seed, steps in enumerate(settings)
    ]
    history = read_domainbed(write(tmp_path, *runs))
    assert top1(history, "training-domains") == {"art_painting": expected}
    if expected is None:
        assert top1(history, "oracle") == {"art_painting": None}


def test_trials_algorithms_and_data_sets_are_apart_and_in_order(tmp_path: Path) -> None:
    runs = [
        [line(0, [1], 0, [0.5, accuracy], [0.5, 0.5], **kind)]
        for accuracy, kind in [
            (0.1, {"dataset": "VLCS"}),
            (0.2, {"algorithm": "ANDMask"}),
            (0.3, {"trial": 1}),
            (0.4, {}),
            (0.5, {"dataset": "Debug28", "algorithm": "GroupDRO"}),
        ]
    ]
    outcomes = selected(read_domainbed(write(tmp_path, *runs)), "oracle")
    assert {(o.dataset, o.key.algorithm, o.trial, o.domain): v for o, v in outcomes.items()} == {
        ("Debug28", "group-dro", 0, "env 1"): 0.5,
        ("PACS", "erm", 0, "cartoon"): 0.4,
        ("PACS", "erm", 1, "cartoon"): 0.3,
        ("PACS", "ANDMask", 0, "cartoon"): 0.2,
        ("VLCS", "erm", 0, "LabelMe"): 0.1,
    }


# --- an independent implementation: plain loops over the lines, no numpy


def expected(lines: Sequence[Line], rule: str, env: int) -> float | None:
    best: tuple[float, int] | None = None
    answer = None
    for seed in sorted({int(one["args"]["hparams_seed"]) for one in lines}):
        at_best, result = -1.0, None
        mine = [one for one in lines if one["args"]["hparams_seed"] == seed]
        scored = [one for one in mine if one["args"]["test_envs"] == [env]]
        for one in sorted(scored, key=lambda found: int(found["step"])):
            others = [other for other in range(4) if other != env]
            value = 0.0
            for other in others:
                if rule == "training-domains":
                    value += float(one[f"env{other}_out_acc"]) / 3
                elif rule == "leave-one-out":
                    pair = next(
                        found
                        for found in mine
                        if sorted(found["args"]["test_envs"]) == sorted((env, other))
                        and found["step"] == one["step"]
                    )
                    value += float(pair[f"env{other}_in_acc"]) / 3
            if rule == "oracle":
                at_best, result = float(one[f"env{env}_out_acc"]), one
            elif value > at_best + 1e-9:
                at_best, result = value, one
        if result is not None and (best is None or at_best >= best[0] - 1e-9):
            best, answer = (at_best, seed), float(result[f"env{env}_in_acc"])
    return answer


@pytest.mark.parametrize("levels", [4, 10**6])
def test_a_whole_sweep_equals_plain_loops(tmp_path: Path, levels: int) -> None:
    """With four levels ties abound; quarters add up exactly in floating point."""
    rng = random.Random(levels)
    combinations = [[env] for env in range(4)]
    combinations += [[b, a] for a in range(4) for b in range(a)]
    runs = [
        [
            line(
                step,
                held_out,
                seed,
                [rng.randint(0, levels) / levels for _ in range(4)],
                [rng.randint(0, levels) / levels for _ in range(4)],
            )
            for step in (0, 300, 600)
        ]
        for seed in range(5)
        for held_out in combinations
    ]
    history = read_domainbed(write(tmp_path, *runs))
    lines = [one for run in runs for one in run]
    for rule in RULES:
        found = list(top1(history, rule).values())
        assert found == [expected(lines, rule, env) for env in range(4)], rule


# --- reading


def test_a_torn_last_line_is_counted(tmp_path: Path) -> None:
    write(tmp_path, *grid())
    path = tmp_path / "run000" / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    history = read_domainbed(tmp_path)
    assert history.torn == ("run000",)
    assert [one.step for one in history.checkpoints[:2]] == [0, 0]
    path.write_bytes(whole[:-1])  # only the end of the line is missing
    history = read_domainbed(tmp_path)
    assert history.torn == ()
    assert [one.step for one in history.checkpoints[:2]] == [0, 300]
    path.write_bytes(whole[:20])
    history = read_domainbed(tmp_path)
    assert (history.torn, history.empty) == (("run000",), ("run000",))


def test_folders_without_results_and_other_files_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, *grid())
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "results.txt").write_text("a table", encoding="utf-8")
    history = read_domainbed(tmp_path)
    assert len(history.checkpoints) == 12
    assert (history.empty, history.torn) == (("unfinished",), ())


@pytest.mark.parametrize(
    "bad",
    [
        "not json",
        "[1, 2]",
        "{}",
        '{"args": 3, "step": 1}',
        "[" * 100_000,
        json.dumps({**line(0, [0], 0, [0.5], [0.5]), "step": float("inf")}),
        json.dumps({**line(0, [0], 0, [0.5], [0.5]), "step": None}),
        json.dumps({**line(0, [0], 0, [0.5], [0.5]), "args": {"algorithm": "ERM"}}),
        json.dumps(line(0, [1], 0, [0.5], [0.5])),  # no accuracy on the test environment
        json.dumps(line(0, [0], 0, [], [0.5])),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, bad: str) -> None:
    write(tmp_path, *grid())
    path = tmp_path / "run001" / "results.jsonl"
    good = path.read_text(encoding="utf-8")
    path.write_text(f"{good}{bad}\n{good}", encoding="utf-8")
    with refused(RecordError, f"{path}, line 3"):
        read_domainbed(tmp_path)


def test_a_folder_that_is_no_sweep_and_an_unknown_rule(tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        with refused(RecordError, folder):
            read_domainbed(folder)
    history = read_domainbed(write(tmp_path, *grid()))
    with refused(UnknownName, "'k-fold'", "leave-one-out, oracle, training-domains"):
        selected(history, "k-fold")


def test_names() -> None:
    theirs = ("ERM", "GroupDRO", "VREx", "CausIRL_CORAL", "ANDMask")
    assert [label(name) for name in theirs] == [
        "erm",
        "group-dro",
        "vrex",
        "causirl-coral",
        "ANDMask",
    ]
    assert domain_name("DomainNet", 3) == "quickdraw"
    assert domain_name("TerraIncognita", 1) == "location_38"
    assert domain_name("RotatedMNIST", 0) == "env 0"
    assert domain_name("PACS", 4) == "env 4"


def test_the_names_are_those_of_our_algorithms() -> None:
    algorithms = pytest.importorskip("acclimate.learn.algorithms")
    assert set(ALGORITHMS.values()) == set(algorithms.ALGORITHMS)
