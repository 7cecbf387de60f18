"""What is attacked by mixing up whole files: between two runs, with pipes and devices, by `--out`
at every file there is, and by copies of pictures across sites."""

import json
import os
import shutil
import socket
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from acclimate.adapt.saved import save_model
from acclimate.learn.model import Trained
from acclimate.rehearse.training import train
from fixtures.interruption import weights
from fixtures.sites import five_sites
from fuzz.commands import ANSWERED, Refused, Verdict, command
from fuzz.families import Family, _OfAModel, _train_until_killed, settings
from fuzz.mutations import Random


@dataclass
class _OfRuns(Family):
    """Cases that end with what commands say of a run, or with the weights of one that goes on."""

    def prepare(self) -> None:
        self.data = five_sites()
        for seed in (0, 1):
            train(settings(seed=seed), self.data, self.folder / f"whole-{seed}", device="cpu")
        _train_until_killed(self.data, self.folder / "killed-0")
        _train_until_killed(self.data, self.folder / "killed-1", seed=1)
        self.renewed("whole-0")
        self.whole = {name: ask() for name, ask in self.questions().items()}

    def renewed(self, name: str) -> Path:
        shutil.rmtree(self.case, ignore_errors=True)
        shutil.copytree(self.folder / name, self.case, ignore=shutil.ignore_patterns(".lock"))
        return self.case

    @property
    def case(self) -> Path:
        return self.folder / "case"

    def questions(self) -> dict[str, Callable[[], str]]:
        return {
            "evaluate": lambda: command("evaluate", self.case, "--json"),
            "theory": lambda: command("theory", self.case, "--json"),
            "theory in words": lambda: command("theory", self.case, "--budget", "1000"),
            "report": self._reported,
            "model": lambda: Trained.load(self.case).digest(),
        }

    def _reported(self) -> str:
        table = self.folder / "table.csv"
        flags = ("--out", self.folder / "page.html", "--table", table, "--json")
        (run,) = json.loads(command("report", self.case, *flags))["runs"]
        if run["problem"] is not None:
            raise Refused(f"error: {run['problem']}")
        return table.read_text()

    def asked(self, rng: Random, files: str) -> Verdict:
        """What a command answers of a `whole` run, or a training of one that was `killed`."""
        if files == "killed":
            train(settings(), self.data, self.case, device="cpu")
            mine, whole = weights(self.case), weights(self.folder / "whole-0")
            same = mine.keys() == whole.keys() and all(mine[k].equal(whole[k]) for k in whole)
            return ANSWERED if same else Verdict("wrong", "other weights, no error")
        questions = self.questions()
        name = list(questions)[rng.integers(len(questions))]
        same = questions[name]() == self.whole[name]
        return ANSWERED if same else Verdict("wrong", f"{name}: another answer, exit code 0")


@dataclass
class Swaps(_OfRuns):
    """Files of one run in the folder of another, lines and files that are gone."""

    def verdict(self, rng: Random) -> Verdict:
        kind = "killed" if rng.random() < 0.1 else "whole"
        case, other = self.renewed(f"{kind}-0"), self.folder / f"{kind}-1"
        names = sorted({path.name for path in (*case.iterdir(), *other.iterdir())} - {".lock"})
        for _ in range(int(rng.integers(1, 4))):
            self._mixed(case, other, names[rng.integers(len(names))], rng)
        if rng.random() < 0.2 and (other / "checksums.json").exists():
            shutil.copy(other / "checksums.json", case)
        return self.asked(rng, kind)

    def _mixed(self, case: Path, other: Path, name: str, rng: Random) -> None:
        mine, theirs, way = case / name, other / name, rng.integers(4)
        if way == 0:
            mine.unlink(missing_ok=True)
        elif way == 1 and name == "records.jsonl" and mine.exists():
            lines = mine.read_bytes().splitlines(keepends=True)
            others = theirs.read_bytes().splitlines(keepends=True)
            place = int(rng.integers(len(lines)))
            lines[place : place + int(rng.integers(1, 4))] = others[place : place + rng.integers(3)]
            mine.write_bytes(b"".join(lines))
        elif theirs.exists():
            shutil.copy(theirs, mine)
        else:
            mine.unlink()


@dataclass
class Pipes(_OfRuns):
    """A file of a run that is a pipe, a socket, a device, a folder, a loop, or a terabyte."""

    def verdict(self, rng: Random) -> Verdict:
        kind = "killed" if rng.random() < 0.1 else "whole"
        case = self.renewed(f"{kind}-0")
        names = sorted(path.name for path in case.iterdir())
        path = case / names[rng.integers(len(names))]
        path.unlink()
        way = rng.integers(6)
        if way == 0:
            os.mkfifo(path)
        elif way == 1:
            path.symlink_to(
                ("/dev/zero", "/dev/null", "/dev/tty", "/proc/self/mem")[rng.integers(4)]
            )
        elif way == 2:
            path.mkdir()
        elif way == 3:
            path.symlink_to(path)
        elif way == 4:
            with path.open("wb") as file:
                file.truncate(1 << 40)
        else:
            _socket(path)
        return self.asked(rng, kind)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's name is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


@dataclass
class Outs(_OfAModel):
    """`--out` at everything there is: it is replaced by its own kind, or not at all."""

    def prepare(self) -> None:
        super().prepare()
        place = self.folder / "place"
        shutil.copytree(self.run_folder, place / "run")
        shutil.copytree(self.folder / "tree" / "north", place / "north" / "north")
        save_model(Trained.load(self.run_folder), place / "site", None)
        shutil.copy(self.folder / "mu.safetensors", place / "site" / "site.safetensors")
        shutil.copy(self.folder / "mu.safetensors", place / "mine.safetensors")
        (place / "mine.csv").write_text("image,label\na.png,red\n")
        (place / "notes.md").write_text("# Notes\n")
        (place / "empty.csv").touch()
        self.kinds = {
            ".safetensors": ("adapt", place / "run", place / "north", "--method", "embedding"),
            ".csv": ("predict", place / "run", place / "north", "--domain", self._state),
            ".npz": ("export", place / "run", "--domain", self._state),
            ".parquet": ("build", "folder", place / "north"),
            ".html": ("report", place / "run"),
        }
        self.tables = [".md", ".tex", ".json"]
        for ending in self.kinds:
            self._run(ending, place / f"ours{ending}")
        for ending in self.tables:
            self._run(ending, place / f"ours{ending}")
        self._place = place
        self._pristine = _contents(place)

    @property
    def _state(self) -> Path:
        return self.folder / "mu.safetensors"

    def _run(self, ending: str, out: Path) -> None:
        if ending in self.kinds:
            command(*self.kinds[ending], "--out", out)
        else:
            page = self.folder / "scratch.html"
            command("report", self.folder / "place" / "run", "--out", page, "--table", out)

    def verdict(self, rng: Random) -> Verdict:
        every = [*self.kinds, *self.tables]
        ending, target = every[rng.integers(len(every))], self._target(rng)
        allowed = self._holds(ending, target)
        try:
            self._run(ending, target)
        except Refused as error:
            changed = self._restored(target)
            if changed:
                return Verdict("wrong", f"an error, and {changed} changed: {error}")
            raise
        changed = self._restored(target)
        real = Path(os.path.realpath(target))
        if allowed and changed <= {real, target}:
            return ANSWERED
        return Verdict("wrong", f"{ending} at {target} replaced {sorted(changed)}")

    def _target(self, rng: Random) -> Path:
        files = sorted(self._pristine)
        path, way = files[rng.integers(len(files))], rng.integers(6)
        odd = self._place / "odd.safetensors"
        odd.unlink(missing_ok=True)
        if way == 0:
            odd.symlink_to(path)
            return odd
        if way == 1:
            return path.parent / ".." / path.parent.name / path.name
        if way == 2:
            return path.parent
        if way == 3:
            new = ("site.safetensors", "labels.json", "new.csv", "checkpoint-main.safetensors")
            return path.parent / new[rng.integers(len(new))]
        return path

    def _holds(self, ending: str, target: Path) -> bool:
        """Whether the target may be written: by its content as it was made here."""
        real = Path(os.path.realpath(target))
        own = {"run", "site"}
        if real.parent.name in own and real.name in {
            *(path.name for path in self._pristine if path.parent.name in own),
            *("labels.json", "checkpoint-main.safetensors"),
        }:
            return False
        if real not in self._pristine:
            return not real.is_dir()
        states = {"mine.safetensors"} if ending == ".safetensors" else set()
        if ending in self.tables:  # the name says which table is written
            ending = target.suffix if target.suffix in self.tables else "none"
        named = real.name in {f"ours{ending}", "empty.csv", *states}
        return named or not self._pristine[real]

    def _restored(self, target: Path) -> set[Path]:
        """What is not as it was; and then it is again."""
        now = _contents(self._place)
        changed = {p for p in self._pristine if now.get(p) != self._pristine[p]}
        changed |= now.keys() - self._pristine.keys()
        for path in changed:
            if path in self._pristine:
                path.write_bytes(self._pristine[path])
            else:
                path.unlink()
        return changed


def _contents(folder: Path) -> dict[Path, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path: path.read_bytes() for path in files}


@dataclass
class Copies(Family):
    """One picture in several places, under several names: all of them are told."""

    def prepare(self) -> None:
        rng = np.random.default_rng(0)
        self.pictures = []
        for number in range(12):
            path = self.folder / f"{number}.png"
            Image.fromarray(rng.integers(0, 256, (12, 12, 3)).astype(np.uint8)).save(path)
            self.pictures.append(path.read_bytes())

    def verdict(self, rng: Random) -> Verdict:
        tree = self.folder / "case"
        shutil.rmtree(tree, ignore_errors=True)
        shown: dict[bytes, set[str]] = defaultdict(set)
        for number in range(int(rng.integers(4, 30))):
            name = f"{'abc'[rng.integers(3)]}/{'xy'[rng.integers(2)]}/{number}.png"
            picture = self.pictures[rng.integers(len(self.pictures))]
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(picture)
            shown[picture].add(name)
        data = tree
        if rng.random() < 0.5:
            data = self.folder / "case.parquet"
            command("build", "folder", tree, "--out", data)
        told = json.loads(command("inspect", data, "--json", "--read", "0"))["duplicates"]
        found = sorted(sorted(one["images"]) for one in told if not one["alike"])
        wanted = sorted(sorted(names) for names in shown.values() if len(names) > 1)
        return ANSWERED if found == wanted else Verdict("wrong", f"{found}, not {wanted}")
