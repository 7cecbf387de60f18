"""Shards as hubs give them out: WebDataset's .tar files, and Parquet as Hugging Face writes it.

Nothing is unpacked on the disk. Images are stored in the manifest.
"""

import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from acclimate.build.base import OUT, Builder, Built, SplitSettings, argument, required
from acclimate.config import setting
from acclimate.core.errors import ManifestError
from acclimate.core.files import parse_json
from acclimate.core.progress import Watch
from acclimate.core.text import reason_of
from acclimate.data.columns import require_columns
from acclimate.data.manifest import Manifest
from acclimate.data.readers import IMAGE_EXTENSIONS
from acclimate.data.remote import open_binary

MOST = 1 << 28  # bytes of a member of an archive
DAMAGE = (tarfile.TarError, pa.ArrowException, OSError, LookupError, ValueError, AttributeError)
SPLITS = {"train": "train", "validation": "val", "val": "val", "test": "test"}  # in names of files


def _members(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """(sample, ending, content) of the files in an archive; anything else in it is refused."""
    # Not compressed, and not sparse: what comes out is no larger than the file.
    with open_binary(path) as file, tarfile.open(fileobj=file, mode="r|") as tar:
        for member in tar:
            folder, _, name = member.name.rpartition("/")
            outside = member.name.startswith("/") or ".." in folder.split("/")
            plain = member.isfile() and not member.issparse() and member.size <= MOST
            if not member.isdir() and (outside or not plain):
                raise ValueError(f"'{member.name}' is outside, no plain file, or above 256 MiB")
            if (content := tar.extractfile(member)) is not None:
                stem, _, ending = name.partition(".")
                yield f"{folder}/{stem}", ending.lower(), content.read()


def read_tar(path: Path, names: Mapping[str, str]) -> pa.Table:
    """A row of each sample: an image, a label in .cls, and what keys of .json say; `names` has the
    columns that keys stand for."""
    rows: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for sample, ending, content in _members(path):
        if ending in IMAGE_EXTENSIONS:
            if rows[sample].setdefault("bytes", content) is not content:
                raise ValueError(f"sample '{sample}' has two images")
        elif ending == "cls":
            rows[sample]["label"] = content.decode().strip()
        elif ending == "json":
            stated = [(key, one) for key, one in parse_json(content).items() if key in names]
            own = {names[key]: str(one) for key, one in stated if one is not None}
            rows[sample] = own | rows[sample]  # .cls counts
    table = pa.table({"sample": pa.array(list(rows), pa.string())})
    for name in ("bytes", *names.values()):
        values = [row.get(name) for row in rows.values()]
        if any(value is not None for value in values):
            table = table.append_column(name, pa.array(values))
    return table


def read_parquet(path: Path, names: Mapping[str, str]) -> pa.Table:
    """The rows, with images as bytes and numbers of classes replaced by their names; `names` has
    other names of columns. The split may be in the name of the file."""
    with open_binary(path) as content, pq.ParquetFile(content) as file:
        table = file.read()
    facts = parse_json((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    for name, feature in facts.get("info", {}).get("features", {}).items():
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            known = pc.if_else(pc.less(table[name], 0), None, table[name])  # -1 is no class
            place = table.column_names.index(name)
            table = table.set_column(place, name, pa.array(feature["names"]).take(known))
    if "image" in table.column_names and pa.types.is_struct(table["image"].type):
        inside = pc.struct_field(table["image"], "bytes")
        table = table.drop_columns("image").append_column("bytes", inside)
    table = table.rename_columns([names.get(name, name) for name in table.column_names])
    split = SPLITS.get(path.stem.partition("-")[0])
    if split is not None and "split" not in table.column_names:
        table = table.append_column("split", pa.repeat(split, table.num_rows))
    return table


@dataclass(frozen=True, kw_only=True)
class Shards(Builder):
    example = "acclimate build shards a.tar b.tar --domain-column hospital --out shards.parquet"

    files: tuple[Path, ...] = argument(".tar or .parquet files, or addresses: s3://bucket/a.tar.")
    out: Path = required(OUT)
    domain_column: str = setting("domain", "Column, or key of .json members, with the domain.")
    label_column: str = setting("label", "Column, or key of .json members, with the label.")
    splits: SplitSettings = field(default_factory=SplitSettings)

    def build(self, watch: Watch) -> Built:
        names = {name: name for name in ("split", "role", "group")}
        names |= {self.domain_column: "domain", self.label_column: "label"}
        tables = []
        for done, path in enumerate(self.files, start=1):
            read = read_tar if path.suffix == ".tar" else read_parquet
            try:
                tables.append(read(path, names))
                table = pa.concat_tables(tables, promote_options="default")
            except DAMAGE as error:
                reason = reason_of(error).rstrip(".")
                raise ManifestError(
                    f"cannot read {path} as a shard: {reason}; check the path, or get it again"
                ) from error
            watch("shards", done, len(self.files), "")
        source = self.files[0].name
        require_columns(table, source)
        manifest = Manifest.from_rows(table, self.files[0].parent, source, **asdict(self.splits))
        manifest.check()
        manifest.write(self.out)
        return Built(manifest=manifest, out=self.out)
