"""What each algorithm adds to a mean cross-entropy, step by step; and many processes equal one."""

import copy
import dataclasses
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.config import OptimiserConfig
from acclimate.core.distributed import World
from acclimate.data.batches import Batch
from acclimate.learn.algorithms import ALGORITHMS, Algorithm, choose
from acclimate.learn.algorithms.dann import DANNConfig, Discriminator
from acclimate.learn.algorithms.mixup import _mix
from acclimate.learn.models import Head, Output, build_backbone, freeze_batch_norm
from acclimate.learn.penalties import (
    Groups,
    coral,
    irm,
    mmd2,
)
from acclimate.runs.loop import Phase
from fixtures.algorithms import PARALLEL, run_process, trained
from fixtures.loops import make_loop
from fixtures.objectives import CLASSES, DOMAINS, FEATURES, HIDDEN, MU, batch_of, make_algorithm
from fixtures.predictors import plain_on

BATCH = batch_of([0, 0, 0, 1, 1, 1, 2, 2, 2, 2])


def rows(batch: Batch, chosen: Tensor) -> Batch:
    return Batch(batch.x[chosen], batch.y[chosen], batch.domain[chosen])


# Settings


DEFAULTS_AND_RANGES = {
    "irm": {"penalty": (1e2, "log10", -1, 5), "anneal": (500, "log10", 0, 4)},
    "group-dro": {"eta": (1e-2, "log10", -3, -1)},
    "mixup": {"alpha": (0.2, "log10", -1, 1)},
    "mldg": {
        "beta": (1.0, "log10", -1, 1),
        "meta_test": (2, "choice", 1, 2),
        "inner_lr": (1e-2, "log10", -3, -1),
    },
    "coral": {"penalty": (1.0, "log10", -1, 1)},
    "mmd": {"penalty": (1.0, "log10", -1, 1)},
    "dann": {
        "penalty": (1.0, "log10", -2, 2),
        "discriminator_lr": (None, "log10", -5, -3.5),
        "discriminator_weight_decay": (0.0, "log10", -6, -2),
        "discriminator_steps": (1, "log2", 0, 3),
        "gradient_penalty": (0.0, "log10", -2, 1),
        "beta1": (0.5, "choice", 0.0, 0.5),
        "width": (256, "log2", 6, 10),
        "depth": (3, "choice", 3, 4, 5),
        "dropout": (0.0, "choice", 0.0, 0.1, 0.5),
    },
}
DEFAULTS_AND_RANGES |= {
    "cdann": DEFAULTS_AND_RANGES["dann"],
    "vrex": {"penalty": (1e1, "log10", -1, 5), "anneal": (500, "log10", 0, 4)},
    "ib-erm": {"penalty": (1e2, "log10", -1, 5), "anneal": (500, "log10", 0, 4)},
    "eqrm": {"quantile": (0.75, "uniform", 0.5, 0.99), "anneal": (2500, "log10", 2.5, 3.5)},
    "sd": {"penalty": (0.1, "log10", -5, -1)},
    "rsc": {"features": (1 / 3, "uniform", 0, 0.5), "rows": (1 / 3, "uniform", 0, 0.5)},
    "sagnet": {"penalty": (0.1, "log10", -2, 1)},
    "causirl-coral": DEFAULTS_AND_RANGES["coral"],
    "causirl-mmd": DEFAULTS_AND_RANGES["mmd"],
    "fish": {"inner_lr": (1e-2, "log10", -3, -1)},
    "fishr": {
        "penalty": (1e3, "log10", 1, 4),
        "anneal": (1500, "uniform", 0, 5000),
        "ema": (0.95, "uniform", 0.9, 0.99),
    },
    "mtl": {"ema": (0.99, "choice", 0.5, 0.9, 0.99, 1.0)},
    "arm": {},
    "miro": {"penalty": (0.1, "choice", 1.0, 0.1, 0.01, 0.001)},
}
OF_ALL_ROWS = {"ib-erm", "sd", "rsc", "sagnet", "miro"}  # one domain is enough for those


def test_every_row_is_held_against_domainbed() -> None:
    assert {*DEFAULTS_AND_RANGES, "erm", "selfreg"} == set(ALGORITHMS)  # two have no settings


@pytest.mark.parametrize("name", DEFAULTS_AND_RANGES)
def test_settings_are_domainbeds(name: str) -> None:
    found = {}
    for field in dataclasses.fields(choose(name).settings):
        search = field.metadata["search"]
        if search is not None:
            limits = search.options or (search.low, search.high)
            found[field.name] = (field.default, search.scale, *limits)
    assert found == DEFAULTS_AND_RANGES[name]
    assert choose(name).build.least_domains == (1 if name in OF_ALL_ROWS else 2)


# Penalties on hidden features and logits


@pytest.mark.parametrize("name", ["coral", "mmd", "da-coral", "da-mmd"])
def test_features_of_the_hidden_layer_are_penalised(name: str) -> None:
    kind = name.removeprefix("da-")
    penalty = {"coral": coral, "mmd": mmd2}[kind]
    batch = batch_of(BATCH.domain, adaptive=name.startswith("da-"))
    algorithm = make_algorithm(name, penalty=2.5)
    output: Output = algorithm.predict(batch)
    assert output.hidden.shape == (len(batch), HIDDEN)
    losses = algorithm(batch, 0)
    torch.testing.assert_close(losses.penalty, 2.5 * penalty(output.hidden, batch.domain))
    torch.testing.assert_close(losses.risk, F.cross_entropy(output.logits, batch.y))
    assert losses.penalty != 0


def test_irms_weight_is_1_until_its_penalty_counts() -> None:
    algorithm = make_algorithm("irm", penalty=50.0, anneal=3)
    logits = algorithm.predict(BATCH).logits
    gap = irm(logits, BATCH.y, BATCH.domain)
    for step, weight in [(0, 1), (2, 1), (3, 50), (9, 50)]:
        losses = algorithm(BATCH, step)
        torch.testing.assert_close(losses.penalty, weight * gap)
        torch.testing.assert_close(losses.risk, F.cross_entropy(logits, BATCH.y))


# Group DRO


def domain_risks(algorithm: Algorithm, batch: Batch) -> list[float]:
    losses = F.cross_entropy(algorithm.predict(batch).logits, batch.y, reduction="none")
    return [losses[batch.domain == d].mean().item() for d in sorted(set(batch.domain.tolist()))]


def test_group_dro_by_hand_over_two_steps() -> None:
    algorithm = make_algorithm("group-dro", eta=0.5)
    first = domain_risks(algorithm, BATCH)
    q = [math.exp(0.5 * risk) / 3 for risk in first]
    q = [value / sum(q) for value in q]
    found = algorithm(BATCH, 0).risk.item()
    assert found == pytest.approx(sum(w * risk for w, risk in zip(q, first, strict=True)))
    assert algorithm.log_q.exp().tolist() == pytest.approx(q)

    some = rows(BATCH, BATCH.domain != 1)  # domain 1 is absent: only its share of the sum changes
    second = domain_risks(algorithm, some)
    grown = [q[0] * math.exp(0.5 * second[0]), q[1], q[2] * math.exp(0.5 * second[1])]
    q = [value / sum(grown) for value in grown]
    expected = (q[0] * second[0] + q[2] * second[1]) / (q[0] + q[2])
    assert algorithm(some, 1).risk.item() == pytest.approx(expected)
    assert algorithm.log_q.exp().tolist() == pytest.approx(q)


def test_group_dro_saves_its_weights_and_keeps_them_when_only_scoring() -> None:
    algorithm = make_algorithm("group-dro", eta=1.0)
    algorithm(BATCH, 0)
    assert torch.equal(algorithm.state_dict()["log_q"], algorithm.log_q)
    assert algorithm.log_q.std() > 0
    before = algorithm.log_q.clone()
    with torch.no_grad():
        algorithm(BATCH, 1)
    algorithm.eval()(BATCH, 1)
    assert torch.equal(algorithm.log_q, before)


def test_a_tiny_weight_rises_again() -> None:
    algorithm = make_algorithm("group-dro", eta=0.1)
    algorithm.log_q.copy_(torch.tensor([-500.0, 0.0, -500.0]))
    losses = torch.tensor([50.0, 0.0, 0.0])
    for _ in range(200):
        algorithm._follow(torch.arange(3), losses)
    assert algorithm.log_q.exp()[0] > 0.99


# Mixup


class Recorder(Head):
    """Keeps what it was given; its logits are a linear function of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, features: Tensor, mu: Tensor | None = None) -> Output:
        self.x, self.mu = features, mu
        return Output(self.layer(features), features)


@pytest.mark.parametrize("domain", [[0, 0, 1, 1, 2, 2], [2, 0, 0, 2, 2, 1, 2], [1, 0]], ids=str)
def test_mixup_is_a_row_and_one_of_another_domain(domain: list[int]) -> None:
    recorder = Recorder()
    algorithm = make_algorithm("da-mixup", predictor=recorder, alpha=2.0)
    batch = batch_of(domain, adaptive=True)
    assert batch.mu is not None
    for step in range(5):
        found = algorithm(batch, step).risk
        partner, ratio = algorithm._pairs(batch.domain, step)
        assert (batch.domain[partner] != batch.domain).all()
        expected = []
        for i, (j, r) in enumerate(zip(partner.tolist(), ratio.tolist(), strict=True)):
            assert 0 <= r <= 1
            torch.testing.assert_close(recorder.x[i], r * batch.x[i] + (1 - r) * batch.x[j])
            assert recorder.mu is not None
            torch.testing.assert_close(recorder.mu[i], r * batch.mu[i] + (1 - r) * batch.mu[j])
            surprise = -recorder.layer(recorder.x[i]).log_softmax(0)
            expected.append(r * surprise[batch.y[i]] + (1 - r) * surprise[batch.y[j]])
        torch.testing.assert_close(found, torch.stack(expected).mean())


def test_mixup_draws_one_circle_and_a_ratio_for_each_pair() -> None:
    algorithm = make_algorithm("mixup", alpha=1.0)
    domain = torch.arange(8).repeat_interleave(4)
    circles, ratios = set(), []
    for step in range(20):
        partner, ratio = algorithm._pairs(domain, step)
        after, shares = domain[partner].view(8, 4), ratio.view(8, 4)
        assert (after == after[:, :1]).all() and (shares == shares[:, :1]).all()
        assert len(partner.unique()) == len(domain)
        places = [0]
        for _ in range(7):  # one circle through all: 0 is not met again before the end
            places.append(int(after[places[-1], 0]))
        assert sorted(places) == list(range(8))
        circles.add(tuple(places))
        ratios.append(shares[:, 0])
    assert len(circles) > 15
    assert torch.stack(ratios).mean() == pytest.approx(0.5, abs=0.1)
    assert len(torch.stack(ratios).unique()) == 160


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_a_mixture_has_the_precision_of_what_is_mixed(kind: torch.dtype) -> None:
    values = torch.tensor([[0.0, 4.0], [8.0, 16.0]], dtype=kind)
    found = _mix(values, torch.tensor([1, 0]), torch.tensor([0.25, 0.5]))
    assert found.tolist() == [[6.0, 13.0], [4.0, 10.0]]
    assert found.dtype == kind


# MLDG


class Linear(Head):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(FEATURES, CLASSES, bias=False, dtype=torch.float64)

    def forward(self, features: Tensor, mu: Tensor | None = None) -> Output:
        return Output(self.layer(features), features)


def softmax_risk(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean cross-entropy of a linear model and its gradient: [c, f], [b, f], [b] -> , [c, f]"""
    logits = x @ w.T
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    risk = -np.log(p[np.arange(len(y)), y]).mean()
    return risk, (p - np.eye(CLASSES)[y]).T @ x / len(y)


def hessian(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Of the same by w, flattened: [c·f, c·f]"""
    logits = x @ w.T
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    total = np.zeros((w.size, w.size))
    for row, q in zip(x, p, strict=True):
        total += np.kron(np.diag(q) - np.outer(q, q), np.outer(row, row))
    return total / len(x)


@pytest.mark.parametrize("first_order", [False, True])
def test_mldg_is_a_true_meta_step(first_order: bool) -> None:
    predictor = Linear()
    settings = {"beta": 0.7, "inner_lr": 0.5, "first_order": first_order}
    algorithm = make_algorithm("mldg", predictor=predictor, **settings)
    batch = replace(BATCH, x=BATCH.x.double())
    held_out = algorithm._held_out(Groups.of(batch.domain), 0)
    losses = algorithm(batch, 0)
    losses.total.backward()

    w = predictor.layer.weight.detach().numpy()
    x, y, test = batch.x.numpy(), batch.y.numpy(), held_out.numpy()
    risk, inner = softmax_risk(w, x[~test], y[~test])
    after, outer = softmax_risk(w - 0.5 * inner, x[test], y[test])
    assert losses.risk.item() == pytest.approx(risk, rel=1e-12)
    assert losses.penalty.item() == pytest.approx(0.7 * after, rel=1e-12)
    # By w, the risk after the step has the gradient (1 − a H) g; the first order leaves H out.
    curvature = 0 if first_order else hessian(w, x[~test])
    through = outer.ravel() - 0.5 * (curvature @ outer.ravel() if not first_order else 0)
    expected = inner + 0.7 * through.reshape(w.shape)
    assert predictor.layer.weight.grad is not None
    np.testing.assert_allclose(predictor.layer.weight.grad.numpy(), expected, rtol=1e-10)
    if not first_order:
        assert np.abs(expected - inner - 0.7 * outer).max() > 1e-3


@pytest.mark.parametrize(
    ("domains", "asked", "held_out"), [(2, 2, 1), (3, 2, 1), (4, 2, 2), (6, 2, 2), (6, 1, 1)]
)
def test_mldg_splits_the_domains_of_a_batch(domains: int, asked: int, held_out: int) -> None:
    algorithm = make_algorithm("mldg", meta_test=asked)
    domain = torch.arange(domains).repeat(3)
    chosen = set()
    for step in range(30):
        mask = algorithm._held_out(Groups.of(domain), step)
        out = set(domain[mask].tolist())
        assert len(out) == held_out
        assert not out & set(domain[~mask].tolist())
        chosen |= out
    assert chosen == set(range(domains))


def test_mldg_leaves_a_layer_that_is_not_used_where_it_is() -> None:
    predictor = Linear()
    predictor.spare = nn.Linear(2, 2)
    algorithm = make_algorithm("mldg", predictor=predictor)
    without = make_algorithm("mldg", predictor=Linear())
    batch = replace(BATCH, x=BATCH.x.double())
    assert torch.equal(algorithm(batch, 0).total, without(batch, 0).total)


class Normed(Head):
    conditioned = False

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(FEATURES, 6), norm, nn.ReLU())
        self.last = nn.Linear(6, CLASSES)

    def forward(self, features: Tensor, mu: Tensor | None = None) -> Output:
        hidden = self.body(features)
        return Output(self.last(hidden), hidden)


@pytest.mark.parametrize("frozen", [False, True])
def test_mldg_leaves_running_statistics_to_the_outer_weights(frozen: bool) -> None:
    predictor = Normed(nn.BatchNorm1d(6))
    if frozen:
        freeze_batch_norm(predictor)
    algorithm = make_algorithm("mldg", predictor=predictor, inner_lr=0.1).train()
    plain = copy.deepcopy(predictor)
    train = ~algorithm._held_out(Groups.of(BATCH.domain), 0)
    plain(BATCH.x[train])
    algorithm(BATCH, 0).total.backward()
    for (name, found), expected in zip(predictor.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(found, expected), name
    for parameter in predictor.parameters():
        assert parameter.requires_grad == (parameter.grad is not None)
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


# Adversaries


def test_the_discriminator_by_hand() -> None:
    plain = Discriminator(5, 3, DANNConfig(width=7))
    x, y = torch.randn(4, 5), torch.tensor([0, 1, 1, 0])
    one, two, three = (layer for layer in plain.layers if isinstance(layer, nn.Linear))
    torch.testing.assert_close(plain(x, y), three(two(one(x).relu()).relu()))
    knowing = Discriminator(5, 3, DANNConfig(depth=1), classes=2)
    assert knowing.embedding is not None
    (last,) = knowing.layers
    torch.testing.assert_close(knowing(x, y), last(x + knowing.embedding.weight[y]))


def test_the_adversary_is_as_its_settings_say() -> None:
    rates = {"discriminator_lr": 0.125, "discriminator_weight_decay": 0.5, "beta1": 0.75}
    sizes = {"width": 9, "depth": 4, "dropout": 0.25}
    algorithm = make_algorithm("dann", discriminator_steps=3, **sizes, **rates)
    layers = algorithm.discriminator.layers
    sizes = [part.weight.shape for part in layers if isinstance(part, nn.Linear)]
    assert sizes == [(9, HIDDEN), (9, 9), (9, 9), (DOMAINS, 9)]
    assert [part.p for part in layers if isinstance(part, nn.Dropout)] == [0.25] * 3
    assert algorithm.adversary.module is algorithm.discriminator
    expected = OptimiserConfig(lr=0.125, weight_decay=0.5, beta1=0.75)
    assert (algorithm.adversary.optimiser, algorithm.adversary.steps) == (expected, 3)


@pytest.mark.parametrize("name", ["dann", "cdann"])
def test_each_turn_has_its_sides_loss(name: str) -> None:
    algorithm = make_algorithm(name, penalty=0.3, gradient_penalty=2.0, width=8)
    output = algorithm.predict(BATCH)
    hidden = output.hidden.detach().requires_grad_()
    losses = F.cross_entropy(
        algorithm.discriminator(hidden, BATCH.y), BATCH.domain, reduction="none"
    )
    entropy = losses.mean()
    if name == "cdann":
        by_class = [losses[BATCH.y == c].mean() for c in BATCH.y.unique()]
        entropy = torch.stack(by_class).mean()
        assert entropy != losses.mean()
    slopes = torch.stack(
        [torch.autograd.grad(loss, hidden, retain_graph=True)[0].sum(0) for loss in losses]
    )
    theirs, own = algorithm(BATCH, 0), algorithm(BATCH, 1)
    torch.testing.assert_close(theirs.penalty, entropy + 2 * slopes.square().sum(1).mean())
    torch.testing.assert_close(own.penalty, -0.3 * entropy)
    for found in (theirs, own):
        torch.testing.assert_close(found.risk, F.cross_entropy(output.logits, BATCH.y))

    theirs.total.backward()
    assert all(p.grad is None for p in algorithm.predictor.parameters())
    assert all(p.grad is not None for p in algorithm.discriminator.parameters())
    algorithm.zero_grad()
    own.total.backward()
    assert all(p.grad is not None for p in algorithm.predictor.parameters())
    assert all(p.grad is None for p in algorithm.discriminator.parameters())


def test_a_class_that_a_batch_lacks_does_not_count() -> None:
    batch = replace(BATCH, y=2 * (BATCH.y > 0).long())  # 0 and 2 of 0, 1 and 2
    algorithm = make_algorithm("cdann", width=8)
    scores = algorithm.discriminator(algorithm.predict(batch).hidden, batch.y)
    losses = F.cross_entropy(scores, batch.domain, reduction="none")
    by_class = [losses[batch.y == c].mean() for c in (0, 2)]
    torch.testing.assert_close(algorithm(batch, 0).penalty, torch.stack(by_class).mean())


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_a_small_gradient_penalty_counts_between_two_domains(weight: float) -> None:
    algorithm = make_algorithm("dann", gradient_penalty=weight, width=8)
    batch = batch_of([0, 2, 2, 0, 0])
    hidden = algorithm.predict(batch).hidden.detach().requires_grad_()
    losses = F.cross_entropy(
        algorithm.discriminator(hidden, batch.y), batch.domain, reduction="none"
    )
    (slopes,) = torch.autograd.grad(losses.sum(), hidden)
    found = algorithm(batch, 0).penalty
    torch.testing.assert_close(found, losses.mean() + weight * slopes.square().sum(1).mean())


def test_a_discriminator_starts_the_same_whatever_was_drawn_before() -> None:
    predictor = plain_on(build_backbone("mlp", in_features=FEATURES), CLASSES)
    one = make_algorithm("cdann", predictor=predictor)
    torch.rand(7)
    two = make_algorithm("cdann", predictor=predictor)
    state, other = one.discriminator.state_dict(), two.discriminator.state_dict()
    assert all(torch.equal(other[key], value) for key, value in state.items())


@pytest.mark.parametrize("name", ["dann", "da-cdann"])
@pytest.mark.parametrize("turns", [1, 2])
def test_only_one_side_moves_in_a_turn(name: str, turns: int, tmp_path: Path) -> None:
    algorithm = make_algorithm(name, discriminator_steps=turns, discriminator_lr=0.02)
    sides = {"model": algorithm.predictor, "discriminator": algorithm.discriminator}
    moved: list[str] = []
    last = copy.deepcopy({side: module.state_dict() for side, module in sides.items()})

    def watch(*_: object) -> None:
        for side, module in sides.items():
            state = module.state_dict()
            if any(not torch.equal(state[key], value) for key, value in last[side].items()):
                moved.append(side)
            last[side] = copy.deepcopy(state)

    phase = Phase("main", 2 * (turns + 1), OptimiserConfig(lr=0.01), checkpoint_every=100)
    loop = make_loop(tmp_path, algorithm, phase, FEATURES)
    loop.watch = watch
    loop.prepare = lambda batch: replace(batch, mu=torch.ones(len(batch), MU))
    loop.run()
    assert moved == 2 * [*["discriminator"] * turns, "model"]


# Several processes


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_equal_one(processes: int, tmp_path: Path) -> None:
    mp.spawn(run_process, (processes, str(tmp_path)), nprocs=processes)  # type: ignore[no-untyped-call]
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(processes)]
    for name, settings in PARALLEL.items():
        start = make_algorithm(name, **settings).state_dict()
        whole = trained(World(), make_algorithm(name, **settings))
        for key, value in whole.items():
            for part in parts:
                torch.testing.assert_close(part[name][key], value, rtol=1e-4, atol=1e-6, msg=key)
        assert any(not torch.allclose(start[key], value) for key, value in whole.items())
