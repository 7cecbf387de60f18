"""What `inspect` prints of messy folders, whole."""

import json
import shutil
from pathlib import Path
from typing import Any


def test_messy_folders(cli: Any, tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "sites"
    shutil.copytree(tree, root)
    shutil.copy(root / "north" / "red" / "00.jpg", root / "south" / "blue" / "copy.jpg")
    (root / "east" / "red" / "scan.dcm").write_bytes(b"\0" * 128 + b"DICM")
    code, out, _ = cli("inspect", root)
    notes = [line for line in out.splitlines() if line.startswith(("note:", "unreadable:"))]
    assert code == 0
    assert notes[:3] == [
        "note: 1 image in DICOM, such as east/red/scan.dcm; read by pydicom",
        "note: 1 picture in several files that are the same: 1 under several labels, 1 in several "
        "domains; copies stay in one split",
        "note: the same: north/red/00.jpg and south/blue/copy.jpg",
    ]
    assert notes[3] == "unreadable: east/red/scan.dcm: a DICOM file without an image in it"
    assert "images tried: 98 of 98\n" in out
    _, out, _ = cli("inspect", root, "--read", "20")
    assert "images tried: 20 of 98\n" in out
    _, out, _ = cli("inspect", root, "--json")
    assert json.loads(out)["duplicates"] == [
        {
            "kind": "same",
            "images": ["north/red/00.jpg", "south/blue/copy.jpg"],
            "labels": ["blue", "red"],
            "domains": ["north", "south"],
        }
    ]
