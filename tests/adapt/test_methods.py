"""Test-time adaptation: each method against its formula, and none of them touches the model."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from acclimate import AdaptiveClassifier, DomainState, Manifest
from acclimate.adapt.classifier import adapt, apply_state
from acclimate.adapt.methods import METHODS, find_chain, scored_chains
from acclimate.adapt.methods.base import with_tensors
from acclimate.adapt.methods.bn import BatchNorm
from acclimate.adapt.methods.chain import adapt_model
from acclimate.adapt.methods.prior import (
    Prior,
    PriorConfig,
    em_prior,
    implied_prior,
    log_ratio,
    soft_confusion,
)
from acclimate.adapt.methods.t3a import T3A, templates
from acclimate.adapt.methods.tent import Tent, TentConfig, mean_entropy
from acclimate.config import AdaptConfig
from acclimate.core.errors import ConfigError, StateMismatch, UnknownName
from acclimate.learn.embeddings import DomainTable
from acclimate.learn.images import Images
from acclimate.learn.model import Model, Trained
from acclimate.learn.models import Predictor, freeze_batch_norm
from acclimate.learn.models.predictors import ConditionedHead, Sizes, identity_backbone
from fixtures.command_line import command
from fixtures.errors import refused
from fixtures.models import make_trained
from fixtures.predictors import (
    CPU,
    UNIFORM,
    batch_normed,
    convolutions,
    group_normed,
    logits_of,
    pixels,
    plain,
    rows,
    weights_of,
)
from fixtures.settings import TINY, as_flags

MODEL = Model(batch_normed(), label_prior=[1 / 3] * 3)

# --- label prior ----------------------------------------------------------------------------------


def test_em_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    posteriors = rng.dirichlet([0.5, 0.7, 0.3, 0.6], size=40)
    train = np.array([0.4, 0.3, 0.2, 0.1])
    expected, steps = train.copy(), 0
    while True:
        sums = [0.0] * 4
        for row in posteriors:
            parts = [row[c] * expected[c] / train[c] for c in range(4)]
            for c in range(4):
                sums[c] += parts[c] / sum(parts)
        before, expected = expected, np.array(sums) / len(posteriors)
        steps += 1
        if abs(expected - before).max() <= 1e-8:
            break
    found, iterations = em_prior(torch.from_numpy(posteriors), torch.from_numpy(train))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-13)
    assert iterations == steps
    assert steps > 5


def test_em_ends_where_nothing_moves_or_after_10000_steps() -> None:
    """Of one class there is nothing to find out: the first step is the last."""
    sure, whole = torch.ones(1, 1), torch.ones(1)
    assert em_prior(sure, whole, tolerance=0)[1] == 1
    assert em_prior(sure, whole, tolerance=-1)[1] == 10_000


def test_em_of_two_classes_by_hand() -> None:
    """Three images with odds 3 and one with odds 1/3, under a uniform prior: the likelihood
    (1 + 2q)³ (3 − 2q) has its maximum where 6/(1 + 2q) = 2/(3 − 2q), at q = 1, and stays below it
    for every step: after the first, q = (3·¾ + ¼)/4 = 5/8."""
    posteriors = torch.tensor([[0.75, 0.25]] * 3 + [[0.25, 0.75]])
    uniform = torch.tensor([0.5, 0.5])
    once, _ = em_prior(posteriors, uniform, most=1)
    assert once.tolist() == [5 / 8, 3 / 8]
    found, _ = em_prior(posteriors, uniform)
    assert found[0] == pytest.approx(1, abs=1e-3)
    # With odds 9, (1 + 8q)³ (9 − 8q): 24/(1 + 8q) = 8/(9 − 8q) at q = 13/16.
    sure = torch.tensor([[0.9, 0.1]] * 3 + [[0.1, 0.9]], dtype=torch.float64)
    found, _ = em_prior(sure, uniform)
    assert found[0] == pytest.approx(13 / 16, abs=1e-6)


def gaussian_posteriors(prior: list[float], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Exact posteriors, under a uniform prior, of images drawn with another one."""
    rng = np.random.default_rng(3)
    labels = rng.choice(3, count, p=prior)
    x = rng.normal(labels * 2.0, 1.0)
    density = np.exp(-0.5 * (x[:, None] - 2.0 * np.arange(3)) ** 2)
    return density / density.sum(1, keepdims=True), labels


def test_a_strength_counts_as_images_with_trainings_frequencies() -> None:
    """Sure posteriors are counts: 6 of 8 images are of class 0, and 4 more count as 1 to 3."""
    sure = torch.eye(2).repeat_interleave(torch.tensor([6, 2]), 0)
    found, _ = em_prior(sure, torch.tensor([0.25, 0.75]), strength=4)
    assert found.tolist() == pytest.approx([(6 + 1) / 12, (2 + 3) / 12])


def test_a_temperature_divides_the_logits_before_they_are_corrected() -> None:
    images, predictor = rows(30), plain()
    method = Prior(PriorConfig(temperature=2.5, strength=7.0))
    found = method.observe(predictor, images, UNIFORM)
    logits = logits_of(predictor, images).double()
    expected, _ = em_prior((logits / 2.5).softmax(1), UNIFORM.label_prior, strength=7.0)
    assert torch.equal(found["prior"], expected)
    corrected = logits_of(method.apply(predictor, found), images).double()
    wanted = logits / 2.5 + log_ratio(expected, UNIFORM.label_prior)
    torch.testing.assert_close(corrected, wanted, rtol=1e-5, atol=1e-5)


def test_what_the_prior_keeps() -> None:
    images, predictor = rows(30), plain()
    found = Prior(PriorConfig(temperature=0.3)).observe(predictor, images, UNIFORM)
    p = (logits_of(predictor, images).double() / 0.3).softmax(1)
    prior, _ = em_prior(p, UNIFORM.label_prior, strength=30)  # ten images of each class
    assert found.keys() == {"prior", "base", "temperature"}
    assert torch.equal(found["prior"], prior) and torch.equal(found["base"], UNIFORM.label_prior)
    assert found["temperature"].item() == 0.3  # as it was set, to the last digit


def test_nothing_changes_where_the_prior_stays() -> None:
    train = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    found, iterations = em_prior(torch.eye(3).repeat_interleave(torch.tensor([5, 3, 2]), 0), train)
    assert iterations == 1
    torch.testing.assert_close(found, train)
    predictor = plain()
    same = Prior().apply(
        predictor, {"prior": train, "base": train, "temperature": torch.tensor(1.0)}
    )
    assert torch.equal(logits_of(same, rows(7)), logits_of(predictor, rows(7)))


def test_the_correction_is_bayes_rule() -> None:
    predictor, images = plain(), rows(9)
    target = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    train = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    adapted = Prior().apply(
        predictor, {"prior": target, "base": train, "temperature": torch.tensor(1.0)}
    )
    unnormalised = logits_of(predictor, images).double().softmax(1) * target / train
    expected = unnormalised / unnormalised.sum(1, keepdim=True)
    found = logits_of(adapted, images).double().softmax(1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_the_implied_prior_is_read_off() -> None:
    """F(·, μ) that is F at the centre under another prior: that prior, exactly."""
    centre = torch.from_numpy(np.random.default_rng(0).dirichlet([1, 2, 3], size=20))
    train = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    other = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    moved = centre * other / train
    moved = moved / moved.sum(1, keepdim=True)
    torch.testing.assert_close(implied_prior(moved, centre, train), other)
    torch.testing.assert_close(implied_prior(centre, centre, train), train)


def test_embedding_and_prior_do_not_count_a_shift_twice() -> None:
    """A classifier whose μ did the whole correction is left as it is, by EM's fixed point: it says
    class i more often where μ is the i-th log ratio."""
    posteriors, _ = gaussian_posteriors([0.6, 0.1, 0.3], 5000)
    target, _ = em_prior(torch.from_numpy(posteriors), UNIFORM.label_prior)
    images = Images(torch.from_numpy(np.log(posteriors)).float(), CPU)
    head = ConditionedHead(Sizes(3, 3, 3, 3), mu_dim=3, condition="bias")
    with torch.no_grad():
        for layer in (head.project, head.first, head.last, head.condition.shift):
            layer.weight.copy_(torch.eye(3))
        for layer in (head.project, head.first, head.last):
            layer.bias.zero_()
        head.first.bias.fill_(100.0)  # so that ReLU cuts nothing off
    empty, ratios = DomainState.empty("", 3), (target * 3).log()
    predictor = Predictor(identity_backbone(3), head).eval()
    model = Model(predictor, table=DomainTable({"a": empty.updated(torch.zeros(2, 3))}))
    model = model._replace(label_prior=UNIFORM.label_prior.tolist())
    state = empty.updated(ratios[None])
    priors = {}
    for aware in (False, True):
        known = model._replace(prior_aware=aware)
        payload = adapt_model(known, images, find_chain("embedding+prior"), state)[1].payloads
        priors[aware] = payload["prior"]
    torch.testing.assert_close(priors[False]["base"], target, rtol=0, atol=1e-5)
    torch.testing.assert_close(priors[False]["prior"], target, rtol=0, atol=1e-5)
    # A model that stands under training's frequencies in every domain is corrected from those.
    assert torch.equal(priors[True]["base"], UNIFORM.label_prior)
    assert float((priors[True]["prior"] - target).abs().max()) > 0.05


def test_classes_without_a_prior_are_safe() -> None:
    train = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    posteriors = torch.tensor([[0.6, 0.3, 0.1], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    found, _ = em_prior(posteriors, train)
    assert found.isfinite().all()
    assert found[2] == 0
    assert float(found.sum()) == pytest.approx(1)
    shift = log_ratio(torch.tensor([1.0, 0.0, 0.0]), train)
    assert shift.isfinite().all()
    assert shift[2] == 0
    assert shift[1] < -20


def test_soft_confusion_by_hand() -> None:
    posteriors = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]])
    found = soft_confusion(posteriors, torch.tensor([0, 1, 1]))
    assert found.tolist() == [[0.75, 0.625], [0.25, 1.375]]


def test_a_confusion_matrix_has_a_column_for_classes_without_images() -> None:
    found = soft_confusion(torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.9, 0.0]]), torch.tensor([0, 0]))
    torch.testing.assert_close(found[:, 0].float(), torch.tensor([0.6, 1.2, 0.2]))
    assert found.shape == (3, 3) and not found[:, 1:].any()


# --- batch norm -----------------------------------------------------------------------------------


def batch_norm_by_hand(predictor: Predictor, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Statistics of all images at once, layer by layer, and the hidden layer they give."""
    found, prefix = {}, "backbone.body"
    x = (x - predictor.backbone.mean) / predictor.backbone.std
    body = predictor.backbone.body
    assert isinstance(body, nn.Sequential)
    for number, layer in enumerate(body):
        if isinstance(layer, nn.BatchNorm2d):
            count = x.numel() // x.shape[1]
            mean = x.double().mean((0, 2, 3))
            variance = (x.double() - mean[:, None, None]).square().mean((0, 2, 3))
            found[f"{prefix}.{number}.running_mean"] = mean.float()
            found[f"{prefix}.{number}.running_var"] = (variance * count / (count - 1)).float()
            scale = (layer.weight / (variance + layer.eps).sqrt()).float()
            x = (x - mean.float()[:, None, None]) * scale[:, None, None]
            x = x + layer.bias[:, None, None]
        else:
            x = layer(x)
    return found, x


@torch.no_grad()
@pytest.mark.parametrize("frozen", [False, True])
def test_batch_norm_statistics_are_those_of_all_images(frozen: bool) -> None:
    predictor, images = batch_normed(), pixels(50)
    if frozen:
        freeze_batch_norm(predictor)
    before = weights_of(predictor)
    expected, _ = batch_norm_by_hand(predictor, next(images.batches()))
    found = BatchNorm().observe(predictor, images, UNIFORM)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    adapted = BatchNorm().apply(predictor, found)
    assert adapted.state_dict()["backbone.body.4.running_var"].equal(
        found["backbone.body.4.running_var"]
    )
    assert not logits_of(adapted, images).allclose(logits_of(predictor, images), atol=1e-2)
    assert weights_of(predictor) == before
    assert not any(part.training for part in predictor.modules())


@torch.no_grad()
def test_batches_are_pooled_exactly() -> None:
    """The first layer does not depend on batches: 300 images in two batches are as one."""
    predictor, images = batch_normed(), pixels(300)
    # The halves differ: averaging the batches' variances would lose what lies between them.
    images.stored[150:] //= 4
    assert [len(x) for x in images.batches()] == [150, 150]
    everything = torch.cat(list(images.batches()))
    expected, _ = batch_norm_by_hand(predictor, everything)
    found = BatchNorm().observe(predictor, images, UNIFORM)
    for part in ("mean", "var"):
        name = f"backbone.body.1.running_{part}"
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_no_batch_of_one_image() -> None:
    assert [len(x) for x in rows(257).batches()] == [129, 128]
    assert [len(x) for x in rows(7).batches(3)] == [3, 2, 2]


# --- T3A ------------------------------------------------------------------------------------------


def t3a_by_hand(
    hidden: np.ndarray, logits: np.ndarray, weight: np.ndarray, keep: int
) -> np.ndarray:
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    p = shifted / shifted.sum(1, keepdims=True)
    entropy = -(p * np.log(p)).sum(1)
    result = np.zeros_like(weight)
    for c in range(len(weight)):
        mine = sorted((entropy[i], i) for i in range(len(p)) if p[i].argmax() == c)[:keep]
        template = weight[c] / np.linalg.norm(weight[c])
        for _, i in mine:
            template = template + hidden[i] / np.linalg.norm(hidden[i])
        result[c] = template / np.linalg.norm(template)
    return result


@torch.no_grad()
@pytest.mark.parametrize("keep", [0, 1, 4, 100])
def test_t3a_against_numpy(keep: int) -> None:
    predictor, images = plain(features=16), rows(60)
    output = predictor(images.stored)
    hidden, logits = output.hidden.double().numpy(), output.logits.double().numpy()
    weight = predictor.head.last.weight.double().numpy()
    expected = t3a_by_hand(hidden, logits, weight, keep)
    found = T3A(T3A.Config(keep=keep)).observe(predictor, images, UNIFORM)
    np.testing.assert_allclose(found["templates"].numpy(), expected, rtol=1e-4, atol=1e-5)
    adapted = T3A().apply(predictor, found)
    np.testing.assert_allclose(
        logits_of(adapted, images).numpy(), hidden @ expected.T, rtol=1e-4, atol=1e-4
    )
    assert len(set(logits.argmax(1))) > 1


def test_of_images_that_are_as_sure_the_first_are_kept() -> None:
    """Every other one of 1000 is surer; hidden features are their numbers."""
    number = torch.arange(1.0, 1001.0)
    hidden = torch.stack([number, number**2], dim=1)
    logits = torch.stack([3 + number % 2, 0 * number], dim=1)
    found = templates(hidden, logits, torch.zeros(2, 2), keep=3)
    first = torch.nn.functional.normalize(hidden[[0, 2, 4]]).sum(0)
    torch.testing.assert_close(found[0], first / first.norm())


# --- Tent -----------------------------------------------------------------------------------------


def test_entropy_by_hand() -> None:
    assert float(mean_entropy(torch.zeros(2, 4))) == pytest.approx(np.log(4))
    half = torch.tensor([[3.0, 3.0, -1e9], [1e9, 0.0, 0.0]])
    assert float(mean_entropy(half)) == pytest.approx(np.log(2) / 2)


def test_a_step_of_tent_by_hand() -> None:
    """Adam's first step is of length lr, down the slope that the batch has when it is normalised by
    itself; two images are enough."""
    predictor, images = batch_normed(), pixels(2)
    copied = copy.deepcopy(predictor)
    learned = {}
    for name, part in copied.named_modules():
        if isinstance(part, nn.BatchNorm2d):
            part.train().requires_grad_(True)
            learned |= {f"{name}.{key}": value for key, value in part.named_parameters()}
    logits = copied(next(images.batches())).logits
    slopes = torch.autograd.grad(mean_entropy(logits), list(learned.values()))
    found = Tent(TentConfig(steps=1, lr=0.01)).observe(predictor, images, UNIFORM)
    for (name, value), slope in zip(learned.items(), slopes, strict=True):
        step = 0.01 * slope / (slope.abs() + 1e-8)
        torch.testing.assert_close(found[name], value.detach() - step, rtol=1e-3, atol=1e-4)


def test_one_image_is_enough_for_tent_without_batch_norm() -> None:
    predictor, images = group_normed(), pixels(1)
    tent = Tent(Tent.Config(steps=5, lr=1e-2))
    found = tent.observe(predictor, images, UNIFORM)
    adapted = tent.apply(predictor, found)
    assert mean_entropy(logits_of(adapted, images)) < mean_entropy(logits_of(predictor, images))
    assert {name.rsplit(".", 1)[1] for name in found} == {"weight", "bias"}
    assert all(parameter.grad is None for parameter in predictor.parameters())


def test_a_layer_that_tent_finds_unused_stays_as_it_is() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = convolutions(nn.BatchNorm2d), nn.GroupNorm(1, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    found = Tent().observe(plain(Spare()), pixels(8), UNIFORM)
    assert found["backbone.body.spare.weight"].tolist() == [1.0] * 3
    assert found["backbone.body.used.1.weight"].tolist() != [1.0] * 4


def test_no_steps_of_tent_are_batch_norm_statistics() -> None:
    predictor, images = batch_normed(), pixels(40)
    found = Tent(Tent.Config(steps=0)).observe(predictor, images, UNIFORM)
    with torch.no_grad():
        statistics = BatchNorm().observe(predictor, images, UNIFORM)
    for name, value in statistics.items():
        assert torch.equal(found[name], value)
    assert torch.equal(found["backbone.body.1.weight"], torch.ones(4))


# --- what they have in common ---------------------------------------------------------------------


def test_gradient_free_methods_record_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, bool] = {}
    for name, row in METHODS.items():
        if row.method is None or row.method.control:
            continue

        def watched(self: Any, *a: Any, name: str = name, o: Any = row.method.observe) -> Any:
            seen[name] = torch.is_grad_enabled()
            return o(self, *a)

        monkeypatch.setattr(row.method, "observe", watched)
        centre = torch.zeros(MODEL.predictor.last.in_features)
        labels = torch.zeros(8, dtype=torch.int64)
        adapt_model(MODEL._replace(centre=centre), pixels(8), find_chain(name), labels=labels)
    assert seen == {name: name in ("tent", "sar", "shot") for name in seen}
    assert {"tent", "sar", "shot", "prior"} <= seen.keys()


def test_copies_share_what_does_not_change() -> None:
    predictor = batch_normed()
    changed = with_tensors(predictor, {"head.last.bias": torch.ones(3)})
    assert changed.get_parameter("head.last.bias").tolist() == [1, 1, 1]
    assert changed.get_parameter("backbone.body.0.weight") is predictor.get_parameter(
        "backbone.body.0.weight"
    )
    assert predictor.get_parameter("head.last.bias").tolist() != [1, 1, 1]


@pytest.mark.parametrize(
    ("chain", "least"),
    [
        ("none", 0),
        ("embedding", 0),
        ("embedding+prior", 1),
        ("t3a", 1),
        ("bn", 2),
        ("tent+prior", 2),
    ],
)
def test_how_many_images_a_chain_needs(chain: str, least: int) -> None:
    assert find_chain(chain).least_images == least


def test_the_chains_that_a_run_is_scored_by() -> None:
    config = AdaptConfig(methods=("prior", "embedding+t3a"), components={"t3a": {"keep": 3}})
    prior, both = scored_chains(config, "da-erm")
    assert (prior.name, both.name) == ("prior", "embedding+t3a")
    assert both.methods["t3a"].config.keep == 3
    with refused(ConfigError, "(erm)"):
        scored_chains(config, "erm")
    (alone,) = scored_chains(replace(config, methods=("prior",)), "erm")
    assert alone.name == "prior"


def test_a_state_holds_an_embedding_of_however_few_numbers() -> None:
    assert [DomainState.empty("m", dim).holds_mu for dim in (0, 1, 2)] == [False, True, True]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("priro", ("'priro'", "'prior'")),
        ("embedding+tnt", ("'tnt'", "'tent'")),
        ("prior+bn+prior", ("'prior+bn+prior'", "'prior' twice")),
        ("bn+none+prior", ("'none'", "'bn+prior'")),
        ("bn+embedding+prior", ("'embedding+bn+prior'",)),
        ("embedding+prior+t3a", ("embedding+prior+t3a",)),
        ("t3a+prior", ("t3a+prior",)),
    ],
)
def test_chains_that_are_none(text: str, facts: tuple[str, ...]) -> None:
    with refused(UnknownName if facts[0] in ("'priro'", "'tnt'") else ConfigError, *facts):
        find_chain(text)


@pytest.mark.parametrize(
    ("name", "make", "facts"),
    [
        ("bn", group_normed, ("batch norm", "group norm", "prior, t3a or tent")),
        ("bn", plain, ("batch norm", "no normalisation layer", "prior or t3a")),
        ("tent", plain, ("no normalisation layer", "prior or t3a")),
        ("sar", plain, ("no normalisation layer", "prior or t3a")),
    ],
)
def test_models_without_the_layers(
    name: str, make: Callable[[], Predictor], facts: tuple[str, ...]
) -> None:
    """Refused before training, by the network alone, and when one adapts."""
    images = rows(4) if make is plain else pixels(4)
    with refused(ConfigError, f"'{name}'", *facts):
        find_chain(f"prior+{name}").require(make())
    with refused(ConfigError, f"'{name}'", *facts):
        adapt_model(MODEL._replace(predictor=make()), images, find_chain(name))


def test_a_frozen_backbone_is_not_changed_in_a_run() -> None:
    find_chain("bn+prior").require(batch_normed())
    find_chain("tent").require(group_normed())
    find_chain("embedding+prior").require(plain(), frozen=True)
    with refused(ConfigError, "'bn'", "model.freeze=none"):
        find_chain("prior+bn").require(batch_normed(), frozen=True)


# --- on trained models ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(features: Manifest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plain and an adaptive run on the features, `site-4` unseen."""
    folder = tmp_path_factory.mktemp("methods")
    settings = TINY | {"test_domains": ["site-4"]}
    for name in ("erm", "da-erm"):
        AdaptiveClassifier(algorithm=name, settings=settings, out=folder / name).fit(features)
    return {name: folder / name for name in ("erm", "da-erm")}


@pytest.fixture
def models(runs: dict[str, Path]) -> dict[str, Trained]:
    return {name: Trained.load(run) for name, run in runs.items()}


@pytest.mark.parametrize(
    ("algorithm", "method"),
    [
        ("erm", "none"),
        ("erm", "prior"),
        ("erm", "t3a"),
        ("da-erm", "none"),
        ("da-erm", "t3a"),
        ("da-erm", "embedding"),
        ("da-erm", "embedding+prior"),
        ("da-erm", "embedding+t3a"),
    ],
)
def test_states_save_and_serve_again(
    models: dict[str, Trained], features: Manifest, tmp_path: Path, algorithm: str, method: str
) -> None:
    trained, X = models[algorithm], features.features()
    before = weights_of(trained.predictor)
    site = adapt(trained, X[:30], method=method)
    assert site.state is not None
    assert (site.method, site.state.count) == (method, 30)
    assert site.trust is not None
    assert (site.trust.nearest_domain is not None) == method.startswith("embedding")
    assert (site.label_prior is not None) == ("prior" in method)
    site.state.save(tmp_path / "site.safetensors")
    stored = DomainState.load(tmp_path / "site.safetensors")
    again = apply_state(trained, stored)
    assert again.method == method
    np.testing.assert_array_equal(site.predict_proba(X), again.predict_proba(X))
    assert weights_of(trained.predictor) == before


def test_without_embedding_an_adaptive_model_stands_at_the_centre(
    models: dict[str, Trained], features: Manifest
) -> None:
    trained, X = models["da-erm"], features.features()[:20]
    assert trained.table is not None and trained.embedding is not None
    site = adapt(trained, X, method="none")
    with torch.no_grad():
        zero = trained.predictor(torch.from_numpy(X), torch.zeros(trained.embedding.dim))
    expected = zero.logits.softmax(1).numpy()
    np.testing.assert_allclose(site.predict_proba(X), expected, rtol=1e-4, atol=1e-6)
    # Where Φ is not standardised, the centre is not zero.
    moved = {name: s.rescaled(torch.ones(4), 1.0) for name, s in trained.table.states.items()}
    other = replace(trained, table=replace(trained.table, states=moved))
    with torch.no_grad():
        minus = trained.predictor(torch.from_numpy(X), -torch.ones(trained.embedding.dim))
    site = adapt(other, X, method="none")
    np.testing.assert_allclose(
        site.predict_proba(X), minus.logits.softmax(1).numpy(), rtol=1e-4, atol=1e-6
    )


def test_states_are_for_their_model_and_are_not_mixed(
    models: dict[str, Trained], features: Manifest
) -> None:
    X = features.features()
    erm, da = models["erm"], models["da-erm"]
    of_erm = adapt(erm, X[:9], method="prior").state
    with refused(StateMismatch, erm.digest()[:12], da.digest()[:12]):
        apply_state(da, of_erm)
    assert of_erm is not None
    with refused(ConfigError, "--method", "--algorithm da-erm"):
        adapt(erm, X[:9], method="embedding+prior")


def test_settings_of_methods_come_with_the_model_and_with_the_call(
    runs: dict[str, Path], features: Manifest
) -> None:
    loaded, X = AdaptiveClassifier.load(runs["erm"], device="cpu"), features.features()[:30]
    settings = TINY | {"test_domains": ["site-4"], "adapt.t3a.keep": 1}
    fitted = AdaptiveClassifier(algorithm="erm", settings=settings).fit(features)
    assert fitted.trained.config.adapt.components == {"t3a": {"keep": 1}}
    assert fitted.trained.digest() == loaded.trained.digest()
    stored = fitted.adapt(X, method="t3a").predict_proba(X)
    given = loaded.adapt(X, method="t3a", settings={"t3a.keep": 1}).predict_proba(X)
    usual = loaded.adapt(X, method="t3a").predict_proba(X)
    np.testing.assert_array_equal(stored, given)
    assert not np.array_equal(usual, given)
    back = fitted.adapt(X, method="t3a", settings={"t3a.keep": 100}).predict_proba(X)
    np.testing.assert_array_equal(back, usual)
    with refused(UnknownName, "'adapt.t3b'", "'adapt.t3a'"):
        loaded.adapt(X, method="t3a", settings={"t3b.keep": 1})


def test_training_refuses_settings_that_no_method_has(features: Manifest) -> None:
    model = AdaptiveClassifier(algorithm="da-erm", settings=TINY | {"adapt.t3a.kept": 1})
    with refused(UnknownName, "'adapt.t3a.kept'", "'adapt.t3a.keep'"):
        model.fit(features)


# --- the command line -----------------------------------------------------------------------------


def test_adapt_and_predict_on_a_plain_run(tree: Path, tmp_path: Path) -> None:
    run, site, table = tmp_path / "run", tmp_path / "site.safetensors", tmp_path / "p.csv"
    flags = ("--algorithm", "erm", "--test-domains", "west", "--out", run, *as_flags(TINY))
    command("train", tree, *flags)
    west = tree / "west"
    adapted = json.loads(command("adapt", run, west, "--method", "prior", "--out", site, "--json"))
    assert (adapted["method"], adapted["n"], adapted["unreadable"]) == ("prior", 24, [])
    assert sum(adapted["label_prior"].values()) == pytest.approx(1)
    predict = ("predict", run, west, "--out", table, "--probabilities")
    command(*predict, "--domain", site)
    one = table.read_text()
    command(*predict)
    assert one.count("\n") == 25
    assert one != table.read_text()
    said = command("adapt", run, west, "--method", "tent", "--out", site)
    first, changed, last = said.splitlines()
    assert (first, last) == ("adapted on 24 images by tent", f"state: {site}")
    assert changed.startswith("adaptation changed ")
    said = command("adapt", run, west, "--method", "tent+prior", "--out", site)
    assert said.startswith("adapted on 24 images by tent+prior\nclasses: ")
    with refused(ConfigError, "--method"):
        command("evaluate", run, "--method", "prior")
    found = json.loads(
        command("evaluate", run, tree, "--method", "prior", "--method", "t3a,tent", "--json")
    )
    west_by = {s["method"]: s["adapt_n"] for s in found["scores"] if s["domain"] == "west"}
    assert west_by["prior"] == west_by["t3a"] == west_by["tent"] == 6
    assert "prior (6 held-out)" in command("evaluate", run, tree, "--method", "prior")


def test_settings_of_methods_on_the_command_line(
    runs: dict[str, Path], features: Manifest, tree: Path, tmp_path: Path
) -> None:
    data, run = tmp_path / "features.parquet", runs["erm"]
    features.write(data)
    score = ("evaluate", run, data, "--method", "t3a", "--json")
    once = json.loads(command(*score, "--set", "adapt.t3a.keep=1", "--set", "adapt.points=9"))
    method = next(line for line in once["scores"] if line["method"] == "t3a")
    assert method["adapt_n"] == 9
    adapting = ("adapt", run, tree, "--out", tmp_path / "s.safetensors", "--method", "t3a")
    for asked in (score, adapting):
        with refused(ConfigError, "--set train.steps=3", "'adapt'"):
            command(*asked, "--set", "train.steps=3")
        with refused(ConfigError, "'adapt.t3a.keep'", "at least 0", "-1"):
            command(*asked, "--set", "adapt.t3a.keep=-1")
        with refused(UnknownName, "'adapt.t3a.kep'", "'adapt.t3a.keep'"):
            command(*asked, "--set", "adapt.t3a.kep=3")


SHARES = UNIFORM.label_prior


@pytest.mark.parametrize(
    ("method", "tensors"),
    [
        ("prior", {}),
        ("prior", {"prior": torch.ones(1), "base": torch.ones(1)}),
        ("prior", {"prior": torch.ones(2) / 2, "base": torch.ones(2) / 2}),
        ("prior", {"prior": SHARES, "base": SHARES, "temperature": torch.tensor(0.0)}),
        ("t3a", {"templates": torch.ones(3, 2)}),
        ("bn", {"backbone.body.nothing": torch.ones(3)}),
        ("tent", {"head.last.bias": torch.ones(9)}),
    ],
)
def test_a_payload_of_another_model_is_refused(method: str, tensors: dict[str, Tensor]) -> None:
    trained = make_trained("linear")
    empty = DomainState.empty(trained.digest(), 0).updated(torch.zeros(4, 0))
    state = replace(empty, payloads={method: tensors})
    with refused(StateMismatch, method):
        apply_state(trained, state)


def test_a_mu_of_other_dimensions_is_refused() -> None:
    trained = make_trained("concat")
    state = DomainState.empty(trained.digest(), 5).updated(torch.ones(3, 5))
    state = replace(state, payloads={"embedding": {}})
    with refused(StateMismatch, "5 numbers", "has 4"):
        apply_state(trained, state)
