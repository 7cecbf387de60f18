"""What is attacked: each family makes whole artefacts once, and damages copies of them."""

import csv
import json
import math
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load

from acclimate.config import RunConfig, from_dict, nested
from acclimate.core.files import parse_metadata
from acclimate.core.randomness import stream
from acclimate.core.tensors import DIGEST, save_tensors
from acclimate.data.manifest import Manifest
from acclimate.learn.embeddings import DomainState
from acclimate.records.folder import write_checksums
from acclimate.rehearse.training import train
from acclimate.report.export import to_csv
from acclimate.results.load import load_report
from acclimate.results.protocol import DataSet, Job, Sweep
from acclimate.results.sweep_folder import SweepFolder
from fixtures.interruption import weights
from fixtures.pandas_pickles import frame, released, saved
from fixtures.pictures import write_sites
from fixtures.run_folders import make_run, score
from fixtures.settings import TINY
from fixtures.sites import five_sites
from fuzz.commands import ANSWERED, Refused, Verdict, command, command_to, judged
from fuzz.mutations import Random, flipped, mutated, mutated_json, mutated_values
from fuzz.pictures import PICTURES, bombs


@dataclass
class Family(ABC):
    """Cases of one kind. `folder` is its own; `prepare` fills it, before the first case."""

    folder: Path

    @abstractmethod
    def prepare(self) -> None: ...

    @abstractmethod
    def verdict(self, rng: Random) -> Verdict: ...

    def run(self, seed: int, number: int) -> Verdict:
        rng = stream(seed, type(self).__name__, number)
        return judged(lambda: self.verdict(rng))

    def copied(self, whole: str) -> Path:
        """A fresh copy of a folder, to be damaged."""
        case = self.folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        return Path(shutil.copytree(self.folder / whole, case))


def settings(algorithm: str = "da-erm", **changes: Any) -> RunConfig:
    return from_dict(RunConfig, nested({"algorithm": algorithm, **TINY, **changes}), where="fuzz")


def predictions(path: Path) -> dict[str, dict[str, str]]:
    with path.open(encoding="utf-8", newline="", errors="surrogateescape") as file:
        return {row["image"]: row for row in csv.DictReader(file)}


@dataclass
class _OfAModel(Family):
    """Cases that end with predictions for two whole images."""

    def prepare(self) -> None:
        tree = write_sites(self.folder / "tree", 6, ".png")
        train(settings(), Manifest.open(tree), self.folder / "run", device="cpu")
        shutil.copytree(tree / "north" / "red", self.folder / "new")
        self.images = sorted((self.folder / "new").iterdir())
        for name, method in {"mu": "embedding", "both": "embedding+prior", "t3a": "t3a"}.items():
            path = self.folder / f"{name}.safetensors"
            self.adapt(path, self.folder / "new", "--method", method)
        self.whole = {name: self.predict(name) for name in ("mu", "both", "t3a")}

    @property
    def run_folder(self) -> Path:
        return self.folder / "run"

    def adapt(self, out: Path, *arguments: object) -> Path:
        return command_to(out, "adapt", self.run_folder, *arguments, "--device", "cpu")

    def predictions(
        self, images: Sequence[Path], state: str | Path = "mu", run: Path | None = None
    ) -> Path:
        path = self.folder / f"{state}.safetensors" if isinstance(state, str) else state
        flags = ("--domain", path, "--probabilities", "--device", "cpu")
        out = self.folder / "out.csv"
        return command_to(out, "predict", run or self.run_folder, *images, *flags)

    def predict(self, state: str | Path = "mu", run: Path | None = None) -> str:
        """The answer for two whole images."""
        return self.predictions(self.images[:2], state, run).read_text()

    def same(self, answer: str, expected: str) -> Verdict:
        return ANSWERED if answer == expected else Verdict("wrong", "another answer, exit code 0")


@dataclass
class States(_OfAModel):
    """Domain states: damaged ones, and ones that were made to look whole."""

    def verdict(self, rng: Random) -> Verdict:
        name = ("mu", "both", "t3a")[rng.integers(3)]
        path = self.folder / "case.safetensors"
        data = (self.folder / f"{name}.safetensors").read_bytes()
        hostile = rng.random() < 0.3
        path.write_bytes(_resealed(data, rng) if hostile else mutated(data, rng))
        if rng.random() < 0.5:
            return self._gone_on_from(path)
        answer = self.predict(path)
        return _any(answer) if hostile else self.same(answer, self.whole[name])

    def _gone_on_from(self, path: Path) -> Verdict:
        """A state that is added to is refused, or gives one that can be used."""
        out = self.adapt(self.folder / "gone-on.safetensors", *self.images[2:4], "--into", path)
        DomainState.load(out)
        return _any(self.predict(out))


@dataclass
class Models(_OfAModel):
    """Model folders: weights and descriptions."""

    def verdict(self, rng: Random) -> Verdict:
        run = self.folder / "case"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        for path in self.run_folder.iterdir():
            if path.suffix != ".json":
                os.link(path, run / path.name)
            else:
                shutil.copy(path, run)
        kind = rng.integers(4)
        if kind == 0:
            return self._damaged(run, "model.safetensors", rng)
        if kind == 1:
            return self._damaged(run, "model.json", rng)
        path = run / "model.json"
        if kind == 2:  # of somebody who knows of the checksums
            path.write_text(json.dumps(mutated_values(json.loads(path.read_text()), rng)))
            write_checksums(run, finished=True)
        else:
            weights_file = run / "model.safetensors"
            _replace(weights_file, _resealed(weights_file.read_bytes(), rng))
        return _any(self.predict("mu", run))

    def _damaged(self, run: Path, name: str, rng: Random) -> Verdict:
        data = (run / name).read_bytes()
        _replace(run / name, (flipped if rng.random() < 0.5 else mutated)(data, rng))
        return self.same(self.predict("mu", run), self.whole["mu"])


@dataclass
class Images(_OfAModel):
    """Pictures of every format, damaged, beside a whole one whose answer must not change."""

    def verdict(self, rng: Random) -> Verdict:
        name = list(PICTURES)[rng.integers(len(PICTURES))]
        bad = self.folder / "case" / f"bad.{name.split()[0]}"
        shutil.rmtree(bad.parent, ignore_errors=True)
        bad.parent.mkdir()
        bomb = rng.random() < 0.1
        bad.write_bytes(bombs(rng) if bomb else mutated(PICTURES[name], rng))
        good = self.images[0]
        try:
            rows = predictions(self.predictions([good, bad]))
        except Refused as error:
            return Verdict("wrong", f"a bad image stopped the good one: {error}")
        if rows.keys() != {str(good), str(bad)}:
            return Verdict("wrong", f"rows of {list(rows)}")
        if rows[str(good)] != self._good:
            return Verdict("wrong", "another answer for the whole image")
        row = rows[str(bad)]
        if row["problem"]:
            return Verdict("refused", row["problem"])
        sure = float(row["confidence"])
        return ANSWERED if 0 < sure <= 1 and row["label"] else Verdict("wrong", str(row))

    @cached_property
    def _good(self) -> dict[str, str]:
        return predictions(self.predictions(self.images[:2]))[str(self.images[0])]


@dataclass
class Checkpoints(Family):
    """Runs that were killed, and whose checkpoint is not what it was."""

    def prepare(self) -> None:
        self.data = five_sites()
        train(settings(), self.data, self.folder / "whole", device="cpu")
        killed = self.folder / "killed"
        _train_until_killed(self.data, killed)
        self.files = [p for p in killed.iterdir() if p.is_file() and p.name != ".lock"]

    def verdict(self, rng: Random) -> Verdict:
        run = self.copied("killed")
        path = run / self.files[rng.integers(len(self.files))].name
        path.write_bytes(mutated(path.read_bytes(), rng))
        train(settings(), self.data, run, device="cpu")
        mine, whole = weights(run), weights(self.folder / "whole")
        same = mine.keys() == whole.keys() and all(mine[k].equal(whole[k]) for k in whole)
        return ANSWERED if same else Verdict("wrong", f"other weights after damage to {path.name}")


@dataclass
class Manifests(Family):
    """Manifests, which have a checksum, and tables of strangers, which have none."""

    def prepare(self) -> None:
        root = write_sites(self.folder / "tree", 6, ".png")
        manifest = Manifest.from_folder(root)
        manifest.write(self.folder / "whole.parquet")
        five_sites().write(self.folder / "features.parquet")
        table = manifest.table.select(["image", "label", "domain", "split"])
        rows = [
            ",".join(table.column_names),
            *(",".join(row.values()) for row in table.to_pylist()),
        ]
        (root / "whole.csv").write_text("\n".join(rows) + "\n")
        lines = [json.dumps(row) for row in table.to_pylist()]
        (root / "whole.jsonl").write_text("\n".join(lines) + "\n")
        self.digests = {
            name: Manifest.open(self.folder / name).digest()
            for name in ("whole.parquet", "features.parquet")
        }

    def verdict(self, rng: Random) -> Verdict:
        names = (*self.digests, "tree/whole.csv", "tree/whole.jsonl")
        name = names[rng.integers(len(names))]
        whole = self.folder / name
        path = whole.with_stem("case")
        path.write_bytes(mutated(whole.read_bytes(), rng))
        json.loads(command("inspect", path, "--json", "--read", "3"))
        if name not in self.digests:
            return ANSWERED
        # Bytes that no part of the rows depends on may differ.
        same = Manifest.open(path).digest() == self.digests[name]
        return ANSWERED if same else Verdict("wrong", "other rows, exit code 0")


_ODD_NAMES = (
    *("x.png", "x", "=1+1.png", "<b>.png", "\x1b[31m.png", "\n.png", "\udcff.png"),
    *("a" * 250 + ".png", "-rf.png", "%s.png", "x.dcm", "x.heic", ".png", "..png"),
)


@dataclass
class Folders(_OfAModel):
    """Trees with what no tree should hold, beside whole images whose answers must not change."""

    def verdict(self, rng: Random) -> Verdict:
        tree = self.copied("tree")
        for _ in range(int(rng.integers(1, 6))):
            self._spoil(tree, rng)
        if rng.random() < 0.5:
            json.loads(command("inspect", tree, "--json", "--read", "3"))
            return ANSWERED
        # By a link or by its own name: each file is there once.
        rows = predictions(self.predictions([tree]))
        labels = {os.path.realpath(name): row["label"] for name, row in rows.items()}
        whole = sorted((tree / "east" / "red").glob("[0-9][0-9].png"))
        found = [labels.get(os.path.realpath(path)) for path in whole]
        return ANSWERED if found == self._labels else Verdict("wrong", f"{found} of {whole}")

    @cached_property
    def _labels(self) -> list[str]:
        images = sorted((self.folder / "tree" / "east" / "red").iterdir())
        return [row["label"] for row in predictions(self.predictions(images)).values()]

    def _spoil(self, tree: Path, rng: Random) -> None:
        below = (path for path in sorted(tree.rglob("*")) if not path.is_symlink())
        folders = [path for path in below if path.is_dir()]
        into = [tree, *folders][rng.integers(len(folders) + 1)]
        path = into / _ODD_NAMES[rng.integers(len(_ODD_NAMES))]
        if path.exists() or path.is_symlink():
            return
        targets = (path, tree, into, path.parent / "gone", Path("/dev/zero"), folders[0])
        kind = rng.integers(6)
        if kind < 2:
            path.symlink_to(targets[rng.integers(len(targets))])
        elif kind == 2:
            os.mkfifo(path)
        elif kind == 3:
            path.mkdir()
        elif kind == 4:
            path.write_bytes(rng.bytes(int(rng.integers(0, 400))))
        else:
            for number in range(3):  # folders that lead to each other
                other = into / f"link {number}"
                if not other.is_symlink():
                    other.symlink_to(folders[rng.integers(len(folders))])


@dataclass
class Runs(_OfAModel):
    """Run folders of strangers, in reports, scores and theorems."""

    def verdict(self, rng: Random) -> Verdict:
        run = self.copied("run")
        files = [path for path in sorted(run.iterdir()) if path.suffix in (".json", ".jsonl")]
        path = files[rng.integers(len(files))]
        if path.suffix == ".json":
            path.write_text(json.dumps(mutated_values(json.loads(path.read_text()), rng)))
        else:
            lines = path.read_text().splitlines()
            place = rng.integers(len(lines))
            values = json.loads(lines[place])
            lines[place] = json.dumps(mutated_values(values, rng))
            path.write_text("\n".join(lines) + "\n")
        if path.name != "checksums.json":
            write_checksums(run, finished=True)
        ways = (
            ("theory", run), ("theory", run, "--budget", "1000"), ("evaluate", run),
            ("report", run, "--out", self.folder / "page.html", "--table", self.folder / "t.csv"),
        )  # fmt: skip
        command(*ways[rng.integers(len(ways))])
        return ANSWERED


@dataclass
class Sweeps(Family):
    """Sweep folders and the runs in them: reports say what they leave out, or repeat themselves."""

    def prepare(self) -> None:
        jobs = [self._job(a, d, t) for a in ("erm", "da-erm") for d in "ab" for t in (0, 1)]
        data = DataSet(name="toy", digest="d1", source="toy.parquet", domains=("a", "b", "t1"))
        sweep = Sweep(
            title="toy", rule="training-domains", baseline="erm", datasets=(data,),
            embeddings=(), jobs=tuple(jobs),
        )  # fmt: skip
        whole = self.folder / "whole"
        SweepFolder(whole).write(sweep)
        for number, job in enumerate(jobs):
            (domain,) = job.groups[0]
            method = "embedding" if job.algorithm == "da-erm" else "none"
            found = [score(domain, 0.5 + number / 50, method)]
            folder = make_run(SweepFolder(whole).run(job.id).path, job.algorithm, job.trial, found)
            write_checksums(folder, finished=True)
        self.files = [p.relative_to(whole) for p in sorted(whole.rglob("*")) if p.is_file()]
        self.whole = self._tables(whole)

    def verdict(self, rng: Random) -> Verdict:
        case = self.copied("whole")
        # The definition as often as all the runs together.
        rest = [path for path in self.files if path.name != "sweep.json"]
        name = Path("sweep.json") if rng.random() < 0.5 else rest[rng.integers(len(rest))]
        path = case / name
        hostile = rng.random() < 0.4 and name.suffix == ".json"
        if hostile:
            path.write_text(json.dumps(mutated_values(json.loads(path.read_text()), rng)))
            if name.name != "checksums.json":
                write_checksums(path.parent, finished=True)
        elif name.suffix == ".json":
            path.write_bytes(mutated_json(path.read_bytes(), rng))
        else:
            path.write_bytes(mutated(path.read_bytes(), rng))
        tables = self._tables(case)
        if hostile or tables == self.whole:
            return ANSWERED
        report = load_report(case)
        told = any(run.problem or run.records.torn for run in report.runs) or report.waiting
        unfinished = any(run.finished is None for run in report.runs)
        if told or unfinished:
            return ANSWERED
        return Verdict("wrong", f"another table after damage to {name}")

    def _tables(self, folder: Path) -> str:
        return to_csv(load_report(folder))

    def _job(self, algorithm: str, domain: str, trial: int) -> Job:
        config = {"algorithm": algorithm, "seed": trial, "test_domains": [domain]}
        return Job(
            id=f"toy-{algorithm}-{domain}-{trial}", dataset="toy", algorithm=algorithm,
            groups=((domain,),), draw=0, trial=trial, config=config,
        )  # fmt: skip


@dataclass
class Pickles(Family):
    """The authors' table, which is read without being run."""

    streams: list[bytes] = field(default_factory=list)

    def prepare(self) -> None:
        for protocol in (3, 4, 5):
            made = saved(self.folder / "whole.pkl", frame(released()), protocol)
            self.streams.append(made.read_bytes())
        real = Path(__file__).parents[1] / "fixtures" / "pandas"
        self.streams += [path.read_bytes() for path in sorted(real.glob("*.pkl"))]

    def verdict(self, rng: Random) -> Verdict:
        path = self.folder / "case.pkl"
        path.write_bytes(mutated(self.streams[rng.integers(len(self.streams))], rng))
        command_to(self.folder / "case.parquet", "build", "geo-yfcc-released", path)
        return ANSWERED


def _train_until_killed(data: Manifest, run: Path, **changes: Any) -> None:
    from _pytest.monkeypatch import MonkeyPatch

    from fixtures.interruption import Killed, count_writes

    with MonkeyPatch.context() as patch:
        count_writes(patch, die_at=20)
        try:
            train(settings(**changes), data, run, device="cpu")
        except Killed:
            return
    raise AssertionError("the run ended before it was killed")


def _replace(path: Path, data: bytes) -> None:
    """Not into a file that has other names."""
    path.unlink()
    path.write_bytes(data)


def _any(answer: str) -> Verdict:
    """An answer that nobody can compare: numbers, at least."""
    rows = list(csv.DictReader(answer.splitlines()))
    shares = [float(value) for row in rows for value in (row["confidence"],) if value]
    good = bool(shares) and all(math.isfinite(share) and 0 <= share <= 1 for share in shares)
    return ANSWERED if good else Verdict("wrong", answer)


def _resealed(data: bytes, rng: Random) -> bytes:
    """A safetensors file with another content and a digest that agrees: not damage, but malice."""
    tensors = load(data)
    size = int.from_bytes(data[:8], "little")
    metadata = parse_metadata(json.loads(data[8 : 8 + size])["__metadata__"])
    metadata.pop(DIGEST, None)
    kind, names = rng.random(), sorted(tensors)
    if kind < 0.4:
        numbers = tensors[names[rng.integers(len(names))]].reshape(-1).view(torch.uint8)
        if len(numbers):
            numbers[rng.integers(len(numbers), size=8)] = 0xFF  # NaN, as likely as not
    elif kind < 0.7:  # they agree with each other, and with nothing else
        length = int(rng.integers(-1, 3))
        for name in [name for name in names if tensors[name].ndim == 1 and len(tensors[name])]:
            value = tensors[name]
            tensors[name] = value[:1] if length < 0 else torch.cat([value, value[:1]])
    else:
        texts = mutated_values(metadata, rng)
        whole = texts if isinstance(texts, dict) else {"": texts}
        metadata = {str(key): str(value) for key, value in whole.items()}
    with tempfile.TemporaryDirectory() as folder:
        save_tensors(Path(folder) / "a", tensors, metadata)
        return (Path(folder) / "a").read_bytes()
