"""Names of strangers, where terminals, spreadsheets and browsers read them."""

import csv
import io

import pytest

from acclimate.core.text import csv_text, markdown, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain 100 % ü – 日本", "plain 100 % ü – 日本"),
        ("a\nb\tc", "a\nb\tc"),
        ("\x1b[31mred\x07\x9b2J", "\\x1b[31mred\\x07\\x9b2J"),
        ("over\rwritten", "over\\rwritten"),
        ("turned \u202e around", "turned \\u202e around"),
        ("byte \udcff", "byte \\udcff"),
        ("line\u2028end", "line\\u2028end"),
        ("👩\u200d🔬", "👩\u200d🔬"),
        ("nbsp\u00a0here", "nbsp\u00a0here"),
    ],
)
def test_what_a_terminal_acts_on_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_no_cell_breaks_a_row_or_is_a_formula() -> None:
    cells = ["a", 'say "x"', "b,c", "new\nline", "re\rturn", "=1+1", "+x", "-x", "@x", "\tx", None]
    text = csv_text([cells, ["-1", "+2.5", "-1e-5", "0.5", 7, "x=1", "", "", "", "", ""]])
    first, second = csv.reader(io.StringIO(text, newline=""))
    assert first == [
        "a", 'say "x"', "b,c", "new\nline", "re\rturn", "'=1+1", "'+x", "'-x", "'@x", "'\tx", "",
    ]  # fmt: skip
    assert second[:6] == ["-1", "+2.5", "-1e-5", "0.5", "7", "x=1"]
    assert text.endswith("\n") and "\r\n" not in text


def test_markdown_has_no_marks_of_its_own() -> None:
    assert markdown("<b>a|b</b> & [x](y)\n# `c` *d* _e_") == (
        "&lt;b&gt;a\\|b&lt;/b&gt; &amp; \\[x\\](y) # \\`c\\` \\*d\\* \\_e\\_"
    )
