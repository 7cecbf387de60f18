"""A site as it was adapted to, and a window of new images of it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.adapt.choice import STRENGTH, promise_for
from acclimate.adapt.classifier import Adapted, apply_state, open_images
from acclimate.adapt.methods import chain_of
from acclimate.adapt.methods.prior import em_prior, posteriors
from acclimate.core.errors import StateMismatch
from acclimate.core.files import file_digest
from acclimate.core.progress import Watch as Progress
from acclimate.core.progress import unwatched
from acclimate.core.tensors import tensors_digest
from acclimate.core.text import count
from acclimate.data.source import Quarantine, readable, to_float
from acclimate.learn.embeddings import DomainState
from acclimate.learn.embeddings.pictures import (
    UNLABELLED,
    Pictures,
    in_16_bits,
    picture_hashes,
)
from acclimate.learn.images import Images
from acclimate.learn.model import Model, Trained
from acclimate.learn.models import Predictor, takes_features
from acclimate.records.doubt import Forecast, scores_of

SCORES = ("appearance", "frequencies", "accuracy")
LEAST = 20  # pictures of a site, below which there is nothing to compare with
LEVELS = 64  # of a score, at most
DIRECTIONS = 32  # in which a site's features are compared, at most
DARK, FLAT = 10.0, 3.0  # of 255: mean of an image's pixels, and their standard deviation
NO_HASHES = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Window:
    """New images of a site, each once."""

    hashes: Tensor  # [n] int64: as `picture_hashes` has them
    features: Tensor  # [n, f]: by the model's backbone
    poor: np.ndarray  # [n]: whether they are dark or near constant
    unreadable: Tensor = NO_HASHES  # [u] int64: of files that are no images
    places: np.ndarray | None = None  # [n]: among the images that were given

    def __len__(self) -> int:
        """Those that could be read."""
        return len(self.hashes)

    @property
    def total(self) -> int:
        return len(self.hashes) + len(self.unreadable)

    def without(self, known: Tensor) -> "Window":
        """In the order of their hashes, which is as good as random, those whose are not `known`."""
        order = torch.argsort(self.hashes)
        kept = order[~torch.isin(self.hashes[order], known)]
        rows = kept.numpy()
        return Window(
            self.hashes[kept],
            self.features[kept],
            self.poor[rows],
            self.unreadable[~torch.isin(self.unreadable, known)],
            rows if self.places is None else self.places[rows],
        )


def is_poor(stored: Tensor) -> np.ndarray:
    """Which of images [n, 3, h, w] uint8 are dark or near constant: [n]; of rows of features none
    are."""
    if stored.dtype != torch.uint8:
        return np.zeros(len(stored), bool)
    pixels = stored.float().flatten(1)
    mean, norm = pixels.mean(1), torch.linalg.vector_norm(pixels, dim=1)
    # PyTorch's own standard deviation takes as long as decoding a small image.
    variance = norm.square() / pixels.shape[1] - mean.square()
    return np.asarray(((mean < DARK) | (variance < FLAT**2)).cpu())


@torch.no_grad()
def read_window(
    trained: Trained,
    images: Any,
    quarantine: Quarantine | None = None,
    watch: Progress = unwatched,
) -> Window:
    """The window of images that a user hands over; unreadable ones go to `quarantine`, too."""
    quarantine = Quarantine() if quarantine is None else quarantine
    source, rows = open_images(images, trained, quarantine)
    backbone, known = trained.predictor.backbone, dict[int, int]()
    hashes, poor, places = [NO_HASHES], [np.zeros(0, bool)], [rows[:0]]
    features = [torch.zeros(0, backbone.features)]
    for given, stored in readable(source, rows, watch):
        own, new = picture_hashes(stored, known)
        hashes.append(own[new])
        features.append(backbone(to_float(stored[new], trained.device)).float().cpu())
        poor.append(is_poor(stored[new]))
        places.append(given[new.numpy()])
    return Window(
        torch.cat(hashes),
        torch.cat(features),
        np.concatenate(poor),
        torch.tensor([_file_hash(name) for name, _ in quarantine.entries], dtype=torch.int64),
        np.concatenate(places),
    )


def _file_hash(name: str) -> int:
    """Of a file's content; of something that is no file, of its name."""
    path = Path(name)
    content = file_digest(path) if path.is_file() else name
    digest = hashlib.blake2b(content.encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


@dataclass(frozen=True, eq=False)
class Baseline:
    """A site as it was adapted to: scores of an image, and how those of its sample are distributed.

    What the scores are fitted to is one half of the sample, and what new images are ranked among
    is the other, so that these and the new ones are exchangeable as long as nothing has changed.
    """

    site: Adapted
    digest: str
    centre: np.ndarray  # [d]
    basis: np.ndarray  # [d, k]: directions, each divided by its standard deviation
    edges: Mapping[str, np.ndarray]  # of the levels of each score, ascending
    counts: Mapping[str, np.ndarray]  # [L]: pictures of the sample by levels
    sample: Images  # all of it
    promised: Forecast | None  # accuracy

    @classmethod
    def of(cls, trained: Trained, state: DomainState) -> "Baseline":
        """What the `state` of a site keeps of it; an error where that is too little."""
        site = apply_state(trained, state)
        pictures = uniform_sample(state)
        if len(pictures) < LEAST:
            raise StateMismatch(
                f"the domain state keeps {count(len(pictures), 'picture')} to compare new ones "
                f"with; adapt on {LEAST} images or more (with --keep {LEAST} or more)"
            )
        identity = (("seen", state.seen), ("pictures", pictures.hashes), *_flat(state))
        fitted, ranked = (pictures.features[half::2].float() for half in (0, 1))
        centre, basis = _directions(_appearance(trained, fitted))
        scores = _scores(trained, centre, basis, fitted)
        share = np.linspace(0, 1, min(LEVELS, len(fitted)) + 1)[1:-1]
        edges = {name: np.unique(np.quantile(own, share)) for name, own in scores.items()}
        edges["frequencies"] = np.arange(1, len(trained.classes)) - 0.5
        own = _levels(_scores(trained, centre, basis, ranked), edges)
        return cls(
            site,
            tensors_digest(identity) + trained.digest(),
            centre,
            basis,
            edges,
            {name: np.bincount(own[name], minlength=len(edges[name]) + 1) for name in edges},
            _images(trained, pictures.features),
            _expected(site, _images(trained, pictures.features)),
        )

    def levels(self, window: Window) -> dict[str, np.ndarray]:
        """The level of each image by each score: [n]"""
        if not len(window):
            return {name: np.zeros(0, int) for name in SCORES}
        features, trained = window.features, self.site.trained
        if not takes_features(trained.predictor):
            features = in_16_bits(features)  # as those of the sample were kept
        scores = _scores(trained, self.centre, self.basis, features.float())
        return _levels(scores, self.edges)

    @property
    def plain(self) -> Predictor:
        """The model as it is, which no image of the site has changed."""
        return _plain(self.site.trained)

    def bins(self, score: str) -> int:
        """How finely its p values are looked at: as there are classes, where it ranks these."""
        return int(np.clip(len(self.counts[score]), 10, 40)) if score == "frequencies" else 10

    def mix(self, images: Images) -> dict[str, float]:
        """Class frequencies of images by EM."""
        trained = self.site.trained
        prior = torch.tensor(trained.label_prior, dtype=torch.float64)
        rows = posteriors(self.plain, images)
        shares, _ = em_prior(rows, prior, strength=STRENGTH, tolerance=1e-4, most=200)
        return dict(zip(trained.classes, shares.tolist(), strict=True))

    def images(self, window: Window) -> Images:
        """A window for heads, which take features."""
        return _images(self.site.trained, window.features)

    def expected(self, images: Images) -> Forecast | None:
        """The accuracy to expect on them."""
        return _expected(self.site, images)


def uniform_sample(state: DomainState) -> Pictures:
    """Pictures of a state that are a uniform sample of its images: where it could not keep all, it
    kept labelled ones first, and these are no such sample."""
    pictures = state.pictures
    free = pictures.hashes[pictures.labels == UNLABELLED]
    if state.whole or not len(free):
        return pictures
    return pictures.take(pictures.hashes <= free.max())


def _flat(state: DomainState) -> list[tuple[str, Tensor]]:
    return [(f"{name}/{key}", t) for name, own in state.payloads.items() for key, t in own.items()]


def _images(trained: Trained, features: Tensor) -> Images:
    """Pictures of which the features alone are at hand."""
    images = Images(features.float(), trained.device)
    images.keep(trained.predictor.backbone, features.float())
    return images


def _directions(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean [d] of rows [n, d] and their principal directions [d, k], each divided by the
    standard deviation along it."""
    centre = rows.mean(0)
    _, sizes, directions = np.linalg.svd(rows - centre, full_matrices=False)
    most = min(DIRECTIONS, max(len(rows) // 4, 1))
    spread = np.maximum(sizes[:most] / np.sqrt(len(rows)), 1e-6 * max(sizes[0], 1e-6))
    return centre, directions[:most].T / spread


def _plain(trained: Trained) -> Predictor:
    return trained.start(embedding=False).at(None)


def _appearance(trained: Trained, features: Tensor) -> np.ndarray:
    """Φ of pictures [n, d], by their features; these where there is no Φ of features."""
    model: Model = trained.start(embedding=True)
    if model.embedding is not None and model.below_phi is not None:
        batches = Images(features, trained.device).batches()
        with torch.no_grad():
            features = torch.cat([model.embedding.phi(x) for x in batches])
    return np.asarray(features.double().cpu())


def _scores(
    trained: Trained, centre: np.ndarray, basis: np.ndarray, features: Tensor
) -> dict[str, np.ndarray]:
    """Scores of pictures by their features [n, f]: [n] each."""
    rows = posteriors(_plain(trained), _images(trained, features)).numpy()
    distance = (((_appearance(trained, features) - centre) @ basis) ** 2).sum(1)
    return {"appearance": distance, "frequencies": rows.argmax(1), "accuracy": rows.max(1)}


def _levels(
    scores: Mapping[str, np.ndarray], edges: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    return {name: np.searchsorted(edges[name], own, side="right") for name, own in scores.items()}


def _expected(site: Adapted, images: Images) -> Forecast | None:
    """The accuracy to expect on images of a site, of which the features alone are at hand; None
    where too little is known to say."""
    promise = promise_for(site.trained, site.state)
    if promise is None or len(images) < promise.n:
        return None
    if site.state is not None and not chain_of(site.state).head_only:
        return promise.expected()
    rows = posteriors(site.predictor, images).numpy()
    return promise.expected(scores_of(rows, site.trained.label_prior))
