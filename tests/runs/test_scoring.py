"""Scores by hand: which rows count, in which domain's light, and what the controls are told."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from acclimate.adapt import choice
from acclimate.adapt.classifier import Adapted, adapt
from acclimate.adapt.methods import Chain, chain_of
from acclimate.adapt.methods.lame import affinity, smooth
from acclimate.config import EmbeddingConfig, RunConfig
from acclimate.config.settings import PRESETS
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.randomness import stream
from acclimate.data.batches import Batch, label_prior
from acclimate.data.manifest import Manifest
from acclimate.data.source import FeatureSource
from acclimate.learn.algorithms.erm import ERM
from acclimate.learn.embeddings import DomainState, DomainTable, Embedding
from acclimate.learn.embeddings.state import sample_rows
from acclimate.learn.images import Images
from acclimate.learn.model import Model, Trained
from acclimate.learn.models import Predictor, build_backbone
from acclimate.learn.models.predictors import LinearHead, identity_backbone
from acclimate.learn.objective import Losses
from acclimate.records.folder import RunFolder
from acclimate.records.metrics import metric_values
from acclimate.records.predictions import COLUMNS, Predictions
from acclimate.records.records import Score
from acclimate.records.rehearsal import Promise, Rehearsal
from acclimate.rehearse.training import train
from acclimate.runs import scoring
from acclimate.runs.plan import Plan, make_plan
from acclimate.runs.scoring import (
    Subject,
    final_scores,
    predict_rows,
    remember_shared,
    row_facts,
    split_domain,
    state_of,
    validate,
)
from fixtures.errors import refused
from fixtures.predictors import conditioned_on, plain_on

Tiny = Callable[..., RunConfig]
SITES = ("site-0", "site-1", "site-2", "site-3")


def logits(classes: int) -> Predictor:
    """The features are the logits."""
    head = LinearHead(classes, classes)
    with torch.no_grad():
        head.last.weight.copy_(torch.eye(classes))
        head.last.bias.zero_()
    return Predictor(identity_backbone(classes), head)


class Place(Embedding):
    """Φ is the first feature, which says in which domain an image was taken."""

    def __init__(self) -> None:
        backbone = build_backbone("mlp", in_features=2)
        config = EmbeddingConfig(dim=1)
        super().__init__(backbone, config, domains=2, classes=4, world=World(), seed=0)

    def raw(self, x: Tensor) -> Tensor:
        return x[:, :1]

    def forward(self, batch: Batch, step: int) -> Losses:
        raise NotImplementedError("it has learned all there is")


def plain(plan: Plan, predictor: Predictor, prior: Sequence[float] = (), **more: Any) -> Subject:
    """A plain model on a plan's features, or on the `source` in `more`."""
    start = Model(predictor, label_prior=prior)
    source = more.pop("source", None) or FeatureSource.of(plan.manifest)
    return Subject(plan, source, more.pop("world", World()), start, **more)


def scores_of(subject: Subject, methods: Sequence[str] = ()) -> list[Score]:
    return [score for score, _ in final_scores(subject, methods)]


def score_of(subject: Subject, method: str, methods: Sequence[str] = ()) -> Score:
    """The score of domain `new` by a method."""
    found = scores_of(subject, methods)
    (score,) = (s for s in found if (s.domain, s.method) == ("new", method))
    return score


def places(tiny: Tiny, classes: int, sites: Sequence[str] = SITES, **unseen: list[str]) -> Subject:
    """Site i holds one class, i modulo `classes`, and lies there: only μ tells what images show."""
    place = np.repeat(np.arange(len(sites)) % classes, 20)
    X = np.stack([place, 0 * place], axis=1).astype(np.float32)
    data = Manifest.from_arrays(X, place, np.repeat(sites, 20))
    plan = make_plan(tiny("da-erm", **unseen), data)
    states = {
        name: DomainState.empty("", 1).updated(torch.full((16, 1), sites.index(name) % classes))
        for name in plan.train_domains
    }
    table, prior = DomainTable(states), [1 / classes] * classes
    start = Model(by_place(classes), Place(), table, prior_aware=False, label_prior=prior)
    return Subject(plan, FeatureSource.of(data), World(), start)


def by_place(classes: int) -> Predictor:
    """F(x, μ) says class i where μ is i: its logits are −(μ − i)², up to a constant."""
    backbone = build_backbone("mlp", in_features=2)
    learned = conditioned_on(backbone, classes, mu_dim=1, condition="bias", width=2, hidden=2)
    number = torch.arange(float(classes))
    with torch.no_grad():
        for parameter in learned.parameters():
            parameter.zero_()
        learned.get_parameter("head.condition.shift.weight").copy_(2 * number[:, None])
        learned.last.bias.copy_(-number.square())
    return Predictor(identity_backbone(2), learned).eval()


def test_a_training_domain_is_validated_with_its_own_embedding(tiny: Tiny) -> None:
    scores, mean, _ = validate(places(tiny, classes=4), step=3)
    assert [(s.domain, s.split, s.n, s.top1) for s in scores] == [(d, "val", 4, 1) for d in SITES]
    facts = {(s.moment, s.method, s.adapted_on, s.adapt_n, s.adapt_seed) for s in scores}
    assert facts == {("validation", "embedding", "training", 16, None)}
    assert mean == 1.0


def test_the_wrong_embedding_is_another_domain_s(tiny: Tiny) -> None:
    """site-2 and site-3 are unseen and differ: with the other's μ nothing is right."""
    scores = scores_of(places(tiny, classes=2, test_domains=["site-2", "site-3"]))
    unseen = [(s.domain, s.method, s.top1, s.adapted_on) for s in scores if s.role == "test"]
    assert unseen == [
        ("site-2", "embedding", 1.0, "held-out"),
        ("site-2", "wrong-embedding", 0.0, "held-out"),
        ("site-3", "embedding", 1.0, "held-out"),
        ("site-3", "wrong-embedding", 0.0, "held-out"),
    ]


def test_whose_embedding_is_the_wrong_one_is_as_it_has_always_been(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six unseen domains, drawn by the seed and the domain's name; never its own."""
    sites = [f"site-{i}" for i in range(8)]
    subject = places(tiny, 2, sites, test_domains=sites[4:], val_domains=sites[2:4])
    asked: list[str] = []
    monkeypatch.setattr(
        scoring, "state_of", lambda s, name: asked.append(name) or state_of(s, name)
    )
    for domain in sites[2:]:
        assert scoring._with_wrong_embedding(subject, domain).adapted_on == "held-out"
    assert asked == ["site-5", "site-7", "site-6", "site-3", "site-5", "site-4"]


def test_one_unseen_domain_takes_a_training_one_for_its_wrong_embedding(tiny: Tiny) -> None:
    subject = places(tiny, classes=3, test_domains=["site-3"])  # which lies where site-0 does
    (wrong,) = (s for s in scores_of(subject) if s.method == "wrong-embedding")
    assert (wrong.adapted_on, wrong.adapt_n, wrong.adapt_seed) == ("training", 16, None)
    taken = int(stream(0, "wrong", "site-3").integers(3))
    assert wrong.top1 == (1.0 if taken == 0 else 0.0)


def test_facts_of_a_row_by_hand() -> None:
    """Seven classes with logits 7 to 1; the label has the rank that its row says."""
    ranks = torch.tensor([1, 1, 2, 5, 6, 7])
    logits = torch.arange(7.0, 0.0, -1.0).expand(6, 7)
    read, predicted, rank, sure, squares, loss = row_facts(logits, ranks - 1).T
    total = math.log(sum(math.exp(logit) for logit in range(1, 8)))
    shares = [math.exp(logit - total) for logit in range(1, 8)]
    assert read.tolist() == [1] * 6 and predicted.tolist() == [0] * 6
    assert rank.tolist() == ranks.tolist()
    assert sure.tolist() == pytest.approx([shares[-1]] * 6, rel=1e-6)
    assert squares.tolist() == pytest.approx([sum(p * p for p in shares)] * 6, rel=1e-6)
    # A label of rank r has the logit 8 - r.
    assert loss.tolist() == pytest.approx([total - 8 + int(r) for r in ranks], rel=1e-6)


def test_equal_logits_and_such_as_are_no_numbers() -> None:
    """As `topk` breaks ties, so do the prediction and the rank: the first five are five."""
    ties = torch.zeros(7, 7)
    _, predicted, rank, _, _, loss = row_facts(ties, torch.arange(7)).T
    first = ties.topk(5, dim=1).indices[0].tolist()
    assert predicted.tolist() == [first[0]] * 7
    expected = [1 + first.index(label) if label in first else 6 for label in range(7)]
    assert rank.tolist() == expected
    cross_entropy = torch.nn.functional.cross_entropy(ties, torch.arange(7), reduction="none")
    assert torch.equal(loss, cross_entropy.double())
    assert row_facts(torch.full((1, 3), torch.nan), torch.tensor([2]))[0, 5].isnan()


class Gallery(FeatureSource):
    """Rows that show images of which there are fewer; writes down what is read."""

    def __init__(self, images: Tensor, image: np.ndarray, labels: np.ndarray) -> None:
        self.features, self.image, self.labels = images, image, labels
        self.read: list[int] = []

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        shown = self.image[rows]
        self.read += shown.tolist()
        return self.features[torch.from_numpy(shown)], shown % 7 != 3


class Part(World):
    """One of several processes, alone."""

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor


@pytest.mark.parametrize("processes", [1, 3])
def test_an_image_that_many_rows_show_passes_once(
    processes: int, tiny: Tiny, features: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rows of their own, in float64, it comes to the same; a seventh cannot be read."""
    monkeypatch.setattr("acclimate.data.source.PART", 500)  # more rows than fit into one part
    rng, torch_rng = np.random.default_rng(1), torch.Generator().manual_seed(1)
    image = rng.integers(0, 600, 5000)
    labels, group = rng.integers(0, 6, 5000), rng.integers(0, 4, 5000)
    source = Gallery(torch.randn(600, 5, generator=torch_rng), image, labels)
    predictor = conditioned_on(identity_backbone(5), 6, mu_dim=2, width=8, hidden=8).eval()
    passed: list[int] = []
    predictor.backbone.register_forward_hook(lambda *call: passed.append(len(call[2])))
    mu = torch.randn(4, 2, generator=torch_rng)
    rows = rng.permutation(5000)[:4000]  # in any order
    plan, facts = make_plan(tiny("erm"), features), np.zeros((4000, 6))
    for number in range(processes):
        subject = plain(plan, predictor, source=source, world=Part(number, processes))
        own = predict_rows(subject, [predictor], rows, mu=mu, group=group[rows])[0]
        assert not (own[:, 0] * facts[:, 0]).any()  # each row is one process's
        facts += own
    good = image[rows] % 7 != 3
    assert (facts[:, 0] == good).all()
    assert sorted(source.read) == sorted(set(image[rows].tolist()))
    assert sum(passed) == len(set(image[rows[good]].tolist()))
    with torch.no_grad():
        x, own_mu = source.features[torch.from_numpy(image[rows[good]])], mu[group[rows[good]]]
        logits = predictor.double()(x.double(), own_mu.double()).logits
    expected = row_facts(logits, torch.from_numpy(labels[rows[good]]))
    np.testing.assert_allclose(facts[good], expected, rtol=1e-5, atol=1e-7)


def shared_images(tiny: Tiny) -> tuple[Subject, Gallery, np.ndarray]:
    """Five domains that draw their images from the same forty, two of them unseen."""
    rng, torch_rng = np.random.default_rng(3), torch.Generator().manual_seed(3)
    image = np.concatenate([rng.permutation(40)[:25] for _ in range(5)])
    pictures, labels = torch.randn(40, 5, generator=torch_rng), rng.integers(0, 4, 40)
    labels[:4] = range(4)
    names = np.repeat(list("pqrst"), 25)
    data = Manifest.from_arrays(pictures.numpy()[image], labels[image], names)
    plan = make_plan(tiny("erm", test_domains=["s", "t"], **{"adapt.points": 6}), data)
    torch.manual_seed(0)
    predictor = plain_on(identity_backbone(5), 4).eval()
    source = Gallery(pictures, image, labels[image])
    return plain(plan, predictor, [0.25] * 4, source=source), source, image


def passes_of(subject: Subject) -> list[np.ndarray]:
    """Rows of each pass over the domains of `shared_images`."""
    rows = subject.plan.manifest.rows
    seen = np.concatenate([rows(domain=domain, split="val") for domain in "pqr"])
    return [seen, *(split_domain(subject.plan, domain)[1] for domain in "st")]


def full(*given: Any, empty: Any = torch.empty, **named: Any) -> Tensor:
    """On any device that is named, there is no room."""
    if named.get("device") is not None:
        raise torch.OutOfMemoryError
    return empty(*given, **named)


def test_an_image_of_several_domains_passes_once_in_all(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, source, image = shared_images(tiny)
    passed: list[int] = []
    subject.model.predictor.backbone.register_forward_hook(
        lambda *call: passed.append(len(call[2]))
    )
    scores = scores_of(subject)
    scored = np.concatenate(passes_of(subject))
    expected = {number for number in image[scored].tolist() if number % 7 != 3}
    assert sum(passed) == len(expected) < len(scored)
    assert sum(score.n for score in scores if score.method == "none") == sum(
        image[row] % 7 != 3 for row in scored
    )
    # An image that cannot be read is tried each time; whatever was read before is not.
    assert sorted(n for n in source.read if n % 7 != 3) == sorted(expected)
    # Where there is no room for features, images pass again, and it comes to the same.
    for name, value in (("MOST_REMEMBERED", 0), ("torch.empty", full)):
        passed.clear()
        with monkeypatch.context() as patch:
            patch.setattr(f"acclimate.runs.scoring.{name}", value)
            assert_same(scores_of(subject), scores)
        assert sum(passed) > len(expected)


def assert_same(scores: Sequence[Score], others: Sequence[Score]) -> None:
    """But for how sums were rounded."""
    for one, other in zip(scores, others, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
        assert one == replace(other, loss=one.loss, metrics=one.metrics)


def test_images_of_several_passes_are_remembered_if_all_of_them_fit(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, _, image = shared_images(tiny)
    passes = passes_of(subject)
    expected = sorted({number for rows in passes for number in image[rows].tolist()})
    memory = remember_shared(subject, passes)
    assert memory is not None and memory.images.tolist() == expected
    assert remember_shared(subject, passes[:1]) is None  # which shows each image once
    needed = len(expected) * 5 * 4
    for budget, fits in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr("acclimate.runs.scoring.MOST_REMEMBERED", budget)
        assert (remember_shared(subject, passes) is not None) == fits


@pytest.mark.parametrize("methods", [["prior", "t3a"], ["prior", "bn", "t3a"]])
def test_methods_score_the_same_whatever_is_remembered(
    tiny: Tiny, methods: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that change the backbone, and so make other features of the same images, too."""

    def scored() -> list[Score]:
        subject, _, _ = shared_images(tiny)
        if "bn" in methods:
            subject.model.predictor.backbone.body = torch.nn.BatchNorm1d(5).eval()
        return scores_of(subject, methods)

    found = scored()
    assert {score.method for score in found} >= {*methods, "none"}
    monkeypatch.setattr("acclimate.runs.scoring.MOST_REMEMBERED", 0)
    assert_same(found, scored())


def test_lame_sees_batches_in_random_order_whatever_the_order_of_the_rows(tiny: Tiny) -> None:
    """Rows are sorted by class, as folders are: batches of one class would flatter it."""
    rng = np.random.default_rng(0)
    labels = np.sort(np.tile(np.arange(3), 50))
    X = (rng.normal(size=(150, 3)) + 1.5 * np.eye(3)[labels]).astype(np.float32)
    data = Manifest.from_arrays(X, labels, np.repeat(["p", "new", "q"], 50)[rng.permutation(150)])
    plan = make_plan(tiny("erm", test_domains=["new"], **{"adapt.points": 5}), data)
    scores = {
        s.method: (s, p)
        for s, p in final_scores(plain(plan, logits(3), [1 / 3] * 3), ["lame"])
        if s.domain == "new"
    }
    assert scores.keys() == {"none", "oracle-prior", "lame"}
    score, found = scores["lame"]
    rows = split_domain(plan, "new")[1]
    order = stream(0, "lame", "new").permutation(len(rows))
    x = torch.from_numpy(X[rows[order]])
    smoothed = smooth(x, affinity(x, 5)).exp().amax(1).numpy()
    assert (score.n, score.adapted_on, score.adapt_n) == (len(rows), None, None)
    assert found.row.tolist() == rows.tolist()
    np.testing.assert_allclose(found.p_predicted[order], smoothed, rtol=1e-5)
    assert not np.allclose(found.p_predicted, scores["none"][1].p_predicted, atol=0.01)


def test_the_oracle_knows_the_frequencies_of_the_scored_images_alone(tiny: Tiny) -> None:
    """Of 10 images 5 adapt, all of class a; of the others 2 are of class a and 3 of class b. Class
    c is not there at all."""
    rows = sample_rows(np.arange(60, 70), 5, 0, "new")
    labels = np.array(["a", "b", "c"] * 20 + [""] * 10)
    labels[60:] = ["a" if row in rows else "" for row in range(60, 70)]
    labels[labels == ""] = ["a", "b", "b", "a", "b"]
    X = np.zeros((70, 3), dtype=np.float32)
    data = Manifest.from_arrays(X, labels, ["p"] * 30 + ["q"] * 30 + ["new"] * 10)
    plan = make_plan(tiny("erm", test_domains=["new"], **{"adapt.points": 5}), data)
    assert split_domain(plan, "new")[0].tolist() == rows.tolist()
    oracle = score_of(plain(plan, logits(3), (0.25, 0.5, 0.25)), "oracle-prior")
    # Told nothing by the images, it goes by the odds of 2/5 against 1/4 and of 3/5 against 1/2.
    assert (oracle.n, oracle.top1) == (5, 0.4)
    odds = {"a": (2 / 5) / (1 / 4), "b": (3 / 5) / (1 / 2)}
    chance = {name: odd / sum(odds.values()) for name, odd in odds.items()}
    expected = -(2 * math.log(chance["a"]) + 3 * math.log(chance["b"])) / 5
    assert oracle.loss == pytest.approx(expected, rel=1e-5)


def test_the_label_prior_counts_every_domain_equally(tiny: Tiny) -> None:
    """8 rows of class a in one domain, a row of each class in the other: ¾, where 9 of 10 are a."""
    labels = ["a"] * 8 + ["a", "b"]
    X = np.arange(20, dtype=np.float32).reshape(10, 2)
    domains, splits = ["large"] * 8 + ["small"] * 2, ["train"] * 10
    plan = make_plan(tiny("erm"), Manifest.from_arrays(X, labels, domains, splits=splits))
    assert label_prior(plan.label_counts).tolist() == [0.75, 0.25]


def test_step_b_sees_each_domain_with_its_own_embedding(
    features: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Batch] = []
    forward = ERM.forward

    def watched(self: ERM, batch: Batch, step: int) -> Losses:
        seen.append(batch)
        return forward(self, batch, step)

    monkeypatch.setattr(ERM, "forward", watched)
    train(tiny("da-erm", test_domains=["site-4"]), features, tmp_path / "run")
    table = Trained.load(tmp_path / "run").table
    assert table is not None and len(seen) == 6
    means = table.means.float()
    assert len({tuple(mean.tolist()) for mean in means}) == 4
    for batch in seen:
        assert batch.mu is not None
        assert set(batch.domain.tolist()) == {0, 1, 2, 3}
        assert torch.equal(batch.mu, means[batch.domain])
        rows = [features.features()[features.rows(domain=name)] for name in table.names]
        for x, domain in zip(batch.x, batch.domain, strict=True):
            assert (rows[int(domain)] == x.numpy()).all(1).any()


@pytest.fixture(scope="module")
def shifted() -> Manifest:
    """Three blurred classes. Training sites p and q have them alike; of `new`, 8 in 10 are cats,
    and of `late` 8 in 10 are ants."""
    rng = np.random.default_rng(3)
    likely = {"p": (1, 1, 1), "q": (1, 1, 1), "r": (2, 1, 1), "new": (1, 1, 8), "late": (8, 1, 1)}
    labels = [rng.choice(3, 60, p=np.array(weights) / sum(weights)) for weights in likely.values()]
    y, domains = np.concatenate(labels), np.repeat(list(likely), 60)
    X = np.eye(3)[y] + rng.normal(0, 0.6, (300, 3)) + np.repeat(np.arange(5) / 5, 60)[:, None]
    names = np.array(["ant", "bee", "cat"])
    return Manifest.from_arrays(X.astype(np.float32), names[y], domains)


UNSEEN = {"val_domains": ["late"], "test_domains": ["new"]}
LEARNED = {"train.steps": 40, "train.optimiser.lr": 0.02, "adapt.points": 20, "seed": 5}


@pytest.fixture(scope="module")
def runs(shifted: Manifest, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned")
    for algorithm in ("erm", "da-erm"):
        train(tiny(algorithm, **UNSEEN, **LEARNED), shifted, folder / algorithm)
    return folder


@pytest.fixture(scope="module")
def learned(runs: Path) -> dict[str, Trained]:
    return {algorithm: Trained.load(runs / algorithm) for algorithm in ("erm", "da-erm")}


Make = Callable[..., Subject]


@pytest.fixture
def make(learned: dict[str, Trained], shifted: Manifest, tiny: Tiny) -> Make:
    """The scoring of a learned model, by its algorithm; with other settings, or another part."""

    def make(
        algorithm: str,
        settings: Mapping[str, object] | None = None,
        data: Manifest = shifted,
        source: type[FeatureSource] = FeatureSource,
        **more: Any,
    ) -> Subject:
        plan = make_plan(tiny(algorithm, **(UNSEEN | LEARNED | dict(settings or {}))), data)
        return replace(Subject.of(learned[algorithm], plan, source.of(data), World()), **more)

    return make


def assert_scored_as(site: Adapted, score: Score, data: Manifest, rows: np.ndarray) -> None:
    """A score is that of an adapted classifier on `rows`, loss and all."""
    p, true = site.predict_proba(data.features()[rows]), data.label_index[rows]
    assert (score.n, score.top1) == (len(rows), float((p.argmax(1) == true).mean()))
    loss = -np.log(p[np.arange(len(rows)), true]).mean()
    assert score.loss == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "methods"),
    [
        ("erm", ("none", "prior", "t3a")),
        ("da-erm", ("none", "embedding", "prior", "embedding+prior", "embedding+t3a")),
    ],
)
def test_a_method_s_score_is_that_of_adapting_by_hand(
    algorithm: str,
    methods: tuple[str, ...],
    learned: dict[str, Trained],
    shifted: Manifest,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The images set aside go through `adapt`, and the others through what it gives; every image
    passes the backbone once, however many methods there are, and Φ those set aside."""
    subject, trained, right = make(algorithm), learned[algorithm], set()
    passed: list[int] = []
    embedded: list[Tensor] = []
    backbone, phi = subject.model.predictor.backbone, subject.model.embedding
    if phi is not None:
        raw = phi.raw
        monkeypatch.setattr(phi, "raw", lambda x: embedded.append(x) or raw(x))
    with backbone.register_forward_hook(lambda *call: passed.append(len(call[2]))):
        found = scores_of(subject, methods)
    seen = sum(len(shifted.rows(domain=d, split="val")) for d in "pqr")
    assert sum(map(len, embedded)) == (2 * 20 if algorithm == "da-erm" else 0)
    # The control has taken those of the domain that comes later before.
    assert sum(passed) == seen + 2 * 60 + (20 if algorithm == "da-erm" else 0)
    monkeypatch.undo()
    scores = {(s.domain, s.method): s for s in found}
    for domain, role in (("new", "test"), ("late", "val")):
        adapting, scored = split_domain(subject.plan, domain)
        assert len(adapting) == 20 and len(scored) == 40
        for method in methods:
            site = adapt(trained, shifted.features()[adapting], method=method)
            score = scores[domain, method]
            assert_scored_as(site, score, shifted, scored)
            used = None if method == "none" else 20
            assert (score.moment, score.step, score.role, score.split) == ("final", 0, role, "all")
            assert (score.n, score.top5, score.adapt_n) == (40, None, used)
            on = (score.adapted_on, score.adapt_seed)
            assert on == (("held-out", 5) if used else (None, None))
            right.add((domain, score.loss))
    assert len(right) > 3  # methods differ here, so that a score says which one it is of


@pytest.mark.parametrize(
    ("algorithm", "method", "settings"),
    [
        ("erm", "t3a", {"t3a.keep": 1}),
        ("erm", "prior", {"prior.expect": "learned"}),
        ("da-erm", "embedding+prior", {"prior.temperature": 2.0, "prior.strength": 9.0}),
    ],
)
def test_methods_have_the_settings_of_the_run(
    algorithm: str,
    method: str,
    settings: dict[str, object],
    learned: dict[str, Trained],
    shifted: Manifest,
    make: Make,
) -> None:
    subject = make(algorithm, {f"adapt.{key}": value for key, value in settings.items()})
    adapting, scored = split_domain(subject.plan, "new")
    images = shifted.features()[adapting]
    site = adapt(learned[algorithm], images, method=method, settings=settings)
    assert_scored_as(site, score_of(subject, method, [method]), shifted, scored)
    usual = adapt(learned[algorithm], images, method=method).predict_proba(images)
    assert np.abs(site.predict_proba(images) - usual).max() > 1e-3  # the settings tell


def test_a_prior_aware_model_stands_under_the_training_prior(
    learned: dict[str, Trained], shifted: Manifest, make: Make
) -> None:
    trained = learned["da-erm"]
    config = replace(trained.config, train=replace(trained.config.train, prior_aware=True))
    subject, losses = make("da-erm"), []
    adapting, scored = split_domain(subject.plan, "new")
    for model in (trained, replace(trained, config=config)):
        own = replace(subject, model=model.start(embedding=False))
        score = score_of(own, "embedding+prior", ["embedding+prior"])
        site = adapt(model, shifted.features()[adapting], method="embedding+prior")
        assert_scored_as(site, score, shifted, scored)
        losses.append(score.loss)
    assert losses[0] != losses[1]


@pytest.mark.parametrize("method", ["embedding", "embedding+prior"])
def test_the_second_path_of_a_plain_model(
    method: str, learned: dict[str, Trained], shifted: Manifest, make: Make
) -> None:
    """`embedding` starts from it, and what does not name the embedding from the plain model."""
    adaptive = learned["da-erm"]

    def start(*, embedding: bool) -> Model:
        assert embedding
        return adaptive.start(embedding=True)

    paired = SimpleNamespace(site=Ellipsis, rehearsal=None, start=start)
    subject = make("erm", trained=paired)
    adapting, scored = split_domain(subject.plan, "new")
    images = shifted.features()[adapting]
    found = {s.method: s for s in scores_of(subject, [method, "prior"]) if s.domain == "new"}
    facts = (found[method].adapted_on, found[method].adapt_n, found[method].adapt_seed)
    assert facts == ("held-out", 20, 5)
    assert_scored_as(adapt(adaptive, images, method=method), found[method], shifted, scored)
    site = adapt(learned["erm"], images, method="prior")
    assert_scored_as(site, found["prior"], shifted, scored)


@pytest.mark.parametrize(("method", "fact"), [("embedding", "(erm)"), ("auto", "adapt.rehearse")])
def test_what_a_plain_model_without_rehearsal_cannot_be_scored_by(
    method: str, fact: str, make: Make
) -> None:
    with refused(ConfigError, fact):
        scores_of(make("erm"), [method])


class Patchy(FeatureSource):
    """Every third row cannot be read, and shows nothing."""

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        stored, _ = super().take(rows)
        good = rows % 3 != 0
        return torch.where(torch.from_numpy(good)[:, None], stored, 1e3), good


@pytest.mark.parametrize("method", ["prior", "t3a", "embedding", "embedding+prior"])
def test_images_that_cannot_be_read_adapt_nothing_and_are_not_scored(
    method: str, learned: dict[str, Trained], shifted: Manifest, make: Make
) -> None:
    algorithm = "da-erm" if "embedding" in method else "erm"
    subject = make(algorithm, source=Patchy)
    score = score_of(subject, method, [method])
    images, rows = (part[part % 3 != 0] for part in split_domain(subject.plan, "new"))
    assert score.adapt_n == len(images) < 20
    site = adapt(learned[algorithm], shifted.features()[images], method=method)
    assert_scored_as(site, score, shifted, rows)


class Unreadable(FeatureSource):
    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        stored, good = super().take(rows)
        return stored, good & (rows < 180)  # `new` and `late` come after that


def test_a_domain_of_which_nothing_can_be_read(make: Make) -> None:
    subject = make("da-erm", source=Unreadable)
    found = [s for s in scores_of(subject) if s.domain == "new"]
    assert [s.method for s in found] == ["embedding", "wrong-embedding"]
    facts = {(s.n, s.top1, s.loss, s.adapted_on, s.adapt_n) for s in found}
    assert facts == {(0, None, None, "held-out", 0)}
    assert all(value is None for value in found[0].metrics.values())
    chosen = validate(subject, 0)  # by `late`, which cannot be read either
    assert (len(chosen.scores), chosen.value, chosen.loss) == (1, None, None)
    assert score_of(subject, "none", ["none"]).n == 0  # which needs no image
    with refused(ManifestError, 20, "late"):
        scores_of(make("erm", source=Unreadable), ["prior"])


class AllButOne(FeatureSource):
    """Of the first images of `new` and `late` that adapt to them, only one each can be read."""

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        stored, good = super().take(rows)
        return stored, good & ((rows < 180) | (np.cumsum(rows >= 180) == 1))


def test_a_method_of_the_run_that_has_too_few_images_is_scored_on_none(make: Make) -> None:
    """A run is not stopped at its end by a domain that its own methods cannot adapt to."""
    own = {"adapt.methods": ["prior", "t3a"]}
    found = [s for s in scores_of(make("erm", own, source=Unreadable)) if s.domain == "new"]
    assert [(s.method, s.n, s.top1, s.adapted_on, s.adapt_n) for s in found] == [
        ("none", 0, None, None, None),
        ("oracle-prior", 0, None, None, None),
        ("prior", 0, None, "held-out", 0),
        ("t3a", 0, None, "held-out", 0),
    ]
    found = [s for s in scores_of(make("erm", own, source=AllButOne)) if s.domain == "new"]
    assert [(s.method, s.n, s.adapt_n) for s in found[2:]] == [("prior", 1, 1), ("t3a", 1, 1)]


def chose(chosen: dict[int, str]) -> Rehearsal:
    """A rehearsal that chose a chain from so many images on."""
    numbers = {"gain": 0.1, "error": None, "accuracy": 0.5, "domains": 3}
    promises = tuple(
        Promise(
            chain=chain,
            n=n,
            frequencies="as they are",
            settings=WITH if "prior" in chain else {},
            **numbers,
        )
        for n, chain in chosen.items()
    )
    return Rehearsal(
        promises=promises,
        chosen=chosen,
        temperatures={},
        domains=3,
        exact=True,
    )


WITH = {"prior.temperature": 2.0, "prior.strength": 9.0}


@pytest.mark.parametrize(
    ("objections", "method", "asked"),
    [
        ({}, "embedding+prior", ["embedding+prior"]),
        ({"embedding+prior": "prior"}, "embedding", ["embedding+prior", "embedding"]),
        (
            {"embedding+prior": "embedding", "prior": "prior"},
            "none",
            ["embedding+prior", "prior", "none"],
        ),
    ],
)
def test_auto_is_what_rehearsal_chose_unless_the_images_speak_against_it(
    objections: dict[str, str],
    method: str,
    asked: list[str],
    learned: dict[str, Trained],
    shifted: Manifest,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 20 images those chosen for 10 or more decide."""
    seen: list[tuple[str, int]] = []

    def object_to(
        trained: Trained, chain: Chain, state: DomainState, images: Images
    ) -> tuple[str, str] | None:
        assert chain_of(state).name == chain.name
        seen.append((chain.name, len(images)))
        part = objections.get(chain.name)
        return None if part is None else (part, "it is unlike the others")

    monkeypatch.setattr(choice, "object_to", object_to)
    trained = learned["da-erm"]
    rehearsed = replace(trained, rehearsal=chose({10: "embedding+prior", 30: "t3a"}))
    subject = make("da-erm", trained=rehearsed)
    score = score_of(subject, "auto")
    used = None if method == "none" else 20
    assert (score.adapt_n, score.adapted_on) == (used, used and "held-out")
    assert seen == [(name, 20) for name in asked] * 2  # of `late` and of `new`
    adapting, scored = split_domain(subject.plan, "new")
    settings = WITH if "prior" in method else {}
    site = adapt(trained, shifted.features()[adapting], method=method, settings=settings)
    assert_scored_as(site, score, shifted, scored)


def test_auto_goes_by_the_settings_of_the_run_where_rehearsal_has_none(
    learned: dict[str, Trained], shifted: Manifest, make: Make
) -> None:
    trained = learned["erm"]
    rehearsed = replace(trained, rehearsal=chose({3: "t3a"}))
    subject = make("erm", {"adapt.t3a.keep": 1}, trained=rehearsed)
    adapting, scored = split_domain(subject.plan, "new")
    images = shifted.features()[adapting]
    site = adapt(trained, images, method="t3a", settings={"t3a.keep": 1})
    assert_scored_as(site, score_of(subject, "auto", ["auto"]), shifted, scored)


def test_a_named_method_has_the_settings_that_rehearsal_found(
    learned: dict[str, Trained], shifted: Manifest, make: Make
) -> None:
    trained = learned["erm"]
    subject = make("erm", trained=replace(trained, rehearsal=chose({10: "prior", 20: "t3a"})))
    adapting, scored = split_domain(subject.plan, "new")
    site = adapt(trained, shifted.features()[adapting], method="prior", settings=WITH)
    assert_scored_as(site, score_of(subject, "prior", ["prior"]), shifted, scored)


def test_how_many_images_auto_has_is_how_many_can_be_read(
    learned: dict[str, Trained], make: Make
) -> None:
    rehearsed = replace(learned["erm"], rehearsal=chose({0: "none", 19: "t3a", 20: "prior"}))
    score = score_of(make("erm", trained=rehearsed, source=Patchy), "auto")
    assert score.adapt_n is None  # `none` adapts on no image
    fewer = replace(learned["erm"], rehearsal=chose({0: "none", 10: "t3a", 20: "prior"}))
    score = score_of(make("erm", trained=fewer, source=Patchy), "auto")
    assert score.adapt_n is not None and 10 <= score.adapt_n < 19


def with_splits(data: Manifest, splits: Mapping[str, Sequence[str]]) -> Manifest:
    """The same rows; each domain's go through the splits named for it in turn."""
    names = [data.domains[i] for i in data.domain_index]
    turn = dict.fromkeys(data.domains, 0)
    own = []
    for name in names:
        own.append(splits[name][turn[name] % len(splits[name])])
        turn[name] += 1
    labels = [data.classes[i] for i in data.label_index]
    return Manifest.from_arrays(data.features(), labels, names, splits=own)


@pytest.mark.parametrize("own", ["test", "val"])
def test_which_splits_of_training_domains_are_scored(
    own: str, shifted: Manifest, make: Make
) -> None:
    """Test splits where there are any; beside validation domains, validation splits as well, which
    neither chose the weights nor are test splits. q has either the one or the other."""
    splits = dict.fromkeys(shifted.domains, ("train", "val", "test"))
    data = with_splits(shifted, splits | {"q": ("train", own)})
    first = [("p", "test"), ("q", own), ("r", "test")]
    for unseen, more in ((UNSEEN, [("p", "val"), ("r", "val")]), ({"val_domains": []}, [])):
        scores = scores_of(make("erm", unseen, data=data))
        seen = [(s.domain, s.split) for s in scores if s.domain in "pqr"]
        assert seen == first + more


def test_what_is_scored_in_the_end(make: Make) -> None:
    """Training sites without a test split on their validation images; then each unseen one, plain
    and with its control, and by each further method once."""
    subject = make("erm")
    scores = scores_of(subject, ("prior", "none", "prior"))
    assert [(s.domain, s.role, s.split, s.method) for s in scores] == [
        *((d, "train", "val", "none") for d in ("p", "q", "r")),
        *(
            (domain, role, "all", method)
            for domain, role in (("late", "val"), ("new", "test"))
            for method in ("none", "oracle-prior", "prior")
        ),
    ]
    assert all(score.moment == "final" and score.step == 0 for score in scores)
    # Validation domains choose, and nothing else is looked at.
    chosen = validate(subject, step=4)
    assert [(s.domain, s.moment, s.step, s.method) for s in chosen.scores] == [
        ("late", "validation", 4, "none")
    ]
    assert (chosen.value, chosen.loss) == (chosen.scores[0].top1, chosen.scores[0].loss)
    # The embedding that a model is meant with is no further method.
    adaptive = scores_of(make("da-erm"), ("embedding", "prior", "embedding"))
    methods = [s.method for s in adaptive if s.domain == "new"]
    assert methods == ["embedding", "wrong-embedding", "prior"]


@pytest.mark.parametrize("algorithm", ["erm", "da-erm"])
def test_a_run_keeps_the_rows_behind_its_final_scores(
    algorithm: str, runs: Path, shifted: Manifest, make: Make
) -> None:
    folder = RunFolder(runs / algorithm)
    rows = folder.predictions()
    assert rows is not None and rows.classes == ("ant", "bee", "cat")
    final = [score for score in folder.records().scores if score.moment == "final"]
    assert sum(score.n for score in final) == len(rows)
    for score in final:
        names = {"domain": score.domain, "split": score.split, "method": score.method}
        own = rows.where(
            np.all([getattr(rows, key) == name for key, name in names.items()], axis=0)
        )
        assert (shifted.domain_names[own.row] == score.domain).all()
        assert (shifted.label_index[own.row] == own.label).all()
        assert ((own.predicted == own.label) == (own.rank == 1)).all()
        assert metric_values(own) == score.metrics
        kept = (score.top1, score.top5, score.loss)
        assert kept == tuple(score.metrics[name] for name in ("top-1", "top-5", "nll"))
    again = Predictions.joined([own for _, own in final_scores(make(algorithm))])
    for name in ("p_predicted", "p_label", "p_squares", "loss"):
        assert getattr(again, name).dtype == np.float32
    assert again.rank.dtype == np.int32
    np.testing.assert_allclose(again.p_label, np.exp(-again.loss), rtol=1e-5)
    for name in COLUMNS:
        assert np.array_equal(getattr(again, name), getattr(rows, name)), name


def test_small_domains_give_half_of_their_images_away(tiny: Tiny) -> None:
    place = np.repeat([0, 1, 0], [20, 20, 7])
    X = np.stack([place == 0, place == 1], axis=1).astype(np.float32)
    data = Manifest.from_arrays(X, place, np.repeat(["p", "q", "new"], [20, 20, 7]))

    def sizes(**settings: object) -> tuple[int, int]:
        plan = make_plan(tiny("erm", test_domains=["new"], **settings), data)
        adapting, scored = split_domain(plan, "new")
        return len(adapting), len(scored)

    assert sizes(**{"adapt.points": 100}) == (3, 4)
    assert sizes(**{"adapt.points": 2}) == (2, 5)
    assert sizes(**{"adapt.points": 100, "adapt.source": "test"}) == (7, 7)
    assert sizes(**{"adapt.points": 5, "adapt.source": "test"}) == (5, 7)


@pytest.mark.parametrize(("points", "adapting"), [(5, 5), (99, 7)])
def test_of_geo_yfcc_the_test_split_is_scored(tiny: Tiny, points: int, adapting: int) -> None:
    """As the paper says; the images to adapt come from the other splits, however many there are."""
    numbers = np.arange(30)
    splits = np.where(numbers % 10 < 3, "test", np.where(numbers % 10 < 5, "val", "train"))
    splits[20:] = "test"  # nothing else of domain `whole`
    data = Manifest.from_arrays(
        numbers[:, None].astype(np.float32),
        numbers % 2,
        np.repeat(["site", "new", "whole"], 10),
        splits=splits,
    )
    preset = {"adapt.score": PRESETS["geo-yfcc"].settings["adapt.score"]}
    settings = {**preset, "test_domains": ["new", "whole"], "adapt.points": points}
    plan = make_plan(tiny("erm", **settings), data)
    chosen, scored = split_domain(plan, "new")
    assert scored.tolist() == [10, 11, 12]
    assert len(chosen) == adapting and set(chosen) <= {*range(13, 20)}
    chosen, scored = split_domain(plan, "whole")  # as without the setting
    assert len(chosen) == len(scored) == 5
    assert {*chosen} | {*scored} == {*range(20, 30)}
    found = scores_of(plain(plan, plain_on(identity_backbone(1), 2), [0.5, 0.5]))
    facts = {(s.domain, s.split, s.n) for s in found if s.role == "test"}
    assert facts == {("new", "test", 3), ("whole", "test", 5)}
    shown = make_plan(tiny("erm", **settings, **{"adapt.source": "test"}), data)
    assert [part.tolist() for part in split_domain(shown, "new")] == [[10, 11, 12]] * 2


@pytest.mark.parametrize(
    ("tested", "scored", "adapting"),
    [(0, None, 5), (1, [20], 9), (9, [*range(20, 29)], 1)],
    ids=["no row", "one row", "all but one"],
)
def test_the_split_that_is_scored_is_there_from_one_row_on(
    tiny: Tiny, tested: int, scored: list[int] | None, adapting: int
) -> None:
    """Without it all rows are scored, less those that adapt."""
    splits = np.array(["train", "val"] * 10 + ["test"] * tested + ["val"] * (10 - tested))
    domains = np.repeat(["p", "q", "new"], 10)
    labels = np.arange(30) // 2 % 2
    data = Manifest.from_arrays(np.ones((30, 1)), labels, domains, splits=splits)
    own = {"adapt.score": "test", "adapt.points": 50, "test_domains": ["new"]}
    plan = make_plan(tiny("erm", **own), data)
    chosen, rows = split_domain(plan, "new")
    assert len(chosen) == adapting and not {*chosen} & {*rows}
    assert rows.tolist() == (sorted({*range(20, 30)} - {*chosen}) if scored is None else scored)


def test_a_finished_run_is_scored_from_its_plain_model(learned: dict[str, Trained]) -> None:
    nothing: Any = None

    def start(*, embedding: bool) -> Model:
        assert not embedding
        return learned["erm"].start(embedding=False)

    trained: Any = SimpleNamespace(start=start)
    assert Subject.of(trained, nothing, nothing, World()).trained is trained


def test_of_six_classes_the_five_first_are_scored_too(tiny: Tiny) -> None:
    """In `new`, a label of each rank from 1 to 6; all adapt, so that all are scored."""
    order = np.arange(6.0)[::-1]
    X, y = np.tile(order, (30, 1)).astype(np.float32), np.tile(np.arange(6), 5)
    data = Manifest.from_arrays(X, y, np.repeat(["p", "q", "new"], [12, 12, 6]))
    own = {"adapt.source": "test", "test_domains": ["new"]}
    plan = make_plan(tiny("erm", **own), data)
    score = score_of(plain(plan, logits(6), [1 / 6] * 6), "none")
    assert (score.n, score.top1, score.top5) == (6, pytest.approx(1 / 6), pytest.approx(5 / 6))
