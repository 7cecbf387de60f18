"""The documentation is true: generated parts are current and README commands run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.processes import run_line
from fixtures.settings import TINY, as_flags

ROOT = Path(__file__).resolve().parent.parent
# The examples of CONTRIBUTING.md, and a file of DomainBed's.
INVENTED = {
    "here.py",
    "mm_rex.py",
    "smoothed.py",
    "balance.py",
    "stripes.py",
    "worst.py",
    "download.py",
    "confidence.py",
    "numbers.py",
}
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """The code block behind `<!-- test: name -->`."""
    found = re.search(rf"<!-- test: {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found, f"README has no block named {name}"
    return found[1]


@pytest.fixture
def home(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `sites` and unlabelled images in `new-site`, as the README says."""
    shutil.copytree(tree, tmp_path / "sites")
    shutil.copytree(tree / "west" / "red", tmp_path / "new-site")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_generated_documentation_is_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def measured() -> list[tuple[str, str]]:
    """Page and text of each part of the documentation whose table has a measured error."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    parts = [(page.name, part) for page in pages for part in page.read_text("utf-8").split("\n## ")]
    return [(name, part) for name, part in parts if re.search(r"^\|.* ± ", part, re.MULTILINE)]


def test_measured_tables_say_by_which_commit_and_code_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from pages import MADE, made

    assert MADE.fullmatch(made("src/acclimate/learn", "benchmarks/pacs.toml"))
    parts = measured()
    assert {name for name, _ in parts} >= {"results.md", "algorithms.md", "ablations.md"}
    assert [part.splitlines()[0] for _, part in parts if not MADE.search(part)] == []
    texts = (page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    paths = {path for text in texts for _, named in MADE.findall(text) for path in named.split()}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_tables_older_than_their_code_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import pages

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(file: str) -> str:
        with (tmp_path / file).open("a") as open_file:
            open_file.write("more\n")
        git("add", ".")
        git("commit", "-qm", "more")
        return git("rev-parse", "--short", "HEAD")

    git("init", "-q")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    first, page = commit("a.py"), tmp_path / "page.md"
    page.write_text(
        f"{pages.made('a.py')}\n\n| table |\n{pages.made('b.py')}\n{pages.made('a.py')}\n"
        "<!-- made: 0123abc; by: a.py -->\n"
    )
    lost = "page.md, line 6: made with 0123abc, which is no commit here"
    assert list(pages.outdated(page)) == [lost]
    commit("c.py")
    assert list(pages.outdated(page)) == [lost]  # other code
    commit("a.py")
    old = f"page.md, line 1, 5: made with {first}; 1 commit since then changed a.py"
    assert list(pages.outdated(page)) == [old, lost]
    monkeypatch.setenv("PATH", "")  # without git
    assert list(pages.outdated(page)) == []


def test_the_log_cites_numbers_that_are_there() -> None:
    """`[page.md](page.md) has the …`: measured numbers of the sentences after it are the page's."""
    entries = (ROOT / "docs" / "log.md").read_text(encoding="utf-8").split("\n\n")
    cited = [(re.search(r"\]\((\w+\.md)[^)]*\)\s+has\s+the", one), one) for one in entries]
    numbers = {
        (found[1], number)
        for found, one in cited
        if found
        for number in re.findall(r"\d+\.\d ± \d+\.\d", one)
    }
    assert len(numbers) > 5
    pages = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name, _ in numbers}
    assert [(name, number) for name, number in sorted(numbers) if number not in pages[name]] == []


@pytest.mark.slow
def test_no_more_modules_are_crossed_than_the_page_says() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "modules_crossed.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_readme_commands(home: Path) -> None:
    for line in block("commands").strip().splitlines():
        run_line(line, as_flags(TINY))
    assert len((home / "predictions.csv").read_text().splitlines()) == 13


def test_readme_python(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = block("python").replace('backbone="auto"', 'backbone="auto", settings=TINY')
    assert "settings=TINY" in code
    exec(compile(code, "README.md", "exec"), {"TINY": TINY})
    printed = capsys.readouterr().out
    assert "'red'" in printed or "'blue'" in printed
    assert (home / "new-site.safetensors").exists()


def test_the_architecture_names_every_part() -> None:
    source = ROOT / "src" / "acclimate"
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    modules = {path.stem for path in source.glob("*.py") if not path.name.startswith("__")}
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("| package | what it holds |")[1].split("\n\n")[0]
    named = set(re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE))
    assert {name.strip("`") for row in named for name in row.split(", ")} == packages | modules


def test_every_file_has_a_sentence_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = text.split("<!-- generated: tree -->\n```\n")[1].split("```")[0]
    assert [line for line in tree.splitlines() if len(line.split()) < 2] == []


def test_modules_that_the_documentation_names_exist() -> None:
    """`learn/theory.py`, and `theory.py` alone where its folder was named before."""
    folders = (ROOT / name for name in ("src", "tests", "benchmarks", "docs"))
    files = [str(path) for folder in folders for path in folder.rglob("*.py")]
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for name in re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8")):
            known = any(file.endswith(f"/{name}") for file in files)
            assert known or Path(name).name in INVENTED, f"{page.name} names {name}"


def test_links_in_the_documentation_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)|src=\"([^\"]+)\"", text):
            link = "".join(target)
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"
