"""What was measured: data, machine, time. The facts at the end of a page."""

from collections.abc import Iterable, Sequence

from acclimate.core.wording import DASH, count, duration
from acclimate.results.runs import RunView

ADAPTED_ON = {
    "held-out": "of the same domain, kept out of the scoring",
    "test": "of the same domain, the scored ones themselves",
}


def facts(every: Sequence[RunView]) -> Iterable[tuple[str, str]]:
    """(term, text) pairs about the runs that can be read."""
    runs = [run for run in every if run.problem is None]
    finished = [run for run in runs if run.finished is not None]
    data = {f"{run.source} {run.data[:16]}".strip() for run in runs}
    yield "Data (digest)", ", ".join(sorted(data)) or DASH
    yield "Classes", _some({len(run.classes) for run in runs})
    yield "Domains", _domains(runs)
    yield "Seeds", ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
    yield "Adapted on", "; ".join(_adapted(finished)) or "no run adapts"
    kept = {run.finished.kept_by for run in runs if run.finished}
    yield "Weights kept by", ", ".join(sorted(kept)) or DASH
    starts = [start for run in runs for start in run.starts]
    machines = {f"{s.device}, {count(s.processes, 'process', 'processes')}" for s in starts}
    yield "Machine", "; ".join(sorted(machines)) or DASH
    yield "Version", ", ".join(sorted({start.version for start in starts})) or DASH
    seconds = sum(run.finished.seconds for run in runs if run.finished)
    yield "Time of all runs", duration(seconds)
    yield "Runs", f"{len(finished)} finished of {len(every)}"


def _domains(runs: Sequence[RunView]) -> str:
    """`4, each unseen in turn`, by data set where there are several; else how many of each role."""
    names = dict.fromkeys(run.dataset for run in runs if run.trial is not None)
    found = {name: [run for run in runs if run.dataset == name] for name in names}
    turns = {name: _in_turn(mine) for name, mine in found.items()}
    if not any(turns.values()):
        return _by_role(runs)
    if len(turns) == 1:
        return "".join(turns.values())
    return "; ".join(f"{name}: {text or _by_role(found[name])}" for name, text in turns.items())


def _in_turn(runs: Sequence[RunView]) -> str:
    """Of a sweep whose runs leave different domains unseen; "" where all leave the same."""
    unseen = {run.domains.get("test", ()) for run in runs}
    if len(unseen) < 2:
        return ""
    every = {name for run in runs for names in run.domains.values() for name in names}
    turns = {name for names in unseen for name in names}
    if turns == every:
        return f"{len(every)}, each unseen in turn"
    return f"{len(every)}, of which {len(turns)} are unseen in turn"


def _by_role(runs: Sequence[RunView]) -> str:
    roles = {"train": "training", "val": "validation", "test": "unseen test"}
    return ", ".join(
        f"{_some({len(run.domains.get(role, ())) for run in runs})} {word}"
        for role, word in roles.items()
    )


def _adapted(runs: Sequence[RunView]) -> Iterable[str]:
    found: dict[str, set[int]] = {}
    for run in runs:
        for score in run.final:
            if score.role == "test" and score.method == "embedding" and score.adapt_n is not None:
                found.setdefault(score.adapted_on or "", set()).add(score.adapt_n)
    for source, counts in sorted(found.items()):
        low, high = min(counts), max(counts)
        number = str(low) if low == high else f"{low} to {high}"
        yield f"{number} unlabelled images per domain, {ADAPTED_ON.get(source, source)}"


def _some(numbers: set[int]) -> str:
    """`3`, `3 or 4`; a range where there are many."""
    if len(numbers) > 3:
        return f"{min(numbers)} to {max(numbers)}"
    return " or ".join(str(number) for number in sorted(numbers)) or DASH
