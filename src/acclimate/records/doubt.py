"""Doubt: what held-out sites say of the accuracy at a new one, and of the answers to trust there.

Accuracies are logit-normal over sites. A measured one also has the sampling error of the images
that were scored: it is separated from how much the sites themselves differ, or a few small sites
would seem to differ much. Functions of arrays, without torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any

import numpy as np

from acclimate.core.text import percent

Numbers = np.ndarray | Sequence[float]
NINE_OF_TEN = 0.9  # of new sites lie above a floor
LEAST_SITES = 5  # that show whether a score tells anything of the accuracy
MOST_MARGIN = 0.3  # from the expected accuracy down to a floor that still tells something
TARGETS = (0.9, 0.95, 0.98, 0.99)  # shares of right answers that somebody may ask for
# Of the confidence of an answer: five to each decade of what is missing to 1.
THRESHOLDS = tuple(round(1 - 10 ** (-step / 5), 4) for step in range(16))
UNKNOWN = 1_000_000  # images stand for a number that is not known
EDGE = 0.005  # as near to 0 and 1 as a score may come: its logit stays finite


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The accuracy to expect at a new site, and its floor: nine of ten new sites lie above it.

    Where a score without labels narrows it, `by` names the score. It is then the forecast for a
    site with that `score`; at another site its logit moves by `slope` times the score's.
    """

    accuracy: float
    floor: float
    by: str = ""
    slope: float = 0.0
    score: float = 0.5

    @property
    def vague(self) -> bool:
        """Whether the floor is so far down that it tells nothing."""
        return self.accuracy - self.floor > MOST_MARGIN

    def at(self, score: float) -> "Forecast":
        """The forecast for a site with this score."""
        moved = self.slope * (_logit(score) - _logit(self.score))
        accuracy, floor = (_share(_logit(one, 0.0) + moved) for one in (self.accuracy, self.floor))
        return replace(self, accuracy=float(accuracy), floor=float(floor), score=score)

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        return (
            f"{percent(self.accuracy)} %{by} (in nine of ten new sites at least "
            f"{percent(self.floor)} %)"
        )


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Only images whose confidence reaches `threshold` are answered: means over held-out sites."""

    threshold: float
    share: float  # of images that are answered
    right: float  # of the answers, less one standard error over sites


def confidence(posteriors: np.ndarray, prior: Numbers) -> float:
    """Mean probability of the predicted class."""
    return float(posteriors.max(1).mean())


def agreement(posteriors: np.ndarray, prior: Numbers) -> float:
    """1 less the mass that must move from the predicted class frequencies to those of training."""
    return 1 - float(np.abs(posteriors.mean(0) - prior).sum()) / 2


# THE table of scores: from posteriors [n, C] of a site and training's class frequencies [C] to a
# number in 0..1 that may tell of the accuracy there.
SCORES: Mapping[str, Callable[[np.ndarray, Numbers], float]] = {
    "mean confidence": confidence,
    "predicted class frequencies": agreement,
}


def scores_of(posteriors: np.ndarray, prior: Numbers) -> dict[str, float]:
    """Every score of a site's images: posteriors [n, C], prior [C]."""
    return {name: score(posteriors, prior) for name, score in SCORES.items()}


def forecasts(
    accuracies: Numbers, images: Numbers, scores: Mapping[str, Numbers]
) -> tuple[Forecast, ...]:
    """What held-out sites say of a new one: from accuracies [sites], the images behind each [sites]
    (0: not known) and scores by name, [sites] each.

    The forecast without a look at the new site comes first. Where a score predicts the held-out
    sites better, the forecast by the best such score follows. One site says nothing.
    """
    if len(accuracies) < 2:
        return ()
    y, noise = logits_of(accuracies, images)
    anywhere = _forecast(y, noise)
    name = best_score(y, scores)
    if name is None:
        return (anywhere,)
    x = _logit(np.asarray(scores[name]))
    slope, middle = _slope(x, y), float(x.mean())
    rest = y - slope * (x - middle)
    about = {"by": name, "slope": slope, "score": float(_share(middle))}
    return anywhere, _forecast(rest, noise, fitted=2, **about)


def logits_of(accuracies: Numbers, images: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Empirical logits of accuracies and their sampling variances: [sites], [sites] -> both. Half
    an image is added to right and wrong, so that all right is finite."""
    n = np.where(np.asarray(images) > 0, images, UNKNOWN)
    right, wrong = np.asarray(accuracies) * n + 0.5, (1 - np.asarray(accuracies)) * n + 0.5
    return np.log(right / wrong), 1 / right + 1 / wrong


def _forecast(y: np.ndarray, noise: np.ndarray, fitted: int = 1, **about: Any) -> Forecast:
    """Random effects: y [sites] scatter by `noise` [sites] and by how the sites differ, whose
    variance is what is left of theirs (moments), with Student's t for few of them. `fitted`
    parameters were estimated from them."""
    from scipy.special import stdtrit  # it takes longer to import than --help may

    freedom = len(y) - fitted
    between = max(float(((y - y.mean()) ** 2).sum()) / freedom - float(noise.mean()), 0.0)
    weights = 1 / (between + noise)
    centre = (weights * y).sum() / weights.sum()
    below = stdtrit(freedom, NINE_OF_TEN) * np.sqrt(between + 1 / weights.sum())
    return Forecast(accuracy=float(_share(centre)), floor=float(_share(centre - below)), **about)


def best_score(y: np.ndarray, scores: Mapping[str, Numbers]) -> str | None:
    """The score that predicts logits of accuracies y [sites] best, each from the other sites; None
    where none beats their mean by more than one standard error."""
    if len(y) < LEAST_SITES or not scores:
        return None
    errors = {name: _left_out(y, _logit(np.asarray(x))) for name, x in scores.items()}
    best = min(errors, key=lambda name: float(errors[name].mean()))
    gain = _left_out(y, np.zeros(len(y))) - errors[best]
    return best if gain.mean() > gain.std(ddof=1) / sqrt(len(y)) else None


def _left_out(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Squared errors of each y [sites], predicted by its x [sites] as the other sites have it."""
    errors = []
    for site in range(len(y)):
        rest_x, rest_y = np.delete(x, site), np.delete(y, site)
        predicted = rest_y.mean() + _slope(rest_x, rest_y) * (x[site] - rest_x.mean())
        errors.append((y[site] - predicted) ** 2)
    return np.array(errors)


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    """Of y on x [sites], shrunken for few sites, and from 0 to 1: few sites can make any other one
    by chance."""
    centred = x - x.mean()
    scatter = float(centred @ centred) * (1 + 1 / len(x))
    return min(max(float(centred @ y) / scatter, 0.0), 1.0) if scatter else 0.0


def count_answers(sure: np.ndarray, right: np.ndarray) -> tuple[tuple[int, int], ...]:
    """From confidences [n] and whether each prediction is right [n], to how many are answered at
    each of `THRESHOLDS`, and how many of these rightly."""
    answered = sure[:, None] >= np.array(THRESHOLDS)
    columns = answered.sum(0).tolist(), (answered & right[:, None]).sum(0).tolist()
    return tuple(zip(*columns, strict=True))


def answers(counts: np.ndarray) -> tuple[Answer, ...]:
    """From the counts [sites, thresholds, 2] of `count_answers` to what they promise, as far as
    three sites answer at all, and half of them.

    Half an image is added to right and wrong, as a few that are all right are no certainty.
    """
    found = []
    for threshold, (answered, right) in zip(THRESHOLDS, counts.transpose(1, 2, 0), strict=True):
        some = answered > 0
        if some.sum() < max(3, ceil(len(some) / 2)):
            break
        good = (right[some] + 0.5) / (answered[some] + 1)
        least = float(good.mean() - good.std(ddof=1) / sqrt(len(good)))
        share = float((answered / np.maximum(counts[:, 0, 0], 1)).mean())
        found.append(Answer(threshold=threshold, share=round(share, 4), right=round(least, 4)))
    return tuple(found)


def answer_for(known: Sequence[Answer], target: float) -> Answer | None:
    """The answer with the smallest threshold that promises so many right; None where none does."""
    return next((one for one in known if one.right >= target), None)


def _logit(share: Any, edge: float = EDGE) -> Any:
    bounded = np.clip(share, edge, 1 - edge)
    return np.log(bounded / (1 - bounded))


def _share(logit: Any) -> Any:
    """The inverse of `_logit`."""
    return 1 / (1 + np.exp(-logit))
