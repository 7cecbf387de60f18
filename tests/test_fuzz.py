"""A small share of `make fuzz`; one case of each family is also known to fail where it should."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fuzz import families
from fuzz.__main__ import watch
from fuzz.commands import ANSWERED, Verdict, judged, refused
from fuzz.families import Manifests, States
from fuzz.mutations import mutated, mutated_json
from fuzz.table import FAMILIES

FEW = {"images": 10, "states": 10, "models": 10, "pickles": 20, "outs": 20, "swaps": 10}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_inputs_end_in_an_answer_or_in_one_line(family: str, tmp_path: Path) -> None:
    attacked = FAMILIES[family][0](tmp_path)
    attacked.prepare()
    for number in range(FEW.get(family, 5)):
        found = attacked.run(1, number)
        assert found.passed, f"{family} {number}: {found.why}"


def test_every_family_has_its_share() -> None:
    assert sum(share for _, share in FAMILIES.values()) == 1000


def test_a_traceback_another_answer_and_two_lines_fail() -> None:
    def broken() -> Verdict:
        raise KeyError("x")

    assert judged(broken).outcome == "traceback"
    assert refused("error: a\nb; c").outcome == "traceback"
    assert refused("error: \x1b[31m; c").outcome == "traceback"
    assert refused("error: it is wrong").outcome == "wrong"
    assert refused("error: it is wrong; mend it").passed


@pytest.mark.slow
def test_an_answer_that_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "mutated", lambda data, rng: data)
    monkeypatch.setattr(families, "_resealed", lambda data, rng: data)
    monkeypatch.setattr(States, "_gone_on_from", lambda self, path: ANSWERED)
    attacked = States(tmp_path)
    attacked.prepare()
    assert {attacked.run(0, number).outcome for number in range(6)} == {"answered"}
    attacked.whole = dict.fromkeys(attacked.whole, "another answer")
    assert "wrong" in {attacked.run(0, number).outcome for number in range(6)}


def test_cases_repeat(tmp_path: Path) -> None:
    attacked = Manifests(tmp_path)
    attacked.prepare()
    assert [attacked.run(3, n) for n in range(6)] == [attacked.run(3, n) for n in range(6)]
    rng, again = np.random.default_rng(5), np.random.default_rng(5)
    whole = b'{"a": [1, 2, {"b": "text"}], "c": null}' * 3
    assert [mutated(whole, rng) for _ in range(50)] == [mutated(whole, again) for _ in range(50)]
    for change in (mutated, mutated_json):
        found = {change(b'{"a": [1, 2, {"b": "text"}]}', rng) for _ in range(100)}
        assert len(found) > 50


def test_a_process_that_hangs_or_dies_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fuzz import __main__ as harness

    scripts = {
        "died": "import sys; print('{\"ready\": true}', flush=True); sys.exit(3)",
        "hang": "import time; print('{\"ready\": true}', flush=True); time.sleep(60)",
    }
    real = subprocess.Popen
    for outcome, script in scripts.items():
        if outcome == "hang":
            monkeypatch.setattr(harness, "HANG", 0.2)
            monkeypatch.setattr(harness, "_ends", lambda process: process.poll() is not None)

        def start(task: object, _script: str = script, **options: object) -> object:
            return real([sys.executable, "-c", _script], **options)  # type: ignore[call-overload]

        monkeypatch.setattr(harness.subprocess, "Popen", start)
        tally = watch("models", 1, 0, tmp_path, float("inf"))
        assert dict(tally.outcomes) == {outcome: 1}
        assert len(tally.failures) == 1
