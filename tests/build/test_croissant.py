"""Data sheets: what the format Croissant asks for, and what the manifest says."""

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acclimate.core.errors import ConfigError
from acclimate.data.manifest import Manifest
from fixtures.builder_inputs import TINY
from fixtures.command_line import command
from fixtures.errors import refused


def sheet_of(tree: Path, folder: Path, name: str) -> tuple[dict[str, Any], Path]:
    out = folder / "made.parquet"
    said = command("build", name, *TINY[name](tree, folder), "--out", out, "--croissant")
    path = folder / "made.croissant.json"
    assert f"data sheet: {path}" in said
    sheet: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return sheet, out


@pytest.mark.parametrize("name", ["folder", "digits", "wilds", "geo-yfcc"])
def test_a_sheet_has_what_the_format_asks_for(tree: Path, tmp_path: Path, name: str) -> None:
    sheet, out = sheet_of(tree, tmp_path, name)
    assert sheet["@type"] == "sc:Dataset"
    assert sheet["conformsTo"] == "http://mlcommons.org/croissant/1.1"
    assert sheet["name"] == "made" and sheet["description"]
    (file,) = sheet["distribution"]
    assert file["@type"] == "cr:FileObject" and file["contentUrl"] == "made.parquet"
    assert file["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert file["contentSize"] == f"{out.stat().st_size} B"
    (rows,) = sheet["recordSet"]
    fields = {field["source"]["extract"]["column"]: field for field in rows["field"]}
    assert list(fields) == Manifest.read(out).table.column_names
    assert len({field["@id"] for field in fields.values()}) == len(fields)
    for field in fields.values():
        assert field["source"]["fileObject"] == {"@id": file["@id"]}
        assert field["dataType"].startswith("sc:") and field["@type"] == "cr:Field"
    # Every term that is no word of schema.org's is in the context.
    ours = {"conformsTo", "recordSet", "field", "dataType", "source", "fileObject", "extract",
            "column", "isArray", "arrayShape"}  # fmt: skip
    assert ours <= set(sheet["@context"])


def test_types_of_columns(tree: Path, tmp_path: Path) -> None:
    sheet, _ = sheet_of(tree, tmp_path, "digits")
    kinds = {field["name"]: field["dataType"] for field in sheet["recordSet"][0]["field"]}
    assert (kinds["bytes"], kinds["label"], kinds["gain"]) == (
        *("sc:ImageObject", "sc:Text", "sc:Float"),
    )
    path = tmp_path / "features.parquet"
    columns = {"features": [[1.0, 2.0]] * 4, "label": [1, 2, 1, 2], "domain": list("aabb"),
               "year": pa.array([1, 2, 3, 4], pa.int32()), "night": [True, False] * 2}  # fmt: skip
    pq.write_table(pa.table(columns), path)
    command("build", "table", path, "--out", tmp_path / "t.parquet", "--croissant")
    told = json.loads((tmp_path / "t.croissant.json").read_text())["recordSet"][0]["field"]
    fields = {field["name"]: field for field in told}
    assert (fields["features"]["dataType"], fields["features"]["isArray"]) == ("sc:Float", True)
    assert fields["year"]["dataType"] == "sc:Integer" and "isArray" not in fields["year"]
    assert fields["night"]["dataType"] == "sc:Boolean"


def test_licence_and_address_are_told_where_rows_agree(tree: Path, tmp_path: Path) -> None:
    sheet, _ = sheet_of(tree, tmp_path, "wilds")
    assert sheet["license"] == "https://creativecommons.org/publicdomain/zero/1.0/"
    assert sheet["url"] == "https://camelyon17.grand-challenge.org/"
    table = pq.read_table(sheet_of(tree, tmp_path, "digits")[1])
    table = table.append_column("licence", pa.array(["CC0"] + ["CC-BY"] * (len(table) - 1)))
    pq.write_table(table.append_column("source", pa.repeat("http://x.org", len(table)))
                   .replace_schema_metadata(None), tmp_path / "mixed.parquet")  # fmt: skip
    command("build", "table", tmp_path / "mixed.parquet", "--out", tmp_path / "m.parquet",
            "--croissant")  # fmt: skip
    told = json.loads((tmp_path / "m.croissant.json").read_text())
    assert told["url"] == "http://x.org" and "license" not in told


def test_a_file_that_is_no_sheet_stays(tree: Path, tmp_path: Path) -> None:
    sheet_of(tree, tmp_path, "folder")
    sheet_of(tree, tmp_path, "folder")  # replaces its own
    mine = tmp_path / "made.croissant.json"
    mine.write_text('{"mine": true}')
    with refused(ConfigError, mine, "data sheet"):
        sheet_of(tree, tmp_path, "folder")
    assert mine.read_text() == '{"mine": true}'


@pytest.mark.filterwarnings("default")  # of its own dependencies
@pytest.mark.skipif(not importlib.util.find_spec("mlcroissant"), reason="mlcroissant is not here")
@pytest.mark.parametrize("name", ["folder", "digits", "wilds"])
def test_the_validator_of_the_format_finds_no_error(tree: Path, tmp_path: Path, name: str) -> None:
    import mlcroissant

    sheet_of(tree, tmp_path, name)
    dataset = mlcroissant.Dataset(str(tmp_path / "made.croissant.json"))
    record = next(iter(dataset.records("rows")))
    assert {key.rpartition("/")[2] for key in record} >= {"label", "domain", "split"}
