"""What a folder of runs shows, as data. Tables, plots and pages are views of a `Summary`.

Replicates are seeds: the runs of one algorithm on the same data with the same seed form a *trial*,
so that leave-one-domain-out runs count once per seed, with all their test domains together.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.errors import RecordError, RunError
from acclimate.records import Finished, Records, Score, Started, read

FORMAT = "acclimate-run-1"
SPELLING = {"group-dro": "GroupDRO", "mixup": "Mixup", "cdann": "C-DANN"}
SUFFIXES = {
    "none": ", not adapted",
    "wrong-embedding": ", wrong domain's embedding",
    "oracle-prior": " + true label frequencies (oracle)",
}
# Two-sided 95 % points of Student's t for 1..30 degrees of freedom; beyond, the last is cautious.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, order=True)
class Key:
    """A line of the summary: how the model was trained, and how it was used on a domain."""

    algorithm: str
    method: str

    @property
    def kind(self) -> str:
        """ "method", "control" (meant to fail) or "ceiling" (knows what no method may know)."""
        return {"wrong-embedding": "control", "oracle-prior": "ceiling"}.get(self.method, "method")

    @property
    def label(self) -> str:
        base = self.algorithm.removeprefix("da-")
        adaptive = base != self.algorithm
        name = ("DA-" if adaptive else "") + SPELLING.get(base, base.upper())
        if self.method == ("embedding" if adaptive else "none"):
            return name
        return name + SUFFIXES.get(self.method, f", {self.method}")


ERM = Key("erm", "none")


@dataclass(frozen=True, kw_only=True)
class RunView:
    """What a run folder holds. `problem` says why it cannot be read; then the rest is empty."""

    name: str  # relative to the folder that was searched
    folder: Path
    problem: str | None = None
    algorithm: str = ""
    seed: int = 0
    data: str = ""
    source: str = ""
    classes: tuple[str, ...] = ()
    domains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # role -> names
    config: Mapping[str, Any] = field(default_factory=dict)
    records: Records = field(default_factory=lambda: Records(()))
    quarantined: tuple[tuple[str, str], ...] = ()  # (image, reason)

    @property
    def finished(self) -> Finished | None:
        return self.records.finished

    @property
    def final(self) -> list[Score]:
        return [score for score in self.records.scores if score.moment == "final"]

    @property
    def starts(self) -> list[Started]:
        return [record for record in self.records.all if isinstance(record, Started)]


def find_runs(folder: Path) -> list[RunView]:
    """Every run below `folder`, in the order of their names; unfinished and damaged ones too."""
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; give the folder that holds the runs")
    found = sorted(path.parent for path in folder.rglob("run.json"))
    return [_view(run, run.relative_to(folder).as_posix()) for run in found]


def _view(folder: Path, name: str) -> RunView:
    name = folder.resolve().name if name == "." else name
    try:
        stored = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        version = stored.get("format", FORMAT)
        if version != FORMAT:
            return RunView(name=name, folder=folder, problem=f"run.json: unknown format {version}")
        return RunView(
            name=name,
            folder=folder,
            algorithm=str(stored["config"]["algorithm"]),
            seed=int(stored["config"]["seed"]),
            data=str(stored["data"]),
            source=str(stored.get("source", "")),
            classes=tuple(stored.get("classes", ())),
            domains={r: tuple(stored.get(f"{r}_domains", ())) for r in ("train", "val", "test")},
            config=stored["config"],
            records=read(folder / "records.jsonl"),
            quarantined=_quarantined(folder / "quarantine.jsonl"),
        )
    except RecordError as error:
        problem = str(error).replace(f"{folder}/", "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        problem = "run.json: not the description of a run; restore it or delete the folder"
    return RunView(name=name, folder=folder, problem=problem)


def _quarantined(path: Path) -> tuple[tuple[str, str], ...]:
    if not path.exists():
        return ()
    entries = []
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            entry = json.loads(line)
            entries.append((str(entry["image"]), str(entry["reason"])))
        except (ValueError, KeyError, TypeError):
            entries.append((f"{path.name}, line {number}", "the entry itself cannot be read"))
    return tuple(entries)


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds; `se` is sample standard deviation / √n, `None` for one seed."""

    mean: float
    se: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Estimate | None":
        known = [value for value in values if value is not None]
        if not known:
            return None
        se = float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None
        return cls(float(np.mean(known)), se, len(known))


@dataclass(frozen=True)
class Line:
    """One (algorithm, method) on unseen test domains, and on the training domains as `seen`."""

    key: Key
    unseen: Estimate | None
    worst: Estimate | None
    top5: Estimate | None
    seen: Estimate | None
    runs: int
    seeds: int
    domains: int


@dataclass(frozen=True)
class Change:
    """A domain's mean over the paired seeds, before and after."""

    domain: str
    before: float
    after: float


@dataclass(frozen=True)
class Difference:
    """A line less another, in pairs with equal data and seed, over the domains both scored."""

    line: Key
    against: Key
    gain: Estimate | None  # of the per-seed differences; `None` where nothing can be paired
    before: float | None
    after: float | None
    pairs: int  # (domain, seed)
    improved: int
    changes: tuple[Change, ...]
    remark: str = ""  # why there is no pair, or what is unequal about the pairs

    @property
    def verdict(self) -> str:
        """ "better" or "worse" where Student's 95 % interval over seeds leaves out 0, else "noise";
        "one seed" or "unpaired" where there is no interval."""
        if self.gain is None:
            return "unpaired"
        if self.gain.se is None:
            return "one seed"
        margin = _T95[min(self.gain.n - 1, len(_T95)) - 1] * self.gain.se
        if abs(self.gain.mean) <= max(margin, 1e-9):
            return "noise"
        return "better" if self.gain.mean > 0 else "worse"


@dataclass(frozen=True)
class DomainRow:
    """A test domain: for each line its mean over seeds, `None` where it was not scored."""

    domain: str
    top1: Mapping[Key, float | None]


@dataclass(frozen=True)
class Summary:
    runs: tuple[RunView, ...]
    baseline: Key
    lines: tuple[Line, ...]
    differences: tuple[Difference, ...]  # each line to the baseline; controls to their method too
    domains: tuple[DomainRow, ...]

    @property
    def finished(self) -> list[RunView]:
        return [run for run in self.runs if run.finished is not None]

    @property
    def contenders(self) -> list[Key]:
        """What is compared with the baseline: its adaptive version first, then by name. Not by
        score: the best of many on the test domains would look better than it is."""
        keys = [line.key for line in self.lines if line.key.kind == "method"]
        first = f"da-{self.baseline.algorithm}"
        others = [key for key in keys if key != self.baseline]
        return sorted(others, key=lambda key: (key.algorithm != first, key))

    def line(self, key: Key) -> Line | None:
        return next((line for line in self.lines if line.key == key), None)

    def difference(self, line: Key, against: Key) -> Difference | None:
        pairs = {(found.line, found.against): found for found in self.differences}
        return pairs.get((line, against))


@dataclass(frozen=True)
class _Cell:
    top1: float
    top5: float | None
    n: int


_Replicate = tuple[str, int]  # data digest, seed
_Trials = dict[_Replicate, dict[str, _Cell]]  # -> domain -> score


def summarise(runs: Sequence[RunView], baseline: Key = ERM) -> Summary:
    """Finished runs in numbers. Unfinished and damaged ones stay in `runs`, uncounted."""
    finished = [run for run in runs if run.finished is not None]
    unseen, seen = _trials(finished, "test"), _trials(finished, "train")
    rank = {"method": 0, "control": 1, "ceiling": 2}
    keys = sorted(unseen, key=lambda key: (rank[key.kind], key != baseline, key))
    lines = tuple(_line(key, unseen[key], seen.get(key, {}), finished) for key in keys)
    against = [(key, baseline) for key in keys if key != baseline]
    against += [(k, Key(k.algorithm, "embedding")) for k in keys if k.kind == "control"]
    differences = tuple(
        _difference(key, other, unseen[key], unseen.get(other, {})) for key, other in against
    )
    names = sorted(
        {name for trials in unseen.values() for cells in trials.values() for name in cells}
    )
    domains = tuple(
        DomainRow(name, {key: _over_seeds(unseen[key], name) for key in keys}) for name in names
    )
    return Summary(tuple(runs), baseline, lines, differences, domains)


def _trials(runs: Iterable[RunView], role: str) -> dict[Key, _Trials]:
    scores: dict[Key, dict[_Replicate, dict[str, list[Score]]]] = {}
    for run in runs:
        for score in run.final:
            if score.role == role and score.top1 is not None:
                trials = scores.setdefault(Key(run.algorithm, score.method), {})
                cells = trials.setdefault((run.data, run.seed), defaultdict(list))
                cells[score.domain].append(score)
    return {
        key: {
            replicate: {domain: _cell(found) for domain, found in cells.items()}
            for replicate, cells in trials.items()
        }
        for key, trials in scores.items()
    }


def _cell(scores: Sequence[Score]) -> _Cell:
    top1 = [score.top1 for score in scores if score.top1 is not None]
    top5 = [score.top5 for score in scores if score.top5 is not None]
    return _Cell(float(np.mean(top1)), float(np.mean(top5)) if top5 else None, scores[0].n)


def _line(key: Key, unseen: _Trials, seen: _Trials, runs: Iterable[RunView]) -> Line:
    tops = [[c.top5 for c in cells.values() if c.top5 is not None] for cells in unseen.values()]
    return Line(
        key=key,
        unseen=Estimate.of(_mean(cells) for cells in unseen.values()),
        worst=Estimate.of(min(cell.top1 for cell in cells.values()) for cells in unseen.values()),
        top5=Estimate.of(float(np.mean(top)) for top in tops if top),
        seen=Estimate.of(_mean(cells) for cells in seen.values()),
        runs=sum(
            run.algorithm == key.algorithm and any(s.method == key.method for s in run.final)
            for run in runs
        ),
        seeds=len(unseen),
        domains=len({domain for cells in unseen.values() for domain in cells}),
    )


def _mean(cells: Mapping[str, _Cell]) -> float:
    return float(np.mean([cell.top1 for cell in cells.values()]))


def _over_seeds(trials: _Trials, domain: str) -> float | None:
    known = [cells[domain].top1 for cells in trials.values() if domain in cells]
    return float(np.mean(known)) if known else None


def _difference(key: Key, against: Key, mine: _Trials, theirs: _Trials) -> Difference:
    pairs = {
        replicate: [
            (d, theirs[replicate][d], cell) for d, cell in cells.items() if d in theirs[replicate]
        ]
        for replicate, cells in mine.items()
        if replicate in theirs
    }
    pairs = {replicate: found for replicate, found in pairs.items() if found}
    if not pairs:
        remark = _no_pair(key, against, mine, theirs)
        return Difference(key, against, None, None, None, 0, 0, (), remark)
    before = [float(np.mean([b.top1 for _, b, _ in found])) for found in pairs.values()]
    after = [float(np.mean([a.top1 for _, _, a in found])) for found in pairs.values()]
    flat = [pair for found in pairs.values() for pair in found]
    return Difference(
        line=key,
        against=against,
        gain=Estimate.of(a - b for a, b in zip(after, before, strict=True)),
        before=float(np.mean(before)),
        after=float(np.mean(after)),
        pairs=len(flat),
        improved=sum(a.top1 > b.top1 for _, b, a in flat),
        changes=_changes(flat),
        remark=_inequality(key, against, pairs, mine, theirs),
    )


def _changes(pairs: Iterable[tuple[str, _Cell, _Cell]]) -> tuple[Change, ...]:
    by_domain: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for domain, before, after in pairs:
        by_domain[domain].append((before.top1, after.top1))
    means = {domain: np.mean(found, axis=0) for domain, found in sorted(by_domain.items())}
    return tuple(Change(domain, float(b), float(a)) for domain, (b, a) in means.items())


def _no_pair(key: Key, against: Key, mine: _Trials, theirs: _Trials) -> str:
    if not theirs:
        return f"there is no finished run of {against.label}"
    if not {data for data, _ in mine} & {data for data, _ in theirs}:
        return f"{key.label} and {against.label} ran on different data"
    if not set(mine) & set(theirs):
        return f"{key.label} and {against.label} have no seed in common"
    return f"{key.label} and {against.label} have no test domain in common"


def _inequality(
    key: Key,
    against: Key,
    pairs: Mapping[_Replicate, Sequence[tuple[str, _Cell, _Cell]]],
    mine: _Trials,
    theirs: _Trials,
) -> str:
    remarks = []
    every = len(set(mine) | set(theirs))
    if len(pairs) < every:
        remarks.append(f"only {len(pairs)} of {every} seeds could be paired")
    if any({d for d, _, _ in found} != {*mine[r], *theirs[r]} for r, found in pairs.items()):
        remarks.append("only the test domains that both scored are compared")
    if any(before.n != after.n for found in pairs.values() for _, before, after in found):
        remarks.append("they were scored on different numbers of images")
    return f"{key.label} and {against.label}: {'; '.join(remarks)}" if remarks else ""
