"""Windows of a site, and what they come to."""

import json
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from acclimate import AdaptiveClassifier
from acclimate.adapt.classifier import adapt
from acclimate.core.errors import StateMismatch
from acclimate.data.source import Quarantine
from acclimate.learn.embeddings import DomainState
from acclimate.learn.model import Trained
from acclimate.watch import LOOKS, Baseline, Watch, WatchReport, Window, read_window
from acclimate.watch.baseline import is_poor, uniform_sample
from fixtures.settings import TINY

SMALL = {"adapt.site.steps": 5, "adapt.site.width": 8, "adapt.site.dim": 4}
SHARES = (0.5, 0.3, 0.2)


def rows(n: int, seed: int, shares: tuple[float, ...] = SHARES, offset: float = 0) -> np.ndarray:
    """Three classes on a line."""
    rng = np.random.default_rng(seed)
    own = rng.normal(size=(n, 4))
    own[:, 0] += 2.0 * rng.choice(3, n, p=shares)
    return (own + offset).astype("f4")


class Example(NamedTuple):
    trained: Trained
    state: DomainState
    baseline: Baseline

    def after(self, watch: Watch, *windows: np.ndarray) -> tuple[Watch, WatchReport]:
        for window in windows:
            watch, report = watch.look(self.baseline, read_window(self.trained, window))
        return watch, report


@pytest.fixture(scope="module")
def example() -> Example:
    rng = np.random.default_rng(0)
    label = rng.choice(3, 200)
    x = rng.normal(size=(200, 4))
    x[:, 0] += 2.0 * label
    settings = TINY | SMALL | {"train.steps": 60, "train.per_domain": 20}
    sites = np.repeat([*"vwxyz"], 40)
    model = AdaptiveClassifier(settings=settings, device="cpu").fit(x.astype("f4"), label, sites)
    state = adapt(model.trained, rows(200, 1)).state
    assert state is not None
    return Example(model.trained, state, Baseline.of(model.trained, state))


def start(example: Example) -> Watch:
    return Watch.start(example.baseline)


def raised(report: WatchReport) -> set[str]:
    return {look.name for look in report.looks if look.since is not None}


def test_weeks_like_the_first_are_as_before(example: Example) -> None:
    _, report = example.after(start(example), *(rows(100, seed) for seed in range(2, 12)))
    assert (report.outcome, report.alarm, raised(report)) == ("as before", False, set())
    assert tuple(look.name for look in report.looks) == LOOKS
    assert (report.images, report.repeats, report.poor, report.reasons) == (100, 0, 0, ())


@pytest.mark.parametrize("weeks", [0, 3])
def test_other_class_frequencies_are_noticed(example: Example, weeks: int) -> None:
    """Also in the first window."""
    watch, _ = example.after(start(example), rows(1, 99), *(rows(100, 2 + w) for w in range(weeks)))
    watch, report = example.after(watch, rows(150, 50, (0.02, 0.08, 0.9)))
    assert "frequencies" in raised(report)
    assert report.alarm
    assert report.label_mix is not None
    assert report.site_mix is not None
    assert report.label_mix["2"] > report.site_mix["2"] + 0.3


def test_another_place_is_beyond_what_was_promised(example: Example) -> None:
    """Images to label are named by their places."""
    watch, report = example.after(start(example), rows(100, 2), rows(60, 3, offset=6))
    assert report.outcome == "label"
    assert "appearance" in raised(report)
    assert len({*report.to_label}) == 20
    assert max(report.to_label) < 60
    assert any("times as far" in reason for reason in report.reasons)
    # The alarm stays, until the site is adapted to again.
    _, later = example.after(watch, rows(100, 4))
    assert later.alarm
    assert raised(later) >= raised(report)


def test_images_that_were_seen_change_nothing(example: Example) -> None:
    watch, first = example.after(start(example), rows(80, 2))
    again, report = example.after(watch, rows(80, 2))
    assert again is watch
    assert (report.images, report.repeats) == (0, 80)
    assert report.looks == first.looks
    assert report.label_mix == first.label_mix
    # Nor do those that the site was adapted to.
    same, report = example.after(watch, rows(200, 1))
    assert same is watch
    assert report.repeats == 200


def test_the_order_within_a_window_does_not_matter(example: Example) -> None:
    window = rows(50, 2)
    one, other = (example.after(start(example), own)[0] for own in (window, window[::-1].copy()))
    assert one.to_dict() == other.to_dict()


def test_it_goes_through_json_and_on(example: Example) -> None:
    watch, _ = example.after(start(example), rows(50, 2), rows(50, 3))
    stored = json.loads(json.dumps(watch.to_dict()))
    loaded = Watch.from_dict(stored)
    assert loaded.to_dict() == watch.to_dict()
    pairs = [example.after(one, rows(50, 4)) for one in (watch, loaded)]
    assert pairs[0][0].to_dict() == pairs[1][0].to_dict()
    assert json.dumps(pairs[0][1].to_dict()) == json.dumps(pairs[1][1].to_dict())
    assert [entry["images"] for entry in loaded.history] == [50, 100]


@pytest.mark.parametrize("damage", [{"kind": "x"}, {"ranked": {}}, {"known": "!"}, {"images": []}])
def test_what_is_no_watch_is_refused(example: Example, damage: dict[str, object]) -> None:
    with pytest.raises(StateMismatch, match="begin a new one"):
        Watch.from_dict(start(example).to_dict() | damage)


def test_a_watch_of_another_state_is_refused(example: Example) -> None:
    other = adapt(example.trained, rows(200, 7)).state
    assert other is not None
    watch = Watch.start(Baseline.of(example.trained, other))
    with pytest.raises(StateMismatch, match="another state"):
        example.after(watch, rows(10, 2))


def test_too_few_pictures_are_nothing_to_compare_with(example: Example) -> None:
    for state in (adapt(example.trained, rows(19, 1)), adapt(example.trained, rows(99, 1), keep=0)):
        assert state.state is not None
        with pytest.raises(StateMismatch, match="20 images or more"):
            Baseline.of(example.trained, state.state)
    least = adapt(example.trained, rows(20, 1)).state
    assert least is not None
    Baseline.of(example.trained, least)


def test_poor_images_are_beyond_promises(example: Example) -> None:
    window = read_window(example.trained, rows(40, 2))
    bad = torch.arange(30)
    dark = replace(window, poor=np.arange(40) < 10, unreadable=bad)
    watch, report = start(example).look(example.baseline, dark)
    assert raised(report) == {"quality"}
    assert (report.outcome, report.images, report.poor) == ("label", 70, 40)
    assert not {*report.to_label} & {*range(10)}  # which show nothing
    again, report = watch.look(example.baseline, dark)
    assert again is watch
    assert report.repeats == 70
    none = Window(window.hashes[:0], window.features[:0], window.poor[:0], torch.arange(30, 90))
    _, report = Watch.start(example.baseline, usual_poor=0.9).look(example.baseline, none)
    assert (report.outcome, report.images, report.label_mix) == ("as before", 60, None)


def test_dark_and_empty_pictures() -> None:
    rng = np.random.default_rng(0)
    pictures = np.zeros((4, 3, 8, 8), np.uint8)
    pictures[0] = rng.integers(0, 256, (3, 8, 8))
    pictures[1] = rng.integers(0, 12, (3, 8, 8))  # night
    pictures[2] = 200  # a lens cap in the sun
    pictures[3] = 120 + rng.integers(0, 30, (3, 8, 8))
    assert is_poor(torch.from_numpy(pictures)).tolist() == [False, True, True, False]
    assert not is_poor(torch.zeros(3, 5)).any()


def test_a_sample_with_labels_is_made_uniform(example: Example) -> None:
    """A state that keeps 30 of 200 images keeps labelled ones first: they are the first 15, chosen
    whatever their hashes."""
    labels = [0] * 15 + [None] * 185
    state = adapt(example.trained, rows(200, 1), labels=labels, keep=30).state
    assert state is not None
    assert len(state.pictures) == 30
    hashes = uniform_sample(state).hashes
    assert 15 <= len(hashes) < 30
    assert hashes.tolist() == sorted(state.seen.tolist())[: len(hashes)]


def test_windows_hold_each_picture_once(example: Example) -> None:
    rng = np.random.default_rng(0)
    window = read_window(example.trained, rng.normal(size=(5, 4)).astype("f4"), Quarantine())
    assert len(window) == window.total == 5
    assert window.features.shape == (5, 4)
