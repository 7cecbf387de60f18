"""The documentation site builds: strict, offline, with its notebooks."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("furo", reason="needs Sphinx, furo and MyST-NB: pip install '.[site]'")
ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.full
@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning"]
    built = subprocess.run(
        [*command, "--keep-going", "--quiet", str(ROOT / "docs"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert built.returncode == 0, built.stderr
    pages = {page: page.read_text("utf-8") for page in tmp_path.rglob("*.html")}
    lost = [
        (page.name, link)
        for page, text in pages.items()
        for link in re.findall(r'href="([^"#:]+)[^":]*"', text)
        if not (page.parent / link).exists()
    ]
    assert lost == []
    asked = [
        (page.name, address)
        for page, text in pages.items()
        for address in re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', text)
    ]
    assert asked == []  # nothing is loaded from elsewhere


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r"^([\w/-]+)$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE))
    pages = {
        path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")
    }
    built = {str(page) for page in pages if page.parts[0] != "_build"}
    assert built - listed == {"index"}
