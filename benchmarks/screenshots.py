"""Make docs/images/look.png: what `acclimate inspect --page` shows of the embedded digits.

    python benchmarks/screenshots.py

It needs Chromium, and Playwright's Python client.
"""

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from acclimate.build.digits import Digits, DigitsSettings
from acclimate.core.files import write_atomically
from acclimate.core.progress import unwatched
from acclimate.data.inspection import find_copies, inspect, sampled, try_images
from acclimate.report.data_page import Findings, write_data_page

OUT = Path(__file__).resolve().parent.parent / "docs" / "images" / "look.png"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT, COLOURS = 1100, 900, 64


def main() -> None:
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "sites.parquet"
        settings = DigitsSettings(train_domains=3, test_domains=1, noise=0.05, concentration=2.0)
        manifest = Digits(out=data, settings=settings).build(unwatched).manifest
        rows = sampled(manifest, 1000)
        looks, unreadable = try_images(manifest, rows)
        findings = Findings(looks, unreadable, find_copies(manifest, rows), ())
        page = write_data_page(Path(folder) / "look.html", manifest, inspect(manifest), findings)
        with sync_playwright() as driver:
            window = driver.chromium.launch(
                executable_path=browser, args=["--no-sandbox"]
            ).new_page(viewport={"width": WIDTH, "height": HEIGHT})
            window.goto(page.as_uri())
            shot = Image.open(io.BytesIO(window.screenshot()))
    few = shot.convert("RGB").quantize(COLOURS)
    write_atomically(OUT, lambda file: few.save(file, format="PNG", optimize=True))
    print(f"{OUT}: {OUT.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
