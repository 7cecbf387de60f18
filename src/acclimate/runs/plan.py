"""What a run will do, worked out and checked before any of it starts."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from acclimate.adapt.methods import backbone_chains, method_settings, scored_chains
from acclimate.config import AlgorithmName, ModelConfig, RunConfig, with_settings
from acclimate.core.distributed import World, pick_device
from acclimate.core.errors import ConfigError, ImageError, ManifestError
from acclimate.core.randomness import stream
from acclimate.core.text import count
from acclimate.data.columns import label_counts
from acclimate.data.images import decode
from acclimate.data.manifest import Manifest, left_out_sentence, without_small
from acclimate.data.pictures import Seen
from acclimate.learn.algorithms import Algorithm, ChosenAlgorithm, choose
from acclimate.learn.embeddings import Embedding, embedding_settings, find_embedding
from acclimate.learn.models import Predictor, default_backbone
from acclimate.learn.models.backbones import SMALL
from acclimate.learn.models.class_vectors import read_class_vectors
from acclimate.learn.site import FEW_DOMAINS, MOST_DOMAINS_PER_STEP
from acclimate.records.metrics import find_metric
from acclimate.records.predictions import COLUMNS, Predictions

WITHOUT_WEIGHTS = frozenset({"small-cnn", "mlp"})
# On frozen features a small one: what learns on them fits a few training domains at once.
RATES = {"scratch": 1e-3, "frozen": 1e-4, "pretrained": 5e-5}
SAMPLE = 32  # images whose sides tell the size of all
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
    decided: tuple[str, ...] = ()  # what was decided for the user, and why, in lines
    data_digest: str = ""  # of the manifest as it was given
    seen: Seen | None = None  # what was trained on, where that was other data

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

    def training_pictures(self) -> Seen:
        """What the model is trained on."""
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *self.train_rows])
        return Seen.of(self.manifest.picture_keys[rows], self.manifest.group_keys[rows])

    @cached_property
    def trained_on(self) -> np.ndarray:
        """bool [n]: which rows show a picture that is trained on, or belong to its group."""
        seen = self.seen or self.training_pictures()
        return seen.among(self.manifest.picture_keys, self.manifest.group_keys)

    def scorable(self, domain: str, split: str | None = None) -> np.ndarray:
        """Rows of a domain that a score may go by: of no picture that is trained on, unless the
        settings keep those."""
        rows = self.manifest.rows(domain=domain, split=split)
        return rows if self.config.data.keep_shared else rows[~self.trained_on[rows]]

    def role(self, domain: str) -> str:
        if domain in self.test_domains:
            return "test"
        return "val" if domain in self.val_domains else "train"

    def objective(
        self, predictor: Predictor, world: World, embedding: Embedding | None = None
    ) -> Algorithm:
        """What Step B minimises; `embedding` is a Φ that it learns as well."""
        return self.algorithm.build(
            predictor,
            self.algorithm.settings,
            domains=len(self.train_domains),
            classes=len(self.classes),
            world=world,
            seed=self.config.seed,
            embedding=embedding,
        )

    @cached_property
    def label_counts(self) -> np.ndarray:
        """Training rows of each domain and class: [N, C]"""
        return label_counts(self.manifest.label_index, self.train_rows, len(self.classes))


def make_plan(
    config: RunConfig, manifest: Manifest, *, check_files: bool = True, device: str | None = "auto"
) -> Plan:
    """Check everything that can be checked, and decide everything that was left open.

    `device` is what it will be trained on: that decides whether the backbone learns. Without
    `check_files` images are neither looked for nor opened, and count as rows of features.
    """
    algorithm, data_digest = check_components(config), manifest.digest()
    manifest, small = without_small(manifest, config.data.min_images)
    left_out = left_out_sentence(small, config.data.min_images) if small else ""
    val, test = (
        tuple(name for name in names if name not in small)
        for names in (config.val_domains, config.test_domains)
    )
    config = replace(config, val_domains=val, test_domains=test)
    manifest.check(check_files=check_files)
    val, test = _find_unseen(config, manifest)
    reserved = {name for name, role in manifest.roles().items() if role != "train"}
    train = tuple(name for name in manifest.domains if name not in {*val, *test, *reserved})
    _check_training_domains(algorithm, manifest, train)
    manifest = _learnable(config, manifest, train)
    plan = Plan(config, algorithm, manifest, train, val, test, data_digest=data_digest)
    _check_unseen_domains(plan)
    _check_metric(config.train.metric, plan.classes)
    side = _typical_side(config, manifest, train) if check_files else None
    plan, freezing = _resolve(plan, side, device)
    plan, rehearsing = _resolve_rehearsal(plan, device)
    _check_training(plan.config, algorithm)
    _check_class_vectors(plan)
    lines = (left_out, _shared_line(plan), freezing, rehearsing, _late_line(plan))
    return replace(plan, decided=tuple(line for line in lines if line))


def _check_class_vectors(plan: Plan) -> None:
    adapt, path = plan.config.adapt, plan.config.model.class_vectors
    if path and not (plan.on_features and adapt.rehearse and adapt.depth == "heads"):
        raise ConfigError(
            "model.class_vectors is a head that rehearsal compares on features of a backbone that "
            "stays as it is; add --set adapt.rehearse=true --set model.freeze=backbone, or leave "
            "it out"
        )
    if path:
        read_class_vectors(path, plan.classes)


def check_components(config: RunConfig) -> ChosenAlgorithm:
    """The algorithm, once its own settings, the embeddings' and the methods' are in order."""
    algorithm = choose(config.algorithm, config.hparams)
    find_embedding(config.embedding.name)
    embedding_settings(config.embedding)
    method_settings(config.adapt)
    scored_chains(config.adapt, config.algorithm)
    backbone_chains(config.adapt)
    return algorithm


def _check_metric(name: str, classes: tuple[str, ...]) -> None:
    """Refuse a metric that has no value with so many classes, told by a row of each."""
    rows = Predictions(classes, *[np.arange(len(classes))] * len(COLUMNS))
    if find_metric(name).of(rows) is None:
        some = count(len(classes), "class", "classes")
        raise ConfigError(f"train.metric: '{name}' has no value with {some}; choose another metric")


def _find_unseen(config: RunConfig, manifest: Manifest) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
    manifest.require_domains(*val, *test)
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
    for name in train:
        rows = manifest.rows(domain=name, split="train")
        if len(rows) < fewest:
            bound = len(manifest.one_row_each(manifest.rows(domain=name))) + 1
            raise ManifestError(
                f"domain '{name}' of {manifest.source} has {count(len(rows), 'row')} in split "
                f"'train' and needs {fewest}; add images, or leave out such domains with "
                f"--min-images {bound}"
            )


def _check_unseen_domains(plan: Plan) -> None:
    """What scoring will need, now instead of after training."""
    manifest = plan.manifest
    least = 2 if plan.config.adapt.source == "held-out" else 1  # one to adapt on, one to score
    for name in (*plan.val_domains, *plan.test_domains):
        rows = manifest.rows(domain=name) if name in manifest.domains else np.arange(0)
        scorable = plan.scorable(name) if len(rows) else rows
        images = len(manifest.one_row_each(scorable))
        if images < least:
            other = ", or use --set adapt.source=test" if images else ""
            if len(scorable) < len(rows):
                other = f", or score those of training pictures too with --keep-shared{other}"
            raise ManifestError(
                f"unseen domain '{name}' of {manifest.source} has {count(images, 'image')} that "
                f"can be scored, and {least} are needed; add images, or leave it out{other}"
            )


def _shared_line(plan: Plan) -> str:
    """Which rows no score goes by since their pictures are trained on; or that it does."""
    parts: list[tuple[str, str | None]] = [(name, "val") for name in plan.train_domains]
    parts += [(name, None) for name in (*plan.val_domains, *plan.test_domains)]
    counts = []
    for name, split in parts:
        rows = plan.manifest.rows(domain=name, split=split)
        if shared := int(plan.trained_on[rows].sum()):
            counts.append(f"{name} {shared} of {len(rows)}")
    if not counts:
        return ""
    fate = "scored all the same" if plan.config.data.keep_shared else "not scored"
    return f"rows whose pictures or groups are trained on, {fate}: {', '.join(counts)}"


def _check_training(config: RunConfig, algorithm: ChosenAlgorithm) -> None:
    train, least = config.train, algorithm.build.least_domains
    if train.domains_per_step < least:
        raise ConfigError(
            f"{algorithm.name} compares domains and needs {least} in each batch; raise "
            f"train.domains_per_step from {train.domains_per_step}"
        )
    validations = -(-train.steps // train.evaluate_every)
    if train.average.kind == "swad" and validations < train.average.patience:
        raise ConfigError(
            f"SWAD looks for its window in {train.average.patience} validations or more, and "
            f"{count(train.steps, 'step')} have {validations}; lower train.evaluate_every from "
            f"{train.evaluate_every}"
        )


def _late_line(plan: Plan) -> str:
    """That the run ends before its algorithm's loss is complete."""
    begins, steps = getattr(plan.algorithm.settings, "anneal", 0), plan.config.train.steps
    if begins < steps:
        return ""
    return (
        f"the loss of {plan.algorithm.name} is complete from step {begins} on, and the run ends at "
        f"step {steps}; lower hparams.anneal, or raise train.steps"
    )


def check_batches(
    config: RunConfig, algorithm: ChosenAlgorithm, world: World, *, main: bool = True
) -> None:
    """Refuse batches that cannot be shared out; without `main`, only those of Step A."""
    train, shares = config.train, []
    if main:
        shares.append(train.per_domain)
        least_rows = algorithm.build.least_rows
        if train.per_domain < least_rows:
            raise ConfigError(
                f"the penalty needs {least_rows} images of a domain at a time, and gets "
                f"{train.per_domain}; raise train.per_domain"
            )
        if train.micro_batches > 1 and not algorithm.build.divisible:
            raise ConfigError(
                f"train.micro_batches is {train.micro_batches}, and {algorithm.name} cannot divide "
                f"a batch; leave train.micro_batches at 0"
            )
    if algorithm.over_mu:
        shares.append(find_embedding(config.embedding.name).build.budget(config).per_domain)
    for per_domain in shares:
        if per_domain % world.size:
            raise ConfigError(
                f"{per_domain} images of a domain cannot be shared equally by {world.size} "
                f"processes; make train.per_domain and embedding.per_domain multiples of "
                f"{world.size}"
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


def _typical_side(config: RunConfig, manifest: Manifest, train: Sequence[str]) -> int | None:
    """The median longer side of a few readable training images; None for rows of features."""
    if manifest.has_features:
        return None
    rows = np.concatenate([manifest.rows(domain=name, split="train") for name in train])
    rows = stream(0, "typical-side").permutation(rows)[: 4 * SAMPLE]
    sides: list[int] = []
    for row in rows:
        with suppress(ImageError):
            image = decode(manifest.image_source(int(row)), max_pixels=config.data.max_pixels)
            sides.append(max(image.size))
        if len(sides) == SAMPLE:
            break
    if not sides:
        raise ManifestError(
            f"none of {len(rows)} images tried in {manifest.source} can be "
            f"read; check that the files are images and that the root is right"
        )
    return int(np.median(sides))


def settled(config: RunConfig, manifest: Manifest, device: str | None) -> RunConfig:
    """`config` with what depends on the device decided, as a run there would decide it."""
    if config.model.freeze != "auto" and not manifest.has_features:
        return config
    side = _typical_side(config, manifest, manifest.domains)
    model, _ = choose_model(config, side, device)
    return with_settings(config, {"model.freeze": model.freeze})


def fine_tunes(config: RunConfig, manifest: Manifest, device: str | None) -> bool:
    """Whether a pretrained backbone learns in a run of `config` there."""
    model, _ = choose_model(config, _typical_side(config, manifest, manifest.domains), device)
    return _has_weights(model) and model.freeze != "backbone"


def _has_weights(model: ModelConfig) -> bool:
    """Whether the backbone, which is no longer `auto`, starts from what it learned elsewhere."""
    return bool(model.weights) or (model.pretrained and model.backbone not in WITHOUT_WEIGHTS)


def choose_model(
    config: RunConfig, side: int | None, device: str | None
) -> tuple[ModelConfig, str]:
    """The model for images of `side` px (None: rows of features), with its backbone and whether
    that learns decided; and why, in a line, where there was something to choose.

    A `device` of None is one that cannot be seen from here; there, nothing is frozen unasked.
    """
    side = side and (config.data.image_size or side)
    name = config.model.backbone
    if name == "auto":
        name = default_backbone(side)
    model = replace(config.model, backbone=name)
    weights = _has_weights(model)
    freeze, why = model.freeze, ""
    if side is None:
        freeze = "none"  # features already
    elif freeze == "backbone" and not weights:
        raise ConfigError(
            f"model.freeze is backbone, and '{name}' has no pretrained weights to keep; "
            f"give --weights FILE, or use --set model.freeze=none"
        )
    elif freeze == "auto" and (not weights or side <= SMALL):
        freeze = "none"
    elif freeze == "auto" and (device is None or pick_device(device).type != "cpu"):
        freeze = "none"
        why = (
            f"{name} is fine-tuned, as there is a GPU; to train heads on its features only, "
            f"--set model.freeze=backbone"
        )
    elif freeze == "auto":
        freeze = "backbone"
        why = (
            f"{name} is frozen, as this is a CPU and images have {side} px: its features are "
            f"extracted once and the rest is trained on them; to fine-tune it, "
            f"--set model.freeze=none"
        )
    return replace(model, freeze=freeze), why


def _resolve(plan: Plan, side: int | None, device: str | None) -> tuple[Plan, str]:
    """The plan with all settings but rehearsal's decided for images of `side` px (None: rows of
    features), and why the backbone learns or not."""
    config, domains = plan.config, len(plan.train_domains)
    data, phi, main = config.data, config.embedding, config.train
    model, why = choose_model(config, side, device)
    frozen = model.freeze == "backbone"
    # On features rehearsal fits the network anew, as it is in the folds: with a linear head.
    alone = config.adapt.rehearse and (frozen or plan.manifest.has_features)
    scratch = model.backbone in WITHOUT_WEIGHTS or not (model.pretrained or model.weights)
    rate = RATES["frozen" if frozen else "scratch" if scratch else "pretrained"]
    # Images are small when their own side is, or when a small backbone was asked for.
    small = min(side, SMALL) if side and model.backbone == "small-cnn" else 0
    size, augment = data.image_size or small, data.augment
    if augment == "auto":
        augment = "none" if side is None or (size or side) <= SMALL else "domainbed"
    if frozen:
        augment = "none"  # an image has one vector of features
    mixup = phi.mixup
    if mixup == "auto":
        mixup = "on" if domains < FEW_DOMAINS else "off"
    rows = sum(map(len, plan.train_rows))
    # Never 1, which is no setting: a plain run of one domain must load again.
    slots_a = max(2, min(phi.domains_per_step, domains))
    slots_b = min(main.domains_per_step or MOST_DOMAINS_PER_STEP, domains)
    batch = slots_b * main.per_domain
    steps = main.steps or _passes(rows, batch, STEPS_B)
    if main.epochs:
        steps = max(1, round(main.epochs * rows / batch))
    decided: dict[str, Any] = {
        "data.image_size": size,
        "data.augment": augment,
        "model.backbone": model.backbone,
        "model.freeze": model.freeze,
        "model.head": "linear" if alone else model.head,
        "embedding.mixup": mixup,
        "embedding.domains_per_step": slots_a,
        "embedding.steps": phi.steps or _passes(rows, slots_a * phi.per_domain, STEPS_A),
        "train.steps": steps,
        "train.domains_per_step": slots_b,
        "train.evaluate_every": min(main.evaluate_every, steps),
    }
    for name, optimiser in (("embedding", phi.optimiser), ("train", main.optimiser)):
        decided[f"{name}.optimiser.lr"] = rate if optimiser.lr is None else optimiser.lr
    return replace(plan, config=with_settings(config, decided)), why


def _passes(rows: int, batch: int, limits: tuple[int, int]) -> int:
    """Steps of a number of passes over the rows, within limits."""
    least, most = limits
    return min(max(PASSES * rows // batch, least), most)


def _resolve_rehearsal(plan: Plan, device: str | None) -> tuple[Plan, str]:
    """The plan with the depth of rehearsal decided, and what it means.

    A backbone that learns has seen the domains that are held out, unless it is trained without
    them. That takes as much time again for each, and tells most where domains are few and differ
    much.
    """
    adapt, algorithm, domains = plan.config.adapt, plan.algorithm, len(plan.train_domains)
    others, least = domains - 1, algorithm.build.least_domains
    if adapt.rehearse and algorithm.adaptive:
        plain = AlgorithmName.of(algorithm.name).base if algorithm.over_mu else "erm"
        raise ConfigError(
            f"{algorithm.name} adapts by its own embedding and is not rehearsed; leave out "
            f"adapt.rehearse, or use --algorithm {plain}"
        )
    depth = adapt.depth
    if depth == "auto":
        few = max(least, 2) < domains <= FEW_TO_TRAIN
        fits = adapt.rehearse and few and not plan.on_features
        fast = device is not None and pick_device(device).type == "cuda"
        depth = "whole" if fits and fast else "heads"
    plan = replace(plan, config=with_settings(plan.config, {"adapt.depth": depth}))
    if not adapt.rehearse or depth == "heads" or others < 1:
        return plan, ""
    if adapt.rehearse_backbone:
        raise ConfigError(
            "adapt.rehearse_backbone takes one backbone for all folds, and whole rehearsal trains "
            "one for each; use --set adapt.depth=heads, or leave it out"
        )
    if others < least:
        raise ConfigError(
            f"{algorithm.name} needs {least} training domains, and whole rehearsal would train on "
            f"{others}; use --set adapt.depth=heads"
        )
    return plan, (
        f"rehearsal retrains the model for each fold of the {domains} sites; to refit heads "
        f"only, --set adapt.depth=heads"
    )
