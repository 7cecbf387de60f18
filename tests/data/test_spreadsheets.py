"""Tables as spreadsheets leave them: read, or refused with the cause, whole."""

import codecs
import subprocess
import sys
from pathlib import Path

import pytest

from acclimate.core.errors import ManifestError
from acclimate.data.manifest import Manifest

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
    "Latin-1": PLAIN.replace(",", ";").encode("latin-1"),
    "Windows line ends": PLAIN.replace("\n", "\r\n").encode(),
    "backslashes": PLAIN.replace("/", "\\").encode(),
    "Excel's separator line": b"sep=;\r\n" + PLAIN.replace(",", ";").encode(),
    "margins": b"image;label;domain;;\nnorth/a.jpg;K\xc3\xa4fer;nord;;\n;;;;\n"
    b"south/b.jpg;007;s\xc3\xbcd;;\n;;;;\n",
    "quotes and a comma inside": b'"image";"label";"domain"\n"north/a.jpg";"K\xc3\xa4fer";"nord"\n'
    b'"south/b.jpg";"007";"s\xc3\xbcd"\n',
    "all at once": (PLAIN.replace(",", "\t").replace("/", "\\").replace("\n", "\r\n")).encode(
        "utf-16"
    ),
}


@pytest.mark.parametrize("case", READ)
def test_read(case: str, tmp_path: Path) -> None:
    path = tmp_path / "photos.csv"
    path.write_bytes(READ[case])
    table = Manifest.open(path).table
    assert [tuple(row[c] for c in ("image", "label", "domain")) for row in table.to_pylist()] == (
        EXPECTED
    )


def test_a_file_whose_name_has_a_backslash_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "a\\b.jpg").touch()
    (tmp_path / "photos.csv").write_text("image,label,domain\na\\b.jpg,cat,north\n")
    assert Manifest.open(tmp_path / "photos.csv").table["image"].to_pylist() == ["a\\b.jpg"]


REFUSED = {
    "a workbook": (
        "photos.xlsx",
        b"PK\x03\x04rest",
        "photos.xlsx is an Excel or LibreOffice workbook; save its sheet as CSV (UTF-8) and give "
        "that",
    ),
    "a workbook by another name": (
        "photos.csv",
        b"\xd0\xcf\x11\xe0rest",
        "photos.csv is an old Excel workbook; save its sheet as CSV (UTF-8) and give that",
    ),
    "UTF-16 without its mark": (
        "photos.csv",
        PLAIN.encode("utf-16-le").replace("ä".encode("utf-16-le"), b"a\0").replace(b"\xfc", b"u"),
        "photos.csv holds NUL characters: it is UTF-16 without its mark, or no text; save it as "
        "CSV (UTF-8)",
    ),
    "neither UTF-8 nor Latin-1": (
        "photos.csv",
        b"image,label,domain\na.jpg,\x81\xff,north\n",
        "photos.csv is neither UTF-8 nor Latin-1 at byte 25; save it as CSV (UTF-8)",
    ),
    "half of UTF-16": (
        "photos.csv",
        PLAIN.encode("utf-16") + b"\0",
        f"photos.csv begins as UTF-16 text and does not go on as such at byte "
        f"{len(PLAIN.encode('utf-16'))}; save it as CSV (UTF-8)",
    ),
    "a name beyond measure": (
        "photos.csv",
        b"x" * 200_000 + b",label,domain\n1,2,3\n",
        f"photos.csv has no column 'image'; it has {'x' * 40}, label, domain. Name the column "
        f"'image'",
    ),
    "other names": (
        "photos.csv",
        b"Datei;Klasse;Ort\na.jpg;x;y\n",
        "photos.csv has no column 'image'; it has Datei, Klasse, Ort. Name the column 'image'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_cause(case: str, tmp_path: Path) -> None:
    name, content, message = REFUSED[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ManifestError) as caught:
        Manifest.open(tmp_path / name)
    assert str(caught.value) == message


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
        "import sys; from pathlib import Path; from acclimate.data import spreadsheets\n"
        "from acclimate.core.errors import ManifestError; from acclimate.data.manifest import "
        "Manifest\n"
        "spreadsheets._LONGEST_ROW = 1 << 20\n"
        "try: Manifest.open(Path(sys.argv[1]))\n"
        "except ManifestError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == (
        "cannot read photos.csv as a .csv table: a row has no end within megabytes; a quote may "
        "be open; mend it, or make it again"
    )
    assert done.returncode == 0
