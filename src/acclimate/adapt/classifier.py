"""Unlabelled images -> DomainState -> a classifier for that domain."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from acclimate.adapt.choice import adapt_by, outlook, sure_answer
from acclimate.adapt.methods import Chain, chain_of, find_chain
from acclimate.adapt.methods.chain import adapt_model, apply_chain
from acclimate.adapt.methods.labels import with_labels
from acclimate.adapt.seen import begin_state, look, require_able
from acclimate.adapt.summary import draw_site, summary_grid
from acclimate.adapt.trust import Trust, judge
from acclimate.config import DataConfig
from acclimate.core.distributed import pick_device
from acclimate.core.errors import ConfigError, ImageError, unknown
from acclimate.core.plots import axes_or_new
from acclimate.core.progress import Watch, unwatched
from acclimate.core.tensors import require_finite
from acclimate.core.text import count, csv_text, percent
from acclimate.data.source import (
    FeatureSource,
    Quarantine,
    Source,
    Unlabelled,
    open_source,
    readable,
)
from acclimate.learn.embeddings import DomainState
from acclimate.learn.embeddings.pictures import KEPT, UNLABELLED
from acclimate.learn.embeddings.state import MOST_SEEN
from acclimate.learn.images import Images
from acclimate.learn.model import Trained
from acclimate.learn.models import Predictor, accelerate, engine_used, takes_features
from acclimate.records.folder import SITE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from acclimate.adapt.export import Exported


MOST_NAMED = 3  # moves that a sentence names


@dataclass(frozen=True)
class Changes:
    """Of `images`, how many moved from one predicted class to another, the most frequent first."""

    images: int
    moves: Mapping[tuple[str, str], int]

    @classmethod
    def between(cls, before: Tensor, after: Tensor, classes: Sequence[str]) -> "Changes":
        """Predicted classes by number: [n], [n]"""
        moved = (before != after).nonzero()[:, 0].tolist()
        pairs = Counter((classes[int(before[row])], classes[int(after[row])]) for row in moved)
        return cls(len(before), dict(sorted(pairs.items(), key=lambda item: (-item[1], item[0]))))

    @property
    def changed(self) -> int:
        return sum(self.moves.values())

    def to_dict(self) -> dict[str, Any]:
        moves = [{"from": a, "to": b, "images": n} for (a, b), n in self.moves.items()]
        share = self.changed / self.images if self.images else None
        return {"images": self.images, "changed": self.changed, "share": share, "moves": moves}

    def __str__(self) -> str:
        """In a sentence."""
        if not self.changed:
            return f"adaptation changed none of {self.images} predictions"
        named = [f"{a} → {b} {n}" for (a, b), n in list(self.moves.items())[:MOST_NAMED]]
        rest = ", …" if len(self.moves) > len(named) else ""
        return (
            f"adaptation changed {percent(self.changed / self.images)} % of predictions "
            f"({self.changed} of {self.images}): {', '.join(named)}{rest}"
        )


@dataclass(frozen=True, eq=False)
class Predictions:
    """Probabilities [C] of the images that could be read, and why the others could not."""

    paths: Sequence[Path]
    classes: tuple[str, ...]
    probabilities: Mapping[Path, np.ndarray]
    reasons: Mapping[str, str]
    changes: Changes | None = None  # by adaptation, where there was one
    unsure_below: float = 0.0  # confidence from which on an image has a label
    before: np.ndarray | None = None  # numbers of the predicted classes without adaptation: [n]

    def __len__(self) -> int:
        """Images that were classified."""
        return len(self.probabilities)

    def counts(self) -> dict[str, int]:
        """Images of each label, by name; classes without any are left out."""
        best = Counter(
            self.classes[int(row.argmax())]
            for row in self.probabilities.values()
            if row.max() >= self.unsure_below
        )
        return dict(sorted(best.items()))

    @property
    def answered(self) -> float:
        """The share of the classified images that have a label."""
        return sum(self.counts().values()) / len(self)

    def csv(self, *, every_class: bool) -> str:
        """A header line, then one line per image; with `every_class` a column for each class. With
        a threshold, the likeliest class of an image below it is in the column `unsure`."""
        extra = self.classes if every_class else ()
        unsure = ["unsure"] if self.unsure_below else []
        header = ["image", "label", "confidence", "problem", *unsure, *extra]
        return csv_text([header, *(self._line(path, every_class) for path in self.paths)])

    def _line(self, path: Path, every_class: bool) -> list[str]:
        # "./=x.jpg" is the file "=x.jpg", and no formula.
        name = f"./{path}" if str(path).startswith(("=", "+", "-", "@")) else str(path)
        row = self.probabilities.get(path)
        if row is None:
            blank = [""] * (bool(self.unsure_below) + every_class * len(self.classes))
            return [name, "", "", self.reasons[str(path)], *blank]
        best = self.classes[int(row.argmax())]
        numbers = [f"{value:.6f}" for value in row] if every_class else []
        label, unsure = (best, "") if row.max() >= self.unsure_below else ("", best)
        guess = [unsure] if self.unsure_below else []
        return [name, label, f"{row.max():.6f}", "", *guess, *numbers]


def predictions(
    site: "Adapted", paths: Sequence[Path], quarantine: Quarantine, watch: Watch = unwatched
) -> Predictions:
    """Classify files, beside what the model predicts without adaptation. Unreadable files go to
    `quarantine`; where not one can be read, that is an error."""
    plain = unadapted(site.trained).predictor
    probabilities: dict[Path, np.ndarray] = {}
    before: list[Tensor] = []
    for places, (own, others) in site.logits(paths, quarantine, watch, plain):
        files = (paths[place] for place in places)
        probabilities |= zip(files, _softmax(own), strict=True)
        before.append(others.argmax(1).cpu())
    if not probabilities:
        raise nothing_readable(quarantine)
    changes = None
    if site.method != "none":
        now = torch.tensor([int(row.argmax()) for row in probabilities.values()])
        changes = Changes.between(torch.cat(before), now, site.classes)
    reasons, plain_classes = dict(quarantine.entries), torch.cat(before).numpy()
    return Predictions(paths, site.classes, probabilities, reasons, changes, before=plain_classes)


@dataclass(frozen=True)
class Adapted:
    """The classifier of one domain: μ is folded into its biases, Φ is no longer needed.

    `trust` says how far to trust it, after every adaptation. `notes` say what rehearsal found of
    the method, and what speaks against it. `changes` compare it with the model before, on the
    images that it was adapted on, where those were kept.
    """

    predictor: Predictor
    trained: Trained  # the model that it was made from
    state: DomainState | None = None
    trust: Trust | None = None
    notes: tuple[str, ...] = ()
    labels: np.ndarray | None = None  # of the classes, where they are not their names: [C]
    changes: Changes | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        return self.trained.classes

    @property
    def size(self) -> int:
        """Side of input images, or the number of features."""
        return self.trained.size

    @property
    def method(self) -> str:
        """How it was adapted, e.g. `embedding+prior`."""
        return "none" if self.state is None else chain_of(self.state).name

    @property
    def engine(self) -> str:
        """What has computed the features of images so far: torch, or ONNX Runtime on a CPU."""
        return engine_used(self.predictor.backbone)

    @property
    def label_prior(self) -> dict[str, float] | None:
        """The domain's class frequencies as the method `prior` found them."""
        payload = None if self.state is None else self.state.payloads.get("prior")
        if payload is None:
            return None
        return dict(zip(self.classes, payload["prior"].tolist(), strict=True))

    def predict_proba(self, images: Any) -> np.ndarray:
        """Class probabilities: [n, C]. `images`: paths, arrays, PIL images, tensors or features."""
        parts = [_softmax(own) for _, (own,) in self.logits(images, Quarantine(max_share=0.0))]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.classes)), np.float32)

    def predict(
        self, images: Any, *, at_least: float | None = None, unsure_below: float = 0.0
    ) -> list[Any]:
        """The class of each image, or its label as the model was fitted with it.

        None for an image whose confidence is below `unsure_below`, or below what rehearsal found
        that answers need for `at_least` so large a share of them to be right.
        """
        names = self.classes if self.labels is None else self.labels.tolist()
        if at_least is not None:
            answer = sure_answer(self.trained, self.state, at_least)
            unsure_below = max(answer.threshold, unsure_below)
        rows = self.predict_proba(images)
        return [names[row.argmax()] if row.max() >= unsure_below else None for row in rows]

    def export(self, path: str | Path, *, half: bool = False) -> "Exported":
        """One file that gives these probabilities without this library: .onnx, or .pt2; with `half`
        by weights and layers of 16 bits."""
        from acclimate.adapt.export import export_adapted

        return export_adapted(self, path, half=half)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Class frequencies here and in training, or the changes, on `ax` or new axes."""
        axes = axes_or_new(ax)
        draw_site(self, axes)
        return axes

    def _repr_html_(self) -> str:
        return summary_grid(self).to_html("A classifier for one site")

    def save(self, folder: str | Path) -> Path:
        """The model, this domain's state, a model card and lines that run it, in one folder."""
        from acclimate.adapt.saved import save_model

        return save_model(self.trained, Path(folder), self.labels, self)

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto") -> "Adapted":
        """From a folder of `save`."""
        from acclimate.adapt.saved import read_labels

        folder = Path(folder)
        trained = Trained.load(folder, pick_device(device))
        path = folder / SITE
        state = DomainState.load(path) if path.exists() else None
        return replace(apply_state(trained, state), labels=read_labels(folder, trained.classes))

    @torch.no_grad()
    def logits(
        self,
        images: Any,
        quarantine: Quarantine,
        watch: Watch = unwatched,
        *beside: Predictor,
    ) -> Iterator[tuple[np.ndarray, list[Tensor]]]:
        """Batches of the readable of `images`: their places, and logits of this classifier and of
        those `beside` it."""
        for places, *outputs in self.outputs(images, quarantine, watch, *beside):
            require_finite(outputs[0].logits, "a prediction")
            yield places, [output.logits for output in outputs]

    @torch.no_grad()
    def outputs(
        self,
        images: Any,
        quarantine: Quarantine,
        watch: Watch = unwatched,
        *beside: Predictor,
    ) -> Iterator[tuple[Any, ...]]:
        """As `logits`, with hidden layers."""
        source, rows = open_images(images, self.trained, quarantine)
        for places, stored in readable(source, rows, watch):
            batch = Images(stored, self.predictor.device)
            yield places, *(batch.outputs(predictor) for predictor in (self.predictor, *beside))


def _softmax(logits: Tensor) -> np.ndarray:
    return torch.softmax(logits.float(), dim=1).cpu().numpy()


def adapt(
    trained: Trained,
    images: Any,
    *,
    method: str = "auto",
    labels: Sequence[Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    into: DomainState | None = None,
    keep: int = KEPT,
    quarantine: Quarantine | None = None,
    watch: Watch = unwatched,
) -> Adapted:
    """A classifier for the domain that `images` come from, and from which `into` has seen others.

    `labels` has an entry for each image: its class, or None; those that are known are used by the
    method `labels`, after the others.

    `method` is a row of `methods.METHODS`, or several joined by `+`, which follow each other.
    `settings` are the methods', such as {"tent.steps": 3}; they go before those that the model was
    trained with, and these before those that rehearsal found. "auto" is what rehearsal chose for so
    many images; without a rehearsal, the method of `into`, or the embedding of an adaptive model.

    The state keeps the features of at most `keep` images: what comes later is adapted to together
    with them, from the beginning. An image that was seen before changes nothing.
    """
    quarantine = Quarantine(max_share=0.0) if quarantine is None else quarantine
    # What is wrong is reported before an image is opened.
    if not 0 <= keep <= MOST_SEEN:
        raise ConfigError(f"keep is {keep}; a state keeps from 0 to {MOST_SEEN} images")
    state = begin_state(trained, into)
    if method == "auto" and into is not None and trained.rehearsal is None:
        method = chain_of(into).name
    known = _class_numbers(() if labels is None else labels, trained.classes)
    if method != "auto" and bool((known != UNLABELLED).any()):
        method = with_labels(method)
    chain = None if method == "auto" else find_chain(method, trained.config.adapt, settings)
    if chain is not None:
        require_able(trained, chain, into)
    source, rows = open_images(images, trained, quarantine)
    if labels is None:
        known = torch.full((len(rows),), UNLABELLED)
    if len(known) != len(rows):
        raise ConfigError(
            f"there are {len(rows)} images and {len(known)} labels; give one for each, None where "
            f"it is not known"
        )
    seen = look(trained, readable(source, rows, watch), known, chain, state, keep)
    if not seen.state.count or (len(rows) and len(quarantine) == len(rows)):
        raise nothing_readable(quarantine)

    def adapt(chain: Chain) -> tuple[Adapted, DomainState]:
        require_able(trained, chain, into)
        start = trained.start(embedding=chain.embedding)
        state = adapt_model(start, seen.images, chain, seen.state, seen.pictures.labels)[1]
        return apply_state(trained, state), state

    site, choice = adapt_by(
        method,
        trained,
        seen.images,
        trained.config.adapt,
        adapt,
        settings=settings,
        seen=seen.state.count,
        labels=seen.pictures.labelled,
    )
    notes = choice.why
    if seen.repeats:
        repeats = f"{count(seen.repeats, 'image')} {'was' if seen.repeats == 1 else 'were'}"
        notes = (*notes, f"note: {repeats} seen before, or given twice; each counts once")
    promised = not settings and not trained.config.adapt.components
    site = replace(site, notes=notes)
    return _compared(site, seen.images if len(seen.images) else None, promised=promised)


def _compared(site: Adapted, images: Images | None, *, promised: bool) -> Adapted:
    """With what the images say of the adapted classifier, which promises may be about."""
    assert site.state is not None
    if promised:
        site = replace(site, trust=outlook(site.trained, site.predictor, site.state, images))
    if images is None or site.method == "none":
        return site
    before = unadapted(site.trained).predictor
    return replace(site, changes=changes_on(images, before, site.predictor, site.classes))


def _class_numbers(labels: Sequence[Any], classes: Sequence[str]) -> Tensor:
    """Places of `labels` in `classes`, UNLABELLED for None: [n]"""
    places = {name: place for place, name in enumerate(classes)}
    found = []
    for label in labels:
        if label is not None and str(label) not in places:
            raise unknown(f"the model knows no class '{label}'", str(label), places)
        found.append(UNLABELLED if label is None else places[str(label)])
    return torch.tensor(found, dtype=torch.int64)


@torch.no_grad()
def changes_on(
    images: Images, before: Predictor, after: Predictor, classes: Sequence[str]
) -> Changes:
    """How predictions of `images` differ; a backbone that both share sees each image once."""
    was, now = (images.outputs(p).logits.argmax(1).cpu() for p in (before, after))
    return Changes.between(was, now, classes)


def unadapted(trained: Trained) -> Adapted:
    """The model as it is; an adaptive one at the training domains' centre."""
    return Adapted(trained.start(embedding=False).at(None), trained)


def apply_state(trained: Trained, state: DomainState | None) -> Adapted:
    """The classifier of a stored state; a plain model takes None as well and is used as it is."""
    if state is None:
        if trained.table is None:
            return unadapted(trained)
        raise ConfigError(
            "an adaptive model predicts for a domain; adapt to these images first with --adapt, or "
            "give a state with --domain FILE (make it with `acclimate adapt`)"
        )
    state.require(trained.digest())
    chain = chain_of(state)
    start = trained.start(embedding=chain.embedding)
    predictor = apply_chain(start, chain, state)
    accelerate(predictor.backbone)  # bn and tent have made one of their own
    trust = judge(state, start.table if chain.embedding else None)
    return Adapted(predictor, trained, state, trust)


def open_images(images: Any, trained: Trained, quarantine: Quarantine) -> tuple[Source, np.ndarray]:
    """What users hand over as a source for a model, and all its rows."""
    source: Source
    if takes_features(trained.predictor):
        source = FeatureSource.unlabelled(images, trained.size)
    else:
        # Every image is read once, so that none is held.
        config = DataConfig(max_pixels=trained.config.data.max_pixels, cache_gib=0.0)
        source = open_source(Unlabelled.of(images), trained.size, config, quarantine)
    return source, np.arange(len(source.image))


def nothing_readable(quarantine: Quarantine) -> ImageError:
    if not len(quarantine):
        return ImageError("there is no image to adapt on; give at least one")
    name, reason = quarantine.entries[0]
    return ImageError(
        f"none of {len(quarantine)} images can be read, e.g. {name}: {reason}; "
        f"give at least one readable image"
    )
