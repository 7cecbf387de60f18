"""Scores by hand: which rows count, in which domain's light, and what the controls are told."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from acclimate.adapt.choice import Guard, MethodChoice
from acclimate.adapt.classifier import Adapted, adapt
from acclimate.adapt.methods import base_predictor, find_chain
from acclimate.adapt.methods.prior import soft_confusion
from acclimate.config import EmbeddingConfig, RunConfig
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.randomness import stream
from acclimate.data.batches import Batch
from acclimate.data.manifest import Manifest
from acclimate.data.source import FeatureSource, Images
from acclimate.learn.algorithms.erm import ERM
from acclimate.learn.embeddings import DomainState, DomainTable, Embedding
from acclimate.learn.embeddings.state import sample_rows
from acclimate.learn.model import Trained
from acclimate.learn.models import Conditioned, Output, Plain, Predictor, build_backbone
from acclimate.learn.models.predictors import Passed, nothing_more
from acclimate.learn.objective import Losses
from acclimate.records.records import Score
from acclimate.records.rehearsal import Promise, Rehearsal
from acclimate.runs.plan import make_plan
from acclimate.runs.scoring import (
    Candidate,
    Counts,
    Evaluator,
    Remembered,
    count_by_group,
    count_each,
)
from acclimate.runs.training import train

Tiny = Callable[..., RunConfig]
SITES = ("site-0", "site-1", "site-2", "site-3")


class Logits(Predictor):
    """The features are the logits."""

    conditioned = False

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nothing_more(1)

    def on_features(self, features: Tensor, mu: Tensor | None = None) -> Output:
        return Output(features, features)


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


def evaluator(
    tiny: Tiny, classes: int, sites: Sequence[str] = SITES, **unseen: list[str]
) -> Evaluator:
    """Site i holds one class, i modulo `classes`, and lies there: only μ tells what images show."""
    place = np.repeat(np.arange(len(sites)) % classes, 20)
    X = np.stack([place, 0 * place], axis=1).astype(np.float32)
    data = Manifest.from_arrays(X, place, np.repeat(sites, 20))
    plan = make_plan(tiny("da-erm", **unseen), data)
    states = {
        name: DomainState.empty("", 1).updated(torch.full((16, 1), sites.index(name) % classes))
        for name in plan.train_domains
    }
    prior, table = [1 / classes] * classes, DomainTable(states)
    source, predictor = FeatureSource(data), by_place(classes)
    return Evaluator(plan, source, World(), predictor, prior, Place(), table)


def by_place(classes: int) -> Conditioned:
    """F(x, μ) says class i where μ is i: its logits are −(μ − i)², up to a constant."""
    backbone = build_backbone("mlp", in_features=2)
    predictor = Conditioned(backbone, classes, mu_dim=1, condition="bias", width=2, hidden=2)
    number = torch.arange(float(classes))
    with torch.no_grad():
        for parameter in predictor.parameters():
            parameter.zero_()
        predictor.get_parameter("condition.shift.weight").copy_(2 * number[:, None])
        predictor.head.last.bias.copy_(-number.square())
    return predictor.eval()


def test_a_training_domain_is_validated_with_its_own_embedding(tiny: Tiny) -> None:
    scores, mean, _ = evaluator(tiny, classes=4).validation(step=3)
    assert [(s.domain, s.split, s.n, s.top1) for s in scores] == [(d, "val", 4, 1) for d in SITES]
    told = {(s.moment, s.method, s.adapted_on, s.adapt_n, s.adapt_seed) for s in scores}
    assert told == {("validation", "embedding", "training", 16, None)}
    assert mean == 1.0


def test_the_wrong_embedding_is_another_domain_s(tiny: Tiny) -> None:
    """site-2 and site-3 are unseen and differ: with the other's μ nothing is right."""
    scores = list(evaluator(tiny, classes=2, test_domains=["site-2", "site-3"]).final(step=0))
    unseen = [(s.domain, s.method, s.top1, s.adapted_on) for s in scores if s.role == "test"]
    assert unseen == [
        ("site-2", "embedding", 1.0, "held-out"),
        ("site-2", "wrong-embedding", 0.0, "held-out"),
        ("site-3", "embedding", 1.0, "held-out"),
        ("site-3", "wrong-embedding", 0.0, "held-out"),
    ]


def test_whose_embedding_is_the_wrong_one_is_as_it_has_always_been(tiny: Tiny) -> None:
    """Of six unseen domains, drawn by the seed and the domain's name; never its own."""
    sites = [f"site-{i}" for i in range(8)]
    scorer = evaluator(tiny, 2, sites, test_domains=sites[4:], val_domains=sites[2:4])
    taken = {}
    for domain in sites[2:]:
        state, on = scorer._another(domain)
        assert on == "held-out"
        (taken[domain],) = (d for d in sites[2:] if scorer.unseen(d).state is state)
    assert taken == {
        "site-2": "site-5",
        "site-3": "site-7",
        "site-4": "site-6",
        "site-5": "site-3",
        "site-6": "site-5",
        "site-7": "site-4",
    }


def test_top_1_and_top_5_by_hand() -> None:
    """Seven classes; the true one has the rank that its row says."""
    ranks = np.array([1, 1, 2, 5, 6, 7])
    X = np.tile(np.arange(7.0, 0.0, -1.0), (6, 1))  # class 0 scores highest, class 6 lowest
    source = FeatureSource(Manifest.from_arrays(X, ranks, ["d"] * 6))
    source.labels = ranks - 1  # arrays name the classes that they hold, and there are seven
    whole = count_by_group(Logits(), source, np.arange(6), np.zeros(6, dtype=np.int64), 1, World())
    # A row of rank r has the logit 8 - r, and Σ exp over all classes is Σ exp(1..7).
    total = math.log(sum(math.exp(logit) for logit in range(1, 8)))
    assert whole == [Counts(n=6, top1=2, top5=4, loss=pytest.approx(6 * total - 26))]
    halves = count_by_group(Logits(), source, np.arange(6), np.arange(6) // 3, 2, World())
    assert halves == [
        Counts(n=3, top1=2, top5=3, loss=pytest.approx(3 * total - 20)),
        Counts(n=3, top1=0, top5=1, loss=pytest.approx(3 * total - 6)),
    ]


def test_rows_of_several_batches_are_counted_together() -> None:
    """1000 rows; what is added to the logits decides for one of the two candidates."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1000, 7)).astype(np.float32), rng.integers(0, 7, 1000)
    source = FeatureSource(Manifest.from_arrays(X, y, ["d"] * 1000))
    shift = torch.tensor([0.0, 0.0, 2.0, 0.0, 0.0, 0.0, -1.0])
    candidates = [Candidate(Logits()), Candidate(Logits(), shift)]
    found = count_each(candidates, source, np.arange(1000), World())
    for counts, logits in zip(found, (X, X + shift.numpy()), strict=True):
        order = np.argsort(-logits, axis=1)
        losses = torch.nn.functional.cross_entropy(
            torch.from_numpy(logits), torch.from_numpy(y), reduction="none"
        )
        assert (counts.n, counts.top1) == (1000, (order[:, 0] == y).sum())
        assert counts.top5 == (order[:, :5] == y[:, None]).any(1).sum()
        assert counts.loss == pytest.approx(losses.double().sum().item(), rel=1e-12)


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
    processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rows of their own, in float64, it comes to the same; a seventh cannot be read."""
    monkeypatch.setattr("acclimate.data.source.PART", 500)  # more rows than fit into one part
    rng, torch_rng = np.random.default_rng(1), torch.Generator().manual_seed(1)
    images, groups = 600, 4
    image = rng.integers(0, images, 5000)
    labels, group = rng.integers(0, 6, 5000), rng.integers(0, groups, 5000)
    source = Gallery(torch.randn(images, 5, generator=torch_rng), image, labels)
    backbone = nothing_more(5)
    passed: list[int] = []
    backbone.register_forward_hook(lambda *told: passed.append(len(told[2])))
    predictor = Conditioned(backbone, 6, mu_dim=2, width=8, hidden=8).eval()
    mu = torch.randn(groups, 2, generator=torch_rng)
    rows = rng.permutation(5000)[:4000]  # in any order
    totals = np.zeros((groups, 4))
    for number in range(processes):
        world = Part(number, processes)
        told: list[int] = []
        found = count_by_group(
            predictor,
            source,
            rows,
            group[rows],
            groups,
            world,
            mu=mu,
            told=lambda logits, y, of: told.append(len(of)),  # noqa: B023
        )
        assert max(told) == 500
        totals += [[one.n, one.top1, one.top5, one.loss] for one in found]
    readable = rows[image[rows] % 7 != 3]
    assert sorted(source.read) == sorted(set(image[rows].tolist()))
    assert sum(passed) == len(set(image[readable].tolist()))
    with torch.no_grad():
        alone = predictor.double()
        x, own = source.features[torch.from_numpy(image[readable])], mu[group[readable]]
        logits = alone(x.double(), own.double()).logits.numpy()
    expected = np.zeros((groups, 4))
    for place, row in enumerate(readable):
        order = np.argsort(-logits[place])
        loss = np.log(np.exp(logits[place]).sum()) - logits[place][labels[row]]
        right = (1, order[0] == labels[row], labels[row] in order[:5], loss)
        expected[group[row]] += right
    np.testing.assert_allclose(totals, expected, rtol=1e-6)


def shared_out(tiny: Tiny) -> tuple[Evaluator, Gallery, np.ndarray]:
    """Five domains that draw their images from the same forty, two of them unseen."""
    rng, torch_rng = np.random.default_rng(3), torch.Generator().manual_seed(3)
    image = np.concatenate([rng.permutation(40)[:25] for _ in range(5)])
    pictures, labels = torch.randn(40, 5, generator=torch_rng), rng.integers(0, 4, 40)
    labels[:4] = range(4)
    names = np.repeat(list("pqrst"), 25)
    data = Manifest.from_arrays(pictures.numpy()[image], labels[image], names)
    plan = make_plan(tiny("erm", test_domains=["s", "t"], **{"adapt.points": 6}), data)
    torch.manual_seed(0)
    predictor = Plain(nothing_more(5), 4).eval()
    source = Gallery(pictures, image, labels[image])
    return Evaluator(plan, source, World(), predictor, [0.25] * 4), source, image


def test_an_image_of_several_domains_passes_once_in_all(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer, source, image = shared_out(tiny)
    passed: list[int] = []
    scorer.predictor.backbone.register_forward_hook(lambda *told: passed.append(len(told[2])))
    scores = list(scorer.final(step=0))
    rows = scorer.plan.manifest.rows
    seen = [rows(domain=domain, split="val") for domain in "pqr"]
    scored = np.concatenate([*seen, *(scorer.unseen(domain).scored for domain in "st")])
    expected = {number for number in image[scored].tolist() if number % 7 != 3}
    assert sum(passed) == len(expected) < len(scored)
    assert sum(score.n for score in scores if score.method == "none") == sum(
        image[row] % 7 != 3 for row in scored
    )
    # An image that cannot be read is tried each time; whatever was read before is not.
    good = [number for number in source.read if number % 7 != 3]
    assert sorted(good) == sorted(expected)
    # Where there is no room for features, images pass again, and it comes to the same.
    monkeypatch.setattr("acclimate.runs.scoring.MOST_REMEMBERED", 0)
    passed.clear()
    assert_same(list(scorer.final(step=0)), scores)
    again = sum(passed)
    assert again > len(expected)

    def full(*told: object) -> Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.undo()
    monkeypatch.setattr(torch.Tensor, "new_empty", full)  # found out in the middle of it
    passed.clear()
    assert_same(list(scorer.final(step=0)), scores)
    assert sum(passed) == again


def assert_same(found: Sequence[Score], others: Sequence[Score]) -> None:
    """But for how sums were rounded."""
    for one, other in zip(found, others, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
        assert replace(one, loss=None) == replace(other, loss=None)


def test_images_of_several_passes_are_remembered_if_all_of_them_fit(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer, _, image = shared_out(tiny)
    rows = scorer.plan.manifest.rows
    seen = np.concatenate([rows(domain=domain, split="val") for domain in "pqr"])
    passes = [seen, *(scorer.unseen(domain).scored for domain in "st")]
    times = [sum(number in image[some] for some in passes) for number in range(40)]
    expected = [number for number, count in enumerate(times) if count > 1]
    assert 0 < len(expected) < sum(count > 0 for count in times)
    found = scorer._to_remember()
    assert found is not None and np.flatnonzero(found._place >= 0).tolist() == expected
    needed = len(expected) * 5 * 4
    for budget, fits in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr("acclimate.runs.scoring.MOST_REMEMBERED", budget)
        assert (scorer._to_remember() is not None) == fits


def test_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = nothing_more(3)
    wanted = np.array([False, True, False, True, True])
    features = torch.arange(15.0).view(5, 3)
    known = Remembered(backbone, wanted)
    known.keep(np.array([4, 0, 1]), Passed.before(backbone, features[[4, 0, 1]]))
    assert known.have.tolist() == [False, True, False, False, True]
    known.keep(np.array([2, 0]), Passed.before(backbone, features[[2, 0]]))
    assert known.have.sum() == 2
    found = known.passed(np.array([4, 1, 4])).features(backbone)
    assert torch.equal(found, features[[4, 1, 4]])

    def full(*told: object) -> Tensor:
        raise torch.OutOfMemoryError

    forgotten = Remembered(backbone, wanted)
    some = np.array([1, 3])
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "new_empty", full)
        forgotten.keep(some, Passed.before(backbone, features[some]))
    forgotten.keep(some, Passed.before(backbone, features[some]))  # for good
    assert not forgotten.have.any()


@pytest.mark.parametrize("methods", [["prior", "t3a"], ["prior", "bn", "t3a"]])
def test_methods_find_the_same_whatever_is_remembered(
    tiny: Tiny, methods: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that change the backbone, and so make other features of the same images, too."""

    def scored() -> list[Score]:
        scorer, _, _ = shared_out(tiny)
        if "bn" in methods:
            scorer.predictor.backbone.body = torch.nn.BatchNorm1d(5).eval()
        return list(scorer.final(step=0, methods=methods))

    found = scored()
    assert {score.method for score in found} >= {*methods, "none", "black-box-prior"}
    monkeypatch.setattr("acclimate.runs.scoring.MOST_REMEMBERED", 0)
    assert_same(found, scored())


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
    blind = Evaluator(plan, FeatureSource(data), World(), Logits(), (0.25, 0.5, 0.25))
    assert blind.unseen("new").adapted_on.tolist() == rows.tolist()
    oracle = next(s for s in blind.final(step=0) if s.method == "oracle-prior")
    # Told nothing by the images, it goes by the odds of 2/5 against 1/4 and of 3/5 against 1/2.
    assert (oracle.domain, oracle.n, oracle.top1) == ("new", 5, 0.4)
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
    assert plan.label_prior().tolist() == [0.75, 0.25]


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


@pytest.mark.parametrize(
    ("algorithm", "methods"),
    [("erm", ("prior", "t3a")), ("da-erm", ("none", "prior", "embedding+prior", "embedding+t3a"))],
)
def test_scores_of_one_pass_are_those_of_a_pass_each(
    features: Manifest, tiny: Tiny, tmp_path: Path, algorithm: str, methods: tuple[str, ...]
) -> None:
    """Each method by itself, on the whole network, beside all of them on the backbone's features:
    which the scored images pass once, and those that adapt once."""
    unseen = features.domains[-2:]
    config = tiny(algorithm, test_domains=list(unseen))
    train(config, features, tmp_path / "run", device="cpu")
    model = Trained.load(tmp_path / "run")
    plan, source = make_plan(config, features, device="cpu"), FeatureSource(features)
    evaluating = Evaluator(
        plan, source, World(), model.predictor, model.label_prior, model.embedding, model.table
    )
    passed = 0

    def count(module: object, inputs: tuple[Tensor], output: object) -> None:
        nonlocal passed
        passed += len(inputs[0])

    with_hook = model.predictor.backbone.register_forward_hook(count)
    scores = list(evaluating.final(step=0, methods=methods))
    with_hook.remove()
    seen = sum(len(features.rows(domain=d, split="val")) for d in plan.train_domains)
    assert passed == seen + sum(len(features.rows(domain=domain)) for domain in unseen)
    found = {(s.domain, s.method): (s.n, s.top1) for s in scores if s.role == "test"}
    for domain in unseen:
        now = evaluating.unseen(domain)
        images = Images(source.take(now.adapted_on)[0], torch.device("cpu"))
        x, y = source.take(now.scored)[0], torch.from_numpy(source.labels[now.scored])
        for method in methods:
            chain = find_chain(method, config.adapt)
            start = base_predictor(
                model.predictor, model.table, now.state if chain.embedding else None
            )
            context = chain.context(model.predictor, model.table, model.label_prior)
            with torch.no_grad():
                right = chain.adapt(start, images, context)[0](x).logits.argmax(1) == y
            assert found[domain, method] == (len(y), int(right.sum()) / len(y)), method
    if algorithm == "erm":
        confusion = torch.zeros(len(features.classes), len(features.classes), dtype=torch.float64)
        for domain in plan.train_domains:
            rows = features.rows(domain=domain, split="val")
            with torch.no_grad():
                found_ = model.predictor(source.take(rows)[0]).logits.double().softmax(1)
            confusion += soft_confusion(found_, torch.from_numpy(source.labels[rows]))
        assert torch.allclose(evaluating._confusion, confusion, rtol=1e-6)
        assert {method for _, method in found} == {
            "none",
            "oracle-prior",
            "black-box-prior",
            *methods,
        }


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
def learned(
    shifted: Manifest, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Trained]:
    folder = tmp_path_factory.mktemp("learned")
    for algorithm in ("erm", "da-erm"):
        train(tiny(algorithm, **UNSEEN, **LEARNED), shifted, folder / algorithm)
    return {algorithm: Trained.load(folder / algorithm) for algorithm in ("erm", "da-erm")}


def scorer_of(
    trained: Trained,
    data: Manifest,
    tiny: Tiny,
    settings: Mapping[str, object] | None = None,
    **more: Any,
) -> Evaluator:
    config = tiny(trained.config.algorithm, **(UNSEEN | LEARNED | dict(settings or {})))
    source = more.pop("source", None) or FeatureSource(data)
    parts = trained.predictor, trained.label_prior, trained.embedding, trained.table
    return Evaluator(make_plan(config, data), source, World(), *parts, **more)


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
        ("da-erm", ("none", "embedding", "prior", "embedding+prior")),
    ],
)
def test_a_method_s_score_is_that_of_adapting_by_hand(
    algorithm: str,
    methods: tuple[str, ...],
    learned: dict[str, Trained],
    shifted: Manifest,
    tiny: Tiny,
) -> None:
    """The images set aside go through `adapt`, and the others through what it gives."""
    trained = learned[algorithm]
    scorer = scorer_of(trained, shifted, tiny)
    right = set()
    scores = {(s.domain, s.method): s for s in scorer.final(step=7, methods=methods)}
    for domain, role in (("new", "test"), ("late", "val")):
        this = scorer.unseen(domain)
        assert len(this.adapted_on) == 20 and len(this.scored) == 40
        for method in methods:
            adapted = adapt(trained, shifted.features()[this.adapted_on], method=method)
            p = adapted.predict_proba(shifted.features()[this.scored])
            true = shifted.label_index[this.scored]
            correct = float((p.argmax(1) == true).mean())
            used = None if method == "none" else 20
            assert scores[domain, method] == Score(
                moment="final",
                step=7,
                domain=domain,
                role=role,
                split="all",
                n=40,
                top1=correct,
                top5=None,
                method=method,
                adapted_on="held-out" if used else None,
                adapt_n=used,
                adapt_seed=5 if used else None,
                loss=pytest.approx(-np.log(p[np.arange(40), true]).mean(), rel=1e-4),
            )
            right.add((domain, correct))
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
    tiny: Tiny,
) -> None:
    trained = learned[algorithm]
    named = {f"adapt.{key}": value for key, value in settings.items()}
    scorer = scorer_of(trained, shifted, tiny, named, ratios=trained.label_ratios)
    this = scorer.unseen("new")
    images = shifted.features()[this.adapted_on]
    score = next(s for s in scorer.final(0, [method]) if (s.domain, s.method) == ("new", method))
    site = adapt(trained, images, method=method, settings=settings)
    assert_scored_as(site, score, shifted, this.scored)
    usual = adapt(trained, images, method=method).predict_proba(images)
    assert np.abs(site.predict_proba(images) - usual).max() > 1e-3  # the settings tell


def test_a_prior_aware_model_stands_under_the_training_prior(
    learned: dict[str, Trained], shifted: Manifest, tiny: Tiny
) -> None:
    config = tiny("da-erm", **UNSEEN, **LEARNED, **{"train.prior_aware": True})
    aware = replace(learned["da-erm"], config=config)
    for trained in (aware, learned["da-erm"]):
        settings = {"train.prior_aware": trained is aware}
        scorer = scorer_of(trained, shifted, tiny, settings)
        this = scorer.unseen("new")
        score = next(
            s
            for s in scorer.final(0, ["embedding+prior"])
            if (s.domain, s.method) == ("new", "embedding+prior")
        )
        site = adapt(trained, shifted.features()[this.adapted_on], method="embedding+prior")
        assert_scored_as(site, score, shifted, this.scored)


@pytest.mark.parametrize("method", ["embedding", "embedding+prior"])
def test_the_second_path_of_a_plain_model(
    method: str, learned: dict[str, Trained], shifted: Manifest, tiny: Tiny
) -> None:
    """`embedding` starts from it, and what does not name the embedding from the plain model."""
    adaptive = learned["da-erm"]
    scorer = scorer_of(learned["erm"], shifted, tiny, second=adaptive.start(embedding=True))
    this = scorer.unseen("new")
    images = shifted.features()[this.adapted_on]
    found = {s.method: s for s in scorer.final(0, [method, "prior"]) if s.domain == "new"}
    told = (found[method].adapted_on, found[method].adapt_n, found[method].adapt_seed)
    assert told == ("held-out", 20, 5)
    assert_scored_as(adapt(adaptive, images, method=method), found[method], shifted, this.scored)
    plain = adapt(learned["erm"], images, method="prior")
    assert_scored_as(plain, found["prior"], shifted, this.scored)


def test_without_a_second_path_a_plain_model_has_no_embedding(
    learned: dict[str, Trained], shifted: Manifest, tiny: Tiny
) -> None:
    with pytest.raises(ConfigError, match=r"a plain model \(erm\) has no embedding to adapt"):
        list(scorer_of(learned["erm"], shifted, tiny).final(0, ["embedding"]))


class Counted(FeatureSource):
    """Writes down how often each row is read."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        self.read = np.zeros(len(self.labels), dtype=int)

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        np.add.at(self.read, rows, 1)
        return super().take(rows)


@pytest.mark.parametrize(
    ("algorithm", "methods", "times"),
    [
        ("erm", [], 0),
        ("erm", ["prior", "t3a"], 1),
        ("da-erm", [], 1),
        ("da-erm", ["embedding+prior", "t3a"], 1),
    ],
)
def test_images_are_read_once(
    algorithm: str,
    methods: list[str],
    times: int,
    learned: dict[str, Trained],
    shifted: Manifest,
    tiny: Tiny,
) -> None:
    """Those that are scored, by however many methods, and those that adapt, if any adapts."""
    source = Counted(shifted)
    scorer = scorer_of(learned[algorithm], shifted, tiny, source=source)
    list(scorer.final(0, methods))
    this = scorer.unseen("late")  # the first, whose embedding was not the wrong one of another yet
    assert set(source.read[this.scored]) == {1}
    assert set(source.read[this.adapted_on]) == {times}


class Patchy(FeatureSource):
    """Every third row cannot be read, and shows nothing."""

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        stored, _ = super().take(rows)
        good = rows % 3 != 0
        return torch.where(torch.from_numpy(good)[:, None], stored, 1e3), good


@pytest.mark.parametrize("method", ["prior", "t3a", "embedding", "embedding+prior"])
def test_images_that_cannot_be_read_adapt_nothing_and_are_not_scored(
    method: str, learned: dict[str, Trained], shifted: Manifest, tiny: Tiny
) -> None:
    trained = learned["da-erm" if "embedding" in method else "erm"]
    scorer = scorer_of(trained, shifted, tiny, source=Patchy(shifted))
    score = next(s for s in scorer.final(0, [method]) if (s.domain, s.method) == ("new", method))
    this = scorer.unseen("new")
    images, rows = (part[part % 3 != 0] for part in (this.adapted_on, this.scored))
    assert score.adapt_n == len(images) < 20
    site = adapt(trained, shifted.features()[images], method=method)
    assert_scored_as(site, score, shifted, rows)


class Unreadable(FeatureSource):
    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        stored, good = super().take(rows)
        return stored, good & (rows < 180)  # `new` and `late` come after that


def test_a_domain_of_which_nothing_can_be_read(
    learned: dict[str, Trained], shifted: Manifest, tiny: Tiny
) -> None:
    unread = Unreadable(shifted)
    scorer = scorer_of(learned["da-erm"], shifted, tiny, source=unread)
    found = [s for s in scorer.final(0) if s.domain == "new"]
    assert [s.method for s in found] == ["embedding", "wrong-embedding"]
    told = {(s.n, s.top1, s.loss, s.adapted_on, s.adapt_n) for s in found}
    assert told == {(0, None, None, "held-out", 0)}
    chosen = scorer.validation(0)  # by `late`, which cannot be read either
    assert (len(chosen.scores), chosen.top1, chosen.loss) == (1, None, None)
    with pytest.raises(ManifestError) as caught:
        list(scorer_of(learned["erm"], shifted, tiny, source=unread).final(0, ["prior"]))
    assert str(caught.value) == (
        "none of the 20 images set aside to adapt to domain 'late' can be read; add images, or "
        "choose others with another seed"
    )


class AllButOne(FeatureSource):
    """Of the first images of `new` and `late` that adapt to them, only one each can be read."""

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        stored, good = super().take(rows)
        return stored, good & ((rows < 180) | (np.cumsum(rows >= 180) == 1))


def test_a_method_of_the_run_that_has_too_few_images_is_counted_on_none(
    learned: dict[str, Trained], shifted: Manifest, tiny: Tiny
) -> None:
    """A run is not stopped at its end by a domain that its own methods cannot adapt to."""
    own = {"adapt.methods": ["prior", "t3a"]}
    unread = scorer_of(learned["erm"], shifted, tiny, own, source=Unreadable(shifted))
    found = [s for s in unread.final(0) if s.domain == "new"]
    assert [(s.method, s.n, s.top1, s.adapted_on, s.adapt_n) for s in found] == [
        ("none", 0, None, None, None),
        ("oracle-prior", 0, None, None, None),
        ("prior", 0, None, "held-out", 0),
        ("t3a", 0, None, "held-out", 0),
    ]
    one = scorer_of(learned["erm"], shifted, tiny, own, source=AllButOne(shifted))
    found = [s for s in one.final(0) if s.domain == "new" and s.method in ("prior", "t3a")]
    assert [(s.method, s.n, s.adapt_n) for s in found] == [("prior", 1, 1), ("t3a", 1, 1)]


@dataclass(frozen=True)
class Doubts(Guard):
    """Says of each method in turn which one it would rather have, and writes down what it saw."""

    rather: Mapping[str, MethodChoice] = field(default_factory=dict)
    asked: list[tuple[str, int | None, int]] = field(default_factory=list)

    def reconsidered(
        self, choice: MethodChoice, state: DomainState | None, images: Images
    ) -> MethodChoice | None:
        count = None if state is None else state.count
        self.asked.append((choice.method, count, len(images)))
        return self.rather.get(choice.method)


def rehearsed(**chosen: str) -> Rehearsal:
    """With so many images, this chain: `from_10="prior"`."""
    chains = {int(n.removeprefix("from_")): chain for n, chain in chosen.items()}
    promises = tuple(
        Promise(
            chain=chain,
            n=n,
            frequencies="as they are",
            gain=0.1,
            error=None,
            accuracy=0.5,
            low=0.0,
            high=1.0,
            domains=3,
        )
        for n, chain in chains.items()
    )
    own = [chain for chain in chains.values() if "prior" in chain]
    return Rehearsal(
        promises=promises,
        chosen=chains,
        temperatures={"none": 2.0, "embedding": 2.0},
        settings=dict.fromkeys(own, WITH),
        domains=3,
        exact=True,
    )


WITH = {"prior.temperature": 2.0, "prior.strength": 9.0}


@pytest.mark.parametrize(
    ("rather", "method", "settings", "asked"),
    [
        ({}, "embedding+prior", WITH, [("embedding+prior", 20, 20)]),
        (
            {"embedding+prior": MethodChoice("prior", {"prior.strength": 3.0})},
            "prior",
            {"prior.strength": 3.0},
            [("embedding+prior", 20, 20), ("prior", None, 20)],
        ),
        (
            {
                "embedding+prior": MethodChoice("embedding"),
                "embedding": MethodChoice("none"),
            },
            "none",
            {},
            [("embedding+prior", 20, 20), ("embedding", 20, 20)],
        ),
    ],
)
def test_auto_is_what_rehearsal_chose_unless_the_images_speak_against_it(
    rather: dict[str, MethodChoice],
    method: str,
    settings: dict[str, object],
    asked: list[tuple[str, int | None, int]],
    learned: dict[str, Trained],
    shifted: Manifest,
    tiny: Tiny,
) -> None:
    """Of 20 images those chosen for 10 or more decide. The plain model used nothing, and nothing
    can speak against that."""
    trained = learned["da-erm"]
    chosen = rehearsed(from_10="embedding+prior", from_30="t3a")
    guard = Doubts(chosen, trained.predictor, trained.label_prior, None, trained.table, rather)
    scorer = scorer_of(trained, shifted, tiny, guard=guard)
    (score,) = (s for s in scorer.final(0) if (s.domain, s.method) == ("new", "auto"))
    used = None if method == "none" else 20
    assert (score.adapt_n, score.adapted_on) == (used, used and "held-out")
    assert guard.asked == asked * 2  # of `late` and of `new`
    this = scorer.unseen("new")
    images = shifted.features()[this.adapted_on]
    site = adapt(trained, images, method=method, settings=settings)
    assert_scored_as(site, score, shifted, this.scored)


def test_auto_goes_by_the_settings_of_the_run_where_rehearsal_has_none(
    learned: dict[str, Trained], shifted: Manifest, tiny: Tiny
) -> None:
    trained = learned["erm"]
    guard = Doubts(rehearsed(from_3="t3a"), trained.predictor, trained.label_prior, None, None)
    scorer = scorer_of(trained, shifted, tiny, {"adapt.t3a.keep": 1}, guard=guard)
    (score,) = (s for s in scorer.final(0, ["auto"]) if (s.domain, s.method) == ("new", "auto"))
    this = scorer.unseen("new")
    images = shifted.features()[this.adapted_on]
    site = adapt(trained, images, method="t3a", settings={"t3a.keep": 1})
    assert_scored_as(site, score, shifted, this.scored)


def test_how_many_images_auto_has_is_how_many_can_be_read(
    learned: dict[str, Trained], shifted: Manifest, tiny: Tiny
) -> None:
    trained = learned["erm"]
    chosen = rehearsed(from_0="none", from_10="prior", from_20="t3a")
    guard = Doubts(chosen, trained.predictor, trained.label_prior, None, None)
    scorer = scorer_of(trained, shifted, tiny, guard=guard, source=Patchy(shifted))
    (score,) = (s for s in scorer.final(0) if (s.domain, s.method) == ("new", "auto"))
    assert score.adapt_n is not None and 10 <= score.adapt_n < 20
    assert {method for method, _, _ in guard.asked} == {"prior"}


def test_auto_without_a_rehearsal_is_refused(
    learned: dict[str, Trained], shifted: Manifest, tiny: Tiny
) -> None:
    with pytest.raises(ConfigError, match="nothing was rehearsed, so there is no 'auto' to score"):
        list(scorer_of(learned["erm"], shifted, tiny).final(0, ["auto"]))


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


@pytest.mark.parametrize(("own", "held_out"), [("test", "pr"), ("val", "pqr")])
def test_the_confusion_of_validation_rows_that_no_score_is_of(
    own: str, held_out: str, learned: dict[str, Trained], shifted: Manifest, tiny: Tiny
) -> None:
    """Where training domains have test splits, those are scored, and the check of the prior looks
    at the validation rows besides; q has either the one or the other."""
    splits = dict.fromkeys(shifted.domains, ("train", "val", "test"))
    data = with_splits(shifted, splits | {"q": ("train", own)})
    scorer = scorer_of(learned["erm"], data, tiny)
    scores = list(scorer.final(0, ["prior"]))
    seen = [(s.domain, s.split) for s in scores if s.role == "train"]
    first = [("p", "test"), ("q", own), ("r", "test")]
    assert seen == [*first, ("p", "val"), ("r", "val")]
    rows = np.concatenate([data.rows(domain=d, split="val") for d in held_out])
    with torch.no_grad():
        p = learned["erm"].predictor(torch.from_numpy(data.features()[rows])).logits.softmax(1)
    expected = torch.zeros(3, 3, dtype=torch.float64)
    for row, label in zip(p.double(), data.label_index[rows], strict=True):
        expected[:, label] += row
    torch.testing.assert_close(scorer._confusion, expected, rtol=1e-5, atol=1e-6)
    without = replace(scorer.plan, val_domains=())
    lazily = replace(scorer, plan=without, _unseen={}, _confused=set(), _confusions=None)
    torch.testing.assert_close(lazily._confusion, expected, rtol=1e-5, atol=1e-6)
    # Of a predictor that has gone on, it is another one.
    gone_on = copy.deepcopy(scorer.predictor)
    for parameter in gone_on.parameters():
        parameter.data.mul_(0.5)
    scorer.predictor = gone_on
    list(scorer.final(0, ["prior"]))
    assert (scorer._confusion - expected).abs().max() > 1e-3
    torch.testing.assert_close(scorer._confusion.sum(0), expected.sum(0), rtol=1e-5, atol=1e-6)


def test_the_check_of_the_prior_by_hand(
    learned: dict[str, Trained], shifted: Manifest, tiny: Tiny
) -> None:
    """Ratios that carry the validation images' mean posterior of each class to the new domain's."""
    trained = learned["erm"]
    scorer = scorer_of(trained, shifted, tiny)
    X, y = torch.from_numpy(shifted.features()), shifted.label_index
    with torch.no_grad():
        logits = trained.predictor(X).logits.double().numpy()
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    held = np.concatenate([shifted.rows(domain=d, split="val") for d in ("p", "q", "r")])
    joint = np.stack([p[held[y[held] == c]].sum(0) for c in range(3)], axis=1) / len(held)
    this = scorer.unseen("new")
    ratios = np.linalg.solve(joint, p[this.adapted_on].mean(0)).clip(min=0)
    target = ratios * joint.sum(0)
    shift = np.log(np.maximum(target / target.sum(), 1e-12)) - np.log(trained.label_prior)
    said = (logits[this.scored] + shift).argmax(1)
    correct = float((said == y[this.scored]).mean())
    assert correct != float((logits[this.scored].argmax(1) == y[this.scored]).mean())
    found = {(s.domain, s.method): s for s in scorer.final(step=2, methods=("prior",))}
    score = found["new", "black-box-prior"]
    assert (score.top1, score.n, score.step, score.moment) == (correct, 40, 2, "final")
    assert (score.split, score.adapted_on, score.adapt_n) == ("all", "held-out", 20)


def test_what_is_scored_in_the_end(
    learned: dict[str, Trained], shifted: Manifest, tiny: Tiny
) -> None:
    """Training sites without a test split on their validation images; then each unseen one, plain
    and with its control, and by each further method once."""
    scorer = scorer_of(learned["erm"], shifted, tiny)
    scores = list(scorer.final(step=1, methods=("prior", "none", "prior")))
    assert [(s.domain, s.role, s.split, s.method) for s in scores] == [
        *((d, "train", "val", "none") for d in ("p", "q", "r")),
        *(
            (domain, role, "all", method)
            for domain, role in (("late", "val"), ("new", "test"))
            for method in ("none", "oracle-prior", "prior", "black-box-prior")
        ),
    ]
    assert all(score.moment == "final" and score.step == 1 for score in scores)
    # Validation domains choose, and nothing else is looked at.
    chosen = scorer.validation(step=4)
    assert [(s.domain, s.moment, s.step, s.method) for s in chosen.scores] == [
        ("late", "validation", 4, "none")
    ]
    assert (chosen.top1, chosen.loss) == (chosen.scores[0].top1, chosen.scores[0].loss)


def test_the_embedding_that_a_model_is_meant_with_is_no_further_method(
    learned: dict[str, Trained], shifted: Manifest, tiny: Tiny
) -> None:
    scorer = scorer_of(learned["da-erm"], shifted, tiny)
    scores = scorer.final(0, ("embedding", "prior", "embedding"))
    methods = [s.method for s in scores if s.domain == "new"]
    assert methods == ["embedding", "wrong-embedding", "prior"]


def test_validation_splits_beside_test_splits_and_validation_domains(tiny: Tiny) -> None:
    """What neither chose the weights nor is a test split: scored, to choose among runs by."""
    splits = np.tile(["train", "train", "val", "test"], 5)
    splits = np.concatenate([splits, np.tile(["train", "train", "test", "test"], 5), splits[:20]])
    place = np.repeat([0, 1, 0], 20)
    X = np.stack([place == 0, place == 1], axis=1).astype(np.float32)
    data = Manifest.from_arrays(X, place, np.repeat(["p", "q", "v"], 20), splits=splits)
    plan = make_plan(tiny("erm", val_domains=["v"]), data)
    scorer = Evaluator(plan, FeatureSource(data), World(), Logits(), (0.5, 0.5))
    seen = [s for s in scorer.final(step=0) if s.role == "train"]
    assert [(s.domain, s.split, s.n) for s in seen] == [
        ("p", "test", 5),
        ("q", "test", 10),
        ("p", "val", 5),
    ]
    without = make_plan(tiny("erm"), data)
    scorer = Evaluator(without, FeatureSource(data), World(), Logits(), (0.5, 0.5))
    assert {s.split for s in scorer.final(step=0)} == {"test"}  # the others chose the weights


def test_small_domains_give_half_of_their_images_away(tiny: Tiny) -> None:
    place = np.repeat([0, 1, 0], [20, 20, 7])
    X = np.stack([place == 0, place == 1], axis=1).astype(np.float32)
    data = Manifest.from_arrays(X, place, np.repeat(["p", "q", "new"], [20, 20, 7]))

    def sizes(**settings: object) -> tuple[int, int]:
        plan = make_plan(tiny("erm", test_domains=["new"], **settings), data)
        this = Evaluator(plan, FeatureSource(data), World(), Logits(), (0.5, 0.5)).unseen("new")
        assert this.state is None
        return len(this.adapted_on), len(this.scored)

    assert sizes(**{"adapt.points": 100}) == (3, 4)
    assert sizes(**{"adapt.points": 2}) == (2, 5)
    assert sizes(**{"adapt.points": 100, "adapt.source": "test"}) == (7, 7)
    assert sizes(**{"adapt.points": 5, "adapt.source": "test"}) == (5, 7)


def test_top_5_is_said_where_it_says_something(tiny: Tiny) -> None:
    """Of five classes every image is among the first five; of six it need not be."""

    def scored(classes: int) -> Score:
        y = np.tile(np.arange(classes), 20)
        data = Manifest.from_arrays(
            np.eye(classes, dtype=np.float32)[y], y, np.repeat(["p", "q"], len(y) // 2)
        )
        plan = make_plan(tiny("erm", test_domains=["q"]), data)
        scorer = Evaluator(plan, FeatureSource(data), World(), Logits(), [1 / classes] * classes)
        return next(s for s in scorer.final(step=0) if s.domain == "q")

    assert scored(5).top5 is None
    assert scored(6).top5 == 1.0


def test_one_unseen_domain_takes_a_training_one_for_its_wrong_embedding(tiny: Tiny) -> None:
    scorer = evaluator(tiny, classes=3, test_domains=["site-3"])  # which lies where site-0 does
    (wrong,) = (s for s in scorer.final(step=0) if s.method == "wrong-embedding")
    told = (wrong.adapted_on, wrong.adapt_n, wrong.adapt_seed)
    assert told == ("training", 16, None)
    taken = int(stream(0, "wrong", "site-3").integers(3))
    assert wrong.top1 == (1.0 if taken == 0 else 0.0)
