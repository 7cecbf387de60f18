"""Predictions for a table of images of many sites, in shards that a killed command goes on after.

A shard is a range of the table's rows and one Parquet file. It is a pure function of the plan, so
that it does not matter which process makes it, when, and after how many kills.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from acclimate.adapt.choice import sure_answer
from acclimate.adapt.classifier import Adapted, apply_state
from acclimate.adapt.many import ManyDomains
from acclimate.core.distributed import pick_device
from acclimate.core.errors import (
    AcclimateError,
    ConfigError,
    DamagedFile,
    ImageError,
    ManifestError,
    RunError,
    damage_is,
    unknown,
)
from acclimate.core.files import (
    Fields,
    clear_temporary,
    file_digest,
    locked,
    parse_json,
    read_document,
    require_regular,
    write_atomically,
    write_document,
)
from acclimate.core.progress import Watch, unwatched
from acclimate.core.text import count, reason_of
from acclimate.data.source import Quarantine, Unlabelled
from acclimate.learn.embeddings import DomainState
from acclimate.learn.model import Trained
from acclimate.learn.models import takes_features

SHARD = 10_000  # rows
PLAN, LOCK = "plan.json", ".lock"
ENDING = ".safetensors"  # of a site's state
EXAMPLES = 5  # unreadable images that a shard notes
BLOCK = 1 << 20  # bytes of a column that are read at a time
_KEY = b"acclimate"  # of the metadata of a shard


@dataclass(frozen=True, kw_only=True)
class TableTask:
    """What to predict with which model, and where the predictions go."""

    run: Path
    table: Path
    out: Path
    domains: Path | None = None  # the folder with the sites' states; None: the plain model for all
    probabilities: bool = False  # of every class, beside that of the prediction
    at_least: float | None = None  # share of right answers that labels are to have
    unsure_below: float = 0.0  # confidence from which on an image has a label
    device: str = "auto"
    shard: int = SHARD

    def resolved(self) -> "TableTask":
        """With whole paths, for processes that work elsewhere."""
        domains = None if self.domains is None else self.domains.absolute()
        run, table, out = (path.absolute() for path in (self.run, self.table, self.out))
        return replace(self, run=run, table=table, out=out, domains=domains)

    def shard_path(self, number: int) -> Path:
        return self.out / f"part-{number:06}.parquet"


@dataclass(frozen=True)
class Plan:
    """All that decides the rows of every shard."""

    table: str  # digest
    rows: int
    model: str  # digest
    sites: Mapping[str, str]  # digest of the state of each site in the table
    thresholds: Mapping[str, float]  # confidence from which on its images have a label
    probabilities: bool
    at_least: float | None
    unsure_below: float
    shard: int

    @property
    def shards(self) -> int:
        return -(-self.rows // self.shard)

    def size(self, number: int) -> int:
        """Rows of a shard."""
        return min(self.shard, self.rows - number * self.shard)

    @classmethod
    def read(cls, out: Path) -> Self:
        path = out / PLAN
        with damage_is(RunError, "give another --out"):
            values = read_document(path)
            if values.keys() != cls.__dataclass_fields__.keys():
                raise DamagedFile(path)
            tables = {name: Fields(values, path).table(name) for name in ("sites", "thresholds")}
            return cls(**{**values, **tables})


class SiteFolder(Mapping[str, Adapted]):
    """Classifiers of the sites whose states lie in a folder, as SITE.safetensors; each state is
    read when its site is asked for."""

    def __init__(self, trained: Trained, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is no folder; give one with a state SITE{ENDING} per site")
        self._trained, self._folder = trained, folder

    def __getitem__(self, site: str) -> Adapted:
        if site not in self:
            raise KeyError(site)
        return apply_state(self._trained, DomainState.load(self._path(site)))

    def __contains__(self, site: object) -> bool:
        name = str(site)
        return Path(name).name == name and "\0" not in name and self._path(name).is_file()

    def __iter__(self) -> Iterator[str]:
        return (path.name.removesuffix(ENDING) for path in sorted(self._folder.glob(f"*{ENDING}")))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _path(self, site: str) -> Path:
        return self._folder / f"{site}{ENDING}"


@dataclass(frozen=True)
class Counts:
    """What is in the shards."""

    rows: int = 0
    unreadable: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)  # images of each
    examples: tuple[tuple[str, str], ...] = ()  # unreadable images, and why

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.rows + other.rows,
            self.unreadable + other.unreadable,
            dict(Counter(self.labels) + Counter(other.labels)),
            (*self.examples, *other.examples)[:EXAMPLES],
        )

    @classmethod
    def read(cls, shard: Path) -> "Counts":
        """Of a shard's file."""
        try:
            values = parse_json(pq.read_metadata(shard).metadata[_KEY])
            examples = tuple((image, reason) for image, reason in values.pop("examples"))
            return cls(**{**values, "examples": examples})
        except FileNotFoundError:
            raise RunError(
                f"{shard} was made and is not there; give an --out that every machine sees"
            ) from None
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
            raise RunError(f"{shard} is damaged; delete it and repeat the command") from None


class TablePredictor:
    """The model and the sites, loaded once; makes shards of a plan."""

    def __init__(self, task: TableTask) -> None:
        trained = Trained.load(task.run, pick_device(task.device))
        self.task, self.trained = task, trained
        if task.domains is None:
            self.many = ManyDomains({"": apply_state(trained, None)}, trained)
        else:
            self.many = ManyDomains(SiteFolder(trained, task.domains), trained)

    def make_plan(self, watch: Watch = unwatched) -> Plan:
        """Look at all that predictions depend on, and refuse what does not go together."""
        task = self.task
        with _table(task.table) as file:
            table, rows = file_digest(task.table), file.metadata.num_rows
            names = self._site_names(file)
        digests, thresholds = {}, {}
        for number, name in enumerate(names):
            watch("sites", number + 1, len(names), "")
            try:
                site = self.many.add(name)
                answer = task.at_least and sure_answer(self.trained, site.state, task.at_least)
            except ConfigError as error:
                raise ConfigError(f"site '{name}': {error}" if name else str(error)) from None
            digests[name] = "" if site.state is None else site.state.digest()
            thresholds[name] = answer.threshold if answer else task.unsure_below
        own = {name: getattr(task, name) for name in _ASKED}
        return Plan(table, rows, self.trained.digest(), digests, thresholds, **own)

    def _site_names(self, file: pq.ParquetFile) -> list[str]:
        """The sites in the table, each with a state; "" where there is one model for all."""
        wanted = ["image"] if self.task.domains is None else ["image", "site"]
        for column in [*wanted, *(["features"] if takes_features(self.trained.predictor) else [])]:
            if column not in file.schema_arrow.names:
                raise ManifestError(
                    f"{self.task.table.name} has no column '{column}'; name the column '{column}'"
                )
        if self.task.domains is None:
            return [""]
        names: set[str | None] = set()
        for batch in file.iter_batches(columns=["site"]):
            names.update(pc.unique(batch["site"].cast(pa.string())).to_pylist())
        for name in names:
            if name is None:
                raise ManifestError(f"{self.task.table.name} has rows without a site; name each")
            if name not in self.many.sites:
                what = f"site '{name}' has no state in {self.task.domains}"
                raise unknown(what, name, self.many.sites)
        return sorted(name for name in names if name is not None)

    def make_shard(self, plan: Plan, number: int, watch: Watch = unwatched) -> Counts:
        """Predict the rows of a shard and write its file, whole or not at all."""
        task, start = self.task, number * plan.shard
        rows = read_rows(task.table, start, start + plan.size(number))
        images = self._images(rows)
        sites = [""] * len(rows) if task.domains is None else rows["site"].to_pylist()
        quarantine = Quarantine()
        probabilities = np.full((len(rows), len(self.trained.classes)), np.nan, np.float32)
        for places, some in self.many.probabilities(images, sites, quarantine, watch):
            probabilities[places] = some
        reasons, named = dict(quarantine.entries), Unlabelled(images)
        problems = [reasons.get(named.image_name(row)) for row in range(len(rows))]
        sure = np.array([plan.thresholds[site] for site in sites])
        table, labels = self._columns(rows, probabilities, problems, sure)
        counts = Counts(
            rows=len(rows),
            unreadable=len(rows) - problems.count(None),
            labels=labels,
            examples=tuple(quarantine.entries[:EXAMPLES]),
        )
        text = json.dumps(asdict(counts))
        table = table.replace_schema_metadata({_KEY: text})
        options = {"compression": "zstd", "write_page_checksum": True}
        write_atomically(
            task.shard_path(number), lambda file: pq.write_table(table, file, **options)
        )
        return counts

    def _images(self, rows: pa.Table) -> Any:
        """What the model reads: features, encoded images, or files beside the table."""
        if takes_features(self.trained.predictor):
            return np.array(rows["features"].to_pylist(), dtype=np.float32)
        if "bytes" in rows.column_names:
            return rows["bytes"].to_pylist()
        folder = self.task.table.parent
        names = rows["image"].to_pylist()
        return [None if name is None else folder / name for name in names]

    def _columns(
        self,
        rows: pa.Table,
        probabilities: np.ndarray,
        problems: Sequence[str | None],
        thresholds: np.ndarray,
    ) -> tuple[pa.Table, dict[str, int]]:
        """The columns of a shard from probabilities [n, C] (NaN: unreadable), and how many images
        have each label."""
        classes = self.trained.classes
        unread = np.array([problem is not None for problem in problems], dtype=bool)
        best, top = probabilities.argmax(1), probabilities.max(1, initial=-np.inf)
        unsure = ~unread & (top < thresholds)

        def names(hidden: np.ndarray) -> pa.DictionaryArray:
            numbers = pa.array(best.astype(np.int32), mask=hidden)
            return pa.DictionaryArray.from_arrays(numbers, pa.array(classes, pa.string()))

        given = {name: rows[name] for name in ("image", "site") if name in rows.column_names}
        columns = {
            **given,
            "label": names(unread | unsure),
            "confidence": pa.array(top, pa.float32(), mask=unread),
            "problem": pa.array(problems, pa.string()),
        }
        if self.task.at_least or self.task.unsure_below:
            columns["unsure"] = names(~unsure)
        if self.task.probabilities:
            flat = pa.array(probabilities.ravel())
            every = pa.FixedSizeListArray.from_arrays(flat, len(classes), mask=pa.array(unread))
            columns["probabilities"] = every
        found = Counter(best[~unread & ~unsure].tolist())
        return pa.table(columns), {classes[number]: n for number, n in sorted(found.items())}


_ASKED = ("probabilities", "at_least", "unsure_below", "shard")  # of a task, also in its plan
_CHANGED = {
    "table": "another table",
    "rows": "another table",
    "model": "another model",
    "probabilities": "another --probabilities",
    "at_least": "another --at-least",
    "unsure_below": "another --unsure-below",
    "shard": "shards of another size",
}
Elsewhere = Callable[[TableTask, Plan, Sequence[int], Watch], None]


def predict_table(
    task: TableTask, watch: Watch = unwatched, elsewhere: Elsewhere | None = None
) -> tuple[Plan, Counts]:
    """Make the shards that are missing, here or by `elsewhere`; the rows are the same."""
    task = task.resolved()
    _require_own(task.out)
    predictor = TablePredictor(task)
    plan = predictor.make_plan(watch)
    with locked(task.out / LOCK, "predicting", RunError):
        clear_temporary(task.out, older_than=0)
        if (task.out / PLAN).exists():
            _require_same(Plan.read(task.out), plan, task.out)
        else:
            write_document(task.out / PLAN, asdict(plan))
        missing = [n for n in range(plan.shards) if not task.shard_path(n).exists()]
        if elsewhere is not None and missing:
            elsewhere(task, plan, missing, watch)
        else:
            make_shards(predictor, plan, missing, watch)
        counts = sum((Counts.read(task.shard_path(n)) for n in range(plan.shards)), Counts())
    if plan.rows and counts.unreadable == plan.rows:
        image, reason = counts.examples[0]
        raise ImageError(
            f"none of the {count(plan.rows, 'image')} of {task.table.name} can be read, e.g. "
            f"{image}: {reason}; give paths from the table's folder on"
        )
    return plan, counts


def make_shards(
    predictor: TablePredictor, plan: Plan, missing: Sequence[int], watch: Watch
) -> None:
    """Make these shards one after the other, in this process."""
    done = plan.rows - sum(map(plan.size, missing))
    for number in missing:
        done += predictor.make_shard(plan, number, _after(done, plan.rows, watch)).rows


def _after(before: int, total: int, watch: Watch) -> Watch:
    """Tells `watch` of a part of the work, with what was done `before` it."""
    return lambda phase, done, _, note: watch(phase, before + done, total, note)


def read_rows(path: Path, start: int, stop: int) -> pa.Table:
    """The rows from `start` to before `stop`, of which no more than the row groups that have them
    is read; a site is text."""
    wanted = ("image", "site", "bytes", "features")
    with _table(path) as file:
        ends = np.cumsum([file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)])
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left"))
        place = int(ends[first - 1]) if first else 0
        parts = []
        for batch in file.iter_batches(
            batch_size=SHARD,
            row_groups=list(range(first, min(last + 1, len(ends)))),
            columns=[name for name in file.schema_arrow.names if name in wanted],
        ):
            own = batch.slice(max(start - place, 0), max(stop - max(start, place), 0))
            place += len(batch)
            if len(own):
                parts.append(own)
            if place >= stop:
                break
        rows = pa.Table.from_batches(parts)
    for name in ("image", "site"):
        if name in rows.column_names:
            place = rows.column_names.index(name)
            rows = rows.set_column(place, name, rows[name].cast(pa.string()))
    return rows


@contextmanager
def _table(path: Path) -> Iterator[pq.ParquetFile]:
    """A Parquet file, of which a part is in memory at a time; what is wrong with it in a line."""
    if not path.exists():
        raise ManifestError(f"there is no table '{path}'; check the path")
    require_regular(path)
    try:
        with pq.ParquetFile(path, buffer_size=BLOCK, page_checksum_verification=True) as file:
            yield file
    except AcclimateError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ManifestError(
            f"cannot read {path.name} as a Parquet table: {reason_of(error)}; save it again"
        ) from error


def _require_own(out: Path) -> None:
    """Refuse a folder that holds something else than earlier shards."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file; give a new folder")
    if out.exists() and not (out / PLAN).exists():
        others = [path.name for path in out.iterdir() if not path.name.startswith(".")]
        if others:
            raise RunError(f"{out} holds something else, such as {others[0]}; give a new folder")


def _require_same(before: Plan, now: Plan, out: Path) -> None:
    """Refuse to mix shards: of another table, model, state or request."""
    remedy = "give another --out, or what it was begun with"
    for name, what in _CHANGED.items():
        if getattr(before, name) != getattr(now, name):
            raise RunError(f"the shards in {out} were begun with {what}; {remedy}")
    sites = {name: before.sites.get(name) for name in (*before.sites, *now.sites)}
    others = [name for name, digest in sites.items() if now.sites.get(name) != digest]
    if others:
        raise RunError(
            f"the shards in {out} were begun with another state of "
            f"{count(len(others), 'site')}, such as '{others[0]}'; {remedy}"
        )
