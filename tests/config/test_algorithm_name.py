"""Algorithm names: one place takes them apart and puts them together."""

import re
from pathlib import Path

import pytest

import acclimate
from acclimate.config import AlgorithmName
from acclimate.core.errors import ConfigError
from acclimate.learn.algorithms import ALGORITHMS, choose, names
from fixtures.errors import refused

SOURCE = Path(acclimate.__file__).parent


@pytest.mark.parametrize(
    ("name", "base", "adaptive", "version", "method", "label"),
    [
        ("erm", "erm", False, "da-erm", "none", "ERM"),
        ("da-erm", "erm", True, None, "embedding", "DA-ERM"),
        ("group-dro", "group-dro", False, "da-group-dro", "none", "GroupDRO"),
        ("da-cdann", "cdann", True, None, "embedding", "DA-C-DANN"),
        ("da-fishr", "fishr", True, None, "embedding", "DA-Fishr"),
        ("ib-erm", "ib-erm", False, "da-ib-erm", "none", "IB-ERM"),
        ("mtl", "mtl", True, None, "embedding", "MTL"),
        ("IGA", "IGA", False, "da-IGA", "none", "IGA"),
    ],
)
def test_what_a_name_says(
    name: str, base: str, adaptive: bool, version: str | None, method: str, label: str
) -> None:
    found = AlgorithmName.of(name)
    assert str(found) == name
    assert (found.base, found.adaptive, found.adaptive_version) == (base, adaptive, version)
    assert (found.usual_method, found.label) == (method, label)


def test_every_algorithm_has_an_adaptive_version_unless_it_learns_an_embedding_itself() -> None:
    versions = {name: AlgorithmName.of(name).adaptive_version for name in ALGORITHMS}
    own = {name for name, (build, _) in ALGORITHMS.items() if not build.over_mu}
    assert {name for name, version in versions.items() if version not in names()} == own
    assert own == {"arm", "mtl"}
    for name in own:
        assert choose(name).adaptive and not choose(name).over_mu
        with refused(ConfigError, f"'da-{name}'", f"--algorithm {name}", "da-erm"):
            choose(f"da-{name}")


def test_a_preset_is_named_where_it_is_taken_for_an_algorithm() -> None:
    with refused(ConfigError, "'erm-plus-plus'", "--preset erm-plus-plus"):
        choose("erm-plus-plus")


def test_nobody_else_knows_the_prefix() -> None:
    knowing = [
        path.name
        for path in SOURCE.rglob("*.py")
        if re.search(r"""["']da-["'{]""", path.read_text(encoding="utf-8"))
    ]
    assert knowing == ["settings.py"]
