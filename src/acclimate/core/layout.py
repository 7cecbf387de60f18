"""What the files of a run folder are called.

`runs.folder` reads and writes them. The names stand here because a model on disk, which everything
from `learn` upwards opens, is a part of its run's folder.
"""

import hashlib
from pathlib import Path
from typing import Any

from acclimate.core.errors import AcclimateError, DamagedFile, RunError, damage_is
from acclimate.core.files import Fields, file_digest, read_document, write_document

RUN = "run.json"  # what this run is: settings, data digest, domains, classes
EMBEDDING = "embedding.json"  # the same of a Φ that is learned on its own
RECORDS = "records.jsonl"
QUARANTINE = "quarantine.jsonl"  # images that could not be read
PHI = "embedding.safetensors"  # Φ and the training domains' μ, after Step A
CONSISTENCY = "consistency.json"  # how fast μ settles with n; distances between domains
MODEL = "model.json"  # everything needed to load the weights; its digest of them too
WEIGHTS = "model.safetensors"
DOMAINS = "domains.safetensors"  # μ, σ² and n of every domain, for reports
REHEARSAL = "rehearsal.json"  # what adaptation did at held-out domains, and what follows
CARD = "MODEL_CARD.md"  # of a run that a sweep chose, and of a folder that travels
LABELS = "labels.json"  # labels that are no text, in the order of their values
SITE = "site.safetensors"  # of a folder with one domain's classifier
EXAMPLE = "predict.py"  # of a folder that travels
PRUNED = "pruned.json"  # of a run whose weights a sweep deleted
CHECKPOINT = "checkpoint-{phase}.safetensors"  # this one and the next only while training
BEST = "best-{phase}-{step}.safetensors"
CHECKSUMS = "checksums.json"  # digests of the others; written last
SWEEP = "sweep.json"  # of a sweep's folder: the definition and every job
LOCK = ".lock"
AGAIN = "restore it, or train again in another folder"


def stored(path: Path) -> dict[str, Any]:
    """The description in one of the JSON files; a missing file is the caller's to explain."""
    with damage_is(RunError, AGAIN):
        return read_document(path)


def write_checksums(folder: Path) -> None:
    """List a folder's descriptions and records with their digests; where the list is, all is.

    Files of tensors carry a digest of their own, and the model's description that of its weights.
    """
    listed = (RUN, MODEL, REHEARSAL, LABELS, SWEEP)
    names = [name for name in listed if (folder / name).exists()]
    count, digest = _first_records(folder, None)
    files = {name: file_digest(folder / name) for name in names}
    records = {"count": count, "digest": digest}
    write_document(folder / CHECKSUMS, {"files": files, "records": records})


def check(folder: Path, error: type[AcclimateError] = RunError, remedy: str = AGAIN) -> int:
    """Refuse a folder whose files are not those that were listed; how many records were."""
    with damage_is(error, remedy):
        listed = Fields(read_document(folder / CHECKSUMS), folder / CHECKSUMS)
        for name, digest in listed.table("files").items():
            path = folder / Path(name).name
            if not path.exists():
                raise error(f"{path} is missing; {remedy}")
            if file_digest(path) != digest:
                raise DamagedFile(path)
        records = Fields(listed.table("records"), listed.path)
        known = records.whole("count"), records.text("digest")
        if _first_records(folder, known[0]) != known:
            raise DamagedFile(folder / RECORDS)
    return known[0]


def _first_records(folder: Path, count: int | None) -> tuple[int, str]:
    """How many of the first `count` records there are (None: of all), and their digest. Records
    may be added to a finished run, so the file as a whole has no lasting digest."""
    path = folder / RECORDS
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    first = lines[:count]
    return len(first), hashlib.sha256(b"\n".join(first)).hexdigest()


def damaged(path: Path) -> RunError:
    return RunError(f"{path} is damaged; {AGAIN}")


def is_pruned(folder: Path) -> bool:
    """Did a sweep delete the weights of this run?"""
    return (folder / PRUNED).exists() and not (folder / WEIGHTS).exists()
