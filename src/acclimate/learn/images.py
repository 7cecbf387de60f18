"""Unlabelled images of a domain, with the features that backbones make of them."""

from collections.abc import Iterator
from math import ceil

import torch
from torch import Tensor

from acclimate.data.source import EVALUATION_BATCH, to_float
from acclimate.learn.models import Backbone, Head, Output, Predictor


class Images:
    """Images or rows of features, as stored; they can be read repeatedly.

    What a backbone makes of them is computed once and kept, for every head on that backbone.
    """

    def __init__(self, stored: Tensor, device: torch.device) -> None:
        """`stored` is [n, 3, h, w] uint8, or [n, f]."""
        self.stored, self.device = stored, device
        self._features: dict[Backbone, Images] = {}

    def __len__(self) -> int:
        return len(self.stored)

    def batches(self, most: int = EVALUATION_BATCH) -> Iterator[Tensor]:
        """Even batches of at most `most`, as a network takes them: a last batch of one image
        would have no statistics."""
        for part in self.stored.tensor_split(ceil(len(self) / most)):
            yield to_float(part, self.device)

    @torch.no_grad()
    def features(self, backbone: Backbone) -> "Images":
        """The features [n, f] that `backbone` makes of them."""
        if backbone not in self._features:
            self.keep(backbone, torch.cat([backbone(x) for x in self.batches()]))
        return self._features[backbone]

    def keep(self, backbone: Backbone, features: Tensor) -> None:
        """Store the features of `backbone`."""
        self._features[backbone] = Images(features, self.device)

    def outputs(self, head: Head) -> Output:
        """What a head makes of these rows of features, or a predictor of these images."""
        if isinstance(head, Predictor):
            return self.features(head.backbone).outputs(head.head)
        outputs = [head(x) for x in self.batches()]
        logits, hidden = zip(*outputs, strict=True)
        return Output(torch.cat(logits), torch.cat(hidden))
