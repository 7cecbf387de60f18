"""Tables as spreadsheets leave them: read, or refused with the cause, whole."""

import codecs
import subprocess
import sys
from pathlib import Path

import pytest

from acclimate.core.errors import ManifestError
from acclimate.data.manifest import Manifest
from fixtures.errors import refused

PLAIN = "image,label,domain\nnorth/a.jpg,Käfer,nord\nsouth/b.jpg,007,süd\n"
EXPECTED = [("north/a.jpg", "Käfer", "nord"), ("south/b.jpg", "007", "süd")]
READ = {
    "as it should be": PLAIN.encode(),
    "semicolons": PLAIN.replace(",", ";").encode(),
    "tabs": PLAIN.replace(",", "\t").encode(),
    "bars": PLAIN.replace(",", "|").encode(),
    "a mark before UTF-8": codecs.BOM_UTF8 + PLAIN.encode(),
    "UTF-16": PLAIN.encode("utf-16"),
    "UTF-16, the other way round": codecs.BOM_UTF16_BE + PLAIN.encode("utf-16-be"),
    "Windows line ends": PLAIN.replace("\n", "\r\n").encode(),
    "quotes and a comma inside": b'"image";"label";"domain"\n"north/a.jpg";"K\xc3\xa4fer";"nord"\n'
    b'"south/b.jpg";"007";"s\xc3\xbcd"\n',
    "all at once": PLAIN.replace(",", "\t").replace("\n", "\r\n").encode("utf-8-sig"),
}


@pytest.mark.parametrize("case", READ)
def test_read(case: str, tmp_path: Path) -> None:
    path = tmp_path / "photos.csv"
    path.write_bytes(READ[case])
    table = Manifest.open(path).table
    assert [tuple(row[c] for c in ("image", "label", "domain")) for row in table.to_pylist()] == (
        EXPECTED
    )


REFUSED = {
    "a workbook": ("photos.xlsx", b"PK\x03\x04rest", [".csv"]),
    "a workbook by another name": ("photos.csv", b"\xd0\xcf\x11\xe0rest", ["UTF-8 at byte 0"]),
    "Latin-1": ("photos.csv", PLAIN.encode("latin-1"), ["UTF-8 at byte 32"]),
    "a name beyond measure": (
        "photos.csv",
        b"x" * 200_000 + b",label,domain\n1,2,3\n",
        ["'image'", f"{'x' * 40}, label, domain"],
    ),
    "other names": ("photos.csv", b"Datei;Klasse;Ort\na.jpg;x;y\n", ["'image'", "Datei, Klasse"]),
    "margins": ("photos.csv", b"image;label;domain;;\na;b;c;;\n", ["two columns named ''"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_cause(case: str, tmp_path: Path) -> None:
    name, content, facts = REFUSED[case]
    (tmp_path / name).write_bytes(content)
    with refused(ManifestError, name, *facts):
        Manifest.open(tmp_path / name)


def long_row(path: Path, length: int) -> Path:
    rows = "".join(f'{i}.jpg,cat,north,"{"z" * (length if i == 3 else 9)}"\n' for i in range(6))
    path.write_text(f"image,label,domain,caption\n{rows}")
    return path


def test_a_row_of_megabytes_is_read(tmp_path: Path) -> None:
    table = Manifest.open(long_row(tmp_path / "photos.csv", 3_000_000)).table
    assert table["image"].to_pylist() == [f"{i}.jpg" for i in range(6)]


def test_a_row_without_end_is_refused_and_the_process_ends(tmp_path: Path) -> None:
    """Readers left at work once kept it from ending."""
    path = long_row(tmp_path / "photos.csv", 3_000_000)
    code = (
        "import sys; from pathlib import Path; from acclimate.data import readers\n"
        "from acclimate.core.errors import ManifestError; from acclimate.data.manifest import "
        "Manifest\n"
        "readers._LONGEST_ROW = 1 << 20\n"
        "try: Manifest.open(Path(sys.argv[1]))\n"
        "except ManifestError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120
    )
    assert "photos.csv" in done.stdout
    assert done.returncode == 0
