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


def test_every_algorithm_has_an_adaptive_version_unless_it_sees_domains_itself() -> None:
    versions = {name: AlgorithmName.of(name).adaptive_version for name in ALGORITHMS}
    assert {name for name, version in versions.items() if version not in names()} == {"mtl"}
    with refused(ConfigError, "'da-mtl'", "--algorithm mtl", "da-erm"):
        choose("da-mtl")


def test_nobody_else_knows_the_prefix() -> None:
    knowing = [
        path.name
        for path in SOURCE.rglob("*.py")
        if re.search(r"""["']da-["'{]""", path.read_text(encoding="utf-8"))
    ]
    assert knowing == ["settings.py"]
