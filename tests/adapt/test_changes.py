"""What adaptation changed, counted by hand, and that images are seen once for both sides."""

import pytest
import torch
from torch import Tensor

from acclimate.adapt.classifier import Changes, changes_on
from acclimate.learn.images import Images
from acclimate.learn.models import Backbone, Head, Predictor, build_backbone
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


class Counted(torch.nn.Module):
    """A body that counts the images it sees."""

    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__()
        self.body, self.seen = body, 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        out: Tensor = self.body(x)
        return out


def counted() -> tuple[Backbone, Counted]:
    backbone = build_backbone("small-cnn")
    backbone.body = body = Counted(backbone.body)
    return backbone.eval(), body


def pixels() -> Images:
    stored = torch.randint(0, 256, (7, 3, 16, 16), dtype=torch.uint8)
    return Images(stored, torch.device("cpu"))


@pytest.mark.parametrize("frozen", [False, True])
@torch.no_grad()
def test_what_two_classifiers_share_sees_the_images_once(frozen: bool) -> None:
    backbone, body = counted()
    heads: list[Head] = [LinearHead(backbone.features, 3) for _ in range(2)]
    if frozen:
        layers = [build_backbone("mlp", in_features=backbone.features) for _ in range(2)]
        heads = [plain_on(own, 3) for own in layers]
    one, two = (Predictor(backbone, head).eval() for head in heads)
    images = pixels()
    apart = [predictor(x).logits for predictor in (one, two) for x in images.batches()]
    body.seen = 0
    for predictor, expected in zip((one, two), apart, strict=True):
        torch.testing.assert_close(images.outputs(predictor).logits, expected)
    assert body.seen == len(images)


@torch.no_grad()
def test_classifiers_that_share_nothing_are_compared_too() -> None:
    one, two = (plain_on(counted()[0], 3).eval() for _ in range(2))
    images = pixels()
    (x,) = images.batches()
    moved = (one(x).logits.argmax(1) != two(x).logits.argmax(1)).sum()
    assert changes_on(images, one, two, CLASSES).changed == moved
