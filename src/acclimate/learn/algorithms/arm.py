"""ARM-CML (Zhang et al. 2021): the classifier also sees its domain's context, a mean over images.

MTL differs from it in what the mean is taken of, and over which images in training.
"""

from typing import final

import torch.nn.functional as F
from torch import Tensor

from acclimate.data.batches import Batch
from acclimate.learn.models import Backbone, build_backbone, takes_features
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import Groups, domain_means


class SetConditioned(Algorithm):
    """The risk of F(x, μ), with μ the mean of Φ over a domain's rows in the batch. Gradients go
    through the means, so that Φ is learned by the same risk."""

    least_domains = 2
    over_mu = False

    def forward(self, batch: Batch, step: int) -> Losses:
        assert self.embedding is not None
        features = self.predictor.backbone(batch.x)
        phi = self.embedding.raw(batch.x if takes_features(self.predictor) else features)
        domain = self.world.whole(batch.domain)
        groups = Groups.of(domain, phi.device)
        mu = self.contexts(domain_means(self.world.gather(phi), groups), batch.domain)
        rows = groups.index[self.world.share(len(domain))]
        output = self.adjusted(self.predictor.head(features, mu[rows]), batch)
        return Losses(risk=F.cross_entropy(output.logits, batch.y))

    def contexts(self, means: Tensor, domain: Tensor) -> Tensor:
        """μ of the domains in a batch, by the means of Φ over their rows in it: [m, d] -> [m, d]"""
        return means


@final
class ARM(SetConditioned):
    """Φ is a network of two layers on the features of the predictor's backbone."""

    @classmethod
    def context(cls, features: int) -> Backbone:
        return build_backbone("mlp", in_features=features)
