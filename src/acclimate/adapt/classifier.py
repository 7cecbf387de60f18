"""Unlabelled images -> DomainState -> a classifier for that domain, and how far to trust it."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from acclimate.adapt.methods import (
    Chain,
    Images,
    base_predictor,
    chain_of,
    find_chain,
    no_phi,
    nothing_to_embed,
)
from acclimate.config import merged, nested
from acclimate.core.errors import ConfigError, ImageError, StateMismatch
from acclimate.core.watch import Watch, unwatched
from acclimate.data.images import as_pixels, find_images
from acclimate.data.quarantine import Quarantine
from acclimate.data.source import to_float
from acclimate.learn.embeddings import DomainState, DomainTable
from acclimate.learn.embeddings.domains import EVALUATION_BATCH
from acclimate.learn.model import Trained
from acclimate.learn.models import Predictor, takes_features

FEW_IMAGES = 20


@dataclass(frozen=True)
class Trust:
    """What is known of an adaptation without a single label."""

    n: int
    radius95: float | None  # Theorem 1, in units of the spread between training domains
    expected_error: float | None  # σ/√n, in the same units; one image tells nothing
    nearest_domain: str
    nearest_distance: float  # root mean square per dimension, in the same units
    typical_distance: float  # the same between a training domain and its nearest other: the largest
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Adapted:
    """The classifier of one domain: μ is folded into its biases, Φ is no longer needed.

    `trust` is about μ: there is none without the embedding.
    """

    predictor: Predictor
    classes: tuple[str, ...]
    size: int
    max_pixels: int
    state: DomainState | None = None
    trust: Trust | None = None

    @property
    def method(self) -> str:
        """How it was adapted, e.g. `embedding+prior`."""
        return "none" if self.state is None else chain_of(self.state).name

    @property
    def label_prior(self) -> dict[str, float] | None:
        """The domain's class frequencies as the method `prior` found them."""
        payload = None if self.state is None else self.state.payloads.get("prior")
        if payload is None:
            return None
        return dict(zip(self.classes, payload.tensors["prior"].tolist(), strict=True))

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
        inputs = Inputs(self.size, self.max_pixels, takes_features(self.predictor))
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
    method: str = "embedding",
    settings: Mapping[str, Any] | None = None,
    into: DomainState | None = None,
    quarantine: Quarantine | None = None,
    watch: Watch = unwatched,
) -> Adapted:
    """A classifier for the domain that `images` come from; `into` goes on from an earlier state.

    `method` is a row of `methods.METHODS`, or several joined by `+`, which follow each other. All
    but `embedding` (and `none`) keep the images in memory meanwhile. `settings` are the methods',
    such as {"tent.steps": 3}; they go before those that the model was trained with.
    """
    config = trained.config.adapt
    tables = merged(config.components, nested(settings or {}))
    chain = find_chain(method, replace(config, components=tables))
    state = _start(trained, chain, into)
    before = state.count
    embedding = trained.embedding if chain.embedding else None
    kept: list[Tensor] = []
    device = next(trained.predictor.parameters()).device
    inputs = Inputs(trained.size, trained.config.data.max_pixels, takes_features(trained.predictor))
    with torch.no_grad():
        for _, stored in inputs.batches(images, quarantine, watch):
            phi = embedding.phi(to_float(stored, device)) if embedding else no_phi(len(stored))
            state = state.updated(phi)
            if chain.methods:
                kept.append(stored)
    if state.count == before:
        raise nothing_readable(quarantine)
    if chain.methods:
        base = base_predictor(trained.predictor, trained.table, state)
        seen = Images(torch.cat(kept), device)
        context = chain.context(trained.predictor, trained.table, trained.label_prior)
        state = replace(state, payloads=chain.adapt(base, seen, context)[1])
    return apply_state(trained, state)


def apply_state(trained: Trained, state: DomainState | None) -> Adapted:
    """The classifier of a stored state; a plain model takes None as well and is used as it is."""
    config = trained.config.data
    if state is None:
        if trained.table is None:
            return Adapted(trained.predictor, trained.classes, trained.size, config.max_pixels)
        raise ConfigError(
            "an adaptive model predicts for a domain; give its state with --domain FILE "
            "(make it with `acclimate adapt`)"
        )
    state.require(trained.digest())
    chain = chain_of(state)
    base = base_predictor(trained.predictor, trained.table, state)
    predictor = chain.apply(base, state.payloads)
    table = trained.table if chain.embedding else None
    trust = None if table is None else judge(state, table)
    return Adapted(predictor, trained.classes, trained.size, config.max_pixels, state, trust)


def _start(trained: Trained, chain: Chain, into: DomainState | None) -> DomainState:
    """The state to fill: an empty one, or the earlier one where images can be added to it."""
    if chain.embedding and trained.embedding is None:
        raise nothing_to_embed(trained.config.algorithm)
    digest = trained.digest()
    if into is None:
        embedding = trained.embedding if chain.embedding else None
        return DomainState.empty(digest, embedding.dim if embedding else 0)
    into.require(digest)
    stuck = [*into.payloads, *chain.methods]
    if stuck:
        raise StateMismatch(f"'{stuck[0]}' cannot be merged; adapt it anew on all the images")
    made = chain_of(into).name
    if made != chain.name:
        raise StateMismatch(
            f"the earlier state was made by method '{made}', not '{chain.name}'; go on with "
            f"--method {made}, or adapt anew on all the images"
        )
    return into


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
        number = "1 image" if state.count == 1 else f"{state.count} images"
        warnings.append(f"only {number}: with {FEW_IMAGES} or more the adaptation is steadier")
    variance = state.sampling_variance
    if distance > typical:
        warnings.append(
            "this domain lies farther from every training domain than any of those from its "
            "nearest other: the model extrapolates"
        )
    return Trust(
        n=state.count,
        radius95=None if radius is None else radius / unit,
        expected_error=None if variance is None else (variance / state.count) ** 0.5 / unit,
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
        try:
            rows = torch.as_tensor(np.asarray(images, dtype=np.float32))
        except (TypeError, ValueError):
            raise ConfigError(
                f"this model takes arrays of features [n, {self.size}], not images"
            ) from None
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
    """One path (file or folder) means what is below it, one image is one image, and anything else
    is a sequence of images."""
    if isinstance(images, str | Path):
        return find_images([images])
    shape = tuple(getattr(images, "shape", ()))
    colours_first = isinstance(images, Tensor) and len(shape) == 3 and shape[0] == 3
    colours_last = len(shape) == 3 and shape[-1] == 3
    if isinstance(images, Image.Image) or len(shape) == 2 or colours_first or colours_last:
        return [images]
    return images if isinstance(images, Sequence) else list(images)
