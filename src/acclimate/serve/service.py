"""What a server does, without the server: sites, their images, predictions for all of them.

`Service` may be called by many threads. Several of them, in one process or on several machines, are
one if they have the same database and the same models.
"""

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.adapt.choice import sure_answer
from acclimate.adapt.classifier import Adapted
from acclimate.adapt.suggest import choose_rows
from acclimate.core.distributed import cores
from acclimate.core.errors import ConfigError, ImageError, OverLimit, StoreError, unknown
from acclimate.core.exports import load
from acclimate.core.text import count, reason_of
from acclimate.data.images import read_pixels
from acclimate.data.source import MOST_THREADS
from acclimate.learn.embeddings.pictures import UNLABELLED, Pictures, picture_hashes
from acclimate.learn.model import Trained
from acclimate.serve.batcher import Batcher
from acclimate.serve.limits import Limits
from acclimate.serve.models import ServedModel
from acclimate.serve.store import Arrivals, Outcome, Store
from acclimate.serve.tables import Row
from acclimate.serve.views import Added, Prediction, SiteSummary, SiteView

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
KEY = re.compile(r"[\x21-\x7e]{1,200}")
LOCKS = 16  # sites whose classifiers are made at the same time
WATCH = "acclimate.watch:site_drift"


@dataclass(frozen=True)
class Current:
    """A site's classifier, and what it was made from."""

    row: Row
    model: ServedModel
    adapted: Adapted
    kept: int


class Service:
    """Sites over one store, and a batcher for all of them."""

    def __init__(
        self,
        models: Mapping[str, Trained],
        store: Store,
        *,
        keep: int = 500,
        limits: Limits | None = None,
        batch: int = 64,
        wait: float = 0.005,
        room: int = 2048,
        told: Callable[[int, float], None] = lambda images, seconds: None,
    ) -> None:
        if not models:
            raise ConfigError("there is no model to serve; give at least one")
        if keep < 1:
            raise ConfigError(f"keep is {keep}; a site keeps one image or more")
        self.models = {name: ServedModel(name, trained) for name, trained in models.items()}
        self.default = next(iter(self.models))
        self.store, self.keep = store, keep
        self.limits = Limits() if limits is None else limits
        self.batcher = Batcher(most=batch, wait=wait, room=room, told=told)
        threads = min(cores(), MOST_THREADS)
        self._decoders = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._locks = [threading.Lock() for _ in range(LOCKS)]
        self._current: OrderedDict[str, Current] = OrderedDict()

    @classmethod
    def open(
        cls, runs: Mapping[str, Path], database: str, *, device: str = "auto", **settings: Any
    ) -> "Service":
        """Serve finished runs by these names, the first one unless a site asks for another."""
        from acclimate.core.distributed import pick_device

        chosen = pick_device(device)
        models = {name: Trained.load(run, chosen) for name, run in runs.items()}
        return cls(models, Store(database), **settings)

    def close(self) -> None:
        """Answer what is waiting, and stop."""
        self.batcher.close()
        self._decoders.shutdown()
        self.store.close()

    # Sites

    def create_site(self, name: str, model: str | None = None) -> SiteView:
        """The site of this name, which may be there already."""
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"'{name[:100]}' is no name of a site; use 1 to 100 letters, digits, dots, dashes "
                f"and underscores, with a letter or digit first"
            )
        served = self._model(model or self.default)
        row = self.store.create(name, served.name, served.extractor, self.keep, self.limits.sites)
        if model is not None and model not in (row.model, row.next_model):
            raise ConfigError(f"site '{name}' uses model '{row.model}'; move it to use '{model}'")
        return self._view(name)

    def site(self, name: str) -> SiteView:
        return self._view(name)

    def sites(self) -> list[SiteView]:
        return [self._view(row.name) for row in self.store.all()]

    def overview(self) -> dict[str, SiteSummary]:
        """What is known of every site without work: of one that was not asked for here since it
        changed, its images and its model alone."""
        totals = self.store.totals()
        summaries = {}
        for row in self.store.all():
            current = self._current.get(row.name)
            trust = current.adapted.trust if current is not None and current.row == row else None
            expected = None if trust is None else trust.expected_accuracy
            summaries[row.name] = SiteSummary(
                name=row.name,
                model=row.model,
                moving_to=row.next_model,
                revision=row.revision,
                images=totals.get(row.name, 0),
                expected_accuracy=None if expected is None else expected.accuracy,
            )
        return summaries

    def delete(self, name: str) -> None:
        self.store.delete(name)
        self._current.pop(name, None)

    def rollback(self, name: str, revision: int | None = None) -> SiteView:
        """Forget what came after `revision`; None: what came last."""
        self.store.roll_back(name, revision)
        return self._view(name)

    def move(self, name: str, model: str) -> SiteView:
        """Let the site use another model: at once by its stored features where both have the same
        backbone, else when enough new images have come. Until then it stays with the old model."""
        served = self._model(model)
        row = self.store.find(name)
        at_once = row.model not in self.models or not self.store.counts(row)[0]
        self.store.move(name, served.name, served.extractor, at_once=at_once)
        return self._view(name)

    # Images and labels

    def add_images(
        self,
        name: str,
        images: Sequence[bytes],
        *,
        labels: Sequence[str | None] | None = None,
        key: str | None = None,
    ) -> Added:
        """Add images to a site. One that the site has already changes nothing, and neither does a
        call whose `key` was used before. An image that cannot be read is left out, and named."""
        self._check_call(images, key)
        if labels is not None and len(labels) != len(images):
            raise ConfigError(f"there are {len(images)} images and {len(labels)} labels")
        row = self.store.find(name)
        given = [None] * len(images) if labels is None else list(labels)
        digest = _digest(*images, *(str(label) for label in given))
        if key is not None and (before := self.store.answer(name, key, digest)):
            return self._added(name, before)
        used = self._models_of(row)
        _check_classes(used[0], given)
        with self.batcher.reserve(len(images)):
            seen = [self._look(model, images, given) for model in used]
        hashes, reasons = seen[0][1], seen[0][2]
        about = {
            "pictures": [None if number is None else _shown(number) for number in hashes],
            "unreadable": [{"index": i, "reason": reason} for i, reason in reasons.items()],
            "repeated": sum(h is not None for h in hashes) - len({*hashes} - {None}),
        }
        arrivals = {model.extractor: part for model, (part, *_) in zip(used, seen, strict=True)}
        outcome = self.store.add(
            name, arrivals, most=self.limits.pictures, key=key, digest=digest, about=about
        )
        return self._added(name, outcome)

    def add_labels(
        self, name: str, labels: Mapping[str, str | None], *, key: str | None = None
    ) -> Added:
        """Label pictures by their ids; None takes a label back."""
        _check_key(key)
        row = self.store.find(name)
        _check_classes(self._models_of(row)[0], labels.values())
        numbers = {_number(picture): label for picture, label in labels.items()}
        digest = _digest(*(f"{picture}={label}" for picture, label in labels.items()))
        about = {"pictures": list(labels)}
        outcome = self.store.label(name, numbers, key=key, digest=digest, about=about)
        return self._added(name, outcome)

    def suggest(self, name: str, count: int = 20) -> list[dict[str, Any]]:
        """So many pictures to label, as different from each other as those without a label are."""
        if count < 1:
            raise ConfigError(f"count is {count}; ask for one image or more")
        current, kept = self._classifier(name), self.store.kept(name)
        rows = [i for i, h in enumerate(kept.hashes.tolist()) if h not in kept.labels]
        if not rows:
            return []
        predictor = current.adapted.predictor
        with torch.no_grad():
            output = predictor.head(kept.features[rows].float().to(predictor.device))
        chosen = choose_rows(output, current.adapted.classes, count)
        return [
            {"picture": _shown(int(kept.hashes[rows[place]])), "guess": guess, "confidence": sure}
            for place, guess, sure in chosen
        ]

    # Predictions

    def predict(
        self,
        name: str,
        images: Sequence[bytes],
        *,
        at_least: float | None = None,
        unsure_below: float = 0.0,
        plain: bool = False,
    ) -> list[Prediction]:
        """The class of each image at a site, in order; `plain`: by the model as it was before any
        adaptation. With `at_least` or `unsure_below`, an image that is not sure has no label."""
        self._check_call(images)
        current = self._classifier(name)
        adapted = current.model.unadapted if plain else current.adapted
        predictor = adapted.predictor
        if at_least is not None:
            answer = sure_answer(adapted.trained, adapted.state, at_least)
            unsure_below = max(answer.threshold, unsure_below)
        with self.batcher.reserve(len(images)):
            stored, places, reasons = self._decode(current.model, images)
            logits = torch.zeros(0, len(adapted.classes))
            if places:
                row = self.batcher.run(predictor.backbone, stored, predictor.head)
                assert row.logits is not None
                logits = row.logits
        probabilities = dict(zip(places, torch.softmax(logits, 1).numpy(), strict=True))
        return [
            Prediction(None, None, None, None, index, reasons[index])
            if index in reasons
            else _prediction(probabilities[index], adapted.classes, unsure_below, index)
            for index in range(len(images))
        ]

    # What else is known of sites

    def drift(self, name: str) -> Any:
        """Whether the site is still as it was adapted to."""
        try:
            watch = load(WATCH)
        except (ImportError, AttributeError):
            raise ConfigError("watching sites is not part of this version") from None
        return watch(self, name)

    def export(self, name: str) -> bytes:
        """The site's classifier as an ONNX file."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.onnx"
            self._classifier(name).adapted.export(path)
            return path.read_bytes()

    def training_map(self) -> dict[str, dict[str, Mapping[str, tuple[float, float]]]]:
        """Where training domains and sites lie, in two dimensions: of each model that has an
        embedding, the points of its `training` domains and of `sites`, by name."""
        every = [self._classifier(row.name) for row in self.store.all()]
        return {
            name: {
                "training": plane.training,
                "sites": {
                    one.row.name: plane.point(one.adapted.state)
                    for one in every
                    if one.model is model and one.adapted.state is not None
                },
            }
            for name, model in self.models.items()
            if (plane := model.plane) is not None
        }

    def _model(self, name: str) -> ServedModel:
        if name not in self.models:
            raise unknown(f"there is no model '{name}' here", name, self.models)
        return self.models[name]

    def _models_of(self, row: Row) -> list[ServedModel]:
        """The model in use, and the one that the site moves to."""
        names = [row.model, *([row.next_model] if row.next_model in self.models else [])]
        models = [self._model(name) for name in names]
        if models[0].extractor != row.extractor:
            raise StoreError(
                f"site '{row.name}' was made with another model of the name '{row.model}'; serve "
                f"that one, or move the site"
            )
        return models

    def _classifier(self, name: str) -> Current:
        """The site's classifier as of now: made again if the site has changed since."""
        row = self.store.find(name)
        current = self._current.get(name)
        if current is not None and current.row == row:
            return current
        with self._locks[hash(name) % LOCKS]:
            current = self._current.get(name)
            if current is not None and current.row == row:
                return current
            kept = self.store.kept(name)
            model = self._models_of(kept.row)[0]
            current = Current(kept.row, model, model.adapt(kept), len(kept.hashes))
            self._current[name] = current
            while len(self._current) > self.limits.classifiers:
                self._current.popitem(last=False)
            return current

    def _view(self, name: str) -> SiteView:
        current = self._classifier(name)
        row, adapted = current.row, current.adapted
        images, labelled = self.store.counts(row)
        return SiteView(
            name=name,
            model=row.model,
            moving_to=row.next_model,
            revision=row.revision,
            images=images,
            kept=current.kept,
            labelled=labelled,
            method=adapted.method,
            notes=adapted.notes,
            trust=adapted.trust,
            label_prior=adapted.label_prior,
            history=self.store.history(row),
        )

    def _added(self, name: str, outcome: Outcome) -> Added:
        about = outcome.about
        return Added(
            site=self._view(name),
            pictures=about["pictures"],
            added=outcome.added,
            repeated=outcome.repeated + about.get("repeated", 0),
            labelled=outcome.labelled,
            unreadable=about.get("unreadable", ()),
            not_kept=[_shown(number) for number in outcome.not_kept],
            again=outcome.again,
        )

    def _check_call(self, images: Sequence[bytes], key: str | None = None) -> None:
        _check_key(key)
        if not images:
            raise ConfigError("there is no image in this call; send at least one")
        if len(images) > self.limits.images:
            most = count(self.limits.images, "image")
            raise OverLimit(f"a call of {len(images)} images; send at most {most} at once")

    def _decode(
        self, model: ServedModel, images: Sequence[bytes]
    ) -> tuple[Tensor, list[int], dict[int, str]]:
        """The readable images as stored, their places, and why the others are not readable."""
        size, max_pixels = model.trained.size, model.trained.config.data.max_pixels

        def read(image: bytes) -> np.ndarray | str:
            if len(image) > self.limits.image_mib << 20:
                return f"{len(image)} bytes, over the limit of {self.limits.image_mib} MiB"
            try:
                return read_pixels(image, size, max_pixels=max_pixels)
            except ImageError as error:
                return reason_of(error)

        each = enumerate(self._decoders.map(read, images))
        pixels, reasons = dict[int, np.ndarray](), dict[int, str]()
        for index, one in each:
            if isinstance(one, str):
                reasons[index] = one
            else:
                pixels[index] = one
        empty = np.zeros((0, 3, size, size), np.uint8)
        stored = np.stack([*pixels.values()]) if pixels else empty
        return torch.from_numpy(stored), [*pixels], reasons

    def _look(
        self, model: ServedModel, images: Sequence[bytes], labels: Sequence[str | None]
    ) -> tuple[Arrivals, list[int | None], dict[int, str]]:
        """What a model makes of images: each picture once, the hash of every image, and why some
        cannot be read."""
        stored, places, reasons = self._decode(model, images)
        hashes, new = picture_hashes(stored, {})
        numbers: list[int | None] = [None] * len(images)
        for place, number in zip(places, hashes.tolist(), strict=True):
            numbers[place] = number
        given = {
            number: label
            for number, label in zip(numbers, labels, strict=True)
            if number is not None and label is not None
        }
        if not places:
            width = model.backbone.features
            return Arrivals([], torch.zeros(0, width)), numbers, reasons
        row = self.batcher.run(model.backbone, stored[new], phi=model.phi)
        assert row.features is not None
        marks = torch.full((len(row.features),), UNLABELLED)
        pictures = Pictures(hashes[new], row.features, marks).halved()
        phi = None if row.phi is None else row.phi.half()
        return Arrivals(hashes[new].tolist(), pictures.features, phi, given), numbers, reasons


def _prediction(
    row: np.ndarray, classes: Sequence[str], unsure_below: float, index: int
) -> Prediction:
    likeliest, probability = classes[int(row.argmax())], float(row.max())
    label = likeliest if probability >= unsure_below else None
    return Prediction(label, probability, likeliest, row, index)


def _check_key(key: str | None) -> None:
    if key is not None and not KEY.fullmatch(key):
        raise ConfigError(
            f"'{key[:50]}' is no idempotency key; use 1 to 200 printable ASCII characters, no space"
        )


def _check_classes(model: ServedModel, labels: Any) -> None:
    classes = model.trained.classes
    for label in labels:
        if label is not None and label not in classes:
            raise unknown(f"the model knows no class '{label}'", label, classes)


def _digest(*parts: bytes | str) -> str:
    """Of all parts, and of where each ends."""
    whole = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part if isinstance(part, bytes) else part.encode()
        whole.update(f"{len(content)}:".encode())
        whole.update(content)
    return whole.hexdigest()


def _shown(number: int) -> str:
    """A picture's id: its hash, as 16 hexadecimal digits."""
    return f"{number % 2**64:016x}"


def _number(picture: str) -> int:
    if not re.fullmatch(r"[0-9a-f]{16}", picture):
        raise ConfigError(f"'{picture[:50]}' is no id of a picture; it has 16 hexadecimal digits")
    number = int(picture, 16)
    return number - 2**64 if number >= 2**63 else number
