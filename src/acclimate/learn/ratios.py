"""How label frequencies vary between domains, learned from the training domains' label counts.

A class c of a domain is r times as frequent as over all domains. `fit_ratios` finds how these r are
distributed, over all classes and domains, without saying what shape that distribution has; what it
learned is what a new domain's frequencies are expected to be before one of its images was seen.
"""

import numpy as np

from acclimate.core.randomness import stream

RATIOS = np.exp(np.linspace(-np.log(64), np.log(64), 49))  # [K], what r may be
ROUNDS = 100  # of EM: more change the weights, but nothing that follows from them
OPEN = 0.1  # weight that stays with ratios which no training domain shows: a new one may
MOST_CELLS = 20_000  # (domain, class) pairs: as many say all there is to say


def fit_ratios(counts: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Weights of `RATIOS`: [K], sum to 1.

    counts [N, C] of each domain's classes; prior [C], frequencies over all domains. A count is
    Poisson with mean n_d · prior_c · r, and the weights are the likeliest ones (Kiefer and
    Wolfowitz 1956), by EM from equal weights. Classes that no domain has tell nothing.
    """
    known = prior > 0
    expected = (counts.sum(1, keepdims=True) * prior)[:, known].ravel()
    observed = counts[:, known].ravel()
    if len(observed) > MOST_CELLS:
        chosen = stream(0, "ratios").choice(len(observed), MOST_CELLS, replace=False)
        expected, observed = expected[chosen], observed[chosen]
    logs = observed[:, None] * np.log(RATIOS) - expected[:, None] * RATIOS
    likelihood = np.exp(logs - logs.max(1, keepdims=True))
    weights = np.full(len(RATIOS), 1 / len(RATIOS))
    for _ in range(ROUNDS):
        shares = likelihood * weights
        weights = (shares / shares.sum(1, keepdims=True)).mean(0)
    smoothed: np.ndarray = (1 - OPEN) * weights + OPEN / len(RATIOS)
    return smoothed
