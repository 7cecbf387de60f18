"""The classifiers of sites, each made again when its site has changed."""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acclimate import __version__
from acclimate.adapt.classifier import Adapted
from acclimate.core.errors import ConfigError, StoreError, unknown
from acclimate.learn.model import Trained
from acclimate.serve.models import ServedModel
from acclimate.serve.store import Store
from acclimate.serve.tables import Row
from acclimate.serve.views import facts_of
from acclimate.watch import Baseline
from acclimate.watch.baseline import LEAST

LOCKS = 16  # sites whose classifiers are made at the same time


@dataclass(frozen=True)
class Current:
    """A site's classifier, and what is known of it."""

    row: Row
    model: ServedModel
    adapted: Adapted
    facts: Mapping[str, Any]

    @property
    def watched(self) -> bool:
        """Whether new images can be compared with the site's: see `ServedModel.baseline`."""
        own = self.adapted.predictor.backbone is self.model.backbone
        return own and self.facts["kept"] >= LEAST


class Classifiers:
    """Those of all sites over a store; at most so many are held in memory."""

    def __init__(self, models: Mapping[str, Trained], store: Store, most: int) -> None:
        if not models:
            raise ConfigError("there is no model to serve; give at least one")
        self.models = {name: ServedModel(name, trained) for name, trained in models.items()}
        self.store, self.most = store, most
        self._making = [threading.Lock() for _ in range(LOCKS)]
        self._current: OrderedDict[str, Current] = OrderedDict()
        self._looking = threading.Lock()  # at what is current

    def model(self, name: str) -> ServedModel:
        if name not in self.models:
            raise unknown(f"there is no model '{name}' here", name, self.models)
        return self.models[name]

    def of(self, row: Row) -> list[ServedModel]:
        """The model in use, and the one that the site moves to."""
        names = [row.model, *([row.next_model] if row.next_model in self.models else [])]
        models = [self.model(name) for name in names]
        if models[0].extractor != row.extractor:
            raise StoreError(
                f"site '{row.name}' was made with another model of the name '{row.model}'; serve "
                f"that one, or move the site"
            )
        return models

    def current(self, name: str) -> Current:
        """The site's classifier as of now: made again if the site has changed since."""
        row = self.store.find(name)
        if (current := self._made_of(row)) is not None:
            return current
        with self._making[hash(name) % LOCKS]:
            if (current := self._made_of(row)) is not None:
                return current
            kept = self.store.kept(name)
            model = self.of(kept.row)[0]
            adapted = model.adapt(kept)
            facts = json.loads(json.dumps(facts_of(adapted, kept, model.point(adapted))))
            current = Current(kept.row, model, adapted, facts)
            with self._looking:
                self._current[name] = current
                while len(self._current) > self.most:
                    self._current.popitem(last=False)
            return current

    def _made_of(self, row: Row) -> Current | None:
        """What is current, if it is of this very row."""
        with self._looking:
            current = self._current.get(row.name)
            if current is None or _version(current.row) != _version(row):
                return None
            self._current.move_to_end(row.name)
            return current

    def facts(self, row: Row) -> Mapping[str, Any]:
        """What is known of a site's classifier; it is written down, and made once by whichever
        service is asked first."""
        model = self.of(row)[0]
        stamp = f"{row.revision} {model.trained.digest()} {__version__}"
        if row.facts is not None:
            stored: dict[str, Any] = json.loads(row.facts)
            if stored.pop("of") == stamp:
                return stored
        current = self.current(row.name)
        if _version(current.row) == _version(row):
            self.store.note_facts(row, json.dumps({"of": stamp, **current.facts}))
        return current.facts

    def baseline(self, name: str) -> tuple[Row, Baseline]:
        """What new images of a site are compared with."""
        kept = self.store.kept(name)
        return kept.row, self.of(kept.row)[0].baseline(kept)

    def forget(self, name: str) -> None:
        with self._looking:
            self._current.pop(name, None)


def _version(row: Row) -> tuple[int, int]:
    return row.id, row.revision
