"""What adaptation changed, counted by hand, and that images are seen once for both sides."""

import pytest
import torch
from torch import Tensor

from acclimate.adapt.classifier import Changes, changes_on
from acclimate.data.source import Images
from acclimate.learn.models import Backbone, Plain, build_backbone
from acclimate.learn.models.predictors import BatchFeatures

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


@pytest.mark.parametrize("frozen", [False, True])
@torch.no_grad()
def test_what_two_classifiers_share_sees_the_images_once(frozen: bool) -> None:
    lowest, body = counted()
    backbones = [lowest, lowest]
    if frozen:
        backbones = [build_backbone("mlp", in_features=lowest.features) for _ in range(2)]
        for own in backbones:
            own.put_on(lowest)
    one, two = (Plain(backbone, 3).eval() for backbone in backbones)
    x = torch.rand(5, 3, 16, 16)
    apart = [one(x).logits, two(x).logits]
    body.seen = 0
    batch = BatchFeatures(x)
    for predictor, expected in zip((one, two), apart, strict=True):
        torch.testing.assert_close(batch.logits(predictor), expected)
    assert body.seen == 5


@torch.no_grad()
def test_classifiers_that_share_nothing_are_compared_too() -> None:
    (first, _), (second, _) = counted(), counted()
    one, two = Plain(first, 3).eval(), Plain(second, 3).eval()
    pixels = torch.randint(0, 256, (7, 3, 16, 16), dtype=torch.uint8)
    images = Images(pixels, torch.device("cpu"))
    x = torch.cat(list(images.batches()))
    moved = (one(x).logits.argmax(1) != two(x).logits.argmax(1)).sum()
    assert changes_on(images, one, two, CLASSES).changed == moved
