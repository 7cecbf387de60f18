"""Reports and pages as a reader meets them: in headless Chromium, from a file, wide, narrow and
dark."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acclimate.data.manifest import Manifest
from acclimate.records.folder import RunFolder
from acclimate.report.answer_pages import Answers, write_predictions_page, write_scores_page
from acclimate.report.page import write_page
from acclimate.results.load import load_report
from fixtures.answers import data_page, guesses, named_sites, noise, scores_of
from fixtures.sweep_example import HOSTILE, write_example

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright's Python client")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or google-chrome"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("browser")
    return write_page(load_report(write_example(folder / "sweep")), folder / "r.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def opened(browser: Any, address: str, width: int = 1200, **options: Any) -> Any:
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    page.trouble = []
    page.on("console", lambda message: page.trouble.append(message.text))
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    page.on("requestfailed", lambda request: page.trouble.append(request.url))
    page.on("dialog", lambda dialog: (page.trouble.append(dialog.message), dialog.dismiss()))
    page.requests = []
    page.on("request", lambda request: page.requests.append(request.url))
    page.goto(address)
    return page


@pytest.fixture(scope="module")
def wide(browser: Any, address: str) -> Any:
    return opened(browser, address)


@pytest.fixture(scope="module")
def narrow(browser: Any, address: str) -> Any:
    return opened(browser, address, width=400, has_touch=True)


@pytest.mark.slow
def test_it_opens_without_complaint_or_request(wide: Any, address: str) -> None:
    assert HOSTILE in wide.title()
    assert wide.locator("h1").inner_text() == f"PACS and sensors {HOSTILE}"
    assert wide.requests == [address]
    assert wide.trouble == []


def column(table: Any, number: int) -> list[float | None]:
    """The values of a column as the rows stand; None where a cell has none."""
    return table.evaluate(
        """(table, number) => [...table.tBodies[0].rows].map(row => {
             const value = row.cells[number].dataset.value;
             return value === undefined ? null : Number(value); })""",
        number,
    )


def test_rows_by_name_and_kind(browser: Any, address: str) -> None:
    page = opened(browser, address)
    bar = page.locator("#results form.filter:visible").first
    rows = bar.locator("xpath=following-sibling::div[1]").locator("tbody tr:visible")
    every = rows.count()
    controls = rows.locator(".badge", has_text="control").count()
    assert controls > 0
    bar.get_by_label("control rows").uncheck()
    assert rows.count() == every - controls
    assert bar.locator("output").inner_text() == f"{every - controls} of {every} rows"
    bar.get_by_placeholder("Filter: method").fill("coral DA")
    names = rows.locator("th").all_inner_texts()
    assert names and all(name.startswith("DA-CORAL") for name in names)
    bar.get_by_placeholder("Filter: method").press("Enter")  # sends nothing
    bar.get_by_placeholder("Filter: method").fill("nothing like it")
    assert rows.count() == 0
    assert page.requests == [address] and page.trouble == []


def test_sorting_by_click(wide: Any) -> None:
    table = wide.locator("#results table:visible").first
    head = table.locator("thead th").nth(4)
    assert head.inner_text() == "Difference to ERM"
    before = column(table, 4)
    missing = before.count(None)
    known = sorted(value for value in before if value is not None)
    assert missing == 1 and before[0] is None and len(known) > 3
    head.locator("button").click()
    assert column(table, 4) == known[::-1] + [None] * missing
    assert head.get_attribute("aria-sort") == "descending"
    wide.keyboard.press("Enter")  # a heading is a button, which has the focus now
    assert column(table, 4) == known + [None] * missing
    assert head.get_attribute("aria-sort") == "ascending"


SIZES = """() => [...document.querySelectorAll("svg text")].map(text => {
  const svg = text.ownerSVGElement;
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return parseFloat(getComputedStyle(text).fontSize) * scale; })"""


def test_a_narrow_window(narrow: Any) -> None:
    narrow.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert narrow.evaluate("document.documentElement.scrollWidth") == 400
    sizes = narrow.evaluate(SIZES)
    assert len(sizes) > 100 and min(sizes) >= 9
    # A long table scrolls within its frame, and its first column stays.
    frame = narrow.locator("#results .scroll:visible").nth(1)
    assert frame.evaluate("part => part.scrollWidth > part.clientWidth")
    name = frame.locator("tbody th").first
    before = name.bounding_box()["x"]
    frame.evaluate("part => { part.scrollLeft = 300; }")
    assert name.bounding_box()["x"] == before
    # Narrower still, figures scroll instead of shrinking.
    narrow.set_viewport_size({"width": 320, "height": 900})
    assert min(narrow.evaluate(SIZES)) >= 9
    assert narrow.evaluate("document.documentElement.scrollWidth") == 320
    narrow.set_viewport_size({"width": 400, "height": 900})
    assert narrow.trouble == []


CONTRAST = """() => {
  const channel = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(x => channel(x / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = part => {
    for (let at = part; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
  };
  const parts = "h1,h2,h3,h4,p,li,li *,th,td,dt,dd,figcaption,caption,summary,a,button,svg text";
  return [...document.querySelectorAll(parts)].map(part => {
    const style = getComputedStyle(part), drawn = part instanceof SVGElement;
    const text = light(drawn ? style.fill : style.color), back = light(behind(part));
    const ratio = (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
    return { part: part.tagName, ratio };
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_either_scheme(browser: Any, address: str, scheme: str) -> None:
    page = opened(browser, address, color_scheme=scheme)
    found = page.evaluate(CONTRAST)
    assert len(found) > 500
    assert min(found, key=lambda one: one["ratio"])["ratio"] >= 4.5
    page_colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    mark = page.locator("#unseen-domains .mark use").first
    fill = mark.evaluate("part => getComputedStyle(part).fill")
    expected = {
        "light": ("rgb(255, 255, 255)", "rgb(213, 94, 0)"),
        "dark": ("rgb(23, 24, 27)", "rgb(245, 132, 66)"),
    }
    assert (page_colour, fill) == expected[scheme]


def test_it_prints_whole(wide: Any, tmp_path: Path) -> None:
    wide.emulate_media(media="print")
    assert not wide.locator("nav").is_visible()
    assert wide.locator(".scroll").first.evaluate("p => getComputedStyle(p).overflowX") == "visible"
    wide.emulate_media(media="screen")


def test_the_contents_lead_to_sections(wide: Any) -> None:
    links = wide.locator("nav a")
    assert links.count() == wide.locator("section").count() > 8
    links.filter(has_text="Failed jobs").click()
    assert wide.evaluate("location.hash") == "#failed-jobs"
    failure = wide.locator("#failed-jobs details")
    assert not failure.locator("pre").is_visible()
    failure.locator("summary").click()
    assert HOSTILE in failure.locator("pre").inner_text()
    assert wide.trouble == []


def write_pages(folder: Path) -> dict[str, Path]:
    """The pages of `inspect`, `evaluate` and `predict`, with every kind of section."""
    root = folder / "sites"
    for number, site in enumerate((HOSTILE.replace("/", "|"), "a" * 120, "south", "east")):
        for label in ("cat", "dog", "c" * 120):
            for place in range(5):
                path = root / site / label / f"{place}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                # The first image of each class is the same file in all sites.
                path.write_bytes(noise(place and 10 * number + place, side=20 + 30 * place))
    (root / "south" / "cat" / "cut.jpg").write_bytes(noise(99)[:300])
    look, scores, doubts = (folder / f"{name}.html" for name in ("look", "scores", "doubts"))
    data_page(Manifest.from_folder(root), look)
    sites, rng = named_sites(["north", "south"], ["cat", "dog"], each=12), np.random.default_rng(0)
    best, sure = rng.integers(2, size=48).tolist(), rng.uniform(0.5, 1, 48).tolist()
    rows = guesses(sites, [*range(48)], best, sure, "none")
    write_scores_page(scores, RunFolder(folder / "run"), sites, scores_of(rows), rows)
    paths, classes = sorted(root.rglob("*.jpg"))[:24], ("cat", "dog", "w" * 80)
    p, before = rng.dirichlet([1, 1, 1], 24), rng.integers(3, size=24)
    said = Answers(paths, classes, p, before, 0.6, (0.3, 0.3, 0.4))
    write_predictions_page(doubts, "new-site", said, [f"{HOSTILE} " * 20], [f"{HOSTILE}.jpg: bad"])
    return {"look": look, "scores": scores, "doubts": doubts}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_pages(tmp_path_factory.mktemp("pages"))


IMAGES = """() => [...document.images].map(image =>
  ({ wide: image.naturalWidth, shown: image.getBoundingClientRect().width, alt: image.alt }))"""


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["look", "scores", "doubts"])
def test_pages_fit_every_window(
    browser: Any, pages: dict[str, Path], name: str, scheme: str
) -> None:
    address = pages[name].as_uri()
    page = opened(browser, address, color_scheme=scheme)
    for width in (400, 800, 1280, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert min(page.evaluate(SIZES)) >= 9
        images = page.evaluate(IMAGES)
        assert len(images) > 20
        assert all(one["wide"] and one["alt"] and 60 < one["shown"] <= 129 for one in images)
    found = page.evaluate(CONTRAST)
    assert min(found, key=lambda one: one["ratio"])["ratio"] >= 4.5
    assert page.requests == [address] and page.trouble == []


@pytest.mark.full
def test_pages_by_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    page = opened(browser, pages["look"].as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.hash") == "#sites-side-by-side"
    table = page.locator("#how-images-look table")
    table.locator("thead button").nth(2).focus()
    page.keyboard.press("Enter")
    bright = column(table, 2)
    assert bright == sorted(bright, key=lambda value: -(value or 0)) and len(bright) == 4
