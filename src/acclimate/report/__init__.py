"""The report of a sweep or of a folder of runs: `results` as words, tables, figures and a page.

sentences.py  what it says, the first sentence first
grid.py       the model of a table, as text, Markdown and LaTeX
tables.py     which tables there are, column by column
export.py     a report as Markdown, LaTeX, CSV and JSON
figures/      every figure; its table is in __init__.py
page.py       one self-contained page, by templates/
"""

from acclimate.core.exports import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    figures="FIGURES write_figures",
    page="page_of write_page",
    export="to_csv to_dict to_latex to_markdown write_table",
)
