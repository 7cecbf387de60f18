"""Evidence that a site is no longer what it was, and how rarely chance alone brings so much of it.

One after another, each image bets against "nothing has changed". A bet has an expected value of 1
or less as long as nothing has. The evidence of a look is the Shiryaev-Roberts sum of bets,

    R ← (R + 1) · bet,

that is, over every image at which something may have changed, the product of the bets since. R less
the number of images is a supermartingale. Where R goes back to 0 after each alarm, which it raises
when it reaches a threshold h, so is R + h · (alarms) less the number of images. Hence, however
often somebody looks and whenever they stop: of n images, n/h false alarms are expected at most, and
one comes with a probability of n/h at most. Looking more often, at fewer images, changes nothing.

Several looks share one promise: with K looks, each alarms at K times the threshold (Bonferroni).
Expected alarms add up, whatever the looks have to do with each other. A mean over looks would be no
better and could be worse: each look bets knowing its own past, and not that of the others.

`PATIENCE` is the number of images in 20 site-years: one false alarm is expected in that time at
most, and one comes in a site's first year with a probability of 5 % at most.

Functions of arrays, without torch; leading axes are different sites.
"""

from dataclasses import dataclass, replace

import numpy as np

SITE_YEAR = 52 * 100  # images
PATIENCE = 20 * SITE_YEAR  # images in which all looks together may raise one false alarm
# Images after which what a bettor has seen counts half: the first sees a sudden change at once, and
# a slight one is seen by the last alone.
HALF_LIVES = np.array([30.0, 300.0, 3000.0])
MOST = 1e12  # evidence that is written down: more says no more


@dataclass(frozen=True)
class Ranked:
    """The evidence that scores have changed.

    An image's p value is the share of higher scores among all earlier images, the site's sample
    first; ties are broken by chance. If all images come from one distribution, these p values are
    independent and uniform, although all share the sample (conformal prediction on-line: Vovk,
    Gammerman and Shafer 2005), since each image is ranked among *all* before it. Ranks in the
    sample alone would depend on each other, and end in a false alarm.

    Each bettor has a histogram of the p values it has seen, and bets on what was frequent.
    """

    counts: np.ndarray  # [..., L]: earlier images of each level of the score
    seen: np.ndarray  # [..., bettors, bins]
    evidence: np.ndarray  # [..., bettors]

    @classmethod
    def start(cls, counts: np.ndarray, bins: int = 10) -> "Ranked":
        """With the `counts` [..., L] of the site's sample."""
        shape = (*counts.shape[:-1], len(HALF_LIVES))
        return cls(counts.astype(float), np.zeros((*shape, bins)), np.zeros(shape))

    @property
    def value(self) -> np.ndarray:
        """R, the mean over bettors: [...]"""
        return np.asarray(self.evidence.mean(-1))

    def after(self, levels: np.ndarray, ties: np.ndarray) -> tuple["Ranked", np.ndarray]:
        """With images of these `levels` [..., n], in their order, and the evidence after each
        [..., n]. `ties` [..., n] are uniform random numbers."""
        counts, seen, evidence = self.counts.copy(), self.seen.copy(), self.evidence
        keep, bins = 0.5 ** (1 / HALF_LIVES)[:, None], seen.shape[-1]
        places, path = np.arange(counts.shape[-1]), np.zeros(levels.shape)
        for t in range(levels.shape[-1]):
            level = levels[..., t, None]
            p = p_value(counts, level, ties[..., t])
            counts += places == level
            hit = np.arange(bins) == np.minimum((p * bins).astype(int), bins - 1)[..., None, None]
            # A bin's share of what was seen and of one image in each, over its share by chance.
            bet = bins * (1 + (seen * hit).sum(-1)) / (bins + seen.sum(-1))
            evidence = np.minimum((evidence + 1) * bet, MOST)
            seen = seen * keep + hit
            path[..., t] = evidence.mean(-1)
        return Ranked(counts, seen, evidence), path


def p_value(counts: np.ndarray, level: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """The share of images above one of this `level` [..., 1] among `counts` [..., L] earlier ones
    and itself, and of those at the same level the share `tie` [...]: [...]"""
    places = np.arange(counts.shape[-1])
    above, same = (counts * (places > level)).sum(-1), (counts * (places == level)).sum(-1) + 1
    return np.asarray((above + tie * same) / (counts.sum(-1) + 1))


RATES = np.array([2.0, 4.0, 8.0])  # times the usual share: what bettors bet on


@dataclass(frozen=True)
class Rare:
    """The evidence that something happens to more than a share `usual` of images."""

    usual: float
    evidence: np.ndarray  # [..., bettors]

    @classmethod
    def start(cls, usual: float) -> "Rare":
        return cls(usual, np.zeros(len(RATES)))

    @property
    def value(self) -> np.ndarray:
        """R, the mean over bettors: [...]"""
        return np.asarray(self.evidence.mean(-1))

    def after(self, happened: np.ndarray) -> tuple["Rare", np.ndarray]:
        """With images to which it `happened` or not [..., n], in their order, and the evidence
        after each [..., n]."""
        rates = np.minimum(RATES * self.usual, (1 + self.usual) / 2)
        evidence, path = self.evidence, np.zeros(happened.shape)
        for t in range(happened.shape[-1]):
            # Expected to be 1 at the usual share, and less below it.
            yes, no = rates / self.usual, (1 - rates) / (1 - self.usual)
            evidence = np.minimum((evidence + 1) * np.where(happened[..., t, None], yes, no), MOST)
            path[..., t] = evidence.mean(-1)
        return replace(self, evidence=evidence), path
