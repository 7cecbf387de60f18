"""Sites are watched by the images that are predicted, on all replicas together."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from acclimate.adapt.classifier import adapt
from acclimate.core.errors import StateMismatch, UnknownSite
from acclimate.serve import Service
from acclimate.serve.watching import ENOUGH
from acclimate.watch import Baseline, Watch, read_window
from fixtures.errors import refused
from fixtures.models import make_trained
from fixtures.uploads import ids, pixels, uploads

Open = Callable[..., Service]


def opened(open_service: Open, **settings: object) -> Service:
    service = open_service("concat", **settings)
    service.create_site("north")
    service.add_images("north", uploads(pixels(60)))
    return service


def dark(count: int) -> np.ndarray:
    return (
        pixels(count, seed=9) // 32 * (np.arange(count) % 2).astype(np.uint8)[:, None, None, None]
    )


def test_evidence_is_that_of_the_same_windows(open_service: Open) -> None:
    """As `acclimate watch` has it, looking at the same images in the same windows."""
    service, rows = opened(open_service), pixels(60)
    state = adapt(make_trained("concat"), rows).state
    assert state is not None
    baseline = Baseline.of(make_trained("concat"), state)
    once = Watch.start(baseline)
    for seed in (1, 2):
        window = pixels(30, seed)
        service.predict("north", uploads(window))
        found = service.drift("north")
        once, report = once.look(baseline, read_window(make_trained("concat"), window))
        assert found["outcome"] == report.outcome == "as before"
        assert found["images"] == 30
        evidence = [look["evidence"] for look in found["looks"]]
        np.testing.assert_allclose(evidence, [look.evidence for look in report.looks], rtol=1e-6)
    assert [entry["images"] for entry in found["history"]] == [30, 60]


def test_images_are_looked_at_once(open_service: Open) -> None:
    service, rows = opened(open_service), pixels(40, seed=1)
    nothing = service.drift("north")
    assert (nothing["images"], nothing["history"]) == (0, [])
    assert service.site("north").drift is None
    service.predict("north", uploads(rows))
    service.predict("north", uploads(rows), plain=True)  # which is another question
    service.predict("north", [*uploads(rows[:10]), *uploads(pixels(60)[:10]), b"no image"])
    found = service.drift("north")
    assert found["images"] == 41 and found["poor"] == 1
    assert service.drift("north") == found
    drift = service.site("north").drift
    assert drift is not None and 0 <= drift < 1


def test_an_alarm_is_raised_beside_predictions(open_service: Open) -> None:
    service = opened(open_service)
    for place in range(0, 600, ENOUGH):
        service.predict("north", uploads(dark(600)[place : place + ENOUGH]))
    found = service.drift("north")
    assert found["alarm"] and found["outcome"] != "as before" and found["reasons"]
    assert any(look["since"] for look in found["looks"])
    drift = service.sites()[0].drift
    assert drift is not None and drift > 0
    assert {*found["to_label"]} <= {*ids(np.unique(dark(600), axis=0))}
    service.add_images("north", uploads(pixels(5, seed=5)))  # another site to compare with
    assert service.drift("north")["alarm"] is False
    assert service.site("north").drift is None


def test_replicas_gather_evidence_together(open_service: Open) -> None:
    one, two = opened(open_service), open_service("concat")
    rows = pixels(80, seed=1)
    one.predict("north", uploads(rows[:30]))
    one.drift("north")
    two.predict("north", uploads(rows[20:60]))
    assert two.drift("north")["images"] == 30  # ten were seen by the other
    assert [entry["images"] for entry in one.drift("north")["history"]] == [30, 60]
    one.delete("north")
    with refused(UnknownSite, "'north'"):
        two.drift("north")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_what_is_not_watched(open_service: Open, tmp_path: Path) -> None:
    service = open_service("linear", allow_backbone=True)
    service.create_site("few")
    service.add_images("few", uploads(pixels(5)))
    service.predict("few", uploads(pixels(60)))
    with refused(StateMismatch, "'few'", "5 images", "20"):
        service.drift("few")
    service.create_site("own", method="bn")
    service.add_images("own", uploads(pixels(30)))
    service.predict("own", uploads(pixels(60)))
    with refused(StateMismatch, "'own'", "'bn'"):
        service.drift("own")
