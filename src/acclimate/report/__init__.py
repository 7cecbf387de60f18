"""The report of a sweep or of a folder of runs: `results` as words, tables, figures and a page.

sentences.py  what it says, the first sentence first
tables.py     which tables there are, column by column
export.py     a report as Markdown, LaTeX, CSV and JSON
figures/      every figure; its table is in __init__.py
page.py       one self-contained page, by templates/

And pages about one's own data, without a report:
view.py       their sections, and what keeps them small
data_page.py  the page of `inspect`
answer_pages.py  the pages of `evaluate` and `predict`
"""

from acclimate.core.exports import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    figures="FIGURES write_figures",
    page="page_of write_page",
    export="to_csv to_dict to_latex to_markdown write_table",
)
