"""What adaptation changed, counted by hand, and that images are seen once for both sides."""

import pytest
import torch

from acclimate.adapt.classifier import Changes, changes_on
from acclimate.learn.images import Images
from acclimate.learn.models import Head, Predictor, build_backbone
from acclimate.learn.models.predictors import LinearHead
from fixtures.predictors import plain_on

CLASSES = ("ant", "bee", "cat")


def test_moves_are_counted_from_class_to_class() -> None:
    before, after = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([1, 1, 0, 2, 2, 0])
    found = Changes.between(before, after, CLASSES)
    assert found.moves == {("ant", "bee"): 2, ("bee", "cat"): 1, ("cat", "ant"): 1}
    assert next(iter(found.moves)) == ("ant", "bee")
    assert (found.images, found.changed) == (6, 4)
    assert str(found) == (
        "adaptation changed 66.7 % of predictions (4 of 6): ant → bee 2, bee → cat 1, cat → ant 1"
    )
    assert found.to_dict()["moves"][0] == {"from": "ant", "to": "bee", "images": 2}
    assert found.to_dict()["share"] == pytest.approx(4 / 6)


def test_a_sentence_names_the_three_most_frequent_moves() -> None:
    before = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    after = torch.tensor([1, 1, 2, 0, 2, 0, 0, 1])
    assert str(Changes.between(before, after, CLASSES)) == (
        "adaptation changed 100.0 % of predictions (8 of 8): "
        "ant → bee 2, cat → ant 2, ant → cat 1, …"
    )


def test_nothing_changed() -> None:
    same = torch.tensor([0, 1])
    assert str(Changes.between(same, same, CLASSES)) == "adaptation changed none of 2 predictions"


def pixels() -> Images:
    stored = torch.randint(0, 256, (7, 3, 16, 16), dtype=torch.uint8)
    return Images(stored, torch.device("cpu"))


@pytest.mark.parametrize("frozen", [False, True])
@torch.no_grad()
def test_what_two_classifiers_share_sees_the_images_once(frozen: bool) -> None:
    backbone, seen = build_backbone("small-cnn").eval(), list[int]()
    backbone.body.register_forward_hook(lambda body, given, out: seen.append(len(out)))
    heads: list[Head] = [LinearHead(backbone.features, 3) for _ in range(2)]
    if frozen:
        layers = [build_backbone("mlp", in_features=backbone.features) for _ in range(2)]
        heads = [plain_on(own, 3) for own in layers]
    one, two = (Predictor(backbone, head).eval() for head in heads)
    images = pixels()
    apart = [predictor(x).logits for predictor in (one, two) for x in images.batches()]
    seen.clear()
    for predictor, expected in zip((one, two), apart, strict=True):
        torch.testing.assert_close(images.outputs(predictor).logits, expected)
    assert sum(seen) == len(images)


@torch.no_grad()
def test_classifiers_that_share_nothing_are_compared_too() -> None:
    one, two = (plain_on(build_backbone("small-cnn"), 3).eval() for _ in range(2))
    images = pixels()
    (x,) = images.batches()
    moved = (one(x).logits.argmax(1) != two(x).logits.argmax(1)).sum()
    assert changes_on(images, one, two, CLASSES).changed == moved
