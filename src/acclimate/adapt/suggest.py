"""Which images of a domain to label: one near each centre of its clusters."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor
from torch.nn.functional import normalize

from acclimate.adapt.classifier import Adapted, nothing_readable
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.progress import Watch, unwatched
from acclimate.core.text import csv_text
from acclimate.data.readers import read_rows
from acclimate.data.source import Quarantine
from acclimate.learn.models import Output

HEADER = ["image", "label", "guess", "confidence"]


@dataclass(frozen=True)
class Suggestion:
    """An image to label, and what the model takes it for."""

    image: Path
    guess: str
    confidence: float


def spread(hidden: Tensor, count: int, *, seed: int = 0) -> np.ndarray:
    """The rows nearest to the `count` k-means centres of hidden layers [n, h] scaled to length 1,
    ascending; all rows where there are no more."""
    if count >= len(hidden):
        return np.arange(len(hidden))
    rows = normalize(hidden.double().cpu(), dim=1).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # images may be equal
        distances = KMeans(count, n_init=1, random_state=seed).fit_transform(rows)
    chosen: list[int] = []
    for centre in distances.T:  # no row twice, even if it is nearest to two
        centre[chosen] = np.inf
        chosen.append(int(centre.argmin()))
    return np.sort(chosen)


def suggest(
    site: Adapted,
    images: Sequence[Path],
    count: int,
    quarantine: Quarantine,
    watch: Watch = unwatched,
) -> list[Suggestion]:
    """So many of a domain's images to label, as different from each other as its images are."""
    if count < 1:
        raise ConfigError(f"--count is {count}; ask for one image or more")
    places, hidden, logits = [], [], []
    for some, output in site.outputs(images, quarantine, watch):
        places.append(some)
        hidden.append(output.hidden.cpu())
        logits.append(output.logits.cpu())
    if not places:
        raise nothing_readable(quarantine)
    every = np.concatenate(places)
    output = Output(torch.cat(logits), torch.cat(hidden))
    return [
        Suggestion(images[every[row]], guess, confidence)
        for row, guess, confidence in choose_rows(output, site.classes, count)
    ]


def choose_rows(output: Output, classes: Sequence[str], count: int) -> list[tuple[int, str, float]]:
    """So many rows to label of what a classifier makes of images, each with its guess and the
    confidence in it."""
    probabilities = output.logits.float().cpu().softmax(1)
    return [
        (int(row), classes[int(probabilities[row].argmax())], float(probabilities[row].max()))
        for row in spread(output.hidden, count)
    ]


def to_label(suggestions: Sequence[Suggestion]) -> str:
    """A table whose column `label` somebody fills in."""
    rows = ([str(one.image), "", one.guess, f"{one.confidence:.6f}"] for one in suggestions)
    return csv_text([HEADER, *rows])


def read_labels(path: Path, images: Sequence[Path]) -> list[str | None]:
    """The label of each of `images` in a table with columns `image` and `label`, None where the
    table has none. Paths are as they were given, or go from the table's folder."""
    table = read_rows(path)
    for column in ("image", "label"):
        if column not in table.column_names:
            raise ManifestError(f"{path.name} has no column '{column}'; it needs image and label")
    places = {image.resolve(): place for place, image in enumerate(images)}
    labels: list[str | None] = [None] * len(images)
    for name, label in zip(table["image"].to_pylist(), table["label"].to_pylist(), strict=True):
        if not name or label is None or not (text := str(label).strip()):
            continue
        tried = [Path(name).resolve(), (path.parent / name).resolve()]
        place = next((places[one] for one in tried if one in places), None)
        if place is None:
            raise ManifestError(
                f"{path.name} labels {name}, which is none of the images to adapt on; give it too"
            )
        if labels[place] not in (None, text):
            raise ManifestError(
                f"{path.name} labels {name} as '{labels[place]}' and as '{text}'; keep one line"
            )
        labels[place] = text
    return labels
