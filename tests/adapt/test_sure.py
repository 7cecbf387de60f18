"""Images that are not sure enough are left without a label."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from acclimate.adapt.choice import sure_answer
from acclimate.adapt.classifier import Predictions, adapt, unadapted
from acclimate.adapt.export import export_adapted
from acclimate.core.errors import ConfigError
from acclimate.learn.model import Trained
from acclimate.records.doubt import Answer
from acclimate.records.rehearsal import Promise, Rehearsal
from fixtures.errors import refused
from fixtures.models import make_trained

ROWS = np.random.default_rng(3).normal(size=(60, 5)).astype(np.float32)
PLAIN = (
    Answer(threshold=0.0, share=1.0, right=0.7),
    Answer(threshold=0.5, share=0.6, right=0.92),
    Answer(threshold=0.8, share=0.2, right=0.96),
)
PRIOR = (Answer(threshold=0.6, share=0.5, right=0.9),)


def rehearsed(domains: int = 4) -> Trained:
    """As if rehearsal had found these answers of the plain model, and with 20 images by `prior`."""
    promises = tuple(
        Promise(
            chain=chain,
            n=20,
            frequencies="as they are",
            gain=0.0,
            error=0.01,
            accuracy=0.7,
            domains=domains,
            answers=answers,
        )
        for chain, answers in (("none", PLAIN), ("prior", PRIOR))
    )
    rehearsal = Rehearsal(
        promises=promises,
        chosen={20: "prior"},
        temperatures={"none": 1.0},
        domains=domains,
        exact=True,
    )
    return replace(make_trained("features"), rehearsal=rehearsal)


def test_the_smallest_threshold_that_promises_so_much() -> None:
    trained = rehearsed()
    assert sure_answer(trained, None, 0.7) == PLAIN[0]
    assert sure_answer(trained, None, 0.71) == PLAIN[1]
    assert sure_answer(trained, None, 0.95) == PLAIN[2]
    by_prior = adapt(trained, ROWS[:20], method="prior").state
    assert sure_answer(trained, by_prior, 0.7) == PRIOR[0]


def test_none_for_what_is_not_sure() -> None:
    site = unadapted(rehearsed())
    sure, names = site.predict_proba(ROWS).max(1), site.predict(ROWS)
    low = float(np.median(sure))
    for given, threshold in (({"at_least": 0.9}, 0.5), ({"unsure_below": low}, low)):
        found = site.predict(ROWS, **given)  # type: ignore[arg-type]
        assert found == [
            name if p >= threshold else None for name, p in zip(names, sure, strict=True)
        ]
    assert 0 < site.predict(ROWS, at_least=0.9).count(None) < len(ROWS)


def test_what_cannot_be_promised_says_what_can() -> None:
    with refused(ConfigError, "97.0", "96.0", "0.8", "20.0", "4 sites"):
        unadapted(rehearsed()).predict(ROWS, at_least=0.97)
    with refused(ConfigError, "1.5", "between 0 and 1"):
        unadapted(rehearsed()).predict(ROWS, at_least=1.5)


@pytest.mark.parametrize("domains", [None, 2])
def test_without_rehearsal_nothing_is_promised(domains: int | None) -> None:
    trained = make_trained("features") if domains is None else rehearsed(domains)
    with refused(ConfigError, "none", "3 sites", "--unsure-below"):
        unadapted(trained).predict(ROWS, at_least=0.9)
    config = replace(trained.config.adapt, components={"prior": {"strength": 3.0}})
    own = replace(rehearsed(), config=replace(trained.config, adapt=config))
    with refused(ConfigError, "--unsure-below"):
        sure_answer(own, None, 0.7)  # promises are not about other settings


@pytest.mark.parametrize(("chosen", "method"), [("prior", "prior+labels"), ("t3a", "labels")])
def test_labels_follow_what_was_chosen_and_have_answers_of_their_own(
    chosen: str, method: str
) -> None:
    """As rehearsed with so many labels; templates leave labels nothing to change."""
    trained = rehearsed()
    assert trained.rehearsal is not None
    (plain, prior), labels = trained.rehearsal.promises, np.full(20, None)
    told = replace(prior, chain="labels", n=2, gain=0.03, answers=PLAIN)
    rehearsal = replace(
        trained.rehearsal,
        promises=(plain, replace(prior, chain=chosen)),
        chosen={20: chosen},
        labels=(told,),
        label_strengths={2: 0.5},
    )
    trained = replace(trained, rehearsal=rehearsal)
    labels[:3] = trained.classes
    site = adapt(trained, ROWS[:20], labels=list(labels))
    assert site.method == method
    assert sure_answer(trained, site.state, 0.9) == PLAIN[1]
    one = adapt(trained, ROWS[:20], labels=["ant", *[None] * 19])  # fewer than were rehearsed
    with refused(ConfigError, method, "--unsure-below"):
        sure_answer(trained, one.state, 0.9)


def test_a_table_with_what_is_unsure() -> None:
    rows = {Path("a.jpg"): np.array([0.9, 0.1]), Path("b.jpg"): np.array([0.45, 0.55])}
    paths = [*rows, Path("c.jpg")]
    every = Predictions(paths, ("cat", "dog"), rows, {"c.jpg": "broken"})
    assert (every.answered, every.counts()) == (1.0, {"cat": 1, "dog": 1})
    assert every.csv(every_class=False).splitlines()[0] == "image,label,confidence,problem"
    some = replace(every, unsure_below=0.6)
    assert (some.answered, some.counts()) == (0.5, {"cat": 1})
    for probabilities in (False, True):
        text = some.csv(every_class=probabilities)
        assert {line.count(",") for line in text.splitlines()} == {4 + 2 * probabilities}
        lines = list(csv.DictReader(io.StringIO(text)))
        assert [(line["label"], line["unsure"]) for line in lines] == [
            ("cat", ""),
            ("", "dog"),
            ("", ""),
        ]
        assert [line["problem"] for line in lines] == ["", "", "broken"]
        assert float(lines[1]["confidence"]) == 0.55
    assert replace(every, unsure_below=0.9).answered == 0.5  # what reaches it is answered


def test_an_exported_file_has_the_thresholds(tmp_path: Path) -> None:
    site = adapt(rehearsed(), ROWS[:20], method="prior")
    made = export_adapted(site, tmp_path / "site.pt2")
    found = {"threshold": 0.6, "share": 0.5, "right": 0.9}
    assert json.loads(made.metadata["thresholds"]) == {
        "0.9": found, "0.95": None, "0.98": None, "0.99": None
    }  # fmt: skip
