"""A site's classifier on the server is the one that `adapt` makes of the same images."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from acclimate.adapt.classifier import adapt, unadapted
from acclimate.core.errors import (
    ConfigError,
    KeyReused,
    OverLimit,
    StoreError,
    UnknownName,
    UnknownSite,
)
from acclimate.serve import Limits, Prediction, Service
from fixtures.errors import refused
from fixtures.models import CLASSES, make_trained
from fixtures.uploads import ids, pixels, uploads

Open = Callable[..., Service]
# Features are kept in 16 bits: no probability differs by more from `adapt` on the same images.
ROUNDED = 2e-3
BOTH = ("sqlite",)


def probabilities(predictions: list[Prediction]) -> np.ndarray:
    return np.stack([one.probabilities for one in predictions if one.probabilities is not None])


@pytest.mark.parametrize("database", BOTH, indirect=True)
@pytest.mark.parametrize(
    "kind",
    ["linear", "concat", "film", "low-rank", "rehearsed", "rehearsed pair", "frozen rehearsed"],
)
@pytest.mark.parametrize("labels", [0, 5])
def test_answers_are_those_of_adapt(open_service: Open, kind: str, labels: int) -> None:
    service, trained, rows = open_service(kind), make_trained(kind), pixels(40)
    known = [CLASSES[place % 3] if place < labels else None for place in range(40)]
    service.create_site("north")
    for part in (slice(25, 40), slice(0, 20), slice(10, 30)):  # in any order, some repeated
        service.add_images("north", uploads(rows[part]), labels=known[part])
    once = adapt(trained, rows, labels=known)
    others = pixels(10, seed=1)
    found = service.predict("north", uploads(others))
    np.testing.assert_allclose(probabilities(found), once.predict_proba(others), atol=ROUNDED)
    view = service.site("north")
    assert (view.images, view.kept, view.labelled) == (40, 40, labels)
    assert view.method == once.method
    assert view.notes == list(once.notes)
    labels_found = [one.label for one in found]
    sure = once.predict_proba(others).max(1) > 0.34  # not two classes alike
    assert [one for one, ok in zip(labels_found, sure, strict=True) if ok] == [
        one for one, ok in zip(once.predict(others), sure, strict=True) if ok
    ]


@pytest.mark.parametrize("database", BOTH, indirect=True)
@pytest.mark.parametrize("method", ["none", "prior", "embedding+prior", "t3a", "embedding+t3a"])
def test_answers_are_those_of_a_named_method(open_service: Open, method: str) -> None:
    service, rows = open_service("concat"), pixels(30)
    service.create_site("north", method=method)
    service.add_images("north", uploads(rows))
    once = adapt(make_trained("concat"), rows, method=method)
    found = probabilities(service.predict("north", uploads(rows)))
    np.testing.assert_allclose(found, once.predict_proba(rows), atol=ROUNDED)


@pytest.mark.parametrize("database", BOTH, indirect=True)
def test_a_site_without_images_has_the_plain_model(open_service: Open) -> None:
    service, rows = open_service("concat"), pixels(5)
    view = service.create_site("north")
    assert (view.images, view.method, view.revision) == (0, "none", 1)
    found = probabilities(service.predict("north", uploads(rows)))
    once = unadapted(make_trained("concat")).predict_proba(rows)
    np.testing.assert_allclose(found, once, atol=1e-6)


@pytest.mark.parametrize("database", BOTH, indirect=True)
@pytest.mark.parametrize("kind", ["concat", "rehearsed"])
def test_sites_share_what_they_have_in_common(open_service: Open, kind: str) -> None:
    """In memory, a site has its last layer or its biases, and nothing of its pictures."""
    service = open_service(kind)
    for number, name in enumerate(("north", "south")):
        service.create_site(name, method="embedding+prior")
        service.add_images(name, uploads(pixels(20, seed=number)))
    one, two = (
        dict(service.classifiers.current(name).adapted.predictor.head.named_parameters())
        for name in ("north", "south")
    )
    own = [name for name in one if one[name].data_ptr() != two[name].data_ptr()]
    assert 0 < len(own) < len(one)
    assert all(name.endswith(("first.bias", "last.weight", "last.bias")) for name in own)
    state = service.classifiers.current("north").adapted.state
    assert state is not None and not len(state.pictures)


@pytest.mark.parametrize("database", BOTH, indirect=True)
def test_methods_on_the_backbone_are_allowed_by_name(open_service: Open) -> None:
    rows = pixels(30)
    with refused(ConfigError, "'bn'", "--allow-backbone"):
        open_service("linear").create_site("north", method="bn")
    service = open_service("linear", allow_backbone=True)
    service.create_site("north", method="bn")
    service.create_site("south")
    for part in (rows[20:], rows[:25]):
        service.add_images("north", uploads(part))
    once = adapt(make_trained("linear"), rows, method="bn")
    found = probabilities(service.predict("north", uploads(rows)))
    np.testing.assert_allclose(found, once.predict_proba(rows), atol=1e-5)
    assert len(service.store.kept("north").pixels) == 30
    service.add_images("south", uploads(rows))
    assert service.store.kept("south").pixels == ()


def test_what_comes_again_changes_nothing(open_service: Open) -> None:
    service, rows = open_service("concat"), pixels(12)
    service.create_site("north")
    first = service.add_images("north", [*uploads(rows), b"no image", *uploads(rows[:2])], key="a")
    assert (first.added, first.repeated, first.again) == (12, 2, False)
    assert [one["index"] for one in first.unreadable] == [12]
    assert first.pictures == [*ids(rows), None, *ids(rows[:2])]
    again = service.add_images("north", [*uploads(rows), b"no image", *uploads(rows[:2])], key="a")
    assert again.again and again == replace(first, again=True)
    repeated = service.add_images("north", uploads(rows[3:9]))
    assert (repeated.added, repeated.repeated) == (0, 6)
    assert repeated.site == first.site  # and no new revision
    with refused(KeyReused, "'a'"):
        service.add_images("north", uploads(rows), key="a")
    assert service.site("north").images == 12


def test_nothing_readable_is_no_error(open_service: Open) -> None:
    service = open_service("concat")
    service.create_site("north")
    added = service.add_images("north", [b"", b"GIF89a"])
    assert (added.added, [one["index"] for one in added.unreadable]) == (0, [0, 1])
    predictions = service.predict("north", [b"", *uploads(pixels(1)), b"\xff\xd8\xff"])
    assert [one.problem is None for one in predictions] == [False, True, False]
    assert predictions[0].to_dict() == {
        "index": 0, "label": None, "probability": None, "error": "empty file",
    }  # fmt: skip


def test_the_sample_is_that_of_the_set(open_service: Open) -> None:
    """Whatever came in which order: the smallest hashes, labelled ones first."""
    rows, service = pixels(40), open_service("concat", keep=15)
    label = {7: "ant", 30: "bee"}
    known = [label.get(place) for place in range(40)]
    orders = [range(40), range(39, -1, -1), np.random.default_rng(0).permutation(40)]
    kept = []
    for number, order in enumerate(orders):
        name = f"site-{number}"
        service.create_site(name)
        for part in np.array_split(np.asarray(order), 4):
            given = [known[place] for place in part]
            service.add_images(name, uploads(rows[part]), labels=given)
        kept.append(service.store.kept(name))
        view = service.site(name)
        assert (view.images, view.kept, view.labelled) == (40, 15, 2)
    for one in kept[1:]:
        assert one.hashes.tolist() == kept[0].hashes.tolist()
        assert one.features.equal(kept[0].features) and one.labels == kept[0].labels
    assert {*kept[0].labels} <= {*kept[0].hashes.tolist()}
    others = uploads(pixels(5, seed=1))
    first, *more = [probabilities(service.predict(f"site-{n}", others)) for n in range(3)]
    for found in more:
        np.testing.assert_array_equal(found, first)


def test_images_that_the_site_has_cost_no_pass(open_service: Open) -> None:
    passes: list[int] = []
    service = open_service("concat", keep=10, told=lambda images, seconds: passes.append(images))
    service.create_site("north")
    service.add_images("north", uploads(pixels(30)))
    assert sum(passes) == 10  # the others are outside the sample
    service.add_images("north", uploads(pixels(30)))
    assert sum(passes) == 10


def test_labels_by_id(open_service: Open) -> None:
    service, rows = open_service("concat", keep=8), pixels(12)
    service.create_site("north")
    service.add_images("north", uploads(rows))
    suggested = service.suggest("north", 3)
    assert len({one["picture"] for one in suggested}) == 3
    assert all(one["guess"] in CLASSES and 0 < one["confidence"] <= 1 for one in suggested)
    labels = {one["picture"]: "bee" for one in suggested}
    added = service.add_labels("north", labels, key="k")
    assert (added.labelled, added.repeated, added.not_kept) == (3, 0, [])
    assert added.site.labelled == 3 and "labels" in added.site.method
    assert service.add_labels("north", labels, key="k").again
    assert not {*labels} & {one["picture"] for one in service.suggest("north", 12)}
    back = service.add_labels("north", {suggested[0]["picture"]: None})
    assert (back.labelled, back.site.labelled) == (1, 2)
    kept = {f"{number % 2**64:016x}" for number in service.store.kept("north").hashes.tolist()}
    outside = next(one for one in ids(rows) if one not in kept)
    late = service.add_labels("north", {outside: "ant"})
    assert late.not_kept == [outside]  # its feature is gone; the image may be sent again
    place = ids(rows).index(outside)
    service.add_images("north", uploads(rows[[place]]))
    assert outside in {
        f"{number % 2**64:016x}" for number in service.store.kept("north").hashes.tolist()
    }
    with refused(UnknownName, "'wasp'"):
        service.add_labels("north", {outside: "wasp"})
    with refused(UnknownName, "0000000000000001"):
        service.add_labels("north", {"0000000000000001": "ant"})
    with refused(ConfigError, "'1'"):
        service.add_labels("north", {"1": "ant"})


def test_rolling_back_forgets(open_service: Open) -> None:
    service, rows = open_service("concat"), pixels(30)
    service.create_site("north")
    first = service.add_images("north", uploads(rows[:10]), labels=["ant", *[None] * 9]).site
    service.add_images("north", uploads(rows[10:20]), labels=["bee", *[None] * 9])
    service.add_labels("north", {ids(rows)[0]: "cat"})
    last = service.add_images("north", uploads(rows[20:])).site
    assert (last.revision, last.images, last.labelled) == (5, 30, 2)
    view = service.rollback("north")
    assert (view.revision, view.images, view.labelled) == (6, 20, 2)
    view = service.rollback("north", first.revision)
    assert (view.images, view.labelled, view.method) == (10, 1, first.method)
    expected = adapt(make_trained("concat"), rows[:10], labels=["ant", *[None] * 9])
    found = probabilities(service.predict("north", uploads(rows)))
    np.testing.assert_allclose(found, expected.predict_proba(rows), atol=ROUNDED)
    assert [entry["what"] for entry in view.history] == [
        "created", "images", "images", "labels", "images", "rollback", "rollback",
    ]  # fmt: skip
    assert service.add_images("north", uploads(rows)).added == 20
    for revision in (0, 99):
        with refused(ConfigError, "'north'"):
            service.rollback("north", revision)
    assert service.rollback("north", 1).images == 0


def test_features_that_were_pushed_out_come_back(open_service: Open) -> None:
    service, rows = open_service("concat", keep=10), pixels(40)
    service.create_site("north")
    first = service.add_images("north", uploads(rows[:10])).site
    before = service.store.kept("north")
    service.add_images("north", uploads(rows[10:]))
    view = service.rollback("north", first.revision)
    assert view.images == 10 and view.kept < 10
    assert service.add_images("north", uploads(rows[:10])).added == 0
    after = service.store.kept("north")
    assert after.hashes.equal(before.hashes) and after.features.equal(before.features)


def test_names_keys_and_counts_are_checked(open_service: Open) -> None:
    limits = Limits(images=3, sites=2, pictures=4, image_mib=1)
    service = open_service("concat", limits=limits)
    for name in ("", ".a", "a/b", "a b", "a" * 101, "é"):
        with refused(ConfigError, "letters"):
            service.create_site(name)
    for name in ("a", "A.b_c-9"):
        assert service.create_site(name).name == name
    with refused(OverLimit, "2 sites"):
        service.create_site("c")
    assert service.create_site("a").revision == 1  # which is there
    with refused(UnknownName, "'modle'", "'model'"):
        service.create_site("a", model="modle")
    with refused(ConfigError, "'a'", "'auto'"):
        service.create_site("a", method="prior")
    with refused(UnknownSite, "'c'"):
        service.predict("c", uploads(pixels(1)))
    with refused(OverLimit, "4 images", "3"):
        service.predict("a", uploads(pixels(4)))
    with refused(ConfigError, "no image"):
        service.add_images("a", [])
    for key in ("", "a b", "é", "x" * 201):
        with refused(ConfigError, "key"):
            service.add_images("a", uploads(pixels(1)), key=key)
    with refused(ConfigError, "1 images", "2 labels"):
        service.add_images("a", uploads(pixels(1)), labels=[None, None])
    service.add_images("a", uploads(pixels(3)))
    with refused(OverLimit, "'a'", "4 images"):
        service.add_images("a", uploads(pixels(3, seed=1)))
    assert service.site("a").images == 3
    large = service.predict("a", [bytes(2**20 + 1)])
    assert "1 MiB" in str(large[0].problem)
    with refused(ConfigError, "count"):
        service.suggest("a", 0)


def test_views_are_json_and_written_down(
    open_service: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = open_service("rehearsed")
    for name in ("north", "south"):
        service.create_site(name)
    service.add_images("north", uploads(pixels(30)))
    views = service.sites()
    assert [view.name for view in views] == ["north", "south"]
    assert json.loads(json.dumps([view.to_dict() for view in views]))[0]["images"] == 30
    places = service.training_map()["model"]
    assert {*places["sites"]} == {"north"} and len(places["training"]) == 4
    other = open_service("rehearsed")
    monkeypatch.setattr(type(other.models["model"]), "adapt", None)  # nothing is made again
    assert other.sites() == views
    assert other.training_map() == service.training_map()
    assert other.site("north") == service.site("north")


def test_another_model_of_the_same_name_is_refused(open_service: Open) -> None:
    service = open_service("concat")
    service.create_site("north")
    service.add_images("north", uploads(pixels(10)))
    other = open_service({"model": make_trained("concat", seed=1)})
    for call in (other.predict, other.add_images):
        with refused(StoreError, "'north'", "'model'"):
            call("north", uploads(pixels(1)))
    (view,) = other.sites()
    assert "another model" in view.notes[0]


def test_features_are_not_served(open_service: Open) -> None:
    with refused(ConfigError, "'model'", "features"):
        open_service("features")


def test_moving_by_stored_features(open_service: Open) -> None:
    """Two models on one backbone: the site has moved, without another image."""
    old = make_trained("rehearsed")
    new = replace(old, site=None)
    rows, service = pixels(30), open_service({"old": old, "new": new})
    service.create_site("north", method="prior")
    service.add_images("north", uploads(rows))
    view = service.move("north", "new")
    assert (view.model, view.moving_to, view.images) == ("new", None, 30)
    expected = adapt(new, rows, method="prior")
    found = probabilities(service.predict("north", uploads(rows)))
    np.testing.assert_allclose(found, expected.predict_proba(rows), atol=ROUNDED)
    service.create_site("south", method="embedding")
    with refused(ConfigError, "erm"):
        service.move("south", "new")


def test_moving_as_new_images_come(open_service: Open) -> None:
    old, new = make_trained("concat"), make_trained("low-rank", seed=1)
    rows, service = pixels(60), open_service({"old": old, "new": new})
    service.create_site("north")
    service.add_images("north", uploads(rows[:30]), labels=["ant", *[None] * 29])
    view = service.move("north", "new")
    assert (view.model, view.moving_to, view.images) == ("old", "new", 30)
    view = service.add_images("north", uploads(rows[25:40])).site
    assert (view.model, view.moving_to, view.images) == ("old", "new", 40)
    expected = adapt(old, rows[:40], labels=["ant", *[None] * 39])
    found = probabilities(service.predict("north", uploads(rows)))
    np.testing.assert_allclose(found, expected.predict_proba(rows), atol=ROUNDED)
    view = service.add_images("north", uploads(rows[40:50])).site
    assert (view.model, view.moving_to, view.images) == ("new", None, 25)
    expected = adapt(new, rows[25:50])
    found = probabilities(service.predict("north", uploads(rows)))
    np.testing.assert_allclose(found, expected.predict_proba(rows), atol=ROUNDED)
    assert service.add_images("north", uploads(rows[:1])).site.labelled == 1  # it is remembered
    empty = service.create_site("south")
    assert (empty.images, service.move("south", "new").model) == (0, "new")


def test_sure_answers(open_service: Open) -> None:
    service, rows = open_service("concat"), pixels(20)
    service.create_site("north")
    found = service.predict("north", uploads(rows), unsure_below=0.5)
    for one in found:
        assert one.probability is not None
        assert (one.label is None) == (one.probability < 0.5)
        assert one.to_dict().get("unsure") == (one.likeliest if one.label is None else None)
    with refused(ConfigError, "not rehearsed"):
        service.predict("north", uploads(rows), at_least=0.9)


def test_export(open_service: Open) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    service, rows = open_service("concat"), pixels(20)
    service.create_site("north")
    service.add_images("north", uploads(rows))
    session = onnxruntime.InferenceSession(service.export("north"))
    assert session.get_inputs()
