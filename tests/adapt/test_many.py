"""Images of many domains in one batch: as each domain by itself, in one pass of the backbone."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from acclimate.adapt.classifier import adapt
from acclimate.adapt.many import ManyDomains
from acclimate.config import RunConfig
from acclimate.core.errors import ConfigError, StateMismatch, UnknownName
from acclimate.data.manifest import Manifest
from acclimate.learn.model import Trained
from acclimate.learn.models.predictors import HeadsByDomain, LinearHead
from acclimate.rehearse.training import train
from fixtures.errors import refused
from fixtures.models import SIZE, make_trained

Tiny = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def models(
    features: Manifest, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Trained]:
    folder = tmp_path_factory.mktemp("models")
    for condition in ("concat", "film"):
        config = tiny("da-erm", test_domains=["site-3", "site-4"], **{"model.condition": condition})
        train(config, features, folder / condition, device="cpu")
    train(tiny("erm", test_domains=["site-3", "site-4"]), features, folder / "erm", device="cpu")
    return {name: Trained.load(folder / name) for name in ("concat", "film", "erm")}


@pytest.mark.parametrize(
    ("model", "methods"),
    [
        ("concat", ["embedding"] * 4),
        ("concat", ["embedding", "embedding+prior", "embedding", "embedding+prior"]),
        ("film", ["embedding"] * 4),
        ("concat", ["embedding", "embedding+t3a", "none", "prior"]),
        ("erm", ["none", "prior", "prior", "prior"]),
        ("erm", ["none", "t3a", "prior", "none"]),
    ],
)
def test_each_row_is_predicted_as_in_its_own_domain(
    models: dict[str, Trained],
    features: Manifest,
    model: str,
    methods: list[str],
) -> None:
    trained, X, names = models[model], features.features(), features.domains[:4]
    sites = {
        name: adapt(trained, X[features.rows(domain=name)], method=method)
        for name, method in zip(names, methods, strict=True)
    }
    rows = np.random.default_rng(0).permutation(
        np.concatenate([features.rows(domain=n) for n in names])
    )
    domains = features.domain_names[rows].tolist()
    seen = 0

    def count(module: object, inputs: tuple[Tensor], output: object) -> None:
        nonlocal seen
        seen += len(inputs[0])

    many = ManyDomains(sites)
    hook = trained.predictor.backbone.register_forward_hook(count)
    found = many.predict_proba(X[rows], domains)
    hook.remove()
    assert seen == len(rows)
    for place, (row, name) in enumerate(zip(rows, domains, strict=True)):
        alone = sites[name].predict_proba(X[[row]])[0]
        assert np.allclose(found[place], alone, atol=1e-5)
    assert many.predict(X[rows], domains) == [trained.classes[i] for i in found.argmax(1)]
    assert many.predict_proba(X[:0], []).shape == (0, 3)


def test_biases_are_gathered_by_hand() -> None:
    heads = [LinearHead(2, 2, 0.0) for _ in range(2)]
    for bias, head in zip(([0.0, 10.0], [5.0, 0.0]), heads, strict=True):
        head.load_state_dict({"last.weight": torch.eye(2), "last.bias": torch.tensor(bias)})
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    many = HeadsByDomain()
    for number, head in enumerate(heads):
        many.put(number, head)
    found = many.logits(x, [1, 0, 1])
    assert found.tolist() == [[6.0, 2.0], [3.0, 14.0], [10.0, 6.0]]
    with torch.no_grad():
        heads[1].last.weight[0, 0] = 2.0  # now they are two heads
    many.put(1, heads[1])
    found = many.logits(x, [1, 0, 1])
    assert found.tolist() == [[7.0, 2.0], [3.0, 14.0], [15.0, 6.0]]


@pytest.mark.parametrize("kind", ["rehearsed", "rehearsed pair", "frozen rehearsed", "low-rank"])
def test_heads_of_every_kind_at_once(kind: str) -> None:
    trained = make_trained(kind)
    images = np.random.default_rng(0).integers(0, 256, (12, 3, SIZE, SIZE), dtype=np.uint8)
    methods = ("embedding", "none", "embedding+prior", "prior", "embedding+t3a", "embedding")
    sites = {
        f"{place} {method}": adapt(trained, list(images[place : place + 6]), method=method)
        for place, method in enumerate(methods)
    }
    names = list(sites) * 2
    found = ManyDomains(sites).predict_proba(list(images), names)
    for name, image, row in zip(names, images, found, strict=True):
        assert np.allclose(row, sites[name].predict_proba([image])[0], atol=1e-5)


def test_a_domain_costs_what_is_its_own_and_may_be_forgotten() -> None:
    trained = make_trained("rehearsed")
    images = list(np.random.default_rng(0).integers(0, 256, (4, 3, SIZE, SIZE), dtype=np.uint8))
    heads = [adapt(trained, [one], method="embedding").predictor.head for one in images]
    many = HeadsByDomain()
    for name, head in enumerate(heads):
        many.put(name, head)
    x = torch.randn(4, trained.predictor.backbone.features)
    own = [{name.split(".")[-2] for name in own} for _, own in many._heads.values()]
    assert own == [set(), {"last"}, {"last"}, {"last"}]
    many.logits(x[:2], [0, 1])  # used last, so that these stay
    many.trim(2 * 1024 + sum(value.nbytes for value in many._heads[1][1].values()))
    assert [name for name in range(4) if name in many] == [0, 1]
    many.put(1, heads[2])
    assert torch.allclose(many.logits(x[:1], [1]), heads[2](x[:1]).logits, atol=1e-6)


def test_what_does_not_go_together(models: dict[str, Trained], features: Manifest) -> None:
    X, trained = features.features(), models["erm"]
    site = adapt(trained, X[:20], method="prior")
    many = ManyDomains({"north": site})
    with refused(ConfigError, "at least one"):
        ManyDomains({})
    with refused(ConfigError, "3 images", "2 names"):
        many.predict_proba(X[:3], ["north"] * 2)
    with refused(UnknownName, "'nort'", "'north'"):
        many.predict_proba(X[:1], ["nort"])
    assert many.predict_proba(X[:1], ["north"]).shape == (1, 3)
    other = adapt(models["concat"], X[:20], method="embedding")
    with refused(StateMismatch, "'south'"):
        ManyDomains({"north": site, "south": other})
    assert site.state is not None  # a changed backbone has a pass of its own
    changed = replace(site, state=replace(site.state, payloads={"bn": {}}))
    with refused(ConfigError, "'b'", "'bn'"):
        ManyDomains({"a": site, "b": changed})
