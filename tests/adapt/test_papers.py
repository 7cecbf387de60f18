"""SAR, SHOT's information maximisation and LAME against their formulas in float64."""

import copy
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit, logit, softmax, xlogy
from torch import Tensor, nn
from torch.func import functional_call, grad

from acclimate.adapt.methods import find_chain
from acclimate.adapt.methods.chain import adapt_model
from acclimate.adapt.methods.gradients import entropies
from acclimate.adapt.methods.lame import BATCH, SmoothedHead, affinity, smooth
from acclimate.adapt.methods.sar import SAR, SARConfig
from acclimate.adapt.methods.shot import Shot, ShotConfig, information
from acclimate.core.errors import ConfigError
from acclimate.learn.images import Images
from acclimate.learn.model import Model
from acclimate.learn.models import Predictor
from acclimate.learn.models.predictors import LinearHead
from fixtures.errors import refused
from fixtures.predictors import CPU, UNIFORM, batch_normed, group_normed, pixels, plain, rows

Scales = dict[str, Tensor]


def sure(predictor: Predictor) -> tuple[Predictor, Predictor]:
    """With logits so large that some images are sure and others are not; and it in float64."""
    scaled = predictor.scaled(12.0).eval()
    return scaled, copy.deepcopy(scaled).double().requires_grad_(False)


def entropy_of(predictor: Predictor, images: Images, scales: Mapping[str, Tensor]) -> Tensor:
    """Entropies [n] by a predictor in float64, with these scales and shifts."""
    x = torch.cat([*images.batches()]).double()
    p = functional_call(predictor, dict(scales), (x,)).logits.softmax(1)
    return -torch.xlogy(p, p).sum(1)


def norms_of(predictor: Predictor) -> Scales:
    kinds = nn.GroupNorm | nn.BatchNorm2d
    return {
        f"{name}.{key}": value.detach().double()
        for name, part in predictor.named_modules()
        if isinstance(part, kinds)
        for key, value in part.named_parameters()
    }


# --- SAR ------------------------------------------------------------------------------------------


def by_the_paper(
    predictor: Predictor, images: Images, steps: int, lr: float, margin: float, radius: float
) -> Scales:
    """Sharpness-aware steps of SGD with momentum on images that are sure twice."""
    scales, limit = norms_of(predictor), margin * np.log(3)
    speed = {name: torch.zeros_like(value) for name, value in scales.items()}

    def loss(own: Scales, mask: Tensor) -> Tensor:
        return entropy_of(predictor, images, own)[mask].mean()

    for _ in range(steps):
        first = entropy_of(predictor, images, scales) < limit
        slopes = grad(loss)(scales, first)
        length = torch.cat([slope.flatten() for slope in slopes.values()]).norm()
        above = {n: value + radius * slopes[n] / length for n, value in scales.items()}
        both = first & (entropy_of(predictor, images, above) < limit)
        slopes = grad(loss)(above, both)
        speed = {n: 0.9 * value + slopes[n] for n, value in speed.items()}
        scales = {n: value - lr * speed[n] for n, value in scales.items()}
    return scales


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("margin", [0.6, 2.0])
def test_sar_against_the_paper(steps: int, margin: float) -> None:
    (predictor, double), images = sure(group_normed()), pixels(12)
    values = {"lr": 0.05, "margin": margin, "radius": 0.3}
    count = int((entropy_of(double, images, {}) < margin * np.log(3)).sum())
    assert count == 12 if margin > 1 else 0 < count < 12
    found = SAR(SARConfig(steps=steps, collapse=0.0, **values)).observe(predictor, images, UNIFORM)
    expected = by_the_paper(double, images, steps, **values)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-3, atol=1e-5)


def test_where_no_image_is_sure_nothing_is_learned() -> None:
    predictor, images = group_normed(), pixels(12)
    double = copy.deepcopy(predictor).double().requires_grad_(False)
    assert entropy_of(double, images, {}).min() > 0.4 * np.log(3)
    found = SAR(SARConfig(lr=1.0)).observe(predictor, images, UNIFORM)
    assert all(torch.equal(found[n].double(), value) for n, value in norms_of(predictor).items())


def test_a_collapse_takes_the_scales_back() -> None:
    """The running entropy is below the limit after each step, so that each is undone."""
    (predictor, double), images = sure(group_normed()), pixels(12)
    config = {"lr": 0.05, "margin": 2.0, "steps": 4}
    least = float(entropy_of(double, images, {}).mean())
    kept = SAR(SARConfig(**config, collapse=0.1 * least)).observe(predictor, images, UNIFORM)
    back = SAR(SARConfig(**config, collapse=2 * least)).observe(predictor, images, UNIFORM)
    for name, value in norms_of(predictor).items():
        torch.testing.assert_close(back[name].double(), value, rtol=0, atol=1e-6)
    assert any(not torch.allclose(kept[n], back[n], atol=1e-3) for n in kept)


def test_batch_norm_has_the_statistics_of_all_images() -> None:
    found = SAR(SARConfig(margin=2.0)).observe(batch_normed(), pixels(12), UNIFORM)
    assert "backbone.body.1.running_mean" in found and "backbone.body.1.weight" in found


# --- SHOT -----------------------------------------------------------------------------------------


def test_information_by_hand() -> None:
    certain = torch.tensor([[1e3, 0.0, 0.0], [0.0, 1e3, 0.0], [0.0, 0.0, 1e3]])
    assert float(information(certain)) == pytest.approx(np.log(3), rel=1e-5)
    assert float(information(torch.tensor([[2.0, 1.0, 0.0]] * 5))) == pytest.approx(0, abs=1e-6)
    p = np.array([[0.9, 0.1], [0.4, 0.6]])
    expected = -xlogy(p.mean(0), p.mean(0)).sum() + xlogy(p, p).sum(1).mean()
    assert float(information(torch.from_numpy(np.log(p)))) == pytest.approx(expected, rel=1e-5)


def test_a_class_that_nothing_is_of_has_finite_gradients() -> None:
    logits = torch.tensor([[0.0, -1e4], [0.0, -1e4]], requires_grad=True)
    (slope,) = torch.autograd.grad(information(logits), logits)
    assert slope.isfinite().all()
    assert entropies(logits).tolist() == [0.0, 0.0]


def test_a_step_of_shot_by_hand() -> None:
    """Adam's first step is of length lr, up the slope that all rows have together."""
    predictor, images = plain(), rows(300)
    x = next(images.batches(300)).double()
    double = copy.deepcopy(predictor).double()

    def loss(last: Scales) -> Tensor:
        p = functional_call(double, last, (x,)).logits.softmax(1)
        mean = p.mean(0)
        return torch.xlogy(p, p).sum(1).mean() - torch.xlogy(mean, mean).sum()

    names = {"weight": "head.last.weight", "bias": "head.last.bias"}
    last = {full: predictor.get_parameter(full).detach().double() for full in names.values()}
    slopes = grad(loss)(last)
    found = Shot(ShotConfig(steps=1, lr=0.01)).observe(predictor, images, UNIFORM)
    for name, full in names.items():
        slope = slopes[full]
        step = 0.01 * slope / (slope.abs() + 1e-8)
        torch.testing.assert_close(found[name].double(), last[full] + step, rtol=1e-3, atol=1e-5)


def test_steps_of_shot_gain_information() -> None:
    predictor, images = plain(), rows(300)
    shot = Shot(ShotConfig(steps=50, lr=0.05))
    adapted = shot.apply(predictor, shot.observe(predictor, images, UNIFORM))
    with torch.no_grad():
        before, after = (information(images.outputs(one).logits) for one in (predictor, adapted))
    assert after > before + 0.1
    assert all(parameter.grad is None for parameter in predictor.parameters())


# --- LAME -----------------------------------------------------------------------------------------


def test_neighbours_are_the_nearest_by_angle() -> None:
    angles = torch.tensor([0.0, 10.0, 25.0, 90.0]).deg2rad()
    hidden = torch.stack([angles.cos(), angles.sin()], 1) * torch.tensor([[1.0], [9.0], [2.0], [5]])
    assert affinity(hidden, 1).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    assert affinity(hidden, 5).tolist() == (1 - torch.eye(4)).tolist()
    assert affinity(hidden[:1], 5).tolist() == [[0.0]]
    copies = affinity(hidden[[0, 0, 0]], 1)  # one is not its own neighbour
    assert copies.diagonal().tolist() == [0.0] * 3 and copies.sum(1).tolist() == [1.0] * 3


def test_two_images_that_pull_at_each_other_by_hand() -> None:
    """z = σ(logit p + 2z − 1), as each pulls with z − (1 − z)."""
    p = 0.6
    z = brentq(lambda z: z - expit(logit(p) + 2 * z - 1), 0.5, 1.0)
    logits = torch.tensor([[p, 1 - p]] * 2, dtype=torch.float64).log()
    found = smooth(logits, torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)).exp()
    assert found[:, 0].tolist() == pytest.approx([z, z], abs=1e-3)
    assert z > 0.68


def test_the_fixed_point_against_numpy() -> None:
    rng = np.random.default_rng(0)
    logits, hidden = rng.normal(size=(30, 4)), rng.normal(size=(30, 6))
    weights = affinity(torch.from_numpy(hidden), 5)
    assert weights.sum(1).tolist() == [5.0] * 30
    z = softmax(logits, 1)
    for _ in range(5000):
        z = softmax(np.log(softmax(logits, 1)) + weights.numpy() @ z, 1)
    found = smooth(torch.from_numpy(logits), weights).exp()
    np.testing.assert_allclose(found.numpy(), z, atol=1e-3)
    alone = smooth(torch.from_numpy(logits), torch.zeros(30, 30, dtype=torch.float64)).exp()
    np.testing.assert_allclose(alone.numpy(), softmax(logits, 1), atol=1e-12)


def test_a_batch_is_smoothed_by_itself() -> None:
    torch.manual_seed(0)
    head = LinearHead(5, 3)
    smoothed, x = SmoothedHead(head), torch.randn(BATCH + 7, 5)
    with torch.no_grad():
        whole, plain_logits = smoothed(x).logits, head(x).logits
        torch.testing.assert_close(whole[:BATCH], smoothed(x[:BATCH]).logits)
        torch.testing.assert_close(whole[BATCH:], smoothed(x[BATCH:]).logits)
        expected = smooth(plain_logits[BATCH:], affinity(x[BATCH:], 5))
    torch.testing.assert_close(whole[BATCH:], expected)
    assert not torch.allclose(whole, plain_logits.double().log_softmax(1), atol=0.01)


def test_nothing_is_kept_of_a_domain() -> None:
    model = Model(group_normed(), label_prior=[1 / 3] * 3)
    with refused(ConfigError, "'lame'", "no classifier", "evaluate"):
        adapt_model(model, Images(pixels(4).stored, CPU), find_chain("lame"))
    for text in ("lame+prior", "prior+lame"):
        with refused(ConfigError, "'lame'", "'prior'"):
            find_chain(text)
