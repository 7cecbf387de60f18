"""The messages that people see, in one file that a person reads: tests/messages.txt.

Other tests assert an error's class and the facts in it. How it is worded is reviewed there.
After a change of words: `python tests/test_messages.py`, then read the difference.
"""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from acclimate.data.manifest import Manifest
from fuzz.commands import Refused, command

MESSAGES = Path(__file__).with_name("messages.txt")
TRAIN, ERM = "train sites.parquet", "train sites.parquet --algorithm erm"
SWEEP = "sweep sites.parquet --set train.steps=5"
COMMANDS = [
    "inspect nowhere",
    "inspect empty",
    "inspect notes.md",
    "train nowhere",
    "train no-domain.csv",
    "train one-class.csv",
    "train missing-images.csv --algorithm erm",
    "train broken-images --algorithm erm",
    f"{TRAIN} --algorithm da-erw",
    f"{TRAIN} --algorithm da-mtl",
    f"{TRAIN} --algorithm erm-plus-plus",
    f"{TRAIN} --preset geo-yfc",
    f"{TRAIN} --config nowhere.toml",
    f"{TRAIN} --config broken.toml",
    f"{TRAIN} --set train.stebs=5",
    f"{TRAIN} --set train.steps",
    f"{TRAIN} --set train.steps=many",
    f"{TRAIN} --set train.steps=-1",
    f"{ERM} --test-domains site-9",
    f"{ERM} --test-domains site-0,site-1,site-2",
    f"{ERM} --backbone resnet5",
    f"{ERM} --weights nowhere.pth",
    f"{ERM} --min-images 1000",
    f"{ERM} --device tpu",
    f"{TRAIN} --set embedding.name=prototipe --algorithm da-erm",
    f"{ERM} --out /dev/null/run",
    f"{ERM} --out notes.md",
    f"{ERM} --out busy",
    f"{TRAIN} --algorithm da-erm --test-domains site-0,site-1",
    "adapt nowhere photos --out site.safetensors",
    "adapt empty photos --out site.safetensors",
    "adapt empty empty --out site.safetensors",
    "adapt empty nowhere --out site.safetensors",
    "adapt empty photos --set train.steps=3 --out site.safetensors",
    "predict empty photos --adapt --domain site.safetensors --out p.csv",
    "predict empty photos --at-least 98 --out p.csv",
    "predict empty photos --at-least 0.98 --unsure-below 0.9 --out p.csv",
    "evaluate empty",
    "evaluate empty --method tent",
    "export empty --out site.npz",
    "export empty --conditioned --domain s.safetensors --out m.onnx",
    "pack sites.parquet",
    "build folder nowhere --out made.parquet",
    "build folder photos --val-share 1 --out made.parquet",
    "build table no-domain.csv --out made.parquet",
    "build table notes.md --out made.parquet",
    "build folder photos --out made.xlsx",
    "build domainbed photos --dataset pacz --out made.parquet",
    "build wilds photos --data camelyon --out made.parquet",
    "build wilds photos --data camelyon17 --out made.parquet",
    "build spawrious photos --challenge o2o-hard --out made.parquet",
    "build idx photos --kind rotated --out made.parquet",
    "build corrupt photos --kinds jpeg,fog --out made.parquet",
    "build corrupt photos --severities 9 --out made.parquet",
    "build shards notes.md --out made.parquet",
    "build shards nowhere.tar --out made.parquet",
    "build shards nowhere://bucket/a.tar --out made.parquet",
    "sweep",
    f"{SWEEP} --algorithms erm,corall",
    f"{SWEEP} --algorithms erm --rule leave-one",
    f"{SWEEP} --algorithms erm --test-domains site-9",
    f"{SWEEP} --algorithms erm --methods embedding",
    f"{SWEEP} --algorithms erm --search model.dropout=0.5",
    f"{SWEEP} --algorithms erm --search lr",
    f"{SWEEP} --algorithms erm --launcher lokal",
    f"{SWEEP} --algorithms erm --max-parallel 0",
    f"{SWEEP} --algorithms erm --slurm partition",
    f"{SWEEP} --algorithms erm --out busy",
    "report nowhere",
    "report empty",
    "report empty --format gif",
    "report empty --table results.doc",
    f"{ERM} --track tensorbord --out run",
    "track empty --to mlflow",
    "track empty --to wandb --model",
    "track empty --to mlflow --site s.safetensors",
    "ablate domain --out ablation",
    "reproduce table-9 --small",
    "reproduce table-1",
    "list algorithmz",
    "trian sites",
]


def messages() -> str:
    """What each command says to somebody who made that mistake, in a folder of such things."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            write_files()
            before = sorted(Path().rglob("*"))
            text = "".join(f"$ acclimate {line}\n{message(line)}\n\n" for line in COMMANDS)
            assert sorted(Path().rglob("*")) == before  # a mistake leaves nothing behind
            return text
        finally:
            os.chdir(here)


def write_files() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(36, 3)).astype(np.float32)
    Manifest.from_arrays(
        rows, np.tile(["ant", "bee"], 18), np.repeat(["site-0", "site-1", "site-2"], 12)
    ).write(Path("sites.parquet"))
    for name in ("empty", "busy", "broken-images/north/ant", "photos/north/ant"):
        Path(name).mkdir(parents=True)
    Path("busy/thesis.tex").touch()
    Path("notes.md").write_text("no data\n")
    Path("broken.toml").write_text("train = [\n")
    Path("no-domain.csv").write_text("image,label,site\na.jpg,cat,home\n")
    Path("one-class.csv").write_text("image,label,domain\na.jpg,cat,home\n")
    Path("missing-images.csv").write_text("image,label,domain\na.jpg,cat,home\nb.jpg,dog,away\n")
    Path("broken-images/north/ant/a.jpg").write_text("no image")
    shutil.copytree("broken-images/north", "broken-images/south")
    Path("broken-images/south/ant").rename("broken-images/south/bee")
    Path("photos/north/ant/a.jpg").write_text("no image")


def message(line: str) -> str:
    try:
        command(*line.split())
    except Refused as error:
        return str(error).splitlines()[-1]
    raise AssertionError(f"{line}: no mistake")


def test_messages() -> None:
    assert messages() == MESSAGES.read_text(encoding="utf-8"), (
        "messages have changed: run `python tests/test_messages.py` and read the difference"
    )


if __name__ == "__main__":
    MESSAGES.write_text(messages(), encoding="utf-8")
