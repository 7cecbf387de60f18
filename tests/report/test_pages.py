"""The pages of `inspect`, `evaluate` and `predict`: what they show, and how large they are."""

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from acclimate.core.errors import ConfigError
from acclimate.core.grid import Cell, Grid
from acclimate.data.inspection import LOOKED_AT, look_of
from acclimate.data.manifest import Manifest
from acclimate.records.folder import RunFolder
from acclimate.records.metrics.classification import calibration
from acclimate.records.predictions import Predictions
from acclimate.report.answer_pages import Answers, write_predictions_page, write_scores_page
from acclimate.report.view import MOST_BYTES, Section, thumbnail, write_view
from fixtures.answers import data_page, guesses, named_sites, noise, scores_of
from fixtures.errors import refused
from fixtures.pages import Page
from fixtures.sweep_example import HOSTILE

TURNED = "a\u202egpj"  # shown backwards by what obeys it
LONG = "x" * 100_000


def sections(text: str) -> dict[str, str]:
    """By heading; the page is whole, and shows nothing from elsewhere."""
    page = Page(text)
    assert all(link.startswith(("#", "data:image/jpeg;base64,")) for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    parts = re.findall(r'<section id="[^"]*"><h2>(.*?)</h2>(.*?)</section>', text, flags=re.DOTALL)
    return dict(parts)


def captions(section: str) -> list[str]:
    """What stands below each image."""
    return [
        " ".join(re.sub("<[^>]*>", " ", rest).split())  # a space that does not break is one too
        for rest in re.findall(r"<li><img[^>]*>(.*?)</li>", section)
    ]


@pytest.fixture(scope="module")
def sites() -> Manifest:
    return named_sites(["north", "south"], ["cat", "dog"])


def test_sites_side_by_side(sites: Manifest, tmp_path: Path) -> None:
    parts = sections(data_page(sites, tmp_path / "look.html"))
    assert list(parts) == ["Sites side by side", "Labels", "How images look", "Extremes"]
    examples = parts["Sites side by side"]
    assert re.findall("<h3>(.*?)</h3>", examples) == ["cat", "dog"]
    assert re.findall("<h4>(.*?)</h4>", examples) == ["north (2)", "south (2)"] * 2
    assert examples.count("<img ") == 8
    named = re.findall('alt="(.*?)"', examples)
    assert sorted(named) == sorted(f"row {row}" for row in range(8))
    assert "Sites that stand out by brightness, %: north" in parts["How images look"]
    darkest = captions(parts["Extremes"].split("<h3>Brightest")[0])
    assert len(darkest) == 8 and all("north" in one for one in darkest[:4])
    assert "Smallest" not in parts["Extremes"]  # all have one size


def test_a_site_without_a_class_says_so(sites: Manifest, tmp_path: Path) -> None:
    some = sites.select(np.flatnonzero((sites.domain_index == 0) | (sites.label_index == 0)))
    examples = sections(data_page(some, tmp_path / "look.html"))["Sites side by side"]
    assert "<h4>south (0)</h4>" in examples and '<li class="note">none</li>' in examples


def test_copies_are_shown_across_sites_first_and_files_are_named(
    tree: Path, tmp_path: Path
) -> None:
    root = tmp_path / "sites"
    for site, label, name in (("a", "red", "1"), ("a", "red", "2"), ("b", "blue", "3")):
        (root / site / label).mkdir(parents=True, exist_ok=True)
        (root / site / label / f"{name}.jpg").write_bytes(noise(int(name)))
    (root / "a" / "red" / "0.jpg").write_bytes(noise(1))
    (root / "b" / "blue" / "4.jpg").write_bytes(noise(2))
    (root / "b" / "blue" / "cut.jpg").write_bytes(noise(5)[:300])
    text = data_page(Manifest.from_folder(root), tmp_path / "look.html")
    parts = sections(text)
    copies = parts["Copies and look-alikes"]
    assert captions(copies) == ["red a", "blue b", "red a", "red a"]
    assert re.findall('alt="(.*?)"', copies)[:2] == ["a/red/2.jpg", "b/blue/4.jpg"]
    assert "2 pictures in several files: 1 in several sites, 1 with several labels." in text
    assert "b/blue/cut.jpg: truncated" in parts["Files that cannot be read"]
    assert 'class="unreadable" title="b/blue/cut.jpg"' in parts["Sites side by side"]


def test_features_have_labels_and_no_pictures(features: Manifest, tmp_path: Path) -> None:
    text = data_page(features, tmp_path / "look.html")
    assert list(sections(text)) == ["Labels"]
    assert "<img " not in text and "120 rows of features of 5 sites in 3 classes." in text


def test_hostile_names_are_text(tmp_path: Path) -> None:
    hostile = named_sites([HOSTILE, TURNED, LONG], [LONG, '"><img src=x onerror=alert(1)>'])
    text = data_page(hostile, tmp_path / "look.html")
    parts = sections(text)  # no attribute is a handler: `Page` looks
    assert HOSTILE not in text and "<img src=x" not in text
    assert Page(text).tags.count("script") == 1
    assert "<h4>&lt;script&gt;alert(1)&lt;/script&gt; (2)</h4>" in parts["Sites side by side"]
    assert "<h4>a\\u202egpj (2)</h4>" in parts["Sites side by side"]
    assert "x" * 200 not in text and len(text) < 400_000
    titles = re.findall("<h3>(.*?)</h3>", parts["Sites side by side"])
    assert len(titles) == 2 and max(map(len, titles)) == 90


@pytest.mark.slow
def test_a_page_stays_small_whatever_the_data(tmp_path: Path) -> None:
    many = named_sites([f"site {k} {'s' * 200}" for k in range(220)], ["a" * 200, "b"], each=1)
    text = data_page(many, tmp_path / "many.html")
    assert "The 12 largest of 220 sites." in text and "and 20 more" in text
    wide = named_sites([*"abcdefghijkl"], [f"{k:03}" for k in range(25)], each=1, side=160)
    text = data_page(wide, tmp_path / "wide.html")
    assert sections(text)["Sites side by side"].count("<img ") == 240
    assert "The 20 largest of 25 classes." in text
    assert 240 < text.count("<img ") <= 340
    assert all(page.stat().st_size < 5_000_000 for page in tmp_path.iterdir())


def test_a_thumbnail_is_small_and_whole() -> None:
    address = thumbnail(noise(0, side=700))
    head, _, data = address.partition(",")
    assert head == "data:image/jpeg;base64"
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert image.size == (128, 128) and len(base64.b64decode(data)) <= MOST_BYTES
    file = io.BytesIO()
    Image.new("RGB", (50, 40)).save(file, "JPEG", comment=b"secret" * 5000)
    assert len(thumbnail(file.getvalue())) < 2000
    assert thumbnail(b"no image") == thumbnail(Path("/nowhere.jpg")) == ""


def test_looks_by_hand() -> None:
    side = LOOKED_AT
    grey = Image.new("RGB", (3 * side, 2 * side), (51, 51, 51))
    look = look_of(7, grey)
    assert (look.row, look.width, look.height) == (7, 3 * side, 2 * side)
    assert look.brightness == pytest.approx(0.2, abs=1e-6)
    assert look.sharpness == pytest.approx(0, abs=1e-6)
    board = np.indices((side, side)).sum(0) % 2 * 255  # the Laplacian is 4 or -4 everywhere
    checked = look_of(0, Image.fromarray(board.astype(np.uint8)))
    assert (checked.brightness, checked.sharpness) == (0.5, 4.0)
    soft = Image.fromarray(board.astype(np.uint8)).resize((20, 20)).resize((side, side))
    assert look_of(0, soft).sharpness < 0.1


def right_and_wrong(sites: Manifest) -> Predictions:
    """North by auto: 0 and 1 are cats, 2 and 3 dogs; by the plain model all are cats. South was
    trained on."""
    return Predictions.joined(
        [
            guesses(sites, [0, 1, 2, 3], [0, 0, 0, 0], [0.9, 0.9, 0.9, 0.9], "none"),
            guesses(sites, [0, 1, 2, 3], [0, 1, 0, 1], [0.99, 0.8, 0.95, 0.6], "auto"),
        ]
    )


def test_scores_mistakes_and_doubts(sites: Manifest, tmp_path: Path) -> None:
    rows = right_and_wrong(sites)
    trained = guesses(sites, [4, 5], [0, 0], [0.99, 0.99], "none")
    scores = [*scores_of(trained, "train"), *scores_of(rows)]
    every = Predictions.joined([trained, rows])
    out = tmp_path / "eval.html"
    text = write_scores_page(out, RunFolder(tmp_path / "run"), sites, scores, every).read_text()
    parts = sections(text)
    headings = ["Sites", "Classes", "Confidence", "The surest mistakes", "Doubtful images"]
    assert list(parts) == headings
    assert "50.0\u00a0% of 4 images right on 1 unseen site (auto)." in text
    table = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", parts["Sites"]))
    assert "south train 2 100.0 – north test 4 50.0 50.0" in table
    assert captions(parts["The surest mistakes"]) == [
        "cat 95.0 % labelled dog",
        "dog 80.0 % labelled cat",
    ]
    assert captions(parts["Doubtful images"]) == [
        "dog 60.0 % right",
        "dog 80.0 % labelled cat",
        "cat 95.0 % labelled dog",
        "cat 99.0 % right",
    ]
    confidence = parts["Confidence"]
    assert "100.0 % of 1 images right at a confidence of 60.0 %" in confidence
    assert "50.0 % of 2 images right at a confidence of 97.0 %" in confidence
    assert "true: 50.0 % right of 100.0 % answered, from 0 on" in confidence
    assert "dog as cat: 50.0 % of 2" in parts["Classes"]


def test_without_unseen_sites_the_page_is_of_the_training_sites(
    sites: Manifest, tmp_path: Path
) -> None:
    rows = guesses(sites, [0, 4], [0, 1], [0.9, 0.8], "none")
    run, out = RunFolder(tmp_path / "run"), tmp_path / "eval.html"
    text = write_scores_page(out, run, sites, scores_of(rows, "train"), rows).read_text()
    assert "50.0\u00a0% of 2 images right on 2 training sites (none)." in text
    assert captions(sections(text)["The surest mistakes"]) == ["dog 80.0 % labelled cat, south"]


def test_where_nothing_was_scored(sites: Manifest, tmp_path: Path) -> None:
    rows = guesses(sites, [0], [0], [0.9], "none")
    scores, none = scores_of(rows), rows.where(rows.row < 0)
    run, out = RunFolder(tmp_path / "run"), tmp_path / "eval.html"
    text = write_scores_page(
        out, run, sites, [replace(scores[0], n=0, top1=None)], none
    ).read_text()
    assert "No image was scored." in text and list(sections(text)) == ["Sites"]


def test_calibration_by_hand() -> None:
    sites = named_sites(["a"], ["cat", "dog"])
    rows = guesses(sites, [0, 1, 2], [0, 1, 0], [0.99, 0.98, 0.5], "none")
    sizes, right, sure = calibration(rows)
    assert sizes.tolist() == [0] * 7 + [1] + [0] * 6 + [2]  # 0.5 is in the eighth of 15
    assert right.tolist() == [0] * 14 + [1]
    assert sure[[7, 14]] == pytest.approx([0.5, 1.97])


def answers(folder: Path, before: list[int] | None = None, unsure_below: float = 0.0) -> Answers:
    """Three images: a sure cat, a doubtful dog and one in between."""
    folder.mkdir()
    for place in range(3):
        (folder / f"{place}.jpg").write_bytes(noise(place))
    p = np.array([[0.9, 0.1], [0.45, 0.55], [0.7, 0.3]])
    plain = None if before is None else np.array(before)
    paths = [folder / f"{place}.jpg" for place in range(3)]
    return Answers(paths, ("cat", "dog"), p, plain, unsure_below, (0.5, 0.5))


def test_doubts_come_first_and_changes_are_shown(tmp_path: Path) -> None:
    said, out = answers(tmp_path / HOSTILE.replace("/", ""), [0, 0, 1], 0.6), tmp_path / "p.html"
    bad = [f"{HOSTILE}.jpg: truncated"]
    text = write_predictions_page(out, "new-site", said, ["a note"], bad).read_text()
    parts = sections(text)
    assert list(parts) == [
        "Doubtful images", "Changed by adaptation", "Labels", "Confidence",
        "Files that cannot be read",
    ]  # fmt: skip
    assert "2 of 3 images have a label: cat 100.0\u00a0%." in text and "<li>a note</li>" in text
    assert captions(parts["Doubtful images"]) == [
        "dog 55.0 % or cat 45.0 %",
        "cat 70.0 % or dog 30.0 %",
        "cat 90.0 % or dog 10.0 %",
    ]
    changes = parts["Changed by adaptation"]
    assert captions(changes) == ["cat 70.0 % was dog", "dog 55.0 % was cat"]
    assert "2 of 3 predictions." in changes and changes.count("<tr>") == 3
    assert "a label from 60.0 % on" in parts["Confidence"]
    assert "1 images from 53 to 60 %" in parts["Confidence"]
    assert "&lt;script&gt;" in parts["Files that cannot be read"] and HOSTILE not in text


def test_what_is_not_there_has_no_section(tmp_path: Path) -> None:
    said, out = answers(tmp_path / "new"), tmp_path / "p.html"
    parts = sections(write_predictions_page(out, "new", said, [], []).read_text())
    assert list(parts) == ["Doubtful images", "Labels", "Confidence"]


def test_a_page_replaces_a_page_and_nothing_else(tmp_path: Path) -> None:
    grid = Grid(("x",), ((Cell("y"),),))
    for title in ("one", "two"):
        out = write_view(tmp_path / "a.html", title, "", (), [Section("s", tables={"t": grid})])
    assert "<h1>two</h1>" in out.read_text()
    mine = tmp_path / "mine.html"
    mine.write_text("<p>mine</p>")
    with refused(ConfigError, "mine.html", "page"):
        write_view(mine, "two", "", (), [])
    assert mine.read_text() == "<p>mine</p>"


def test_the_same_data_give_the_same_bytes(sites: Manifest, tmp_path: Path) -> None:
    assert data_page(sites, tmp_path / "a.html") == data_page(sites, tmp_path / "b.html")
