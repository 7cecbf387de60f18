"""Parts of a page that a script writes: between `<!-- generated: NAME -->` and `<!-- end -->`.

A measured table carries `<!-- made: COMMIT; by: PATHS -->`: the commit that it was made with, and
the paths whose code decides its numbers.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from acclimate.core.files import write_text
from acclimate.core.text import count

ROOT = Path(__file__).resolve().parent.parent
END = "<!-- end -->"
TRAINING = ("src/acclimate/learn", "src/acclimate/runs")  # decide the numbers of whatever trains
MADE = re.compile(r"<!-- made: (\w+); by: (.+) -->")


def filled(text: str, name: str, content: str) -> str:
    """`text` with the part called `name` replaced."""
    before, rest = text.split(_begin(name))
    _, after = rest.split(END, 1)
    return f"{before}{_begin(name)}\n{content.strip()}\n{END}{after}"


def section(text: str, name: str) -> str:
    """What the part called `name` holds."""
    return text.split(_begin(name))[1].split(END, 1)[0]


def made(*paths: str) -> str:
    """What a table carries that is made now."""
    return (
        f"<!-- made: {_git('rev-parse', '--short', 'HEAD') or 'unknown'}; by: {' '.join(paths)} -->"
    )


def outdated(page: Path) -> Iterator[str]:
    """What is to be said of a page's tables that are older than the code that makes them."""
    if not _git("rev-parse", "HEAD"):
        return  # no git, or none of its repositories
    places: dict[tuple[str, ...], list[str]] = {}
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if found := MADE.fullmatch(line):
            places.setdefault(found.groups(), []).append(str(number))
    for (commit, paths), lines in places.items():
        where = f"{page.name}, line {', '.join(lines)}: made with {commit}"
        since = _git("log", "--format=%h", f"{commit}..HEAD", "--", *paths.split())
        if since is None:
            yield f"{where}, which is no commit here"
        elif since:
            commits = count(len(since.split()), "commit")
            yield f"{where}; {commits} since then changed {paths}"


def _git(*arguments: str) -> str | None:
    """What git prints; None where it fails or is not installed."""
    try:
        command = ["git", "-C", str(ROOT), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def fill(path: Path, name: str, content: str) -> None:
    """Replace the part called `name` of a page, or add it at the end."""
    text = path.read_text(encoding="utf-8")
    if _begin(name) not in text:
        text = f"{text.rstrip()}\n\n{_begin(name)}\n{END}\n"
    write_text(path, filled(text, name, content))


def _begin(name: str) -> str:
    return f"<!-- generated: {name} -->"
