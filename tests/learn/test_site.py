"""The second path of a plain model, learned from features."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from acclimate.config import SiteConfig
from acclimate.data import source
from acclimate.learn.site import Features, batch_size, fit_plain, fit_site

SMALL = SiteConfig(steps=60, batch=64, width=16, dim=4, dropout=0.0)
NAMES = [f"site-{number}" for number in range(6)]


def convention(seed: int = 0, per_domain: int = 80) -> Features:
    """Two classes whose names swap in every other domain, which shows in another feature."""
    rng = np.random.default_rng(seed)
    x, y, domains = [], [], []
    for number in range(len(NAMES)):
        swapped = number % 2
        label = rng.integers(0, 2, per_domain)
        rows = rng.normal(size=(per_domain, 3)) * 0.3
        rows[:, 0] += 2 * label - 1
        rows[:, 1] += 2 * swapped - 1
        domains.append(np.arange(len(y) * per_domain, (len(y) + 1) * per_domain))
        x.append(rows)
        y.append(np.abs(label - swapped))
    stacked = torch.from_numpy(np.concatenate(x)).float(), torch.from_numpy(np.concatenate(y))
    return Features(*stacked, domains, 2)


def test_knowing_frequencies_adds_the_log_of_their_ratio() -> None:
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    rows = Features(torch.zeros(6, 2), y, [np.array([0, 1, 2, 3]), np.array([4, 5])], 2)
    assert rows.prior.tolist() == [0.375, 0.625]
    # One image more, shared out as in all domains: (3 + 0.375) / 5 in place of 3 / 4.
    expected = [[3.375 / 5 / 0.375, 1.625 / 5 / 0.625], [0.375 / 3 / 0.375, 2.625 / 3 / 0.625]]
    assert rows.shifts().exp().tolist() == [pytest.approx(row) for row in expected]


def test_an_image_that_many_rows_show_is_there_once() -> None:
    """Heads and statistics are those of as many copies, in parts of any size."""
    rows = convention(per_domain=20)
    rng = np.random.default_rng(1)
    shown = torch.from_numpy(rng.integers(0, 40, len(rows.y)))  # of 40 images
    once = replace(rows, x=rows.x[:40], image=shown)
    copies = replace(rows, x=rows.x[:40][shown])
    assert torch.equal(once.at(rows.domains[3]), copies.x[rows.domains[3]])
    expected = copies.x[np.concatenate(rows.domains)].double()
    for part in (source.PART, 7):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(source, "PART", part)
            backbone = once.among(range(6)).backbone()
        mean, std = expected.mean(0), expected.std(0, correction=0)
        torch.testing.assert_close(backbone.mean.double(), mean, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(backbone.std.double(), std, rtol=1e-6, atol=1e-7)
    few = replace(SMALL, steps=20)
    heads = [fit_plain(one, few, layers=False, seed=0) for one in (once, copies)]
    for one, other in zip(*(head.state_dict().values() for head in heads), strict=True):
        torch.testing.assert_close(one, other)


def test_a_class_that_no_domain_has_stays_put() -> None:
    rows = Features(torch.zeros(2, 1), torch.tensor([0, 0]), [np.array([0, 1])], 2)
    assert rows.shifts().tolist() == [[0.0, 0.0]]


def test_only_allowed_rows_of_chosen_domains() -> None:
    rows = convention()
    allowed = np.ones(len(rows.y), dtype=bool)
    allowed[rows.domains[2][:70]] = False
    part = rows.among([0, 2], allowed)
    assert [len(own) for own in part.domains] == [80, 10]
    assert part.domains[1].tolist() == rows.domains[2][70:].tolist()


def test_the_same_seed_gives_the_same_weights() -> None:
    one, two = (fit_site(convention(), NAMES, SMALL, seed=3) for _ in range(2))
    other = fit_site(convention(), NAMES, SMALL, seed=4)
    assert all(torch.equal(a, two.tensors()[name]) for name, a in one.tensors().items())
    assert not all(torch.equal(a, other.tensors()[name]) for name, a in one.tensors().items())


def test_few_rows_make_small_steps() -> None:
    """30 passes in 400 steps: 75 of 1000 rows a step; between 64 and `batch`."""
    config = SiteConfig()
    assert [batch_size(rows, config) for rows in (100, 1000, 100_000)] == [64, 150, 512]
