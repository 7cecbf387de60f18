"""How long an image takes on this device: a few real steps on random images of the real shape."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from acclimate.config import EmbeddingConfig, TrainConfig
from acclimate.core.distributed import World
from acclimate.core.generators import turns
from acclimate.data.batches import Batch
from acclimate.data.source import EVALUATION_BATCH
from acclimate.learn.embeddings import find_embedding
from acclimate.learn.model import build_extractor, build_networks
from acclimate.learn.objective import Objective
from acclimate.runs.backbone_choice import SMALL
from acclimate.runs.compiling import Wish
from acclimate.runs.optimisation import Stepper, make_optimiser, steps_of, uses_bf16
from acclimate.runs.parts import Parts
from acclimate.runs.plan import Plan
from acclimate.runs.recording import FIRST, uncompiled
from acclimate.runs.session import prepare

ENOUGH_SECONDS, ENOUGH_STEPS, SLOW_SECONDS = 0.5, 5, 1.0
FEW = 2  # domains, and images of each, where a whole batch would take half a minute


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds per image: in Step A and Step B, and in a forward pass."""

    step_a: float
    step_b: float
    forward: float


@turns()
def time_plan(plan: Plan, device: torch.device) -> Timing:
    """Build a plan's networks and time them; weights do not matter, so none are fetched."""
    config, world, width = plan.config, World(device=device), plan.in_features
    extractor = build_extractor(config, pretrained=False) if plan.frozen else None
    if extractor is not None:
        width = extractor.features
    predictor, embedding = build_networks(
        config, len(plan.classes), len(plan.train_domains), width, pretrained=False, world=world
    )
    networks = (predictor,) if embedding is None else (predictor, embedding)
    size = prepare(plan, world, *networks, extractor=extractor)
    objective = plan.objective(predictor, world).to(device)
    shape = (width,) if width else (3, size, size)
    train = config.train
    least = plan.algorithm.build.least_rows
    mu_dim = 0 if embedding is None else embedding.dim
    batch = _batch(plan, device, shape, train.domains_per_step, train.per_domain, least, mu_dim)
    # On a CPU a few images stand for the batch, too few for parts.
    parts = max(train.parts, 1) if device.type == "cuda" else 1
    step_b = _in_a_step(objective, batch, train.steps, parts, plan, world)
    step_a = 0.0
    if embedding is not None:
        learn = embedding.budget(config)
        rows = _batch(plan, device, shape, learn.domains_per_step, learn.per_domain, 2, 0)
        step_a = _in_a_step(embedding, rows, learn.steps, parts, plan, world)
    predictor.eval()
    if device.type == "cuda":  # as many as are scored at a time: they take memory, too
        batch = _batch(plan, device, shape, 1, EVALUATION_BATCH, 1, mu_dim)

    def score(step: int) -> None:
        with torch.no_grad():
            predictor(batch.x, batch.mu)

    forward = _per_image(score, len(batch), device)
    return Timing(step_a=step_a, step_b=step_b, forward=forward)


def seconds_a(plan: Plan, timing: Timing) -> float:
    """Step A, and μ of each training domain."""
    budget = find_embedding(plan.config.embedding.name).build.budget(plan.config)
    learned = _learning(budget, timing.step_a, timing.forward)
    rows, points = [len(part) for part in plan.train_rows], plan.config.embedding.points
    embedded = sum(min(points, count) if points else count for count in rows)
    return learned + embedded * timing.forward


def seconds_b(plan: Plan, timing: Timing) -> float:
    """Step B, its validations, and the final scores, unseen domains twice for the control."""
    train, rows = plan.config.train, plan.manifest.rows
    learned = _learning(train, timing.step_b, timing.forward)
    seen = sum(len(rows(domain=name, split="val")) for name in plan.train_domains)
    chosen_by = sum(len(rows(domain=name)) for name in plan.val_domains) or seen
    unseen = sum(len(rows(domain=name)) for name in (*plan.val_domains, *plan.test_domains))
    validations = -(-train.steps // train.evaluate_every)
    scored = validations * chosen_by + seen + 2 * unseen
    return learned + scored * timing.forward


def _learning(budget: EmbeddingConfig | TrainConfig, step: float, forward: float) -> float:
    """Seconds of all steps, from those that an image takes in a `step` and in a `forward` pass."""
    batch = budget.domains_per_step * budget.per_domain
    if isinstance(budget, EmbeddingConfig):
        return budget.steps * batch * step
    fits = 2 if budget.last_fit else 1  # the last one is at most as long
    return fits * batch * (budget.steps * step + budget.probe.steps * forward)


def _batch(
    plan: Plan,
    device: torch.device,
    shape: tuple[int, ...],
    domains: int,
    per_domain: int,
    least: int,
    mu_dim: int,
) -> Batch:
    """A batch as training has it; a smaller one where a whole one would take too long."""
    if device.type == "cpu" and shape[-1] > SMALL and len(shape) > 1:
        least_domains = max(plan.algorithm.build.least_domains, 2)
        domains = min(domains, max(FEW, least_domains))
        per_domain = min(per_domain, max(FEW, least))
    count = domains * per_domain
    domain = torch.arange(domains).repeat_interleave(per_domain)
    y = torch.arange(count) % len(plan.classes)
    x = torch.rand(count, *shape)
    if len(shape) > 1:
        x = x.contiguous(memory_format=torch.channels_last)
    mu = torch.randn(count, mu_dim).to(device) if mu_dim else None
    return Batch(x.to(device), y.to(device), domain, mu)


def _in_a_step(
    objective: Objective, batch: Batch, steps: int, parts: int, plan: Plan, world: World
) -> float:
    """Seconds an image, as a loop of so many steps takes them, of the whole batch at once."""
    train, device = plan.config.train, world.device
    settings = replace(train.optimiser, accumulate=1)
    optimiser = make_optimiser(objective, settings, objective.adversary)
    bf16 = uses_bf16(train, device)
    take = Stepper(objective, objective, optimiser, settings, device, bf16)
    wish = None
    if parts == 1 and batch.x.ndim > 2:
        wish = Wish(train.compile, steps, len(batch), parts, batch.x.shape[-1], bf16)
    with Parts(objective, parts, lambda line: None), uncompiled(objective, wish, world):
        # On a GPU the last of the first is recorded.
        first = steps_of(objective, FIRST + 1) if device.type == "cuda" else 1
        return _per_image(lambda number: take(batch, number), len(batch), device, first)


def _per_image(
    step: Callable[[int], object], images: int, device: torch.device, first: int = 1
) -> float:
    """First steps warm up and do not count, unless one is so slow that it is enough."""
    seconds = [_timed(step, number, device) for number in range(first)]
    if device.type == "cuda" or seconds[0] < SLOW_SECONDS:
        started = time.perf_counter()
        seconds = [_timed(step, first, device)]
        while len(seconds) < ENOUGH_STEPS and time.perf_counter() - started < ENOUGH_SECONDS:
            seconds.append(_timed(step, first + len(seconds), device))
    return sum(seconds) / (len(seconds) * images)


def _timed(step: Callable[[int], object], number: int, device: torch.device) -> float:
    started = time.perf_counter()
    step(number)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started
