"""The plain head: whether logistic regression does better on held-out domains than the network.

On features that were there before training, both are fitted without the held-out domains and
compared on them, beside a head of class vectors where a file has one. The network that a run
trained is kept unless another head is better beyond the standard error over domains.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from acclimate.learn.logistic import fit_logistic
from acclimate.learn.models import Head, Predictor
from acclimate.learn.site import Features
from acclimate.records.rehearsal import ENOUGH_DOMAINS_TO_TELL, NETWORK, Promise, quantile
from acclimate.rehearse.conclusion import ONE_SIGMA, Trial, promises_beside

STRENGTHS = {"logistic C=1": 1.0, "logistic C=0.01": 100.0}  # as scikit-learn's C = 1 / strength
LIGHT = "logistic C=0.01"  # the one that is fitted fastest


@torch.no_grad()
def fit_regressions(rows: Features, names: Sequence[str] = tuple(STRENGTHS)) -> dict[str, Head]:
    """Regressions on centred and scaled features, which are the same as on features as they are."""
    index, backbone = np.concatenate(rows.domains), rows.backbone()
    strengths = {STRENGTHS[name]: name for name in names}
    heads = fit_logistic(rows.at(index), rows.y[index], rows.classes, strengths)
    fitted: dict[str, Head] = {}
    for strength, head in zip(sorted(strengths, reverse=True), heads, strict=True):
        last = head.last
        bias = last.bias + last.weight @ backbone.mean
        scaled = head.with_last(last.weight * backbone.std, bias)
        fitted[strengths[strength]] = Predictor(backbone, scaled).eval()
    return fitted


@torch.no_grad()
def accuracies(
    heads: Mapping[str, Head], features: Features, domains: Mapping[str, np.ndarray]
) -> list[Trial]:
    """The heads on the rows of held-out domains, by the domains' names, without adaptation."""
    trials = []
    for domain, rows in domains.items():
        x, y = features.at(rows), features.y[rows]
        for name, head in heads.items():
            right = head(x).logits.argmax(1) == y
            trial = Trial(
                domain=domain,
                chain="none" if name == NETWORK else name,
                n=0,
                frequencies="as they are",
                accuracy=float(right.double().mean()),
                scored=len(rows),
            )
            trials.append(trial)
    return trials


def choose_head(trials: Sequence[Trial]) -> tuple[str, tuple[Promise, ...]]:
    """The head to use, and each head beside the network over the held-out domains."""
    scores = promises_beside(trials)
    able = [
        one
        for one in scores
        if one.error is not None
        and one.domains >= ENOUGH_DOMAINS_TO_TELL
        and one.gain > quantile(one.domains, ONE_SIGMA) * one.error
    ]
    return max(able, key=lambda one: one.gain).chain if able else NETWORK, scores
