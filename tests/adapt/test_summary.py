"""What an adapted classifier shows of itself in a notebook."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import pyplot

from acclimate.adapt.classifier import Adapted, Changes, adapt, unadapted
from acclimate.core.errors import ConfigError
from fixtures.errors import refused
from fixtures.models import CLASSES, FEATURES, PRIOR, make_trained
from fixtures.sweep_example import HOSTILE


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def site() -> Adapted:
    rows = np.random.default_rng(0).normal(size=(30, FEATURES)).astype(np.float32)
    return adapt(make_trained("features"), rows, method="prior")


def test_a_table_of_what_is_known(site: Adapted) -> None:
    table = replace(site, notes=(HOSTILE,))._repr_html_()
    for name, value in {"adapted by": "prior", "images": "30", "classes": "3"}.items():
        assert f'>{name}</td><td  style="text-align: left">{value}</td>' in table
    assert str(site.changes).replace(">", "&gt;") in table
    assert "&lt;script&gt;" in table and HOSTILE not in table
    assert "adapted by" in unadapted(site.trained)._repr_html_()


def test_label_frequencies_beside_those_of_training(site: Adapted) -> None:
    axes = site.plot()
    assert site.label_prior is not None
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([100 * share for share in site.label_prior.values()])
    assert axes.lines[0].get_xdata() == pytest.approx([100 * share for share in PRIOR])
    assert [text.get_text() for text in axes.get_yticklabels()] == list(CLASSES)


def test_changes_where_no_frequencies_are_known(site: Adapted) -> None:
    moves = {("ant", "bee"): 3, ("bee", "$5"): 1}
    axes = replace(site, state=None, changes=Changes(30, moves)).plot()
    assert [bar.get_width() for bar in axes.patches] == [3, 1]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["ant → bee", "bee → $5"]
    with refused(ConfigError, "none", "prior"):
        replace(site, state=None, changes=None).plot()
