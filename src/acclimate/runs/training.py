"""A run: Step A, the training domains' μ, Step B, final scores. Resumes by itself.

Step A can be a job of its own, whose Φ many runs then share.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from acclimate.adapt.guard import Guard
from acclimate.adapt.methods import scored_chains
from acclimate.config import RunConfig
from acclimate.core.layout import write_checksums
from acclimate.core.watch import Watch, unwatched
from acclimate.data.manifest import Manifest
from acclimate.learn.embeddings import DomainState
from acclimate.learn.embeddings.domains import save_domain_map
from acclimate.learn.model import Trained, put_on
from acclimate.learn.models import Predictor
from acclimate.learn.site import Site
from acclimate.records.rehearsal import Rehearsal
from acclimate.runs.checkpoint import Position
from acclimate.runs.embedding_step import learn_embedding
from acclimate.runs.folder import SHARED, RunFolder
from acclimate.runs.identity import learned_identity, run_identity
from acclimate.runs.plan import Plan, make_plan
from acclimate.runs.predictor_step import train_predictor
from acclimate.runs.records import Finished, Score
from acclimate.runs.scoring import Evaluator
from acclimate.runs.session import Session, session
from acclimate.runs.shared import Baseline, SharedEmbedding, refuse_plain


class Rehearsed(NamedTuple):
    """What rehearsal adds to a finished plain model."""

    site: Site | None = None  # its second path
    rehearsal: Rehearsal | None = None
    confusion: Tensor | None = None  # [C, C] of the plain model on new images of its own domains


After = Callable[[Session, Predictor], Rehearsed]


@dataclass(frozen=True)
class RunResult:
    folder: Path
    finished: Finished
    already: bool  # the run was complete before this call


def train(
    config: RunConfig,
    manifest: Manifest,
    out: Path,
    *,
    device: str = "auto",
    watch: Watch = unwatched,
    say: Callable[[str], None] = lambda line: None,
    embedding: Path | None = None,
    plan: Plan | None = None,
    after: After | None = None,
) -> RunResult:
    """Train in folder `out`, or go on where a killed run stopped; a finished run is left alone.

    `embedding` is a folder of `train_embedding`: the run then uses that Φ instead of learning the
    very same one. `say` is told in a line what was decided for the user, and why. `plan` is what
    these settings come to, where somebody has made it already, and said what it decides. `after`
    is called with the finished predictor before it is saved and scored: see `rehearse.training`.
    """
    folder = RunFolder(out)
    if plan is None:
        plan = make_plan(folder.settled(config), manifest, device=device)
        for line in plan.decided if folder.finished is None else ():
            say(line)
    shared = None
    if embedding is not None:
        wanted = learned_identity(plan, manifest.digest())
        shared = SharedEmbedding(RunFolder(embedding, SHARED), wanted)
    with session(
        plan, folder, run_identity(plan), device=device, watch=watch, say=say, shared=shared
    ) as now:
        if now is not None:
            _train(now, shared, after)
    finished = folder.finished
    assert finished is not None
    return RunResult(out, finished, already=now is None)


def train_embedding(
    config: RunConfig,
    manifest: Manifest,
    out: Path,
    *,
    device: str = "auto",
    watch: Watch = unwatched,
    erm: Path | None = None,
) -> Path:
    """Step A of the run that `config` describes, in a folder of its own, for `train(embedding=…)`.

    It resumes by itself, and a finished one is left alone. `erm` is the finished run of that
    algorithm: a Φ that is made of an ERM model takes its weights instead of training them again.
    """
    folder = RunFolder(out, SHARED)
    plan = make_plan(folder.settled(config), manifest, device=device)
    refuse_plain(plan)
    baseline = None if erm is None else Baseline(RunFolder(erm), plan)
    if baseline is not None and not folder.complete():
        baseline.check()
    identity = learned_identity(plan, manifest.digest())
    with session(plan, folder, identity, device=device, watch=watch) as now:
        if now is not None:
            assert now.embedding is not None
            learn_embedding(now, now.embedding, baseline)
    return folder.phi


def _train(now: Session, shared: SharedEmbedding | None, after: After | None) -> None:
    plan, embedding, table = now.plan, now.embedding, None
    assert now.predictor is not None
    for chain in scored_chains(plan.config.adapt, plan.config.algorithm):
        chain.require(now.predictor, frozen=plan.frozen)
    if embedding is not None:
        if shared is not None and not now.folder.phi.exists():
            shared.adopt(now.folder, embedding, now.quarantine, now.world)
        table = learn_embedding(now, embedding)
    prior, ratios = tuple(plan.label_prior().tolist()), tuple(plan.label_ratios().tolist())
    evaluator = Evaluator(
        plan, now.source, now.world, now.predictor, prior, embedding, table, ratios=ratios
    )
    means = None if table is None else table.means.float().to(now.world.device)
    objective = plan.objective(now.predictor, now.world).to(now.world.device)
    progress = train_predictor(now, objective, evaluator.validation, means)
    now.predictor.eval()
    rehearsed = Rehearsed()
    if after is not None and now.world.main:  # one process: others might choose otherwise
        rehearsed = after(now, now.predictor)
    if now.extractor is not None:
        put_on(now.extractor, now.predictor, embedding)
    trained = Trained(
        plan.config,
        plan.classes,
        plan.train_domains,
        plan.manifest.digest(),
        prior,
        now.size,
        now.predictor,
        embedding,
        table,
        plan.val_domains,
        plan.test_domains,
        rehearsed.site,
        None if rehearsed.rehearsal is None else rehearsed.rehearsal.to_dict(),
        ratios,
        rehearsed.confusion,
    )
    if now.world.main:
        trained.save(now.folder.path)  # before scoring: whatever fails there, the model is kept
    now.world.wait()
    if after is not None and not now.world.main:
        trained = Trained.load(now.folder.path, now.world.device)
    second = None if trained.site is None else trained.start(embedding=True)
    judged = replace(evaluator, second=second, guard=Guard.of(trained))
    _finish(now, judged, progress)


def _finish(now: Session, evaluator: Evaluator, progress: Position) -> None:
    """Final scores of the kept weights, and the record that ends the run."""
    train = now.plan.config.train
    kept = progress.kept(train.keep)
    chosen = kept == progress.best_step and (train.keep == "best" or progress.window is not None)
    scores = list(_watched_scores(now, evaluator, kept))
    now.world.wait()
    now.quarantine.refresh()
    if now.world.main:
        if evaluator.table is not None:
            save_domain_map(now.folder.domain_map, _states(evaluator))
        for score in scores:
            now.folder.append(score)
        judges = "validation domains" if now.plan.val_domains else "validation splits"
        now.folder.append(
            Finished(
                kept_step=kept,
                kept_by=judges if chosen else "last step",
                kept_score=progress.best_score if chosen else None,
                kept_from=None if progress.window is None else progress.window[0],
                seconds=round(now.seconds(), 1),
                quarantined=len(now.quarantine),
            )
        )
        write_checksums(now.folder.path)
    now.world.wait()


def _watched_scores(now: Session, evaluator: Evaluator, step: int) -> Iterator[Score]:
    plan, seen = now.plan, set()
    domains = {*plan.train_domains, *plan.val_domains, *plan.test_domains}
    for score in evaluator.final(step):
        seen.add(score.domain)
        now.watch("scoring", len(seen), len(domains), score.domain)
        yield score


def _states(evaluator: Evaluator) -> dict[str, tuple[str, DomainState]]:
    assert evaluator.table is not None
    plan = evaluator.plan
    states = {name: ("train", state) for name, state in evaluator.table.states.items()}
    for name in (*plan.val_domains, *plan.test_domains):
        state = evaluator.unseen(name).state
        if state is not None and state.count:
            states[name] = (plan.role(name), state)
    return states
