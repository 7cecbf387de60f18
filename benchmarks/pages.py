"""Parts of a page that a script writes: between `<!-- generated: NAME -->` and `<!-- end -->`."""

from pathlib import Path

from acclimate.core.files import write_text

END = "<!-- end -->"


def filled(text: str, name: str, content: str) -> str:
    """`text` with the part called `name` replaced."""
    before, rest = text.split(_begin(name))
    _, after = rest.split(END, 1)
    return f"{before}{_begin(name)}\n{content.strip()}\n{END}{after}"


def section(text: str, name: str) -> str:
    """What the part called `name` holds."""
    return text.split(_begin(name))[1].split(END, 1)[0]


def fill(path: Path, name: str, content: str) -> None:
    """Replace the part called `name` of a page, or add it at the end."""
    text = path.read_text(encoding="utf-8")
    if _begin(name) not in text:
        text = f"{text.rstrip()}\n\n{_begin(name)}\n{END}\n"
    write_text(path, filled(text, name, content))


def _begin(name: str) -> str:
    return f"<!-- generated: {name} -->"
