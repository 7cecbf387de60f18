"""A data sheet of a manifest in MLCommons' format Croissant 1.1, for whoever publishes it."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from acclimate.build.base import in_short
from acclimate.core.files import file_digest
from acclimate.data.manifest import Manifest

TERMS = "recordSet field source fileObject extract column isArray arrayShape"
# The specification writes http://schema.org/; its validator knows the address with https alone.
CONTEXT = {
    "@language": "en", "@vocab": "https://schema.org/", "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/", **{term: f"cr:{term}" for term in TERMS.split()},
    "dct": "http://purl.org/dc/terms/", "conformsTo": "dct:conformsTo",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
}  # fmt: skip
KINDS = (  # what a type of a column is called, by how its own name begins
    (".*binary", "sc:ImageObject"), ("u?int", "sc:Integer"), (".*list|float|double", "sc:Float"),
    ("bool", "sc:Boolean"), ("", "sc:Text"),
)  # fmt: skip


def _field(column: pa.Field, file: str) -> dict[str, Any]:
    kind = next(kind for pattern, kind in KINDS if re.match(pattern, str(column.type)))
    source = {"fileObject": {"@id": file}, "extract": {"column": column.name}}
    facts = {"@type": "cr:Field", "@id": f"rows/{column.name}", "name": column.name}
    array = {"isArray": True, "arrayShape": "-1"} if "list" in str(column.type) else {}
    return {**facts, "dataType": kind, "source": source, **array}


def datasheet(manifest: Manifest, path: Path) -> dict[str, Any]:
    """What the manifest at `path` says of itself. Who gives it out adds what it does not know: the
    creator, the date, and licence and address where its rows do not agree on one."""
    table, file, stated = manifest.table, path.name, {"licence": "license", "source": "url"}
    text = [one.name for one in table.schema if one.name in stated and pa.types.is_string(one.type)]
    known = {stated[name]: table[name].unique().to_pylist() for name in text}
    fields = [_field(column, file) for column in table.schema]
    content = {"contentSize": f"{path.stat().st_size} B", "sha256": file_digest(path)}
    own = {"@type": "cr:FileObject", "@id": file, "name": file, "contentUrl": file, **content}
    return {
        "@context": CONTEXT, "@type": "sc:Dataset", "name": path.stem,
        **{key: names[0] for key, names in known.items() if len(names) == 1 and names[0]},
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "description": f"A table of images in domains: {in_short(manifest)}.",
        "distribution": [{**own, "encodingFormat": "application/x-parquet"}],
        "recordSet": [{"@type": "cr:RecordSet", "@id": "rows", "name": "rows", "field": fields}],
    }  # fmt: skip
