"""Evidence that a site is no longer what it was, and how rarely chance alone brings so much of it.

One after another, each image bets against "nothing has changed". A bet has an expected value of 1
or less as long as nothing has. The evidence of a look is the Shiryaev-Roberts sum of bets,

    R ← (R + 1) · bet,

that is, over every image at which something may have changed, the product of the bets since. R less
the number of images is a supermartingale. With R back at 0 after each alarm, which comes when R
reaches a threshold h, so is R + h · (alarms) less the number of images. Hence, however often one
looks and wherever one stops: at most n/h alarms are expected in n images, and one in n images comes
with a probability of at most n/h.

Several looks share one promise: with K looks, each alarms at K times the threshold, and expected
alarms add up whatever the looks have to do with each other. (A mean over looks would need all of
them to bet on the same past. Each bets on its own.)

With `PATIENCE`, the images of 20 site-years, one false alarm is expected in 20 site-years, and one
comes in a given first year with a probability of 5 % at most.

Functions of arrays, without torch; leading axes are different sites.
"""

from dataclasses import dataclass, replace

import numpy as np

SITE_YEAR = 52 * 100  # images
PATIENCE = 20 * SITE_YEAR  # images in which all looks together may raise one false alarm
BINS = 20  # of p values
# Images after which what a bettor has seen counts half: a sudden change is seen at once by the
# first, and a slight one by the last alone.
HALF_LIVES = np.array([30.0, 300.0, 3000.0])
CAUTION = 20.0  # images without a change that every bettor begins with
MOST = 1e12  # evidence that is written down: more says no more


@dataclass(frozen=True)
class Ranked:
    """The evidence of a score that was as likely to fall on any rank among the earlier ones.

    An image's p value is the share of higher scores among all earlier images, the site's sample
    first; ties are broken by chance. If all images come from one distribution, these p values are
    independent and uniform, although they share the sample (Vovk et al. 2003): each image is ranked
    among *all* that came before. A sample that stayed as it is would make them dependent.

    Bettors bet on what p values do more often than chance: a histogram of those they have seen.
    """

    counts: np.ndarray  # [..., L]: earlier images of each level of the score
    seen: np.ndarray  # [..., bettors, BINS]
    evidence: np.ndarray  # [..., bettors]

    @classmethod
    def start(cls, counts: np.ndarray) -> "Ranked":
        """With the levels' `counts` [..., L] in the site's sample."""
        shape = (*counts.shape[:-1], len(HALF_LIVES))
        return cls(counts.astype(float), np.zeros((*shape, BINS)), np.zeros(shape))

    @property
    def value(self) -> np.ndarray:
        """R, the mean over bettors: [...]"""
        return np.asarray(self.evidence.mean(-1))

    def after(self, levels: np.ndarray, ties: np.ndarray) -> tuple["Ranked", np.ndarray]:
        """With images of these `levels` [..., n], in their order, and the highest value that the
        evidence took meanwhile. `ties` are uniform random numbers [..., n]."""
        counts, seen, evidence = self.counts.copy(), self.seen.copy(), self.evidence
        keep, highest = 0.5 ** (1 / HALF_LIVES)[:, None], self.value
        places = np.arange(counts.shape[-1])
        for t in range(levels.shape[-1]):
            level = levels[..., t, None]
            equal = places == level
            p = p_value(counts, places > level, equal, ties[..., t])
            counts += equal
            bin_ = np.minimum((p * BINS).astype(int), BINS - 1)[..., None, None]
            own = np.take_along_axis(seen, np.broadcast_to(bin_, (*evidence.shape, 1)), -1)[..., 0]
            bet = (CAUTION + BINS * own) / (CAUTION + seen.sum(-1))
            evidence = np.minimum((evidence + 1) * bet, MOST)
            seen = seen * keep + (np.arange(BINS) == bin_)
            highest = np.maximum(highest, evidence.mean(-1))
        return replace(self, counts=counts, seen=seen, evidence=evidence), highest


def p_value(
    counts: np.ndarray, higher: np.ndarray, equal: np.ndarray, tie: np.ndarray
) -> np.ndarray:
    """The rank of an image among `counts` [..., L] earlier ones and itself, as a share: below are
    those of `higher` levels and, of those of an `equal` one, the share `tie` [...]."""
    above, same = (counts * higher).sum(-1), (counts * equal).sum(-1) + 1
    return np.asarray((above + tie * same) / (counts.sum(-1) + 1))


RATES = np.array([2.0, 4.0, 8.0])  # times the usual rate, for which bettors bet


@dataclass(frozen=True)
class Rare:
    """The evidence that something which was to happen to a share `usual` of images, or to fewer,
    happens more often."""

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
        """With images to which it `happened` or not [..., n], in their order, and the highest value
        that the evidence took meanwhile."""
        rates = np.minimum(RATES * self.usual, (1 + self.usual) / 2)
        evidence, highest = self.evidence, self.value
        for t in range(happened.shape[-1]):
            yes, no = rates / self.usual, (1 - rates) / (1 - self.usual)
            bet = np.where(happened[..., t, None], yes, no)
            evidence = np.minimum((evidence + 1) * bet, MOST)
            highest = np.maximum(highest, evidence.mean(-1))
        return replace(self, evidence=evidence), highest
