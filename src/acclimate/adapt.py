"""Unlabelled images -> DomainState -> a classifier for that domain, and how far to trust it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.data.images import as_pixels, find_images
from acclimate.data.quarantine import Quarantine
from acclimate.data.source import to_float
from acclimate.embeddings import DomainState, DomainTable
from acclimate.embeddings.domains import EVALUATION_BATCH
from acclimate.errors import ConfigError, ImageError
from acclimate.models import Conditioned, Predictor
from acclimate.theory import images_needed
from acclimate.trained import Trained
from acclimate.watch import Watch, unwatched

FEW_IMAGES = 20


@dataclass(frozen=True)
class Trust:
    """What is known of an adaptation without a single label."""

    n: int
    radius95: float | None  # Theorem 1, in units of the spread between training domains
    expected_error: float  # σ/√n, in the same units
    nearest_domain: str
    nearest_distance: float  # root mean square per dimension, in the same units
    typical_distance: float  # the same between a training domain and its nearest other: the largest
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Adapted:
    """The classifier of one domain: μ is folded into its biases, Φ is no longer needed."""

    predictor: Predictor
    classes: tuple[str, ...]
    size: int
    max_pixels: int
    state: DomainState | None = None
    trust: Trust | None = None

    def predict_proba(self, images: Any) -> np.ndarray:
        """Class probabilities: [n, C]. `images`: paths, arrays, PIL images, tensors or features."""
        inputs = Inputs(self.size, self.max_pixels, takes_features(self.predictor))
        parts = [
            torch.softmax(self._logits(stored), dim=1).cpu().numpy()
            for _, stored in inputs.batches(images)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.classes)), np.float32)

    def predict(self, images: Any) -> list[str]:
        return [self.classes[index] for index in self.predict_proba(images).argmax(1)]

    def predict_files(
        self, paths: Sequence[Path], quarantine: Quarantine, watch: Watch = unwatched
    ) -> Iterator[tuple[Path, np.ndarray]]:
        """Each readable file with its probabilities; the others go to `quarantine`."""
        inputs = Inputs(self.size, self.max_pixels, features=False)
        for kept, stored in inputs.batches(paths, quarantine, watch):
            probabilities = torch.softmax(self._logits(stored), dim=1).cpu().numpy()
            yield from zip((paths[place] for place in kept), probabilities, strict=True)

    @torch.no_grad()
    def _logits(self, stored: Tensor) -> Tensor:
        device = next(self.predictor.parameters()).device
        logits: Tensor = self.predictor(to_float(stored, device)).logits
        return logits.float()


def adapt(
    trained: Trained,
    images: Any,
    *,
    into: DomainState | None = None,
    quarantine: Quarantine | None = None,
    watch: Watch = unwatched,
) -> Adapted:
    """A classifier for the domain that `images` come from; `into` goes on from an earlier state."""
    embedding, table = trained.embedding, trained.table
    if embedding is None or table is None:
        raise ConfigError(
            f"a plain model ({trained.config.algorithm}) has nothing to adapt; "
            f"train with --algorithm da-erm, or predict with it as it is"
        )
    state = into or DomainState.empty(trained.digest(), embedding.dim)
    state.require(trained.digest())
    before = state.count
    device = next(embedding.parameters()).device
    inputs = Inputs(trained.size, trained.config.data.max_pixels, takes_features(trained.predictor))
    with torch.no_grad():
        for _, stored in inputs.batches(images, quarantine, watch):
            state = state.updated(embedding.phi(to_float(stored, device)))
    if state.count == before:
        raise nothing_readable(quarantine)
    return apply_state(trained, state)


def apply_state(trained: Trained, state: DomainState | None) -> Adapted:
    """The classifier of a stored state; a plain model takes None and is used as it is."""
    config = trained.config.data
    if trained.table is None:
        if state is not None:
            raise ConfigError("a plain model takes no domain state; predict without --domain")
        return Adapted(trained.predictor, trained.classes, trained.size, config.max_pixels)
    if state is None:
        raise ConfigError(
            "an adaptive model predicts for a domain; give its state with --domain FILE "
            "(make it with `acclimate adapt`)"
        )
    state.require(trained.digest())
    assert isinstance(trained.predictor, Conditioned)
    device = next(trained.predictor.parameters()).device
    folded = trained.predictor.fold(state.mean.to(device)).eval()
    trust = judge(state, trained.table)
    return Adapted(folded, trained.classes, trained.size, config.max_pixels, state, trust)


def judge(state: DomainState, table: DomainTable) -> Trust:
    """Distances are divided by √d: with a standardised Φ, 1 is the training domains' typical
    distance from their centre."""
    unit = len(state.total) ** 0.5
    means = table.means
    distances = (means - state.mean).norm(dim=1) / unit
    nearest = int(distances.argmin())
    between = torch.cdist(means, means) / unit
    typical = float(between.fill_diagonal_(float("inf")).min(dim=1).values.max())
    radius = state.radius()
    distance = float(distances[nearest])
    warnings = []
    if state.count < FEW_IMAGES:
        warnings.append(f"only {state.count} images: with {FEW_IMAGES} or more μ is steadier")
    if radius is None:
        wanted = images_needed(float("inf"), state.variance, state.bound)
        warnings.append(f"the 95 % radius of μ is not guaranteed below {wanted} images")
    if distance > typical:
        warnings.append(
            "this domain lies farther from every training domain than any of those from its "
            "nearest other: the model extrapolates"
        )
    return Trust(
        n=state.count,
        radius95=None if radius is None else radius / unit,
        expected_error=(state.variance / state.count) ** 0.5 / unit,
        nearest_domain=table.names[nearest],
        nearest_distance=distance,
        typical_distance=typical,
        warnings=tuple(warnings),
    )


def nothing_readable(quarantine: Quarantine | None) -> ImageError:
    if quarantine is None or not len(quarantine):
        return ImageError("there is no image to adapt on; give at least one")
    name, reason = quarantine.entries[0]
    return ImageError(
        f"none of {len(quarantine)} images can be read, e.g. {name}: {reason}; "
        f"give at least one readable image"
    )


def takes_features(predictor: Predictor) -> bool:
    return predictor.backbone.size == 0


@dataclass(frozen=True)
class Inputs:
    """What users hand over, as batches of stored rows (uint8 images or float features)."""

    size: int
    max_pixels: int
    features: bool

    def batches(
        self, images: Any, quarantine: Quarantine | None = None, watch: Watch = unwatched
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Readable inputs with their places; without a quarantine an unreadable one is an error."""
        if self.features:
            items: Any = self._rows(images)
        else:
            items = _listed(images)
        for start in range(0, len(items), EVALUATION_BATCH):
            part = items[start : start + EVALUATION_BATCH]
            if self.features:
                yield list(range(start, start + len(part))), part
            else:
                kept, pixels = self._decoded(part, start, quarantine)
                if kept:
                    yield kept, torch.from_numpy(np.stack(pixels))
            watch("images", start + len(part), len(items), "")

    def _rows(self, images: Any) -> Tensor:
        rows = torch.as_tensor(np.asarray(images, dtype=np.float32))
        if rows.ndim != 2 or rows.shape[1] != self.size:
            raise ConfigError(
                f"this model takes features [n, {self.size}], not shape {tuple(rows.shape)}"
            )
        return rows

    def _decoded(
        self, items: Sequence[Any], start: int, quarantine: Quarantine | None
    ) -> tuple[list[int], list[np.ndarray]]:
        def read(item: Any) -> np.ndarray | ImageError:
            try:
                return as_pixels(item, self.size, max_pixels=self.max_pixels)
            except ImageError as error:
                return error

        kept, pixels = [], []
        with ThreadPoolExecutor() as pool:
            for place, result in enumerate(pool.map(read, items)):
                if not isinstance(result, ImageError):
                    kept.append(start + place)
                    pixels.append(result)
                    continue
                item = items[place]
                name = str(item) if isinstance(item, str | Path) else f"image {start + place}"
                if quarantine is None:
                    raise ImageError(f"{name}: {result}")
                quarantine.add(name, str(result))
        return kept, pixels


def _listed(images: Any) -> Sequence[Any]:
    """One path (file or folder) means what is below it; anything else is a sequence of images."""
    if isinstance(images, str | Path):
        return find_images([images])
    return images if isinstance(images, Sequence) else list(images)
