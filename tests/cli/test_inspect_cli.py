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
            "rows": [37, 61],
        }
    ]
    _, out, _ = cli("inspect", root, "--read", "20", "--plots", tmp_path / "plots", "--json")
    assert all(Path(plot).stat().st_size > 1000 for plot in json.loads(out)["plots"])
    assert len(json.loads(out)["plots"]) == len(list((tmp_path / "plots").iterdir())) > 0


def test_a_page_of_the_data(cli: Any, tree: Path, tmp_path: Path) -> None:
    page = tmp_path / "look.html"
    code, out, _ = cli("inspect", tree, "--page", page, "--json")
    assert code == 0 and json.loads(out)["page"] == str(page)
    assert "96 images of 4 sites in 2 classes." in page.read_text(encoding="utf-8")
    photo = tree / "north" / "red" / "00.jpg"
    code, _, err = cli("inspect", tree, "--page", photo)
    assert code == 1 and "earlier page" in err and photo.stat().st_size > 100


def test_pages_of_a_run(cli: Any, run: Path, tree: Path, unlabelled: Path, tmp_path: Path) -> None:
    scores, doubts = tmp_path / "scores.html", tmp_path / "doubts.html"
    code, out, _ = cli("evaluate", run, tree, "--page", scores)
    assert code == 0 and f"page: {scores}\n" in out
    text = scores.read_text(encoding="utf-8")
    assert "images right on 1 unseen site (embedding)." in text
    assert 'alt="west/' in text and 'alt="north/' not in text
    table = tmp_path / "p.csv"
    outputs = "--out", table, "--page", doubts
    code, out, _ = cli("predict", run, unlabelled, "--adapt", *outputs, "--unsure-below", "0.6")
    assert code == 0 and f"page: {doubts}\n" in out
    text = doubts.read_text(encoding="utf-8")
    labels = [line.split(",")[1] for line in table.read_text().splitlines()[1:]]
    assert f"{sum(map(bool, labels))} of 12 images have a label" in text
    assert "<h1>new-site by sites</h1>" in text


def test_a_page_of_scores_needs_the_images(cli: Any, run: Path, tmp_path: Path) -> None:
    code, _, err = cli("evaluate", run, "--page", tmp_path / "scores.html")
    assert code == 1 and "--page" in err and "data" in err
