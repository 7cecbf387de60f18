"""The report of a sweep or of a folder of runs: `results` as words, tables, figures and a page.

sentences.py  what it says, the first sentence first
grid.py       the model of a table; tables.py fills it: which tables there are, column by column
export.py     those tables as text, Markdown, LaTeX, CSV and JSON values
figures/      every figure; its table is in __init__.py
html.py       one self-contained page, of sections.py, markup.py and assets.py
"""

from acclimate.report.figures import write_figures
from acclimate.report.html import write_page
from acclimate.results.load import load_domainbed, load_report
from acclimate.results.material import Report
from acclimate.results.runs import RunView, find_runs
from acclimate.results.summary import Summary, summarise
from acclimate.results.tabulate import Results

__all__ = [
    "Report",
    "Results",
    "RunView",
    "Summary",
    "find_runs",
    "load_domainbed",
    "load_report",
    "summarise",
    "write_figures",
    "write_page",
]
