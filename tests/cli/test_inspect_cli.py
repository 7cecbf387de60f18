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
    assert code == 0
    assert "copies: north/red/00.jpg and south/blue/copy.jpg\n" in out
    assert "unreadable: east/red/scan.dcm: a DICOM file without an image in it\n" in out
    assert "images tried: 98 of 98\n" in out
    _, out, _ = cli("inspect", root, "--read", "20")
    assert "images tried: 20 of 98\n" in out
    _, out, _ = cli("inspect", root, "--json")
    assert json.loads(out)["duplicates"] == [
        {
            "images": ["north/red/00.jpg", "south/blue/copy.jpg"],
            "labels": ["blue", "red"],
            "domains": ["north", "south"],
            "alike": False,
            "rows": [34, 72],
        }
    ]
    _, out, _ = cli("inspect", root, "--read", "20", "--plots", tmp_path / "plots", "--json")
    assert all(Path(plot).stat().st_size > 1000 for plot in json.loads(out)["plots"])
    assert len(json.loads(out)["plots"]) == len(list((tmp_path / "plots").iterdir())) > 0
