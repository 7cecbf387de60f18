"""From a definition and its data to the list of jobs, checked before any of them starts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acclimate.adapt.methods import scored_chains
from acclimate.config import AlgorithmName, RunConfig, as_dict, from_dict
from acclimate.core.errors import ConfigError
from acclimate.core.files import json_digest
from acclimate.core.text import count
from acclimate.data.manifest import Manifest
from acclimate.data.readers import data_name
from acclimate.learn.algorithms import choose
from acclimate.learn.models import build_backbone
from acclimate.results.protocol import (
    Axis,
    DataSet,
    EmbeddingJob,
    Group,
    Job,
    Sweep,
    job_digest,
    job_name,
)
from acclimate.runs.identity import embedding_identity, weights_digest
from acclimate.runs.plan import Plan, make_plan, settled
from acclimate.sweep.contenders import Contender, contenders
from acclimate.sweep.definition import held_out, large_enough, open_domains, rule_of
from acclimate.sweep.settings import SweepConfig


def define(
    config: SweepConfig,
    manifests: Mapping[str, Manifest],
    *,
    data_of_variant: Mapping[str, str] | None = None,
    drawn: Mapping[str, Sequence[str]] | None = None,
    axis: Axis | None = None,
    device: str | None = "auto",
) -> Sweep:
    """Every job of the sweep on the data sets `manifests`, by name.

    A variant in `data_of_variant` runs on that data set only, the others on each. A data set in
    `drawn` is drawn anew for each trial, and trial t runs on the t-th of these manifests; the
    results of all are that data set's. Jobs are in an order in which a sweep that is stopped half
    way has whole trials. `device` is what they will run on (None: machines that cannot be seen from
    here); what depends on it is decided now.
    """
    own_data, drawn = data_of_variant or {}, drawn or {}
    large, _ = large_enough(config, manifests)
    rule = rule_of(config, large)
    competing = contenders(config, own_data)
    datasets = _datasets(config, manifests)
    later = {name for names in drawn.values() for name in names} - set(drawn)
    held = {name: held_out(config, large[name], rule) for name in datasets if name not in later}
    for name, draws in drawn.items():
        for one in draws:  # trials are averaged domain by domain
            if held_out(config, large[one], rule) != held[name]:
                raise ConfigError(
                    f"the draws '{name}' and '{one}' hold out different domains; give the unseen "
                    f"domains of each draw the same names"
                )
    cells = [
        _Cell(tuple(datasets[one] for one in drawn.get(name, (name,))), groups, contender)
        for name, all_groups in held.items()
        for groups in all_groups
        for contender in competing
        if own_data.get(contender.variant, name) == name
    ]
    jobs = list(_jobs(config, cells, manifests, device))
    _check_runs(jobs, manifests)
    embeddings, jobs = _with_embeddings(config, jobs, datasets, large)
    _refuse_equal_names(jobs)
    used = {job.dataset for job in jobs}
    return Sweep(
        title=config.title or ", ".join(name for name in held if name in used),
        rule=rule,
        baseline=config.baseline,
        datasets=tuple(datasets[name] for name in held if name in used),
        embeddings=tuple(embeddings),
        jobs=tuple(jobs),
        axis=axis,
        draws=tuple(datasets[name] for name in dict.fromkeys(job.drawn for job in jobs) if name),
    )


def notes(
    config: SweepConfig, manifests: Mapping[str, Manifest], sweep: Sweep | None = None
) -> list[str]:
    """What is worth saying before a sweep starts, and is no error."""
    _, remarks = large_enough(config, manifests)
    if config.baseline not in config.algorithms:
        remarks.append(
            f"the baseline {config.baseline} is not among the algorithms: no differences are shown"
        )
    remarks += [
        f"{name}: {count(shared, 'picture')} in several domains: rows of an unseen one that show "
        f"a training picture are not scored (--set data.keep_shared=true scores them)"
        for name, manifest in manifests.items()
        if (shared := manifest.shared_pictures())
    ]
    if sweep and any(job.config["model"]["freeze"] == "backbone" for job in sweep.jobs):
        remarks.append(
            "the backbone is frozen: features are extracted once and heads are trained on them; "
            "to train the whole network, --set model.freeze=none"
        )
    return remarks


@dataclass(frozen=True)
class _Cell:
    """A contender with these groups held out of a data set."""

    datasets: tuple[DataSet, ...]  # one for all trials, or a draw of it for each
    groups: tuple[Group, ...]
    contender: Contender

    @property
    def draws(self) -> int:
        """How many draws of the settings run. Pairs of groups only help to choose among several."""
        draws = self.contender.draws
        return 0 if len(self.groups) > 1 and draws == 1 else draws


def _jobs(
    config: SweepConfig,
    cells: list[_Cell],
    manifests: Mapping[str, Manifest],
    device: str | None,
) -> Iterator[Job]:
    models: dict[tuple[str, str], Any] = {}  # what data and device decide, once for equal settings
    for trial in range(config.trials):
        for draw in range(config.draws):
            runs: dict[tuple[str, str], RunConfig] = {}
            for cell in cells:
                if draw >= cell.draws:
                    continue
                line = (cell.contender.algorithm, cell.contender.variant)
                if line not in runs:
                    runs[line] = cell.contender.run(config, draw_number=draw, trial=trial)
                run, data = runs[line], cell.datasets[trial % len(cell.datasets)]
                key = (data.name, repr((run.data, run.model)))
                if key not in models:
                    models[key] = settled(run, manifests[data.name], device).model
                yield _job(cell, data, as_dict(replace(run, model=models[key])), draw, trial)


def _job(cell: _Cell, data: DataSet, settings: Mapping[str, Any], draw: int, trial: int) -> Job:
    names = sorted(name for group in cell.groups for name in group)
    config = {**settings, "test_domains": names}
    weights = weights_digest(config["model"]["weights"])
    digest = job_digest(data.digest, config, weights)
    groups = [",".join(group) for group in cell.groups]
    parts = [cell.contender.algorithm, cell.contender.variant, *groups, f"d{draw}", f"t{trial}"]
    return Job(
        id=job_name(parts, digest),
        dataset=cell.datasets[0].name,
        algorithm=cell.contender.algorithm,
        variant=cell.contender.variant,
        groups=cell.groups,
        draw=draw,
        trial=trial,
        config=config,
        drawn="" if data is cell.datasets[0] else data.name,
    )


def _datasets(config: SweepConfig, manifests: Mapping[str, Manifest]) -> dict[str, DataSet]:
    places = {data_name(path): path for path in config.data}
    datasets: dict[str, DataSet] = {}
    for name, manifest in manifests.items():
        digest, source = manifest.digest(), places.get(name, manifest.source)
        for other in datasets.values():
            if other.digest == digest:
                raise ConfigError(
                    f"'{other.name}' and '{name}' hold the same data; name one of them"
                )
        datasets[name] = DataSet(name=name, digest=digest, source=source, domains=manifest.domains)
    return datasets


def _with_embeddings(
    config: SweepConfig,
    jobs: list[Job],
    datasets: Mapping[str, DataSet],
    manifests: Mapping[str, Manifest],
) -> tuple[list[EmbeddingJob], list[Job]]:
    """One EmbeddingJob per distinct Φ, and the jobs with the one that each needs."""
    open_to = {name: set(open_domains(config, manifests[name])) for name in datasets}
    embeddings: dict[str, EmbeddingJob] = {}
    all_jobs = []
    for job in jobs:
        if AlgorithmName.of(job.algorithm).over_mu:  # its Φ is learned first
            data = datasets[job.data]
            unseen = set(data.domains) - (open_to[data.name] - set(job.held_out))
            run = from_dict(RunConfig, job.config, where=job.id)
            digest = json_digest(embedding_identity(run, data.digest, sorted(unseen)))
            groups = [",".join(group) for group in job.groups]
            name = job_name(["phi", run.embedding.name, *groups, f"t{job.trial}"], digest)
            phi = EmbeddingJob(id=name, dataset=job.dataset, config=job.config, drawn=job.drawn)
            job = replace(job, needs=embeddings.setdefault(digest, phi).id)
        all_jobs.append(job)
    return list(embeddings.values()), all_jobs


def _refuse_equal_names(jobs: list[Job]) -> None:
    first: dict[str, Job] = {}
    for job in jobs:
        other = first.setdefault(job.id, job)
        if other is not job:
            raise ConfigError(
                f"variants '{other.variant}' and '{job.variant}' would share the run folder "
                f"{job.id}; give them names that differ in letters or digits"
            )


def _check_runs(jobs: Sequence[Job], manifests: Mapping[str, Manifest]) -> None:
    """That every run could start, found out now rather than after hours of others' work: plan
    every run that differs in what plans look at, and build every backbone once."""
    seen: set[tuple[object, ...]] = set()
    for job in jobs:
        settings, manifest = job.config, manifests[job.data]
        algorithm = choose(job.algorithm)
        model = (settings["model"][key] for key in ("backbone", "pretrained", "weights"))
        network = ("network", *model, manifest.has_features, *job.methods)
        images = ("images", job.data, repr(settings["data"]), *network)
        rows = (
            *("rows", job.data, job.held_out, algorithm.adaptive, algorithm.build.least_domains),
            *(settings["embedding"]["name"], settings["adapt"]["source"]),
            *(settings["data"]["unseen_classes"], settings["train"]["domains_per_step"]),
        )
        if {images, rows} <= seen:
            continue
        # Images are opened once per data set, its settings and backbone: for other held-out
        # domains the rows alone decide.
        plan = _plan(job, manifest, check_files=images not in seen)
        if network not in seen:
            _check_backbone(plan)
        seen |= {network, images, rows}


def _plan(job: Job, manifest: Manifest, *, check_files: bool) -> Plan:
    config = from_dict(RunConfig, job.config, where=job.id)
    try:
        return make_plan(config, manifest, check_files=check_files)
    except ConfigError as error:
        if len(job.groups) == 1:
            raise
        together = " and ".join(",".join(group) for group in job.groups)
        raise ConfigError(
            f"cross-validation also holds out {together} together, and then {error}; "
            f"or choose the rule training-domains, which holds out one group at a time"
        ) from None


def _check_backbone(plan: Plan) -> None:
    """That it can be built, and adapted by the methods that are to score it."""
    model = plan.config.model
    backbone = build_backbone(
        model.backbone,
        pretrained=model.pretrained,
        weights=model.weights or None,
        in_features=plan.in_features,
        side=plan.config.data.image_size,
    )
    for chain in scored_chains(plan.config.adapt, plan.config.algorithm):
        chain.require(backbone, frozen=plan.frozen)
