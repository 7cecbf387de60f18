"""The one loop. It owns optimiser, schedule, precision, accumulation, clipping, validation and
checkpoints; objectives only score batches. Each step is a pure function of (weights, seed, step),
so a killed run resumes to the same weights."""

import math
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from acclimate.config import AverageConfig, OptimiserConfig
from acclimate.core.distributed import World
from acclimate.core.errors import RunError
from acclimate.core.progress import Watch, phase_name, unwatched
from acclimate.core.randomness import derive, own_generator
from acclimate.data.batches import Batch, Loader
from acclimate.learn.models.backbones import restore
from acclimate.learn.objective import Losses, Objective
from acclimate.records.folder import RunFolder
from acclimate.records.records import Loss, Validated
from acclimate.runs.checkpoint import (
    Position,
    load_checkpoint,
    load_weights,
    micro_batches_of,
    save_checkpoint,
    save_weights,
)
from acclimate.runs.compiling import FasterBody, accelerated, trained_backbones
from acclimate.runs.memory import LEAST, LOWER, micro_batch_note
from acclimate.runs.optimisation import (
    Average,
    Stepper,
    adversary_moves,
    check_shares,
    learning_rate,
    make_average,
    make_optimiser,
    steps_of,
)

Validate = Callable[[int], Validated]  # of a step
TRIED = 3  # steps of the model after which memory that was enough stays enough


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
    _average: Average | None = field(init=False, default=None)
    _sums: Tensor = field(init=False)
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        check_shares(self.loader.sampler.per_domain, self.world, self.phase.optimiser)

    def run(self) -> Position:
        """Train to the end, from the last checkpoint if there is one; keep the chosen weights."""
        optimiser = make_optimiser(self.objective, self.phase.optimiser, self.objective.adversary)
        self._average = make_average(self.objective, self.phase.average, self.phase.steps)
        progress = load_checkpoint(self._checkpoint, self.objective, optimiser, self._average)
        if 0 < progress.step < self.phase.steps:
            name = phase_name(self.phase.name)
            self.say(f"{name}: going on at step {progress.step} of {self.phase.steps}")
        module: nn.Module = self.objective
        if self.world.size > 1:
            # In an adversary's turn the others' gradients are unused, and the other way round.
            unused = self.objective.adversary is not None
            module = DistributedDataParallel(self.objective, find_unused_parameters=unused)
        self._reset()
        self.micro_batches = micro_batches_of(self._checkpoint) or self.micro_batches
        self._divide(self.micro_batches)
        # Micro-batches are recomputed in the backward pass, which graphs cannot hold.
        compile = self.compile if self.micro_batches == 1 else "off"
        try:
            with accelerated(
                self.objective, compile, self.phase.steps, self.world, self.say
            ) as faster:
                progress = self._steps(module, optimiser, progress, faster)
        finally:
            self._divide(1)
        self._agree()
        window = None if self._average is None else self._average.window
        if window is None and self.phase.keep == "best" and progress.best_step is not None:
            load_weights(self._best(progress.best_step), self.objective)
        elif self._average is not None:
            self._average.apply()
            self._agree()
        return progress if window is None else self._averaged(progress, window)

    def _steps(
        self,
        module: nn.Module,
        optimiser: torch.optim.Optimizer,
        progress: Position,
        faster: FasterBody | None,
    ) -> Position:
        """All steps that are left, with validations and checkpoints."""
        settings, device, first = self.phase.optimiser, self.world.device, progress.step
        take = Stepper(self.objective, module, optimiser, settings, device, self.bf16, faster)
        # The model's first step makes what its optimiser keeps, so that the second takes more, and
        # the second may be captured as a graph.
        tried = first + (steps_of(self.objective, TRIED) if self.world.size == 1 else 0)
        try:
            with closing(self.loader.batches(first, self.phase.steps)) as batches:
                for step, batch in enumerate(batches, start=first):
                    self._step(take, self.prepare(batch), step, may_divide=step < tried)
                    progress = self._after(optimiser, progress, step + 1)
                    self.watch(self.phase.name, step + 1, self.phase.steps, _note(progress))
        except torch.OutOfMemoryError as error:  # statistics may be half a step further
            raise RunError(self._too_little_memory(progress.step + 1)) from error
        return progress

    def _divide(self, count: int) -> None:
        """Let backbones see batches in `count` micro-batches."""
        for backbone in trained_backbones(self.objective) if self.objective.divisible else ():
            backbone.micro_batches = count

    def _averaged(self, progress: Position, window: tuple[int, int]) -> Position:
        """Validation of the mean over a window, which is neither the best nor the last weights."""
        assert self.validate is not None, "a window is found by validation"
        self.objective.eval()
        found = self.validate(window[1])
        if self.world.main:
            for score in found.scores:
                self.folder.append(replace(score, moment="averaged"))
        return Position(progress.step, window[1], found.top1, window)

    @property
    def _checkpoint(self) -> Path:
        return self.folder.checkpoint(self.phase.name)

    def _best(self, step: int) -> Path:
        return self.folder.best(self.phase.name, step)

    def _drop_beaten(self, progress: Position) -> None:
        for path in self.folder.all_best(self.phase.name):
            if progress.best_step is None or path != self._best(progress.best_step):
                path.unlink()

    def _step(self, take: Stepper, batch: Batch, step: int, *, may_divide: bool) -> None:
        for group in take.optimiser.param_groups:
            group["lr"] = learning_rate(group["settings"], step, self.phase.steps)
        if may_divide:
            parts = self._divided_gradients(take, batch, step)
        else:
            parts = self._gradients(take, batch, step)
        take.move(step)
        for losses in parts:
            penalised = not adversary_moves(self.objective, step)
            self._add(losses, len(batch) / len(parts), penalised=penalised)
        if self._average is not None:
            self._average.update(step + 1)

    def _divided_gradients(self, take: Stepper, batch: Batch, step: int) -> list[Losses]:
        """Gradients, in twice as many micro-batches as often as a GPU runs out of memory.

        What a failed attempt has changed, statistics and the like, is put back: the next one is a
        first one again.
        """
        before = [(buffer, buffer.clone()) for buffer in self.objective.buffers()]
        while True:
            try:
                return self._gradients(take, batch, step)
            except torch.OutOfMemoryError as error:
                accelerated_ = [b for b in trained_backbones(self.objective) if b.stand_in]
                fewest = len(batch) // (2 * self.micro_batches) < LEAST
                if not accelerated_ and (fewest or not self.objective.divisible):
                    raise RunError(
                        f"the GPU's memory is too small for a batch of {len(batch)} images of "
                        f"{type(self.objective).__name__}; {LOWER}"
                    ) from error
            # Outside the handler: the error holds the tensors of the attempt.
            for parameter in self.objective.parameters():
                parameter.grad = None
            restore(before)
            if accelerated_:  # a graph takes memory of its own: first without one
                accelerated_[0].stand_in = None
            else:
                self.micro_batches *= 2
                self._divide(self.micro_batches)
                note = micro_batch_note(self.micro_batches)
                self.say(f"the GPU's memory is too small for {len(batch)} images: {note}")
            torch.cuda.empty_cache()

    def _gradients(self, take: Stepper, batch: Batch, step: int) -> list[Losses]:
        # Dropout is seeded per step and process, so that nothing of it needs saving.
        name = self.phase.seeded_as or self.phase.name
        seed = derive(self.seed, name, "step", step, self.world.rank)
        with own_generator(seed, self.world.device):
            return take.gradients(batch, step)

    def _too_little_memory(self, step: int) -> str:
        found = f"{phase_name(self.phase.name)}: step {step} found too little of the GPU's memory"
        if self.world.size > 1:
            return f"{found}; set train.micro_batches, or {LOWER}, in a new run folder"
        return (
            f"{found}, perhaps because other work takes more of it now; the same command goes on "
            f"at the last checkpoint and sees what fits; or {LOWER}, in a new run folder"
        )

    def _after(self, optimiser: torch.optim.Optimizer, progress: Position, done: int) -> Position:
        """Validation, records and checkpoint that are due after `done` steps."""
        last = done == self.phase.steps
        progress = Position(done, progress.best_step, progress.best_score)
        if self.validate and (done % self.phase.evaluate_every == 0 or last):
            progress = self._validated(progress)
        if done % self.phase.checkpoint_every == 0 or last:
            self._record(optimiser, done)
            if self.world.main:
                save_checkpoint(
                    self._checkpoint,
                    self.objective,
                    None if last else optimiser,
                    progress,
                    self._average,
                    seconds=self.clock(),
                    micro_batches=self.micro_batches,
                )
                self._drop_beaten(progress)
            self.world.wait()
            self._since = time.perf_counter()  # nor is that of a checkpoint training time
        return progress

    def _validated(self, progress: Position) -> Position:
        assert self.validate is not None
        started = time.perf_counter()
        self.objective.eval()
        self._agree()
        with self._average.applied() if self._average is not None else nullcontext():
            self._agree()  # an average has statistics of its own
            found = self.validate(progress.step)
            mean = found.top1
            # Before its window an average has nothing to offer that could be kept.
            ready = self._average is None or self._average.ready
            better = (mean is not None and ready) and (
                progress.best_score is None or mean > progress.best_score
            )
            if better and self.phase.keep == "best" and self.world.main:
                save_weights(self._best(progress.step), self.objective)
        if self._average is not None:
            self._average.validated(progress.step, found.loss)
        if self.world.main:
            for score in found.scores:
                self.folder.append(score)
        self._since += time.perf_counter() - started  # its time is not training time
        return Position(progress.step, progress.step, mean) if better else progress

    def _agree(self) -> None:
        """Running statistics of batch norm are each process's own: all take the first one's."""
        for buffer in self.objective.buffers():
            self.world.broadcast(buffer)

    def _record(self, optimiser: torch.optim.Optimizer, done: int) -> None:
        risk, penalty, penalised, images = self.world.sum(self._sums).cpu().tolist()
        seconds = max(time.perf_counter() - self._since, 1e-9)
        if not math.isfinite(risk + penalty):
            raise RunError(
                f"the loss of phase '{self.phase.name}' was not finite before step {done}; lower "
                f"the learning rate ({optimiser.param_groups[0]['lr']:g}) or set "
                f"train.optimiser.clip, in a new run folder"
            )
        if self.world.main:
            loss = Loss(
                phase=self.phase.name,
                step=done,
                risk=risk / images,
                penalty=penalty / penalised if penalised else None,
                lr=optimiser.param_groups[0]["lr"],
                images_per_second=round(images / seconds, 1),
            )
            self.folder.append(loss)
        self._reset()

    def _reset(self) -> None:
        self._sums = torch.zeros(4, dtype=torch.float64, device=self.world.device)
        self._since = time.perf_counter()

    def _add(self, losses: Losses, images: float, *, penalised: bool) -> None:
        """An adversary's own loss in its turns is not a penalty of the model."""
        self._sums[0] += losses.risk * images
        self._sums[3] += images
        if losses.penalty is not None and penalised:
            self._sums[1] += losses.penalty * images
            self._sums[2] += images


def _note(progress: Position) -> str:
    return "" if progress.best_score is None else f"best validation {progress.best_score:.1%}"
