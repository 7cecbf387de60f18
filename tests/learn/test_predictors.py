"""Predictors: the published formula by hand, every condition, and folding a domain in."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from acclimate.core.errors import ConfigError, UnknownName
from acclimate.learn.models import (
    Backbone,
    Conditioned,
    Paired,
    Plain,
    Preprocess,
    build_backbone,
)
from fixtures.errors import refused

CONDITIONS = ("concat", "film", "bias", "low-rank")


def tiny_backbone(inputs: int = 5, features: int = 7) -> Backbone:
    body = nn.Sequential(nn.Linear(inputs, features), nn.Tanh())
    return Backbone(body, features, Preprocess((0.1,) * inputs, (2.0,) * inputs, 0))


def conditioned(condition: str, **options: float) -> Conditioned:
    """With every parameter random, also those that start at zero."""
    torch.manual_seed(3)
    net = Conditioned(
        tiny_backbone(), 4, mu_dim=3, condition=condition, width=6, hidden=8, **options
    )
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.7)
    return net


def affine(weight: Tensor, bias: Tensor, x: list[float]) -> list[float]:
    return [
        sum(float(w) * v for w, v in zip(row, x, strict=True)) + float(b)
        for row, b in zip(weight, bias, strict=True)
    ]


def by_loops(net: Conditioned, features: list[float], mu: list[float]) -> list[list[float]]:
    """[z, mu] -> linear -> ReLU -> linear, one row, one number at a time."""
    head = net.head
    z = affine(head.project.weight, head.project.bias, features)
    hidden = [max(v, 0.0) for v in affine(head.first.weight, head.first.bias, z + mu)]
    return [affine(head.last.weight, head.last.bias, hidden), hidden]


def test_concat_is_the_published_formula() -> None:
    net = conditioned("concat").double()
    x, mu = torch.randn(4, 5).double(), torch.randn(4, 3).double()
    with torch.no_grad():
        features = net.backbone(x)
        output = net(x, mu)
        expected = [
            by_loops(net, f, m) for f, m in zip(features.tolist(), mu.tolist(), strict=True)
        ]
    for row, (logits, hidden) in enumerate(expected):
        assert output.logits[row].tolist() == pytest.approx(logits, abs=1e-12)
        assert output.hidden[row].tolist() == pytest.approx(hidden, abs=1e-12)


def test_film_and_bias_by_their_formulas() -> None:
    x, mu = torch.randn(4, 5), torch.randn(4, 3)
    film, bias = conditioned("film"), conditioned("bias")
    z = film.head.project(film.backbone(x))
    gain, offset = (mu @ layer.weight.T for layer in (film.condition.scale, film.condition.shift))
    torch.testing.assert_close(film(x, mu).logits, film.head.classify(z + z * gain + offset).logits)
    plain = bias.head(bias.backbone(x))
    shift = mu @ bias.condition.shift.weight.T
    torch.testing.assert_close(bias(x, mu).logits, plain.logits + shift)
    torch.testing.assert_close(bias(x, mu).hidden, plain.hidden)


def test_low_rank_by_its_formula() -> None:
    net, x, mu = conditioned("low-rank"), torch.randn(4, 5), torch.randn(4, 3)
    plain, own = net.head(net.backbone(x)), net.condition
    of_image = plain.hidden @ own.of_image.weight.T + own.of_image.bias
    both = of_image * (mu @ own.of_domain.weight.T) / 128**0.5
    expected = plain.logits + both @ own.out.weight.T + mu @ own.shift.weight.T
    torch.testing.assert_close(net(x, mu).logits, expected)
    torch.testing.assert_close(net(x, mu).hidden, plain.hidden)


@pytest.mark.parametrize("condition", ["film", "bias", "low-rank"])
def test_training_starts_at_the_plain_predictor(condition: str) -> None:
    net = Conditioned(tiny_backbone(), 4, mu_dim=3, condition=condition, width=6, hidden=8)
    plain = Plain(net.backbone, 4, head="mlp", width=6, hidden=8)
    plain.head.load_state_dict(net.head.state_dict())
    x = torch.randn(4, 5)
    torch.testing.assert_close(net(x, torch.randn(4, 3)).logits, plain(x).logits)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_fold_equals_forward(condition: str, dtype: torch.dtype, atol: float) -> None:
    net = conditioned(condition).to(dtype).eval()
    x, mu = torch.randn(16, 5, dtype=dtype), torch.randn(3, dtype=dtype)
    folded = net.fold(mu)
    with torch.no_grad():
        expected, output = net(x, mu), folded(x)
        other = net(x, -mu)
    torch.testing.assert_close(output.logits, expected.logits, atol=atol, rtol=0)
    torch.testing.assert_close(output.hidden, expected.hidden, atol=atol, rtol=0)
    assert output.logits.dtype == dtype
    assert not torch.allclose(other.logits, expected.logits, atol=1e-2), "mu has no effect"


@pytest.mark.parametrize("condition", CONDITIONS)
def test_fold_is_a_plain_predictor_of_its_own(condition: str) -> None:
    net = conditioned(condition, dropout=0.25).double()
    net.backbone.eval()
    before = copy.deepcopy(net.state_dict())
    state = torch.get_rng_state()
    folded = net.fold(torch.randn(3, generator=torch.Generator().manual_seed(0)).double())
    assert torch.equal(torch.get_rng_state(), state), "folding used up random numbers"

    control = Plain(tiny_backbone(), 4, head="mlp", width=6, hidden=8).double()
    shapes = {name: (p.shape, p.dtype) for name, p in control.named_parameters()}
    assert {name: (p.shape, p.dtype) for name, p in folded.named_parameters()} == shapes
    assert all(p.requires_grad and p.is_contiguous() for p in folded.head.parameters())
    assert folded.backbone is net.backbone
    assert folded.head.dropout == 0.25
    assert folded.training
    assert folded.head.training
    assert not folded.backbone.training

    with torch.no_grad():
        for parameter in folded.head.parameters():
            parameter.zero_()
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), f"fold shares {name}"


@pytest.mark.parametrize("condition", CONDITIONS)
def test_one_embedding_serves_the_whole_batch(condition: str) -> None:
    net = conditioned(condition)
    x, mu = torch.randn(4, 5), torch.randn(3)
    one, rows = net(x, mu), net(x, mu.repeat(4, 1))
    torch.testing.assert_close(one.logits, rows.logits)
    torch.testing.assert_close(one.hidden, rows.hidden)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_gradients_reach_every_conditioned_parameter(condition: str) -> None:
    torch.manual_seed(0)
    net = Conditioned(tiny_backbone(), 4, mu_dim=3, condition=condition, width=6, hidden=8)
    x, mu = torch.randn(32, 5), torch.randn(32, 3)
    if condition == "low-rank":  # W starts at zero, and what it multiplies moves once it has
        nn.init.normal_(net.condition.out.weight)
    output = net(x, mu)
    assert output.logits.shape == (32, 4)
    assert output.hidden.shape == (32, 8)
    nn.functional.cross_entropy(output.logits, torch.arange(32) % 4).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(("head", "hidden"), [("linear", 7), ("mlp", 8)])
def test_gradients_reach_every_plain_parameter(head: str, hidden: int) -> None:
    torch.manual_seed(0)
    net = Plain(tiny_backbone(), 4, head=head, width=6, hidden=8)
    output = net(torch.randn(32, 5), torch.randn(32, 3))
    assert output.logits.shape == (32, 4)
    assert output.hidden.shape == (32, hidden)
    nn.functional.cross_entropy(output.logits, torch.arange(32) % 4).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_the_linear_head_shows_the_features_as_hidden() -> None:
    net = Plain(tiny_backbone(), 4)
    x = torch.randn(3, 5)
    features = net.backbone(x)
    torch.testing.assert_close(net(x).hidden, features)
    torch.testing.assert_close(net(x).logits, net.head.last(features))


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_dropout_acts_in_training_only_and_leaves_hidden_whole(head: str) -> None:
    torch.manual_seed(0)
    net = Plain(tiny_backbone(), 4, head=head, width=6, hidden=64, dropout=0.5)
    x = torch.randn(8, 5)
    assert not torch.allclose(net(x).logits, net(x).logits)
    torch.testing.assert_close(net(x).hidden, net(x).hidden)
    net.eval()
    torch.testing.assert_close(net(x).logits, net(x).logits)


def test_errors_say_what_is_expected() -> None:
    net, x = conditioned("concat"), torch.randn(4, 5)
    with refused(ConfigError, "mu [batch, 3]", "fold(mu)"):
        net(x)
    with refused(ConfigError, "[2, 3]", "[4, 3]"):
        net(x, torch.randn(2, 3))
    with refused(ConfigError, "[3]", "[1, 3]"):
        net.fold(torch.randn(1, 3))
    with refused(ConfigError, "not 0"):
        Conditioned(tiny_backbone(), 4, mu_dim=0)
    with refused(UnknownName, "'linaer'", "'linear'"):
        Plain(tiny_backbone(), 4, head="linaer")
    with refused(UnknownName, "'flim'", "'film'"):
        Conditioned(tiny_backbone(), 4, mu_dim=3, condition="flim")


class TestPaired:
    """Two heads over one backbone, whose logits are averaged."""

    def site(self, width: int) -> Conditioned:
        torch.manual_seed(1)
        body = Backbone(nn.Identity(), width, Preprocess((0.5,) * width, (2.0,) * width, 0))
        found = Conditioned(body, 3, mu_dim=4, condition="low-rank", width=8, hidden=8)
        with torch.no_grad():
            for value in found.condition.parameters():
                value.normal_()
        return found.eval()

    def plain_kinds(self) -> dict[str, tuple[Plain, Tensor, Callable[[Tensor], Tensor]]]:
        """A plain predictor, what it takes, and what makes of that the features of both."""
        torch.manual_seed(0)
        images, rows = torch.rand(5, 3, 8, 8), torch.randn(5, 6)
        trained = Plain(build_backbone("small-cnn"), 3).eval()
        on_rows = Plain(build_backbone("mlp", in_features=6), 3).eval()
        extractor = build_backbone("small-cnn").eval()
        frozen = Plain(build_backbone("mlp", in_features=extractor.features), 3).eval()
        frozen.backbone.put_on(extractor)
        return {
            "trained": (trained, images, trained.backbone),
            "features": (on_rows, rows, lambda x: x),
            "frozen": (frozen, images, extractor),  # by an extractor that stays as it is
        }

    @pytest.mark.parametrize("kind", ["trained", "features", "frozen"])
    @torch.no_grad()
    def test_the_mean_of_both(self, kind: str) -> None:
        plain, x, features = self.plain_kinds()[kind]
        second, mu = self.site(features(x).shape[1]), torch.randn(4)
        expected = (0.6 * plain(x).logits + second(features(x), mu).logits) / 2
        paired = Paired(plain, second, 0.6).eval()
        torch.testing.assert_close(paired(x, mu).logits, expected)
        folded = paired.fold(mu.double()).eval()
        torch.testing.assert_close(folded(x).logits, expected, rtol=1e-4, atol=1e-5)
        assert folded.backbone is paired.backbone
        output = folded(x)
        torch.testing.assert_close(folded.head.last(output.hidden), output.logits)

    @torch.no_grad()
    def test_a_frozen_backbones_features_will_do_as_well(self) -> None:
        """A run on frozen features scores its final model on those, not on images."""
        plain, x, features = self.plain_kinds()["frozen"]
        folded = Paired(plain, self.site(features(x).shape[1]), 0.6).fold(torch.randn(4).double())
        torch.testing.assert_close(folded.eval()(features(x)).logits, folded(x).logits)
        assert folded.backbone.size == plain.backbone.size

    @torch.no_grad()
    def test_the_plain_predictor_stays_what_it_was(self) -> None:
        plain, x, _ = self.plain_kinds()["frozen"]
        before = plain(x).logits
        paired = Paired(plain, self.site(plain.backbone.extractor.features), 1.0)  # type: ignore[union-attr]
        paired.fold(torch.randn(4).double())
        assert plain.backbone.extractor is not None
        assert torch.equal(plain(x).logits, before)
