"""Two and four gloo processes under torchrun give what one process gives."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from acclimate.core.tensors import save_tensors
from acclimate.data.manifest import Manifest
from acclimate.learn.models import build_backbone
from acclimate.records.folder import RunFolder
from fixtures.processes import train_with
from fixtures.settings import TINY, as_flags

pytestmark = pytest.mark.slow


KINDS = (
    "features",
    "images with augmentation and domain mixup",
    "frozen features",
    "SWAD, and Φ learned with the predictor",
)


CASES = [*((2, kind) for kind in KINDS), (4, KINDS[0]), (4, KINDS[1])]


@pytest.mark.parametrize(("processes", "kind"), CASES)
def test_several_processes_equal_one(
    processes: int,
    kind: str,
    features: Manifest,
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = tmp_path / "data.parquet"
    # Not Adam: its first steps are the signs of gradients, which blow rounding up.
    sgd = {"optimiser.name": "sgd", "optimiser.lr": 0.05}
    settings = TINY | {f"{step}.{k}": v for step in ("embedding", "train") for k, v in sgd.items()}
    settings |= {"train.keep": "last"}
    if kind in (KINDS[0], KINDS[3]):
        features.write(data)
        unseen = "site-4"
        if kind == KINDS[3]:
            settings |= {"train.average.kind": "swad", "train.average.patience": 1}
    elif kind == "frozen features":
        Manifest.from_folder(tree).write(data)
        unseen = "west"
        save_tensors(tmp_path / "w.safetensors", build_backbone("small-cnn").body.state_dict())
        settings |= {"model.backbone": "small-cnn", "model.freeze": "backbone"}
        settings |= {"model.weights": tmp_path / "w.safetensors"}
    else:
        Manifest.from_folder(tree).write(data)
        unseen = "west"
        # Group norm has no statistics over the batch, so small-cnn can be compared.
        settings |= {"data.augment": "domainbed", "embedding.mixup": "on"}
    algorithm = "mtl" if kind == KINDS[3] else "da-erm"
    flags = ["--test-domains", unseen, "--algorithm", algorithm, *as_flags(settings)]
    one = train_with(1, data, tmp_path / "one", *flags)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))  # nothing is extracted yet
    several = train_with(processes, data, tmp_path / "several", *flags)
    assert one.keys() == several.keys()
    # A bound on how far Φ reaches; merging processes' bounds makes it wider, never narrower.
    assert (several.pop("domains/reach") >= one.pop("domains/reach") - 1e-6).all()
    for name in one:
        torch.testing.assert_close(several[name], one[name], rtol=1e-4, atol=1e-5, msg=name)
    scores = [
        [(s.domain, s.method, s.n, s.top1) for s in RunFolder(tmp_path / run).records().scores]
        for run in ("one", "several")
    ]
    assert scores[0] == scores[1]


def test_a_batch_that_cannot_be_shared_is_refused(features: Manifest, tmp_path: Path) -> None:
    data = tmp_path / "data.parquet"
    features.write(data)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    settings = as_flags(TINY | {"train.per_domain": 3})
    command = [sys.executable, *launcher, "-m", "acclimate", "train", str(data), *settings]
    done = subprocess.run(
        [*command, "--algorithm", "erm", "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "error: 3 images" in done.stderr and "2 processes" in done.stderr
