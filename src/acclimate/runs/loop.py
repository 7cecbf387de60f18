"""The one loop, and its checkpoints. It owns optimiser, schedule, precision, clipping and
validation; objectives only score batches. Each step is a pure function of (weights,
seed, step), so that a checkpoint needs no random state and a killed run resumes to the same
weights."""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from acclimate.config import AverageConfig, OptimiserConfig
from acclimate.core.distributed import World
from acclimate.core.errors import DamagedFile, RunError, damage_is
from acclimate.core.progress import Watch, phase_name, unwatched
from acclimate.core.randomness import derive, own_generator
from acclimate.core.tensors import below, fill, read_metadata, read_tensors, save_tensors
from acclimate.data.batches import Batch, Loader
from acclimate.learn.models.backbones import restore
from acclimate.learn.objective import Adversary, Losses, Objective
from acclimate.records.folder import RunFolder
from acclimate.records.metrics import METRICS, TOP_1
from acclimate.records.records import Loss, Validated
from acclimate.runs.averages import Average, make_average
from acclimate.runs.device import (
    LEAST,
    LOWER,
    FasterBody,
    accelerated,
    micro_batch_note,
    trained_backbones,
)
from acclimate.runs.layers import layer_groups

Validate = Callable[[int], Validated]  # of a step
KINDS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
TRIED = 3  # steps of the model after which memory that was enough stays enough


def make_optimiser(
    module: nn.Module, settings: OptimiserConfig, adversary: Adversary | None = None
) -> torch.optim.Optimizer:
    """One optimiser. The first group is of what has the full learning rate; the layers of a
    backbone may follow; an adversary's parameters come last, with settings of their own."""
    theirs = list(adversary.module.parameters()) if adversary else []
    layers = layer_groups(module, settings) if settings.layer_decay < 1 else []
    known = {id(parameter) for parameter in theirs}
    known |= {id(parameter) for layer in layers for parameter in layer["params"]}
    own = [p for p in module.parameters() if p.requires_grad and id(p) not in known]
    groups = [_group(own, settings), *({**_group((), settings), **layer} for layer in layers)]
    if adversary is not None:
        other = adversary.optimiser
        lr = settings.lr if other.lr is None else other.lr
        # Schedule, warm-up and kind are the run's.
        against = replace(settings, lr=lr, weight_decay=other.weight_decay, beta1=other.beta1)
        groups.append({**_group(theirs, against), "adversary": True})
    # One kernel for all weights. On a CPU the plain one stays: its sums round otherwise.
    fused = all(parameter.is_cuda for parameter in own)
    made: torch.optim.Optimizer = KINDS[settings.name](groups, **({"fused": True} if fused else {}))
    return made


def _group(parameters: Sequence[nn.Parameter], settings: OptimiserConfig) -> dict[str, Any]:
    """Parameters of an optimiser with their `settings`, of which the schedule is made."""
    return {
        "params": parameters,
        "lr": settings.lr,
        "weight_decay": settings.weight_decay,
        **({"momentum": settings.momentum} if settings.name == "sgd" else {}),
        **({} if settings.name == "sgd" else {"betas": (settings.beta1, 0.999)}),
        "settings": settings,
        "lr_scale": 1.0,
        "adversary": False,
    }


def learning_rate(settings: OptimiserConfig, step: int, steps: int) -> float:
    """Linear warm-up over `warmup` steps, then constant or a half cosine to 0 at `steps`."""
    assert settings.lr is not None, "the plan decides the learning rate"
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    if settings.schedule == "constant":
        return settings.lr
    along = (step - settings.warmup) / max(steps - settings.warmup, 1)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * along))


@dataclass(frozen=True)
class Position:
    """Where a phase stands: steps done, and the best validation so far.

    At the end of a phase that keeps the mean over a `window` of steps, the best is that mean.
    """

    step: int = 0
    best_step: int | None = None
    best_score: float | None = None
    window: tuple[int, int] | None = None
    # What it took: micro-batches of a step, 0 where that is not decided, are as much a part of its
    # numbers as the batch is; and the seconds of all sessions of the run.
    micro_batches: int = field(default=0, compare=False)
    seconds: float = field(default=0.0, compare=False)

    def kept_step(self, keep: str) -> int:
        """The step whose weights are kept, the last one of a mean."""
        chosen = keep == "best" or self.window is not None
        return self.best_step if chosen and self.best_step is not None else self.step


def save_checkpoint(
    path: Path,
    module: nn.Module,
    optimiser: torch.optim.Optimizer | None,
    position: Position,
    average: Average | None = None,
    of: str = "",
) -> None:
    """Write all that a phase needs to go on, in one safetensors file.

    `optimiser` where steps are yet to be taken; its state is twice as large as the weights.
    """
    tensors = {f"module/{name}": value for name, value in module.state_dict().items()}
    if average is not None:
        tensors |= {f"average/{name}": value for name, value in average.tensors().items()}
    for index, slots in (optimiser.state_dict()["state"] if optimiser else {}).items():
        for name, value in slots.items():
            if value is not None:  # the momentum of an SGD without any
                tensors[f"optimiser/{index}/{name}"] = value
    save_tensors(path, tensors, {"position": json.dumps(asdict(position))}, of)


def load_checkpoint(
    path: Path,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: Average | None = None,
    of: str = "",
) -> Position:
    """Fill what was saved `of` this run; a fresh `Position` where there is no checkpoint."""
    if not path.exists():
        return Position()
    with damage_is(RunError, "delete it to start this phase again"):
        tensors, metadata = read_tensors(path, of)
        fill(module, below(tensors, "module/"), path)
        if average is not None:
            average.restore(below(tensors, "average/"), path)
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in below(tensors, "optimiser/").items():
        index, slot = name.split("/")
        state.setdefault(int(index), {})[slot] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
    return Position(**json.loads(metadata["position"]))


def seconds_worked(checkpoint: Path) -> float:
    """What earlier sessions worked, as far as a checkpoint knows; `load_checkpoint` will say that
    it is damaged."""
    try:
        return float(json.loads(read_metadata(checkpoint)["position"])["seconds"])
    except (DamagedFile, KeyError, ValueError, TypeError):
        return 0.0


def _load_best(path: Path, module: nn.Module, of: str) -> None:
    remedy = "delete the checkpoint of its phase, and repeat the command"
    try:
        with damage_is(RunError, remedy):
            fill(module, read_tensors(path, of)[0], path)
    except FileNotFoundError:
        raise RunError(f"{path} is gone; {remedy}") from None


@dataclass(frozen=True)
class Phase:
    """One stretch of training: Step A ("embedding") or Step B ("main")."""

    name: str
    steps: int
    optimiser: OptimiserConfig
    checkpoint_every: int
    evaluate_every: int = 0
    keep: Literal["best", "last"] = "last"
    average: AverageConfig = field(default_factory=AverageConfig)
    seeded_as: str = ""  # the phase whose random numbers it draws; its own unless it repeats one
    metric: str = TOP_1  # which says what validation is best


@dataclass
class Loop:
    objective: Objective
    loader: Loader
    phase: Phase
    world: World
    folder: RunFolder
    seed: int
    bf16: bool = False
    prepare: Callable[[Batch], Batch] = lambda batch: batch
    validate: Validate | None = None
    watch: Watch = unwatched
    say: Callable[[str], None] = lambda line: None
    compile: str = "off"  # train.compile
    clock: Callable[[], float] = lambda: 0.0  # seconds worked on the run, for its checkpoints
    micro_batches: int = 1  # of a batch, where no checkpoint knows better
    _module: nn.Module = field(init=False)  # the objective, or what shares its gradients out
    _optimiser: torch.optim.Optimizer = field(init=False)
    _average: Average | None = field(init=False)
    _faster: FasterBody | None = field(init=False)
    _sums: Tensor = field(init=False)
    _since: float = field(init=False)

    def run(self) -> Position:
        """Train to the end, from the last checkpoint if there is one; keep the chosen weights."""
        phase, objective, average = self.phase, self.objective, self.phase.average
        self._optimiser = make_optimiser(objective, phase.optimiser, objective.adversary)
        self._average = None
        if average.kind != "none":
            self._average = make_average(objective, average, phase.steps)
        checkpoint, whose = self.folder.checkpoint(phase.name), self.folder.whose
        position = load_checkpoint(checkpoint, objective, self._optimiser, self._average, whose)
        if 0 < position.step < phase.steps:
            self.say(f"{phase_name(phase.name)}: going on at step {position.step} of {phase.steps}")
        self._module = objective
        if self.world.size > 1:
            # In an adversary's turn the others' gradients are unused, and the other way round.
            unused = objective.adversary is not None
            self._module = DistributedDataParallel(objective, find_unused_parameters=unused)
        self.micro_batches = position.micro_batches or self.micro_batches
        # Micro-batches are recomputed in the backward pass, which graphs cannot hold.
        compile = self.compile if self.micro_batches == 1 else "off"
        self._divide(self.micro_batches)
        self._reset()
        try:
            with accelerated(objective, compile, phase.steps, self.world, self.say) as self._faster:
                position = self._steps(position)
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"{phase_name(phase.name)} ran out of GPU memory; repeat the command to go on at "
                f"the last checkpoint, or set train.micro_batches or {LOWER} in a new run folder"
            ) from error
        finally:
            self._divide(1)
        return self._keep(position)

    def _steps(self, position: Position) -> Position:
        """All steps that are left, with validations and checkpoints."""
        first, adversary = position.step, self.objective.adversary
        # The model's first step makes what its optimiser keeps, so that the second takes more, and
        # the second may be captured as a graph.
        turns_taken = 1 if adversary is None else adversary.steps + 1
        tried = first + (TRIED * turns_taken if self.world.size == 1 else 0)
        with closing(self.loader.batches(first, self.phase.steps)) as batches:
            for step, batch in enumerate(batches, start=first):
                self._step(self.prepare(batch), step, may_divide=step < tried)
                position = self._after(position, step + 1)
                best = position.best_score
                metric = METRICS[self.phase.metric]
                known = f"best validation {metric.write(best)}{metric.unit}"
                note = "" if best is None else known
                self.watch(self.phase.name, step + 1, self.phase.steps, note)
        return position

    def _keep(self, position: Position) -> Position:
        """Load the weights that are kept; those of a mean over a window are validated first."""
        self._agree()
        average = self._average
        window = None if average is None else average.window
        if window is None and self.phase.keep == "best" and position.best_step is not None:
            best = self.folder.best(self.phase.name, position.best_step)
            _load_best(best, self.objective, self.folder.whose)
        elif average is not None:
            average.apply()
            self._agree()
        if window is None:
            return position
        assert self.validate is not None, "a window is found by validation"
        self.objective.eval()
        validated = self.validate(window[1])
        if self.world.main:
            for score in validated.scores:
                self.folder.append(replace(score, moment="averaged"))
        return Position(position.step, window[1], validated.value, window)

    def _divide(self, count: int) -> None:
        """Let backbones see batches in `count` micro-batches."""
        for backbone in trained_backbones(self.objective) if self.objective.divisible else ():
            backbone.micro_batches = count

    def _step(self, batch: Batch, step: int, *, may_divide: bool) -> None:
        """One step of the model, or of its adversary."""
        groups, adversary = self._optimiser.param_groups, self.objective.adversary
        for group in groups:
            rate = learning_rate(group["settings"], step, self.phase.steps)
            group["lr"] = rate * group["lr_scale"]
        gradients = self._divided_gradients if may_divide else self._gradients
        losses = gradients(batch, step)
        turn = adversary is not None and adversary.moves(step)
        for parameter in (p for g in groups if g["adversary"] != turn for p in g["params"]):
            parameter.grad = None  # optimisers leave parameters without a gradient alone
        if self.phase.optimiser.clip:
            nn.utils.clip_grad_norm_(self.objective.parameters(), self.phase.optimiser.clip)
        self._optimiser.step()
        self._sums[0] += losses.risk * len(batch)
        self._sums[3] += len(batch)
        if losses.penalty is not None and not turn:  # an adversary's own loss is no penalty
            self._sums[1] += losses.penalty * len(batch)
            self._sums[2] += len(batch)
        if self._average is not None:
            self._average.update(step + 1)

    def _divided_gradients(self, batch: Batch, step: int) -> Losses:
        """Gradients, in twice as many micro-batches as often as a GPU runs out of memory.

        What a failed attempt has changed, statistics and the like, is put back: the next one is a
        first one again.
        """
        before = [(buffer, buffer.clone()) for buffer in self.objective.buffers()]
        while True:
            try:
                return self._gradients(batch, step)
            except torch.OutOfMemoryError:
                graphed = [b for b in trained_backbones(self.objective) if b.stand_in]
                fewest = len(batch) // (2 * self.micro_batches) < LEAST
                if not graphed and (fewest or not self.objective.divisible):
                    raise
            # Outside the handler: the error holds the tensors of the attempt.
            self._optimiser.zero_grad(set_to_none=True)
            restore(before)
            if graphed:  # a graph takes memory of its own: first without one
                graphed[0].stand_in = None
            else:
                self.micro_batches *= 2
                self._divide(self.micro_batches)
                note = micro_batch_note(self.micro_batches)
                self.say(f"the GPU's memory is too small for {len(batch)} images: {note}")
            torch.cuda.empty_cache()

    def _gradients(self, batch: Batch, step: int) -> Losses:
        """Gradients, and what the batch cost; no parameter has moved yet."""
        device = self.world.device
        self.objective.train()
        self._optimiser.zero_grad(set_to_none=True)
        if self._faster is not None:
            self._faster.begin_step()
        # Dropout is seeded per step and process, so that nothing of it needs saving.
        name = self.phase.seeded_as or self.phase.name
        seed = derive(self.seed, name, "step", step, self.world.rank)
        with own_generator(seed, device):
            with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
                losses: Losses = self._module(batch, step)
            losses.total.backward()  # type: ignore[no-untyped-call]
        return losses.detached()

    def _after(self, position: Position, done: int) -> Position:
        """Validation, records and checkpoint that are due after `done` steps."""
        last = done == self.phase.steps
        position = replace(position, step=done)
        if self.validate and (done % self.phase.evaluate_every == 0 or last):
            position = self._validated(position, self.validate)
        if done % self.phase.checkpoint_every == 0 or last:
            self._record(done)
            if self.world.main:
                save_checkpoint(
                    self.folder.checkpoint(self.phase.name),
                    self.objective,
                    None if last else self._optimiser,
                    replace(position, micro_batches=self.micro_batches, seconds=self.clock()),
                    self._average,
                    self.folder.whose,
                )
                best = self.folder.best(self.phase.name, position.best_step or 0)
                for path in self.folder.all_best(self.phase.name):
                    if path != best:
                        path.unlink()
            self.world.wait()
            self._since = time.perf_counter()  # nor is that of a checkpoint training time
        return position

    def _validated(self, position: Position, validate: Validate) -> Position:
        """The position after a validation, and the weights on disk if they are the best so far."""
        started, step, average = time.perf_counter(), position.step, self._average
        self.objective.eval()
        self._agree()
        with average.applied() if average is not None else nullcontext():
            self._agree()  # an average has statistics of its own
            validated = validate(step)
            score, sign = validated.value, METRICS[self.phase.metric].sign
            # Before its window an average has nothing to offer that could be kept.
            best = -math.inf if position.best_score is None else sign * position.best_score
            if score is not None and sign * score > best and (average is None or average.ready):
                position = Position(step, step, score)
                if self.phase.keep == "best" and self.world.main:
                    file = self.folder.best(self.phase.name, step)
                    save_tensors(file, self.objective.state_dict(), of=self.folder.whose)
        if average is not None:
            average.validated(step, validated.loss)
        if self.world.main:
            for one in validated.scores:
                self.folder.append(one)
        self._since += time.perf_counter() - started  # its time is not training time
        return position

    def _agree(self) -> None:
        """Running statistics of batch norm are each process's own: all take the first one's."""
        for buffer in self.objective.buffers():
            self.world.broadcast(buffer)

    def _record(self, done: int) -> None:
        """Append the mean losses since the last record; refuse to go on where one is not finite."""
        risk, penalty, penalised, images = self.world.sum(self._sums).cpu().tolist()
        seconds = max(time.perf_counter() - self._since, 1e-9)
        lr = self._optimiser.param_groups[0]["lr"]
        if not math.isfinite(risk + penalty):
            raise RunError(
                f"the loss of phase '{self.phase.name}' was not finite before step {done}; lower "
                f"the learning rate ({lr:g}) or set train.optimiser.clip, in a new run folder"
            )
        if self.world.main:
            loss = Loss(
                phase=self.phase.name,
                step=done,
                risk=risk / images,
                penalty=penalty / penalised if penalised else None,
                lr=lr,
                images_per_second=round(images / seconds, 1),
            )
            self.folder.append(loss)
        self._reset()

    def _reset(self) -> None:
        self._sums = torch.zeros(4, dtype=torch.float64, device=self.world.device)
        self._since = time.perf_counter()
