"""The page of the server as a visitor meets it: headless Chromium, real uploads."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
WAIT = 60_000  # milliseconds


def test_the_page_asks_for_nothing_from_elsewhere(running: Any) -> None:
    page = running.client.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    for name in ("page.css", "page.js", "pictures.js"):
        assert f'"{name}"' in page.text
        assert running.client.get(f"/{name}").status_code == 200
    assert "http" not in page.text.replace("http://www.w3.org", "")


@pytest.fixture
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
    if CHROMIUM is None:
        pytest.skip("needs chromium or google-chrome")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield launched
        launched.close()


@pytest.fixture
def photographs(tmp_path: Path) -> list[str]:
    """Twelve images, and a file that is none."""
    rng, paths = np.random.default_rng(0), []
    for number in range(12):
        path = tmp_path / f"<b>{number:02}.png"
        Image.fromarray(rng.integers(0, 255, (24, 24, 3), np.uint8)).save(path)
        paths.append(str(path))
    (tmp_path / "notes.txt").write_text("no image")
    return [*paths, str(tmp_path / "notes.txt")]


def open_page(browser: Any, running: Any, **options: Any) -> Any:
    page = browser.new_context(viewport={"width": 1280, "height": 900}, **options).new_page()
    page.trouble = []
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    page.goto(running.url)
    page.wait_for_selector("#sites td")
    return page


def count(page: Any, selector: str) -> int:
    return len(page.query_selector_all(selector))


@pytest.mark.full
@pytest.mark.slow
def test_a_site_is_created_labelled_and_deleted(
    browser: Any, running: Any, photographs: list[str]
) -> None:
    page = open_page(browser, running)
    page.fill("#name", "harbour")
    page.click("#create button")
    page.wait_for_selector("#site:not([hidden])", timeout=WAIT)
    page.set_input_files("#files", photographs)
    page.wait_for_selector("#results:not([hidden])", timeout=WAIT)
    page.wait_for_selector("#message.problem", timeout=WAIT)
    said = page.inner_text("#message")
    assert "12 new images of 13" in said
    assert "notes.txt" in said
    assert count(page, "#predictions li") == 12
    shown = [
        float(text.split()[-2]) for text in page.locator("#predictions li p").all_inner_texts()
    ]
    assert shown == sorted(shown)  # the doubtful ones first
    page.click("#suggest")
    page.wait_for_selector("#suggestions select", timeout=WAIT)
    for select in page.query_selector_all("#suggestions select")[:3]:
        select.select_option(index=1)
    page.click("#labels button")
    page.wait_for_selector("#labels", state="hidden", timeout=WAIT)
    page.wait_for_selector("#facts >> text=3 with a label", timeout=WAIT)
    assert running.client.get("/v1/sites/harbour").json()["labelled"] == 3
    page.click("#delete")
    page.fill("#answer", "harbour")
    page.click("#ask button.first")
    page.wait_for_selector("#site", state="hidden", timeout=WAIT)
    assert running.client.get("/v1/sites/harbour").status_code == 404
    assert page.trouble == []


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280, 1600])
def test_everybody_can_use_it(
    browser: Any, running: Any, photographs: list[str], width: int, scheme: str
) -> None:
    """No finding of axe, and nothing to scroll sideways."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")
    page = open_page(browser, running, color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.click("#sites button")
    page.wait_for_selector("#site:not([hidden])", timeout=WAIT)
    page.set_input_files("#files", photographs[:4])
    page.wait_for_selector("#predictions img", timeout=WAIT)
    page.click("#suggest")
    page.wait_for_selector("#suggestions select", timeout=WAIT)
    report = axe.Axe().run(page)
    assert [problem["id"] for problem in report.response["violations"]] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
