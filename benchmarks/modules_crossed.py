"""How many modules does one image cross from `train` to predictions.csv, and how many one sweep?

A module counts once one of its functions runs, in the command or in a worker of its own; what runs
while modules are imported (class bodies, decorators, tables) does not. Packages' `__init__` do not
count: they hold tables and re-exports.

    python benchmarks/modules_crossed.py           lists them
    python benchmarks/modules_crossed.py --write   writes the table in docs/architecture.md
    python benchmarks/modules_crossed.py --check   fails where there are more than that table says
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import acclimate
from pages import fill, section

SOURCE = Path(acclimate.__file__).resolve().parent
PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
SETTINGS = {
    "model.width": 8, "model.hidden": 8, "embedding.dim": 4, "embedding.steps": 2,
    "embedding.domains_per_step": 3, "embedding.per_domain": 4, "train.steps": 2,
    "train.per_domain": 4, "train.evaluate_every": 1, "adapt.points": 6,
}  # fmt: skip

# Read by every Python process below: notes the file of each function that is called, when it is
# first called, so that a worker that is killed has told all that it did.
HOOK = """
import inspect, os, sys, threading

folder, source = os.environ["CROSSED"], os.environ["CROSSED_SOURCE"]
seen = set()

def importing(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__":
            return True
        frame = frame.f_back
    return False

def note(frame, event, argument):
    code = frame.f_code
    if event != "call" or not code.co_flags & inspect.CO_OPTIMIZED:
        return
    file = code.co_filename
    if file.startswith(source) and file not in seen and not importing(frame):
        seen.add(file)
        with open(os.path.join(folder, str(os.getpid())), "a") as out:
            out.write(file + os.linesep)

threading.setprofile(note)
sys.setprofile(note)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="the table in docs/architecture.md")
    parser.add_argument("--check", action="store_true", help="fail where the table says fewer")
    arguments = parser.parse_args()
    image, sweep = walks()
    if arguments.write:
        fill(PAGE, "crossed", table(image, sweep))
    elif arguments.check:
        stated = section(PAGE.read_text(encoding="utf-8"), "crossed").splitlines()[-1]
        limits = [int(cell) for cell in stated.split("|")[2:4]]
        if len(image) > limits[0] or len(sweep) > limits[1]:
            sys.exit(
                f"{len(image)} and {len(sweep)} modules crossed, not {limits}; see {PAGE.name}"
            )
    else:
        show("one image, from train to predictions.csv", image)
        show("one sweep", sweep)


def walks() -> tuple[list[str], list[str]]:
    """The modules that one image crosses from `train` to predictions.csv, and those of a sweep."""
    settings = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        draw_sites(home)
        train = ["train", "sites", "--algorithm", "da-erm", "--out", "run", *settings]
        adapt = ["adapt", "run", "new-site", "--out", "new-site.safetensors"]
        predict = ["predict", "run", "new-site", "--domain", "new-site.safetensors"]
        sweep = ["sweep", "sites", "--algorithms", "erm,da-erm", "--trials", "1", "--out", "sweep"]
        image = crossed(home, train, adapt, [*predict, "--out", "predictions.csv"])
        assert (home / "predictions.csv").exists()
        return image, crossed(home, [*sweep, "--test-domains", "north", *settings])


def table(image: list[str], sweep: list[str]) -> str:
    """Modules crossed in each package, as Markdown."""
    packages = sorted({module.split("/")[0] for module in (*image, *sweep)})
    lines = ["| | crossed by an image | by a sweep |", "|---|---:|---:|"]
    for package in packages:
        counts = [sum(m.split("/")[0] == package for m in walk) for walk in (image, sweep)]
        lines.append(f"| {package}/ | {counts[0]} | {counts[1]} |")
    return "\n".join([*lines, f"| **all** | {len(image)} | {len(sweep)} |"])


def draw_sites(home: Path) -> None:
    """Four sites of two classes as folders, and unlabelled images of a new one."""
    rng = np.random.default_rng(0)
    for site in ("north", "south", "east", "west"):
        for label, channel in {"red": 0, "blue": 2}.items():
            for number in range(12):
                pixels = rng.integers(0, 160, (16, 16, 3), dtype=np.uint8)
                pixels[4:12, 4:12, channel] += 80
                _save(pixels, home / "sites" / site / label / f"{number}.png")
    for number in range(12):
        pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        _save(pixels, home / "new-site" / f"{number}.png")


def _save(pixels: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def crossed(home: Path, *commands: list[str]) -> list[str]:
    """The modules of acclimate of which a function ran, as paths below its folder."""
    with tempfile.TemporaryDirectory() as hooks, tempfile.TemporaryDirectory() as notes:
        Path(hooks, "sitecustomize.py").write_text(HOOK, encoding="utf-8")
        path = os.pathsep.join([hooks, str(SOURCE.parent)])
        hooked = {"PYTHONPATH": path, "CROSSED": notes, "CROSSED_SOURCE": str(SOURCE)}
        for command in commands:
            line = [sys.executable, "-m", "acclimate", *command]
            subprocess.run(line, cwd=home, env=os.environ | hooked, check=True, capture_output=True)
        files = {line for note in Path(notes).iterdir() for line in note.read_text().splitlines()}
    modules = (Path(file).relative_to(SOURCE) for file in files if file.endswith(".py"))
    return sorted(str(module) for module in modules if module.stem != "__init__")


def show(title: str, modules: list[str]) -> None:
    print(f"{title}: {len(modules)} modules")
    print("".join(f"  {module}\n" for module in modules))


if __name__ == "__main__":
    main()
