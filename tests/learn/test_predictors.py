"""Predictors: the published formula by hand, every condition, and folding a domain in."""

import copy

import pytest
import torch
from torch import Tensor, nn

from acclimate.core.errors import ConfigError, UnknownName
from acclimate.learn.models import Backbone, Head, Predictor, Preprocess, build_backbone
from acclimate.learn.models.predictors import ConditionedHead, LinearHead, MlpHead, PairHead, Sizes
from fixtures.errors import refused
from fixtures.predictors import conditioned_on, plain_on

CONDITIONS = ("concat", "film", "bias", "low-rank")


def tiny_backbone(inputs: int = 5, features: int = 7) -> Backbone:
    body = nn.Sequential(nn.Linear(inputs, features), nn.Tanh())
    return Backbone(body, features, Preprocess((0.1,) * inputs, (2.0,) * inputs, 0))


def conditioned(condition: str, **options: float) -> Predictor:
    """With every parameter random, also those that start at zero."""
    torch.manual_seed(3)
    net = conditioned_on(
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


def by_loops(net: Predictor, features: list[float], mu: list[float]) -> list[list[float]]:
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
    gain, offset = (
        mu @ layer.weight.T for layer in (film.head.condition.scale, film.head.condition.shift)
    )
    torch.testing.assert_close(film(x, mu).logits, film.head.classify(z + z * gain + offset).logits)
    plain = MlpHead.forward(bias.head, bias.backbone(x))
    shift = mu @ bias.head.condition.shift.weight.T
    torch.testing.assert_close(bias(x, mu).logits, plain.logits + shift)
    torch.testing.assert_close(bias(x, mu).hidden, plain.hidden)


def test_low_rank_by_its_formula() -> None:
    net, x, mu = conditioned("low-rank"), torch.randn(4, 5), torch.randn(4, 3)
    plain, own = MlpHead.forward(net.head, net.backbone(x)), net.head.condition
    of_image = plain.hidden @ own.of_image.weight.T + own.of_image.bias
    both = of_image * (mu @ own.of_domain.weight.T) / 128**0.5
    expected = plain.logits + both @ own.out.weight.T + mu @ own.shift.weight.T
    torch.testing.assert_close(net(x, mu).logits, expected)
    torch.testing.assert_close(net(x, mu).hidden, plain.hidden)


@pytest.mark.parametrize("condition", ["film", "bias", "low-rank"])
def test_training_starts_at_the_plain_predictor(condition: str) -> None:
    net = conditioned_on(tiny_backbone(), 4, mu_dim=3, condition=condition, width=6, hidden=8)
    plain = plain_on(net.backbone, 4, head="mlp", width=6, hidden=8)
    own = net.head.state_dict()
    plain.head.load_state_dict({name: own[name] for name in plain.head.state_dict()})
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

    control = plain_on(tiny_backbone(), 4, head="mlp", width=6, hidden=8).double()
    shapes = {name: (p.shape, p.dtype) for name, p in control.named_parameters()}
    assert {name: (p.shape, p.dtype) for name, p in folded.named_parameters()} == shapes
    assert all(p.requires_grad and p.is_contiguous() for p in folded.head.parameters())
    assert folded.backbone is net.backbone
    assert folded.head.sizes.dropout == 0.25
    assert folded.training
    assert folded.head.training
    assert not folded.backbone.training

    with torch.no_grad():
        for parameter in folded.head.parameters():
            parameter.zero_()
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), f"fold shares {name}"


@pytest.mark.parametrize("head", ["linear", "mlp", *CONDITIONS])
def test_gradients_reach_every_parameter(head: str) -> None:
    torch.manual_seed(0)
    sizes = {"width": 6, "hidden": 8}
    if head in CONDITIONS:
        net = conditioned_on(tiny_backbone(), 4, mu_dim=3, condition=head, **sizes)
    else:
        net = plain_on(tiny_backbone(), 4, head=head, **sizes)
    if head == "low-rank":  # W starts at zero, and what it multiplies moves once it has
        nn.init.normal_(net.head.condition.out.weight)
    output = net(torch.randn(32, 5), torch.randn(32, 3))
    assert output.logits.shape == (32, 4)
    assert output.hidden.shape == (32, 7 if head == "linear" else 8)
    nn.functional.cross_entropy(output.logits, torch.arange(32) % 4).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_the_linear_head_shows_the_features_as_hidden() -> None:
    net = plain_on(tiny_backbone(), 4)
    x = torch.randn(3, 5)
    features = net.backbone(x)
    torch.testing.assert_close(net(x).hidden, features)
    torch.testing.assert_close(net(x).logits, net.head.last(features))


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_dropout_acts_in_training_only_and_leaves_hidden_whole(head: str) -> None:
    torch.manual_seed(0)
    net = plain_on(tiny_backbone(), 4, head=head, width=6, hidden=64, dropout=0.5)
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
        conditioned_on(tiny_backbone(), 4, mu_dim=0)
    with refused(UnknownName, "'flim'", "'film'"):
        conditioned_on(tiny_backbone(), 4, mu_dim=3, condition="flim")


def second_head(width: int) -> Predictor:
    """As a rehearsed run learns it beside a plain head: it centres and scales features first."""
    torch.manual_seed(1)
    body = Backbone(nn.Identity(), width, Preprocess((0.5,) * width, (2.0,) * width, 0))
    head = ConditionedHead(Sizes(width, 3, 8, 8), mu_dim=4, condition="low-rank")
    with torch.no_grad():
        for value in head.condition.parameters():
            value.normal_()
    return Predictor(body, head).eval()


@pytest.mark.parametrize("layers", [False, True])
@torch.no_grad()
def test_a_pair_adds_both_by_weights(layers: bool) -> None:
    """`layers`: the plain head has layers of its own, as one on a frozen backbone."""
    torch.manual_seed(0)
    x, mu, features = torch.randn(5, 6), torch.randn(4), LinearHead(6, 3)
    plain: Head = features
    if layers:
        plain = plain_on(build_backbone("mlp", in_features=6), 3)
    second, before = second_head(6), plain.eval()(x).logits
    expected = 0.3 * before + 0.5 * second(x, mu).logits
    pair = PairHead(plain, second, (0.3, 0.5)).eval()
    torch.testing.assert_close(pair(x, mu).logits, expected)
    torch.testing.assert_close(pair.scaled(0.4)(x, mu).logits, 0.4 * expected)
    torch.testing.assert_close(pair.scaled(0.4).fold(mu)(x).logits, 0.4 * expected)
    torch.testing.assert_close(plain.scaled(0.4)(x).logits, 0.4 * before)
    folded = pair.fold(mu.double()).eval()
    output = folded(x)
    torch.testing.assert_close(output.logits, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(folded.last(output.hidden), output.logits)
    assert torch.equal(plain(x).logits, before)


@torch.no_grad()
def test_a_backbone_for_images_takes_its_own_features_as_well() -> None:
    """A run on frozen features scores its final model on those, not on images."""
    torch.manual_seed(0)
    extractor = build_backbone("small-cnn").eval()
    learned = plain_on(build_backbone("mlp", in_features=extractor.features), 3)
    predictor, x = Predictor(extractor, learned).eval(), torch.rand(5, 3, 8, 8)
    torch.testing.assert_close(predictor(extractor(x)).logits, predictor(x).logits)


@pytest.mark.parametrize("layers", [False, True])
@torch.no_grad()
def test_another_last_layer_leaves_the_rest_shared(layers: bool) -> None:
    net = plain_on(tiny_backbone(), 4, head="mlp", width=6, hidden=8).eval()
    if layers:
        net = Predictor(tiny_backbone(5, 5), net)
    x, before = torch.randn(3, 5), copy.deepcopy(net.state_dict())
    changed = net.with_last(torch.ones(4, 8), torch.arange(4.0))
    hidden = net(x).hidden
    expected = hidden.sum(1, keepdim=True) + torch.arange(4.0)
    torch.testing.assert_close(changed(x).logits, expected)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    shared = {id(parameter) for parameter in net.parameters()}
    own = {name for name, value in changed.named_parameters() if id(value) not in shared}
    assert {name.split("last.")[1] for name in own} == {"weight", "bias"} and len(own) == 2
