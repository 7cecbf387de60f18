"""What a server does, without the server: sites, their images, predictions for all of them."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from acclimate.adapt.choice import sure_answer
from acclimate.adapt.suggest import choose_rows
from acclimate.core.distributed import pick_device
from acclimate.core.errors import AcclimateError, ConfigError, OverLimit
from acclimate.core.text import count
from acclimate.learn.model import Trained
from acclimate.serve.batcher import Batcher, Made, Reservation
from acclimate.serve.calls import (
    Decoded,
    Decoder,
    Look,
    check_key,
    check_name,
    digest_of,
    number_of,
    picture_id,
)
from acclimate.serve.classifiers import Classifiers
from acclimate.serve.limits import Limits
from acclimate.serve.models import Point
from acclimate.serve.store import Outcome, Store
from acclimate.serve.tables import Row
from acclimate.serve.views import Added, Prediction, SiteView
from acclimate.serve.watching import Watcher, window_of

LOCKS = 16  # sites whose classifiers are made at the same time


class Service:
    """Sites over one store, and a batcher for all of them. Any number of threads may call it.

    Several services, in one process or on several machines, are one if they have the same database
    and the same models: every answer is by the site's images as the database has them.

    Errors: `UnknownSite` and `UnknownName`; `OverLimit`; `QueueFull`, to be tried again;
    `KeyReused`; `StoreError`, if the database is the problem; `ConfigError` for whatever else is
    wrong in a call.
    """

    def __init__(
        self,
        models: Mapping[str, Trained],
        store: Store,
        *,
        keep: int = 500,
        allow_backbone: bool = False,
        limits: Limits | None = None,
        batch: int = 64,
        wait: float = 0.005,
        room: int = 2048,
        told: Callable[[int, float], None] = lambda images, seconds: None,
    ) -> None:
        """The first of `models` is that of sites that do not ask for another.

        `keep` features of each new site are stored. With `allow_backbone` a site may be adapted by
        a method that changes the backbone; its pixels are stored, too, and its images have a pass
        of their own. `batch` images have one pass, or fewer after `wait` seconds; `room` images may
        be waiting. `told` hears of every batch: its images, and how many seconds it took.
        """
        if keep < 1:
            raise ConfigError(f"keep is {keep}; a site keeps one image or more")
        self.store, self.keep, self.allow_backbone = store, keep, allow_backbone
        self.limits = Limits() if limits is None else limits
        self.classifiers = Classifiers(models, store, self.limits.classifiers)
        self.models = self.classifiers.models
        self.default = next(iter(self.models))
        self.batcher = Batcher(most=batch, wait=wait, room=room, told=told)
        self._decoder = Decoder(self.limits.image_mib)
        self.watcher = Watcher(store, self.classifiers.baseline)

    @classmethod
    def open(
        cls, runs: Mapping[str, Path], database: str, *, device: str = "auto", **settings: Any
    ) -> "Service":
        """Serve finished runs by these names; `settings` as above."""
        chosen = pick_device(device)
        models = {name: Trained.load(run, chosen) for name, run in runs.items()}
        store = Store(database)
        try:
            return cls(models, store, **settings)
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Answer what is waiting, and stop."""
        self.batcher.close()
        self.watcher.close()
        self._decoder.close()
        self.store.close()

    # Sites

    def create_site(
        self, name: str, model: str | None = None, method: str | None = None
    ) -> SiteView:
        """The site of this name, which may be there already. `method` is as of `adapt`."""
        check_name(name)
        served, chain = self.classifiers.model(model or self.default), method or "auto"
        if served.changes_backbone(chain) and not self.allow_backbone:
            raise ConfigError(
                f"method '{chain}' changes the backbone, so that each image of the site would have "
                f"a pass of its own and its pixels be stored; start with --allow-backbone"
            )
        values = {"model": served.name, "method": chain, "extractor": served.extractor}
        row = self.store.create(name, self.limits.sites, **values, keep=self.keep)
        if model not in (None, row.model, row.next_model) or method not in (None, row.method):
            raise ConfigError(
                f"site '{name}' uses model '{row.model}' and method '{row.method}'; move it to "
                f"another model, or delete it first"
            )
        return self._view(row)

    def site(self, name: str) -> SiteView:
        return self._view(self.store.find(name))

    def sites(self) -> list[SiteView]:
        """All sites by name, without their history."""
        return [self._view(row, history=False) for row in self.store.all()]

    def delete(self, name: str) -> None:
        """Nothing of the site is left, in memory or in the database's tables."""
        self.store.delete(name)
        self.watcher.forget(name)
        self.classifiers.forget(name)

    def rollback(self, name: str, revision: int | None = None) -> SiteView:
        """Forget images and labels that came after `revision`; None: those that came last."""
        self.store.roll_back(name, revision)
        return self.site(name)

    def move(self, name: str, model: str) -> SiteView:
        """Let the site use another model: at once by its stored features if both have the same
        backbone, else when enough new images have come. Until then it stays with the old model."""
        served, row = self.classifiers.model(model), self.store.find(name)
        served.changes_backbone(row.method)
        at_once = row.model not in self.models or not self.store.kept(name).images
        self.store.move(name, served.name, served.extractor, at_once=at_once)
        return self.site(name)

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
        check_key(key)
        self._check_count(images)
        given = [None] * len(images) if labels is None else list(labels)
        if len(given) != len(images):
            raise ConfigError(f"there are {len(images)} images and {len(given)} labels")
        digest = ""
        if key is not None:
            digest = digest_of(*images, *(repr(label) for label in given))
            if (before := self.store.answer(name, key, digest)) is not None:
                return self._added(name, before)
        with self.batcher.reserve(len(images)) as room:
            outcome = self._add(name, images, given, key, digest, room)
        return self._added(name, outcome)

    def _add(
        self,
        name: str,
        images: Sequence[bytes],
        labels: Sequence[str | None],
        key: str | None,
        digest: str,
        room: Reservation,
    ) -> Outcome:
        """The store says which pictures it needs features of; those that it has cost no pass."""
        looks: dict[str, Look] = {}
        while True:
            row = self.store.find(name)
            models = self.classifiers.of(row)
            models[0].check_classes(labels)
            for model in models:
                if model.extractor not in looks:
                    decoded = self._decoder(model, images)
                    pixels = model.changes_backbone(row.method)
                    looks[model.extractor] = Look(model, decoded, labels, pixels)
            arrivals = {model.extractor: looks[model.extractor].arrivals() for model in models}
            about = looks[models[0].extractor].about
            outcome = self.store.add(
                name, arrivals, most=self.limits.pictures, key=key, digest=digest, about=about
            )
            if not outcome.wanted:
                return outcome
            for extractor, hashes in outcome.wanted.items():
                if extractor in looks:
                    looks[extractor].extract(hashes, room)

    def add_labels(
        self, name: str, labels: Mapping[str, str | None], *, key: str | None = None
    ) -> Added:
        """Label pictures by their ids; None takes a label back."""
        check_key(key)
        self.classifiers.of(self.store.find(name))[0].check_classes(labels.values())
        numbers = {number_of(picture): label for picture, label in labels.items()}
        digest = digest_of(*(f"{picture}={label!r}" for picture, label in labels.items()))
        about = {"pictures": list(labels)}
        outcome = self.store.label(name, numbers, key=key, digest=digest, about=about)
        return self._added(name, outcome)

    def suggest(self, name: str, count: int = 20) -> list[dict[str, Any]]:
        """So many pictures to label, as different from each other as those without a label are."""
        if count < 1:
            raise ConfigError(f"count is {count}; ask for one image or more")
        current, kept = self.classifiers.current(name), self.store.kept(name)
        rows = [i for i, number in enumerate(kept.hashes.tolist()) if number not in kept.labels]
        if not rows:
            return []
        predictor = current.adapted.predictor
        with torch.no_grad():
            output = predictor.head(kept.features[rows].float().to(predictor.device))
        chosen = choose_rows(output, current.adapted.classes, count)
        ids = [picture_id(int(kept.hashes[rows[place]])) for place, _, _ in chosen]
        return [
            {"picture": one, "guess": guess, "confidence": confidence}
            for one, (_, guess, confidence) in zip(ids, chosen, strict=True)
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
        """The class of each image at a site, in order; `plain`: by the model before any adaptation.
        With `at_least` or `unsure_below`, as of `Adapted.predict`, an image that is not sure has no
        label."""
        self._check_count(images)
        current = self.classifiers.current(name)
        adapted = current.model.unadapted if plain else current.adapted
        if at_least is not None:
            answer = sure_answer(adapted.trained, adapted.state, at_least)
            unsure_below = max(answer.threshold, unsure_below)
        watched = current.watched and not plain
        answers, parts = dict[int, Prediction](), list[tuple[int, Decoded, Future[Made] | None]]()
        with self.batcher.reserve(len(images)) as room:
            # The next images are decoded while the first are on their way.
            for start in range(0, len(images), self.batcher.most):
                decoded = self._decoder(current.model, images[start : start + self.batcher.most])
                job = None
                if decoded.places:
                    predictor = adapted.predictor
                    own = predictor.backbone, decoded.stored, predictor.head
                    job = room.submit(*own, features=watched)
                parts.append((start, decoded, job))
            for start, decoded, job in parts:
                made = None if job is None else job.result()
                answers |= _predictions(decoded, made, adapted.classes, unsure_below, start)
                if watched:
                    self.watcher.see(current.row, window_of(decoded, made))
        return [answers[place] for place in range(len(images))]

    # What else is known of sites

    def drift(self, name: str) -> dict[str, Any]:
        """Whether the images that were predicted are still of the site as it was adapted to: the
        fields of `WatchReport`, and the evidence over time as `history`."""
        return self.watcher.report(self.store.find(name))

    def export(self, name: str) -> bytes:
        """The site's classifier as an ONNX file."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "site.onnx"
            self.classifiers.current(name).adapted.export(path)
            return path.read_bytes()

    def training_map(self) -> dict[str, dict[str, Mapping[str, Point]]]:
        """Where training domains and sites lie, in two dimensions: of each model that has an
        embedding, the points of its `training` domains and of `sites`, by name."""
        views = [view for view in self.sites() if view.point is not None]
        return {
            name: {
                "training": model.plane.training,
                "sites": {
                    view.name: (view.point[0], view.point[1])
                    for view in views
                    if view.model == name and view.point is not None
                },
            }
            for name, model in self.models.items()
            if model.plane is not None
        }

    def _view(self, row: Row, *, history: bool = True) -> SiteView:
        try:
            facts = self.classifiers.facts(row)
        except AcclimateError as error:  # its model is not served
            facts = {"images": 0, "kept": 0, "labelled": 0, "method": "none", "notes": [str(error)]}
        entries = self.store.history(row) if history else ()
        return SiteView(
            row.name,
            row.model,
            row.next_model,
            row.revision,
            history=entries,
            drift=row.drift,
            **facts,
        )

    def _added(self, name: str, outcome: Outcome) -> Added:
        about = outcome.about
        return Added(
            site=self.site(name),
            pictures=about["pictures"],
            added=outcome.added,
            repeated=outcome.repeated + about.get("twice", 0),
            labelled=outcome.labelled,
            unreadable=about.get("unreadable", ()),
            not_kept=[picture_id(number) for number in outcome.not_kept],
            again=outcome.again,
        )

    def _check_count(self, images: Sequence[bytes]) -> None:
        if not images:
            raise ConfigError("there is no image in this call; send at least one")
        if len(images) > self.limits.images:
            most = count(self.limits.images, "image")
            raise OverLimit(f"a call of {len(images)} images; send at most {most} at once")


def _predictions(
    decoded: Decoded, made: Made | None, classes: Sequence[str], unsure_below: float, start: int
) -> dict[int, Prediction]:
    """What a part of a call comes to, by the places of its images in the call."""
    answers = {
        start + place: Prediction(start + place, problem=why)
        for place, why in decoded.reasons.items()
    }
    if made is not None and made.logits is not None:
        rows = torch.softmax(made.logits, 1).numpy()
        for place, row in zip(decoded.places, rows, strict=True):
            answers[start + place] = Prediction.of(row, classes, unsure_below, start + place)
    return answers
