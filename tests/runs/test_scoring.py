"""Scores by hand: which rows count, in which domain's light, and what the controls are told."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from acclimate.adapt.methods import base_predictor, find_chain
from acclimate.adapt.methods.prior import soft_confusion
from acclimate.config import EmbeddingConfig, RunConfig
from acclimate.core.distributed import World
from acclimate.data.batches import Batch
from acclimate.data.manifest import Manifest
from acclimate.data.source import FeatureSource, Images
from acclimate.learn.algorithms.erm import ERM
from acclimate.learn.embeddings import DomainState, DomainTable, Embedding
from acclimate.learn.embeddings.domains import sample_rows
from acclimate.learn.model import Trained
from acclimate.learn.models import Conditioned, Output, Predictor, build_backbone
from acclimate.learn.objective import Losses
from acclimate.runs.counting import Counts, count_by_group
from acclimate.runs.plan import make_plan
from acclimate.runs.scoring import Evaluator
from acclimate.runs.training import train

Tiny = Callable[..., RunConfig]
SITES = ("site-0", "site-1", "site-2", "site-3")


class Logits(Predictor):
    """The features are the logits."""

    conditioned = False

    def __init__(self) -> None:
        super().__init__()
        self.backbone = build_backbone("mlp", in_features=1)

    def forward(self, x: Tensor, mu: Tensor | None = None) -> Output:
        return Output(x, x)


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


def evaluator(tiny: Tiny, classes: int, **unseen: list[str]) -> Evaluator:
    """Site i holds one class, i modulo `classes`, and lies there: only μ tells what images show."""
    place = np.repeat(np.arange(4) % classes, 20)
    X = np.stack([place, 0 * place], axis=1).astype(np.float32)
    data = Manifest.from_arrays(X, place, np.repeat(SITES, 20))
    plan = make_plan(tiny("da-erm", **unseen), data)
    states = {
        name: DomainState.empty("", 1).updated(torch.full((16, 1), SITES.index(name) % classes))
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


def test_the_oracle_knows_the_frequencies_of_the_scored_images_alone(tiny: Tiny) -> None:
    """Of 10 images 5 adapt, all of class b; of the others 3 are of class a and 2 of class b."""
    rows = sample_rows(np.arange(40, 50), 5, 0, "new")
    labels = np.array(["a", "b"] * 25)
    labels[40:] = ["b" if row in rows else "" for row in range(40, 50)]
    labels[labels == ""] = ["a", "a", "a", "b", "b"]
    X = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    data = Manifest.from_arrays(0 * X, labels, ["p"] * 20 + ["q"] * 20 + ["new"] * 10)
    plan = make_plan(tiny("erm", test_domains=["new"], **{"adapt.points": 5}), data)
    blind = Evaluator(plan, FeatureSource(data), World(), Logits(), (0.5, 0.5))
    assert blind.unseen("new").adapted_on.tolist() == rows.tolist()
    oracle = next(s for s in blind.final(step=0) if s.method == "oracle-prior")
    # Told nothing by the images, it says class a throughout.
    assert (oracle.domain, oracle.n, oracle.top1) == ("new", 5, 0.6)


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
