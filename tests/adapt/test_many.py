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
from acclimate.learn.embeddings import Payload
from acclimate.learn.model import Trained
from acclimate.learn.models import predictors as passed
from acclimate.learn.models.predictors import LinearHead, classify_by_domain
from acclimate.rehearse.training import train
from fixtures.errors import refused

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
    ("model", "methods", "gathered"),
    [
        ("concat", ["embedding"] * 4, True),
        ("concat", ["embedding", "embedding+prior", "embedding", "embedding+prior"], True),
        ("film", ["embedding"] * 4, False),
        ("concat", ["embedding", "embedding+t3a", "none", "prior"], False),
        ("erm", ["none", "prior", "prior", "prior"], True),
        ("erm", ["none", "t3a", "prior", "none"], False),
    ],
)
def test_each_row_is_predicted_as_in_its_own_domain(
    models: dict[str, Trained],
    features: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    methods: list[str],
    gathered: bool,
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
    one_by_one = []
    real = passed._one_by_one
    monkeypatch.setattr(passed, "_one_by_one", lambda *given: one_by_one.append(1) or real(*given))
    seen = 0

    def count(module: object, inputs: tuple[Tensor], output: object) -> None:
        nonlocal seen
        seen += len(inputs[0])

    many = ManyDomains(sites)
    hook = trained.predictor.backbone.register_forward_hook(count)
    found = many.predict_proba(X[rows], domains)
    hook.remove()
    assert seen == len(rows)
    assert bool(one_by_one) != gathered
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
    found = classify_by_domain(heads)(x, torch.tensor([1, 0, 1]))
    assert found.tolist() == [[6.0, 2.0], [3.0, 14.0], [10.0, 6.0]]
    with torch.no_grad():
        heads[1].last.weight[0, 0] = 2.0  # now they are two heads
    found = classify_by_domain(heads)(x, torch.tensor([1, 0, 1]))
    assert found.tolist() == [[7.0, 2.0], [3.0, 14.0], [15.0, 6.0]]


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
    other = adapt(models["concat"], X[:20], method="embedding")
    with refused(StateMismatch, "'south'", "'north'"):
        ManyDomains({"north": site, "south": other})
    assert site.state is not None  # a changed backbone has a pass of its own
    changed = replace(site, state=replace(site.state, payloads={"bn": Payload({}, False)}))
    with refused(ConfigError, "'b'", "'bn'"):
        ManyDomains({"a": site, "b": changed})
