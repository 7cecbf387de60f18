"""What a run will do, worked out and checked before any of it starts."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from acclimate.adapt.methods import method_settings, scored_chains
from acclimate.config import AlgorithmName, ModelConfig, OptimiserConfig, RunConfig, TrainConfig
from acclimate.core.distributed import World, pick_device
from acclimate.core.errors import ConfigError, ImageError, ManifestError, unknown
from acclimate.core.randomness import stream
from acclimate.core.text import count
from acclimate.data.batches import label_counts, label_prior, label_shifts
from acclimate.data.images import decode
from acclimate.data.manifest import Manifest, image_counts, left_out_sentence, without_small
from acclimate.learn.algorithms import Algorithm, ChosenAlgorithm, choose
from acclimate.learn.embeddings import embedding_settings, find_embedding
from acclimate.learn.models import Predictor, default_backbone
from acclimate.learn.ratios import fit_ratios
from acclimate.learn.site import FEW_DOMAINS, MOST_DOMAINS_PER_STEP

SMALL = 64  # pixels: at or below, images are trained from scratch and not augmented
WITHOUT_WEIGHTS = frozenset({"small-cnn", "mlp"})


@dataclass(frozen=True)
class Freeze:
    """What was chosen; `why` is a line for people, "" where there was nothing to choose."""

    choice: Literal["none", "backbone"]
    why: str = ""


def choose_backbone(config: RunConfig, side: int | None, device: str | None) -> tuple[str, Freeze]:
    """Which one, for images of `side` px (None: rows of features), and whether it learns."""
    if side is not None:
        side = config.data.image_size or side
    name = config.model.backbone
    if name == "auto":
        name = default_backbone(side)
    return name, choose_freeze(replace(config.model, backbone=name), side, device)


def settled(config: RunConfig, manifest: Manifest, device: str | None) -> RunConfig:
    """`config` with what depends on the device decided, as a run there would decide it."""
    if config.model.freeze != "auto":
        return config
    _, freeze = choose_backbone(config, typical_side(config, manifest, manifest.domains), device)
    return replace(config, model=replace(config.model, freeze=freeze.choice))


def choose_freeze(model: ModelConfig, side: int | None, device: str | None) -> Freeze:
    """For images of `side` px (None: rows of features) and a `model` whose backbone is known.

    A `device` of None is one that cannot be seen from here; there, nothing is frozen unasked.
    """
    weights = model.weights or (model.pretrained and model.backbone not in WITHOUT_WEIGHTS)
    if side is None:
        return Freeze("none")  # features already
    if model.freeze == "backbone" and not weights:
        raise ConfigError(
            f"model.freeze is backbone, and '{model.backbone}' has no pretrained weights to keep; "
            f"give --weights FILE, or use --set model.freeze=none"
        )
    if model.freeze != "auto":
        return Freeze(model.freeze)
    if not weights or side <= SMALL:
        return Freeze("none")
    if device is None or pick_device(device).type != "cpu":
        return Freeze(
            "none",
            f"all of {model.backbone} is trained, as there is a GPU; for heads on its features "
            f"alone, --set model.freeze=backbone",
        )
    return Freeze(
        "backbone",
        f"{model.backbone} keeps its pretrained weights, as this is a CPU and images have {side} "
        f"px: its features are extracted once and the rest is trained on them; to train all of "
        f"it, --set model.freeze=none",
    )


def typical_side(
    config: RunConfig, manifest: Manifest, train: Sequence[str], sample: int = 32
) -> int | None:
    """The median longer side of a few readable training images; None for rows of features."""
    if manifest.has_features:
        return None
    rows = np.concatenate([manifest.rows(domain=name, split="train") for name in train])
    rows = stream(0, "typical-side").permutation(rows)[: 4 * sample]
    sides: list[int] = []
    for row in rows:
        try:
            source = manifest.image_source(int(row))
            sides.append(max(decode(source, max_pixels=config.data.max_pixels).size))
        except ImageError:
            continue
        if len(sides) == sample:
            break
    if not sides:
        raise ManifestError(
            f"none of {len(rows)} images tried in {manifest.source} can be "
            f"read; check that the files are images and that the root is right"
        )
    return int(np.median(sides))


# On frozen features a small one: what learns on them fits a few training domains at once.
RATES = {"scratch": 1e-3, "frozen": 1e-4, "pretrained": 5e-5}
FEW_TO_TRAIN = 5  # domains, for whole models to be rehearsed unasked
PASSES, STEPS_A, STEPS_B = 50, (200, 1000), (300, 5000)


@dataclass(frozen=True)
class Plan:
    """A run's settings with every "auto" decided, and the rows it uses."""

    config: RunConfig
    algorithm: ChosenAlgorithm
    manifest: Manifest
    train_domains: tuple[str, ...]
    val_domains: tuple[str, ...]
    test_domains: tuple[str, ...]
    freezing: str = ""  # why the backbone learns or not, for people
    dropped: str = ""  # which domains are too small, for people
    rehearsing: str = ""  # what rehearsal takes beyond a minute, for people

    @property
    def decided(self) -> list[str]:
        """What was decided for the user, and why, in lines."""
        return [line for line in (self.dropped, self.freezing, self.rehearsing) if line]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.manifest.classes

    @property
    def in_features(self) -> int | None:
        """Width of the feature vectors, None for images."""
        manifest = self.manifest
        return int(manifest.features().shape[1]) if manifest.has_features else None

    @property
    def frozen(self) -> bool:
        """Whether it works on the features of a backbone that stays as it is."""
        return self.config.model.freeze == "backbone"

    @property
    def on_features(self) -> bool:
        """Whether it learns on features that were there before."""
        return self.frozen or self.manifest.has_features

    @cached_property
    def rows(self) -> np.ndarray:
        """Every row that the run may look at."""
        names = (*self.train_domains, *self.val_domains, *self.test_domains)
        return np.concatenate([self.manifest.rows(domain=name) for name in names])

    @cached_property
    def train_rows(self) -> list[np.ndarray]:
        """Rows of each training domain, in the order of the batches' domain numbers."""
        return [self.manifest.rows(domain=name, split="train") for name in self.train_domains]

    def role(self, domain: str) -> str:
        if domain in self.test_domains:
            return "test"
        return "val" if domain in self.val_domains else "train"

    def objective(self, predictor: Predictor, world: World) -> Algorithm:
        """What Step B minimises."""
        return self.algorithm.build(
            predictor,
            self.algorithm.settings,
            domains=len(self.train_domains),
            classes=len(self.classes),
            world=world,
            seed=self.config.seed,
        )

    def label_prior(self) -> np.ndarray:
        """Class frequencies as batches show them, each training domain counting equally: [C]"""
        return label_prior(self._label_counts())

    def label_ratios(self) -> np.ndarray:
        """How class frequencies vary between training domains; see `fit_ratios`."""
        return fit_ratios(self._label_counts(), self.label_prior())

    def label_shifts(self) -> np.ndarray:
        """What knowing a training domain's label frequencies adds to its logits: [N, C]"""
        return label_shifts(self._label_counts())

    def _label_counts(self) -> np.ndarray:
        return label_counts(self.manifest.label_index, self.train_rows, len(self.classes))


def make_plan(
    config: RunConfig, manifest: Manifest, *, check_files: bool = True, device: str | None = "auto"
) -> Plan:
    """Check everything that can be checked, and decide everything that was left open.

    `device` is what it will be trained on: that decides whether the backbone learns.
    """
    algorithm = check_components(config)
    manifest, small = without_small(manifest, config.data.min_images)
    config = _without(config, small)
    manifest.check(check_files=check_files)
    val, test = _unseen(config, manifest)
    reserved = {name for name, role in manifest.roles().items() if role != "train"}
    train = tuple(name for name in manifest.domains if name not in {*val, *test, *reserved})
    _check_training_domains(algorithm, manifest, train)
    if config.adapt.rehearse and algorithm.adaptive:
        raise ConfigError(
            f"{algorithm.name} adapts by its own embedding and is not rehearsed; leave out "
            f"adapt.rehearse, or use --algorithm {AlgorithmName.of(algorithm.name).base}"
        )
    manifest = _learnable(config, manifest, train)
    _check_unseen_domains(config, manifest, (*val, *test))
    resolved, why = _resolved(config, manifest, train, device)
    resolved, rehearsing = _with_depth(resolved, algorithm, manifest, train, device)
    if resolved.train.domains_per_step < algorithm.build.least_domains:
        raise ConfigError(
            f"{algorithm.name} compares domains and needs {algorithm.build.least_domains} in each "
            f"batch; raise train.domains_per_step from {resolved.train.domains_per_step}"
        )
    _check_validations(resolved.train)
    dropped = left_out_sentence(small, config.data.min_images) if small else ""
    return Plan(resolved, algorithm, manifest, train, val, test, why, dropped, rehearsing)


def _without(config: RunConfig, names: Container[str]) -> RunConfig:
    """The settings without unseen domains that are left out."""
    val = tuple(name for name in config.val_domains if name not in names)
    return replace(
        config,
        val_domains=val,
        test_domains=tuple(name for name in config.test_domains if name not in names),
    )


def check_components(config: RunConfig) -> ChosenAlgorithm:
    """The algorithm, once its own settings, the embeddings' and the methods' are in order."""
    algorithm = choose(config.algorithm, config.hparams)
    find_embedding(config.embedding.name)
    embedding_settings(config.embedding)
    method_settings(config.adapt)
    scored_chains(config.adapt, config.algorithm)
    return algorithm


def _unseen(config: RunConfig, manifest: Manifest) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Validation and test domains: as asked, otherwise as the manifest's roles fix them.

    Asking for some does not make training data of the others: those are left out of the run.
    """
    roles = manifest.roles()
    val = config.val_domains or tuple(name for name, role in roles.items() if role == "val")
    test = config.test_domains or tuple(name for name, role in roles.items() if role == "test")
    val = tuple(name for name in val if name not in config.test_domains)
    test = tuple(name for name in test if name not in config.val_domains)
    both = sorted(set(config.val_domains) & set(config.test_domains))
    if both:
        raise ConfigError(f"'{both[0]}' is both a validation and a test domain; choose one of them")
    for name in (*val, *test):
        if name not in manifest.domains:
            raise unknown(f"{manifest.source} has no domain '{name}'", name, manifest.domains)
    return tuple(sorted(val)), tuple(sorted(test))


def _check_training_domains(
    algorithm: ChosenAlgorithm, manifest: Manifest, train: Sequence[str]
) -> None:
    least = max(algorithm.build.least_domains, 2 if algorithm.adaptive else 1)
    if len(train) < least:
        only = f"only '{train[0]}'" if train else "none"
        raise ConfigError(
            f"{algorithm.name} needs at least {least} training domains, and {manifest.source} "
            f"leaves {only} once validation and test domains are set aside; "
            + ("use --algorithm erm, or add domains" if algorithm.adaptive else "add domains")
        )
    fewest = 2 if algorithm.adaptive else 1
    rows = {name: len(manifest.rows(domain=name, split="train")) for name in train}
    small = [name for name in train if rows[name] < fewest]
    if small:
        name = small[0]
        raise ManifestError(
            f"domain '{name}' of {manifest.source} has {count(rows[name], 'row')} in split 'train' "
            f"and needs {fewest}; {_remedy(manifest, train, small, least)}"
        )


def _remedy(manifest: Manifest, train: Sequence[str], small: Sequence[str], least: int) -> str:
    """One that leaves enough domains, if there is one."""
    images = image_counts(manifest)
    bound = max(images[name] for name in small) + 1
    if sum(images[name] >= bound for name in train) < least:
        return "add images"
    return f"add images, or leave out such domains with --min-images {bound}"


def _check_validations(train: TrainConfig) -> None:
    """SWAD finds its window among validations, and must have enough of them."""
    validations = -(-train.steps // train.evaluate_every)
    if train.average.kind == "swad" and validations < train.average.patience:
        raise ConfigError(
            f"SWAD looks for its window in {train.average.patience} validations or more, and "
            f"{count(train.steps, 'step')} have {validations}; lower train.evaluate_every from "
            f"{train.evaluate_every}"
        )


def _check_unseen_domains(config: RunConfig, manifest: Manifest, unseen: Sequence[str]) -> None:
    """What scoring will need, now instead of after training."""
    held_out = config.adapt.source == "held-out"
    for name in unseen:
        rows = manifest.rows(domain=name) if name in manifest.domains else np.arange(0)
        images = len(manifest.one_row_each(rows))
        if images < (2 if held_out else 1):
            remedy = "add images, or use --set adapt.source=test" if images else "leave it out"
            raise ManifestError(
                f"unseen domain '{name}' of {manifest.source} has {count(images, 'image')} that "
                f"can be scored"
                + (", and adapting on held-out ones takes one more; " if images else "; ")
                + remedy
            )


def _learnable(config: RunConfig, manifest: Manifest, train: Sequence[str]) -> Manifest:
    """Refuse (or drop) rows of unseen domains whose class no training domain has."""
    trained = [manifest.rows(domain=name, split="train") for name in train]
    seen = manifest.label_index[np.concatenate(trained)]
    known = np.bincount(seen, minlength=len(manifest.classes)) > 0
    orphans = ~known[manifest.label_index]
    if not orphans.any():
        return manifest
    if config.data.unseen_classes == "drop":
        return manifest.select(np.flatnonzero(~orphans))
    first = int(np.flatnonzero(orphans)[0])
    raise ManifestError(
        f"class '{manifest.classes[manifest.label_index[first]]}' is present in no training domain "
        f"(only in '{manifest.domain_names[first]}'), so it cannot be learned; drop such rows with "
        f"--set data.unseen_classes=drop, or train on a domain that has it"
    )


def _resolved(
    config: RunConfig, manifest: Manifest, train: Sequence[str], device: str | None
) -> tuple[RunConfig, str]:
    """The settings with nothing left open, and why the backbone learns or not."""
    side = typical_side(config, manifest, train)
    asked = config.data.image_size
    backbone, freeze = choose_backbone(config, side, device)
    frozen = freeze.choice == "backbone"
    pretrained = config.model.pretrained or config.model.weights
    scratch = backbone in WITHOUT_WEIGHTS or not pretrained
    rate = RATES["frozen" if frozen else "scratch" if scratch else "pretrained"]
    # Images are small when their own side is, or when a small backbone was asked for.
    size = asked or (min(side, SMALL) if side and backbone == "small-cnn" else 0)
    augment = config.data.augment
    if augment == "auto":
        augment = "none" if side is None or (size or side) <= SMALL else "domainbed"
    if frozen:
        augment = "none"  # an image has one vector of features
    # Never 1, which is no setting: a plain run of one domain must load again.
    slots = max(2, min(config.embedding.domains_per_step, len(train)))
    rows = sum(len(manifest.rows(domain=name, split="train")) for name in train)
    mixup = config.embedding.mixup
    if mixup == "auto":
        mixup = "on" if len(train) < FEW_DOMAINS else "off"
    resolved = replace(
        config,
        data=replace(config.data, image_size=size, augment=augment),
        model=replace(config.model, backbone=backbone, freeze=freeze.choice),
        embedding=replace(
            config.embedding,
            mixup=mixup,
            domains_per_step=slots,
            steps=config.embedding.steps
            or _passes(rows, slots * config.embedding.per_domain, STEPS_A),
            optimiser=_with_rate(config.embedding.optimiser, rate),
        ),
        train=_resolved_training(config, rows, len(train), rate),
    )
    return resolved, freeze.why


def _with_depth(
    config: RunConfig,
    algorithm: ChosenAlgorithm,
    manifest: Manifest,
    train: Sequence[str],
    device: str | None,
) -> tuple[RunConfig, str]:
    """The settings with the depth of rehearsal decided, and what it means.

    A backbone that learns has seen the domains that play, unless it is trained without them. That
    takes as much time again for each, and tells most where domains are few and differ much.
    """
    adapt, others = config.adapt, len(train) - 1
    learns = not manifest.has_features and config.model.freeze != "backbone"
    least = algorithm.build.least_domains
    depth = adapt.depth
    if depth == "auto":
        fits = adapt.rehearse and learns and others >= max(least, 2) and len(train) <= FEW_TO_TRAIN
        fast = device is not None and pick_device(device).type == "cuda"
        depth = "whole" if fits and fast else "heads"
    resolved = replace(config, adapt=replace(adapt, depth=depth))
    if not adapt.rehearse or depth == "heads" or others < 1:
        return resolved, ""
    if others < least:
        raise ConfigError(
            f"{algorithm.name} needs {least} training domains, and whole rehearsal would train on "
            f"{others}; use --set adapt.depth=heads"
        )
    return resolved, (
        f"rehearsal trains the model anew without some of the {len(train)} sites, as often as "
        f"needed for each to play; for heads alone, --set adapt.depth=heads"
    )


def _resolved_training(config: RunConfig, rows: int, domains: int, rate: float) -> TrainConfig:
    settings = config.train
    slots = min(settings.domains_per_step or MOST_DOMAINS_PER_STEP, domains)
    batch = slots * settings.per_domain
    steps = settings.steps or _passes(rows, batch, STEPS_B)
    if settings.epochs:
        steps = max(1, round(settings.epochs * rows / batch))
    return replace(
        settings,
        steps=steps,
        domains_per_step=slots,
        evaluate_every=min(settings.evaluate_every, steps),
        optimiser=_with_rate(settings.optimiser, rate),
    )


def _passes(rows: int, batch: int, limits: tuple[int, int]) -> int:
    """Steps of a number of passes over the rows, within limits."""
    least, most = limits
    return min(max(PASSES * rows // batch, least), most)


def _with_rate(optimiser: OptimiserConfig, rate: float) -> OptimiserConfig:
    return optimiser if optimiser.lr is not None else replace(optimiser, lr=rate)
