"""Losses against float64 references, written as loops over rows and domains from each formula."""

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.core.randomness import stream
from acclimate.data.batches import Batch
from acclimate.learn.algorithms.eqrm import kde_quantile
from acclimate.learn.algorithms.selfreg import _same_class
from acclimate.learn.objective import Losses
from acclimate.learn.penalties import Groups, coral, gradient_variances, mmd2, variance_within
from fixtures.objectives import CLASSES, HIDDEN, MU, batch_of, make_algorithm
from fixtures.predictors import batch_normed, conditioned_on, plain_on

DOMAINS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 2])


def batch(domain: Tensor = DOMAINS, *, adaptive: bool = False) -> Batch:
    found = batch_of(domain, adaptive=adaptive)
    return replace(found, x=found.x.double(), mu=None if found.mu is None else found.mu.double())


BATCH = batch()


def algorithm(name: str, **settings: Any) -> Any:
    return make_algorithm(name, **settings).double()


def surprise(logits: np.ndarray, y: int) -> float:
    return math.log(sum(math.exp(z) for z in logits)) - float(logits[y])


def outputs(one: Any, rows: Batch = BATCH) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Logits, hidden features and the cross-entropy of each row."""
    output = one.predictor(rows.x, rows.mu)
    logits, hidden = output.logits.detach().numpy(), output.hidden.detach().numpy()
    return logits, hidden, [surprise(z, int(y)) for z, y in zip(logits, rows.y, strict=True)]


def by_domain(values: Any, rows: Batch = BATCH) -> list[np.ndarray]:
    return [np.asarray(values)[rows.domain.numpy() == d] for d in rows.domain.unique()]


def parts(losses: Losses) -> tuple[float, float | None]:
    return losses.risk.item(), None if losses.penalty is None else losses.penalty.item()


# Risks of domains


def test_vrex_is_the_variance_of_the_domains_risks() -> None:
    one = algorithm("vrex", penalty=7.0, anneal=3)
    risks = [rows.mean() for rows in by_domain(outputs(one)[2])]
    mean = sum(risks) / 3
    variance = sum((risk - mean) ** 2 for risk in risks) / 3
    for step, weight in [(0, 1), (2, 1), (3, 7)]:
        assert parts(one(BATCH, step)) == pytest.approx((mean, weight * variance))


def quantile(values: list[float], level: float) -> float:
    """By halving, of the mean of normal distributions about the values."""
    m, mean = len(values), sum(values) / len(values)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (m - 1))
    width = 1.06 * spread * m**-0.2
    low, high = mean - 20 * spread, mean + 20 * spread
    for _ in range(200):
        at = (low + high) / 2
        below = sum((1 + math.erf((at - v) / width / math.sqrt(2))) / 2 for v in values) / m
        low, high = (at, high) if below < level else (low, at)
    return low


@pytest.mark.parametrize("level", [0.05, 0.5, 0.75, 0.99])
def test_a_quantile_and_its_slope(level: float) -> None:
    values = [0.3, 1.7, 0.8, 0.9, 2.4]
    x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    found = kde_quantile(x, level)
    found.backward()
    assert found.item() == pytest.approx(quantile(values, level), abs=1e-9)
    slopes = []
    for place in range(5):
        up, down = ([v + s * 1e-5 * (i == place) for i, v in enumerate(values)] for s in (1, -1))
        slopes.append((quantile(up, level) - quantile(down, level)) / 2e-5)
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx(slopes, abs=1e-6)
    assert x.grad.sum().item() == pytest.approx(1)  # all values moved alike move it as much


def test_a_quantile_of_values_that_are_equal_or_far_apart() -> None:
    for values in ([1.4, 1.4, 1.4], [0.0] * 30 + [1e4]):
        x = torch.tensor(values, requires_grad=True)
        found = kde_quantile(x, 0.96)
        found.backward()
        assert x.grad is not None
        assert found.isfinite() and x.grad.isfinite().all()
        assert min(values) - 1e-6 < found.item() < max(values) + 1e-3


def test_eqrm_is_the_mean_risk_and_then_a_quantile() -> None:
    one = algorithm("eqrm", quantile=0.9, anneal=2)
    risks = [float(rows.mean()) for rows in by_domain(outputs(one)[2])]
    assert parts(one(BATCH, 1)) == pytest.approx((sum(risks) / 3, None))
    assert parts(one(BATCH, 2)) == pytest.approx((quantile(risks, 0.9), None))


# Logits and features


def test_spectral_decoupling_is_of_the_networks_own_logits() -> None:
    one = algorithm("sd", penalty=0.3)
    logits, _, losses = outputs(one)
    expected = 0.3 * sum(z * z for z in logits.ravel()) / logits.size
    assert parts(one(BATCH, 0)) == pytest.approx((np.mean(losses), expected))
    shift = torch.linspace(-3, 3, CLASSES).double().expand(len(BATCH), -1)
    shifted = one(replace(BATCH, shift=shift), 0)
    assert shifted.penalty.item() == pytest.approx(expected)
    assert shifted.risk.item() != pytest.approx(np.mean(losses), rel=1e-3)


def test_ib_erm_is_the_variance_within_domains() -> None:
    one = algorithm("ib-erm", penalty=5.0, anneal=2)
    _, hidden, losses = outputs(one)
    variances = [rows.var(axis=0, ddof=1).mean() for rows in by_domain(hidden)]
    assert parts(one(BATCH, 1)) == pytest.approx((np.mean(losses), None))
    assert parts(one(BATCH, 2)) == pytest.approx((np.mean(losses), 5 * np.mean(variances)))


def test_a_single_row_has_no_variance_and_does_not_count() -> None:
    x = torch.tensor([[1.0, 0.0], [3.0, 4.0], [9.0, 9.0]])
    assert variance_within(x, torch.tensor([0, 0, 5])).item() == (2 + 8) / 2
    assert variance_within(x, torch.tensor([0, 1, 2])).item() == 0


@pytest.mark.parametrize(("features", "rows"), [(1 / 3, 1 / 3), (0.5, 0.8), (0.0, 0.5), (0.9, 1.0)])
def test_rsc_mutes_by_gradient(features: float, rows: float) -> None:
    one = algorithm("rsc", features=features, rows=rows)
    logits, hidden, _ = outputs(one)
    y = BATCH.y.tolist()
    live = torch.from_numpy(hidden).requires_grad_()
    right = one.predictor.last(live).gather(1, BATCH.y[:, None]).sum()
    (slopes,) = torch.autograd.grad(right, live)
    muted, falls = [], []
    for h, slope, label, z in zip(hidden, slopes.numpy(), y, logits, strict=True):
        muted.append(h * (slope < np.percentile(slope, 100 * (1 - features))))
        after = one.predictor.last(torch.from_numpy(muted[-1])).detach().numpy()
        falls.append(math.exp(-surprise(z, label)) - math.exp(-surprise(after, label)))
    bound = np.percentile(falls, 100 * (1 - rows))
    final = [m if fall >= bound else h for m, fall, h in zip(muted, falls, hidden, strict=True)]
    logits = one.predictor.last(torch.from_numpy(np.stack(final))).detach().numpy()
    expected = np.mean([surprise(z, label) for z, label in zip(logits, y, strict=True)])
    assert parts(one(BATCH, 0)) == pytest.approx((expected, None))


def test_what_a_condition_adds_to_the_logits_stays() -> None:
    one = algorithm("da-rsc")
    for condition in ("concat", "bias", "low-rank"):
        backbone = one.predictor.backbone
        predictor = conditioned_on(backbone, CLASSES, mu_dim=MU, hidden=HIDDEN, condition=condition)
        for parameter in predictor.double().parameters():
            torch.nn.init.normal_(parameter)
        one.predictor = predictor
        rows = batch(adaptive=True)
        output = one.predict(rows)
        added = output.logits - predictor.last(output.hidden)
        other = torch.randn_like(output.hidden)
        found = one.with_hidden(output, other)
        torch.testing.assert_close(found, predictor.last(other) + added)
        assert added.any() == (condition != "concat") or added.abs().max() < 1e-12


@pytest.mark.parametrize("sure", [False, True])
def test_selfreg_compares_rows_of_a_class(sure: bool) -> None:
    one, rows = algorithm("selfreg").train(), BATCH
    if sure:  # a risk below 1 scales the penalty
        rows = replace(BATCH, y=one.predict(BATCH).logits.argmax(1))
        one.predictor.last.weight.data *= 40
        one.predictor.last.bias.data *= 40
    for step in range(3):
        draws = stream(0, "selfreg", step)
        noise = [torch.from_numpy(draws.random(len(rows))) for _ in range(2)]
        ratio = draws.beta(0.5, 0.5)
        first, second = (_same_class(rows.y, part).numpy() for part in noise)
        logits, hidden, risks = outputs(one, rows)
        projected = one.projection(torch.from_numpy(hidden)).detach().numpy()
        expected = 0.0
        for weight, own, others in ((1, logits, logits), (0.3, hidden, projected)):
            mixed = ratio * others[first] + (1 - ratio) * others[second]
            expected += weight * ratio * np.mean((own - others[first]) ** 2)
            expected += weight * (1 - ratio) * np.mean((own - mixed) ** 2)
        assert (np.mean(risks) < 1) == sure
        scale = min(np.mean(risks), 1)
        losses = one(rows, step)
        assert parts(losses) == pytest.approx((np.mean(risks), scale * expected))
        # A bias moves the logits of a pair alike: only the scale could have a gradient by it.
        (slope,) = torch.autograd.grad(losses.penalty, one.predictor.last.bias)
        assert slope.abs().max() < 1e-12


def test_partners_are_of_the_same_class() -> None:
    y = torch.tensor([2, 0, 2, 2, 0, 5, 2])
    found = {tuple(_same_class(y, torch.rand(7, dtype=torch.float64)).tolist()) for _ in range(300)}
    assert len(found) == 2 * 24  # every order of two rows and of four
    for partners in found:
        assert y[[*partners]].tolist() == y.tolist() and sorted(partners) == list(range(7))


# Styles


def test_sagnet_mixes_styles_and_misleads() -> None:
    one = algorithm("sagnet", penalty=0.4)
    _, hidden, _ = outputs(one)
    other, share = (part.numpy() for part in one._partners(len(BATCH), 3, torch.device("cpu")))
    assert sorted(other) == list(range(len(BATCH))) and len({*share.ravel()}) == len(BATCH)
    mean = hidden.mean(1)
    variance = hidden.var(1, ddof=1)
    risks, learned, undecided = [], [], []
    for i, (j, a) in enumerate(zip(other, share.ravel().astype(float), strict=True)):
        content, theirs = ((hidden[k] - mean[k]) / math.sqrt(variance[k] + 1e-5) for k in (i, j))
        spread = a * variance[i] + (1 - a) * variance[j]
        mixed = content * math.sqrt(spread + 1e-5) + a * mean[i] + (1 - a) * mean[j]
        swapped = theirs * math.sqrt(variance[i] + 1e-5) + mean[i]
        content_logits = one.predictor.last(torch.from_numpy(mixed)).detach().numpy()
        style_logits = one.style(torch.from_numpy(swapped)).detach().numpy()
        risks.append(surprise(content_logits, int(BATCH.y[i])))
        learned.append(surprise(style_logits, int(BATCH.y[i])))
        undecided.append(np.mean([surprise(style_logits, k) for k in range(CLASSES)]))
    expected = np.mean(learned) + 0.4 * np.mean(undecided)
    assert parts(one(BATCH, 3)) == pytest.approx((np.mean(risks), expected))


def test_each_side_of_sagnet_has_its_own_loss() -> None:
    one = algorithm("sagnet", penalty=0.0)
    one(BATCH, 0).penalty.backward()
    assert all(p.grad is None or not p.grad.any() for p in one.predictor.parameters())
    before = [p.grad.clone() for p in one.style.parameters()]
    assert all(slope.any() for slope in before)
    other = algorithm("sagnet", penalty=3.0)
    other(BATCH, 0).penalty.backward()
    assert all(
        torch.equal(p.grad, b) for p, b in zip(other.style.parameters(), before, strict=True)
    )
    assert other.predictor.backbone.body[0].weight.grad.any()


def test_sagnets_features_learn_by_their_style_alone() -> None:
    """The slope by a row is one of its mean and variance: along ones and its centred features."""
    one, kept = algorithm("sagnet", penalty=3.0), []
    one.predictor.register_forward_hook(lambda _, given, output: kept.append(output.hidden))
    penalty = one(BATCH, 0).penalty
    (hidden,) = kept
    (slopes,) = torch.autograd.grad(penalty, hidden)
    assert slopes.any(1).all()
    for slope, row in zip(slopes, hidden.detach(), strict=True):
        ways = torch.stack([torch.ones_like(row), row], dim=1)
        rest = slope - ways @ torch.linalg.lstsq(ways, slope[:, None]).solution[:, 0]
        assert rest.abs().max() < 1e-9 * slope.abs().max()


# Random halves


@pytest.mark.parametrize(("name", "distance"), [("causirl-coral", coral), ("causirl-mmd", mmd2)])
def test_causirl_aligns_the_first_rows_with_the_rest(name: str, distance: Any) -> None:
    one = algorithm(name, penalty=2.5)
    hidden = one.predictor(BATCH.x).hidden
    cuts = set()
    for step in range(30):
        part = one._parts(BATCH.domain, step)
        sides = by_domain(part)
        for side in sides:  # ones, then zeros; never ones alone
            assert side.tolist() == sorted(side, reverse=True) and not side[-1]
        cuts.add(tuple(int(side.sum()) for side in sides))
        expected = 2.5 * distance(hidden, part)
        torch.testing.assert_close(one(BATCH, step).penalty, expected)
    assert {cut[0] for cut in cuts} == {0, 1, 2} and {cut[1] for cut in cuts} == {0, 1, 2, 3}


# Gradients


def test_fish_is_a_step_down_one_domain_after_the_other() -> None:
    """By SGD's own steps on a copy: from θ to θ̃, Fish moves by ε (θ̃ − θ)."""
    one = algorithm("fish", inner_lr=0.3)
    copied = copy.deepcopy(one.predictor)
    steps = torch.optim.SGD(copied.parameters(), lr=0.3)
    risks = []
    for number in stream(0, "fish", 4).permutation(3):
        rows = BATCH.domain == int(number)
        risk = F.cross_entropy(copied(BATCH.x[rows]).logits, BATCH.y[rows])
        steps.zero_grad()
        risk.backward()
        steps.step()
        risks.append(risk.item())
    losses = one(BATCH, 4)
    assert parts(losses) == pytest.approx((np.mean(risks), None))
    losses.total.backward()
    epsilon = 0.5
    moved = copy.deepcopy(one.predictor)
    for own, source in zip(moved.parameters(), one.predictor.parameters(), strict=True):
        own.grad = source.grad
    torch.optim.SGD(moved.parameters(), lr=epsilon * 0.3 * 3).step()
    for start, inner, found in zip(
        one.predictor.parameters(), copied.parameters(), moved.parameters(), strict=True
    ):
        torch.testing.assert_close(found, start + epsilon * (inner - start))
        assert start.grad is not None and start.grad.any()


def test_domains_come_in_another_order_at_another_step() -> None:
    one = algorithm("fish", inner_lr=0.5)
    assert len({one(BATCH, step).risk.item() for step in range(12)}) > 3


def gradients(one: Any, rows: Batch) -> np.ndarray:
    """Every row's by the last layer's weights and bias, row by row."""
    last = one.predictor.last
    slopes = []
    for i in range(len(rows)):
        risk = F.cross_entropy(one.predictor(rows.x[i : i + 1]).logits, rows.y[i : i + 1])
        found = torch.autograd.grad(risk, [last.weight, last.bias])
        slopes.append(torch.cat([part.ravel() for part in found]).numpy())
    return np.stack(slopes)


def test_fishr_compares_variances_of_gradients_over_time() -> None:
    one = algorithm("fishr", penalty=11.0, anneal=1, ema=0.75).train()
    some = BATCH.take((BATCH.domain != 1).nonzero()[:, 0])
    kept = dict.fromkeys(range(3), 0.0)
    for step, rows in enumerate([BATCH, some, BATCH]):
        slopes = by_domain(gradients(one, rows), rows)
        smoothed = []
        for domain, own in zip(rows.domain.unique().tolist(), slopes, strict=True):
            kept[domain] = 0.75 * kept[domain] + 0.25 * own.var(axis=0)
            smoothed.append(kept[domain] / 0.25)
        gap = np.mean([np.mean((v - np.mean(smoothed, axis=0)) ** 2) for v in smoothed])
        losses = one(rows, step)
        risk = np.mean(outputs(one, rows)[2])
        assert parts(losses) == pytest.approx((risk, 11 * gap if step else 0))
        with torch.no_grad():
            for parameter in one.predictor.parameters():
                parameter += 0.1 * torch.randn_like(parameter)


def test_fishrs_penalty_has_the_gradient_of_its_rows() -> None:
    """By finite differences of the references' penalty along one direction."""
    one = algorithm("fishr", penalty=1.0, anneal=0, ema=0.5).eval()

    def reference() -> float:
        variances = [2 * 0.5 * own.var(axis=0) for own in by_domain(gradients(one, BATCH))]
        return float(np.mean([np.mean((v - np.mean(variances, axis=0)) ** 2) for v in variances]))

    one(BATCH, 0).penalty.backward()
    for parameter in (one.predictor.backbone.body[0].weight, one.predictor.last.weight):
        way, values = torch.randn_like(parameter), []
        for amount in (1e-5, -2e-5):
            with torch.no_grad():
                parameter += amount * way
            values.append(reference())
        with torch.no_grad():
            parameter += 1e-5 * way
        slope = (values[0] - values[1]) / 2e-5
        assert (parameter.grad * way).sum().item() == pytest.approx(slope, rel=1e-4)


def test_fishr_keeps_its_averages_when_only_scoring() -> None:
    one = algorithm("fishr")
    before = one.variances.clone()
    with torch.no_grad():
        one(BATCH, 0)
    one.eval()(BATCH, 0)
    assert torch.equal(one.variances, before)
    one.train()(BATCH, 0)
    assert torch.equal(one.state_dict()["variances"], one.variances)
    assert not torch.equal(one.variances, before)


def test_gradient_variances_by_hand() -> None:
    residual, inputs = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([[2.0], [1.0], [7.0]])
    groups = Groups.of(torch.tensor([0, 0, 4]))
    # Products 2 and 3 in one domain, 35 alone in the other.
    assert gradient_variances(residual, inputs, groups).ravel().tolist() == [0.25, 0.0]


# Contexts


def two_layers(network: Any, x: np.ndarray) -> np.ndarray:
    """Linear, ReLU, linear, ReLU, row by row."""
    for place in (0, 2):
        layer = network.body[place]
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        x = np.stack([np.maximum(weight @ row + bias, 0) for row in x])
    return x


def conditioned_risk(one: Any, rows: Batch, mu: dict[int, np.ndarray]) -> float:
    """The mean cross-entropy of F_mlp([z, μ]), with the μ of each row's domain."""
    head, risks = one.predictor.head, []
    features = two_layers(one.predictor.backbone, rows.x.numpy())
    layers = [
        (layer.weight.detach().numpy(), layer.bias.detach().numpy())
        for layer in (head.project, head.first, head.last)
    ]
    for f, domain, y in zip(features, rows.domain.tolist(), rows.y.tolist(), strict=True):
        z = layers[0][0] @ f + layers[0][1]
        hidden = np.maximum(layers[1][0] @ np.concatenate([z, mu[domain]]) + layers[1][1], 0)
        risks.append(surprise(layers[2][0] @ hidden + layers[2][1], y))
    return float(np.mean(risks))


def test_arm_is_the_risk_beside_the_batchs_own_contexts() -> None:
    one = algorithm("arm").train()
    some = BATCH.take((BATCH.domain != 1).nonzero()[:, 0])
    for step, rows in enumerate([BATCH, some]):
        context = by_domain(two_layers(one.embedding.backbone, rows.x.numpy()), rows)
        present = rows.domain.unique().tolist()
        mu = {domain: own.mean(axis=0) for domain, own in zip(present, context, strict=True)}
        assert parts(one(rows, step)) == pytest.approx((conditioned_risk(one, rows, mu), None))


def test_mtl_is_the_risk_beside_the_running_mean_features() -> None:
    one, known = algorithm("mtl", ema=0.75).train(), dict[int, np.ndarray]()
    some = BATCH.take((BATCH.domain != 1).nonzero()[:, 0])
    for step, same in enumerate([some, BATCH, some]):
        rows = replace(same, x=same.x * 1.2**step)
        for domain, own in zip(rows.domain.unique().tolist(), by_domain(rows.x, rows), strict=True):
            mean = own.mean(axis=0)
            known[domain] = 0.75 * mean + 0.25 * known.get(domain, mean)
        assert parts(one(rows, step)) == pytest.approx((conditioned_risk(one, rows, known), None))
    before = one.state_dict()["means"].clone()
    with torch.no_grad():
        one(BATCH, 3)
    one.eval()(BATCH, 3)
    assert torch.equal(one.means, before) and one.counts.tolist() == [3, 1, 3]


# The pretrained backbone


def test_miro_is_the_log_density_of_pretrained_features() -> None:
    one = algorithm("miro", penalty=0.3).train()
    assert one.variance().tolist() == pytest.approx([0.1] * len(one.spread))
    before = one.predictor.backbone(BATCH.x).detach().numpy()
    with torch.no_grad():
        for parameter in (one.spread, *one.predictor.parameters()):
            parameter += 0.1 * torch.randn_like(parameter)
    features, variance = one.predictor.backbone(BATCH.x).detach().numpy(), one.variance().tolist()
    total = 0.0
    for row, old in zip(features, before, strict=True):
        for f, f0, v in zip(row, old, variance, strict=True):
            total += ((f - f0) ** 2 / v + math.log(v)) / 2
    expected = 0.3 * total / features.size
    assert parts(one(BATCH, 0)) == pytest.approx((np.mean(outputs(one)[2]), expected))


def test_miros_pretrained_backbone_stays_as_it_is() -> None:
    predictor = plain_on(batch_normed().backbone, 3)
    one = make_algorithm("miro", predictor=predictor).train()
    before = {key: value.clone() for key, value in one.pretrained.state_dict().items()}
    images = Batch(torch.rand(6, 3, 4, 4), torch.arange(6) % 3, torch.arange(6) // 3)
    steps = torch.optim.Adam([p for p in one.parameters() if p.requires_grad], lr=0.01)
    for step in range(3):
        one(images, step).total.backward()
        steps.step()
    assert one.predictor.training and not one.pretrained.training
    for key, value in one.pretrained.state_dict().items():
        assert torch.equal(value, before[key])
        assert f"pretrained.{key}" in one.state_dict()
    assert not torch.equal(predictor.backbone.body[0].weight, one.pretrained.body[0].weight)


def test_miros_variances_learn_ten_times_as_fast() -> None:
    one = algorithm("miro")
    start = math.log(math.expm1(0.1 - 1e-5))
    with torch.no_grad():
        one.spread += 0.02
    expected = math.log1p(math.exp(start + 0.2)) + 1e-5
    assert one.variance().tolist() == pytest.approx([expected] * len(one.spread))
