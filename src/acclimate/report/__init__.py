"""The report of a sweep or of a folder of runs: `results` as words, tables, figures and a page.

sentences.py  what it says, the first sentence first
grid.py       the model of a table, as text, Markdown and LaTeX
tables.py     which tables there are, column by column
export.py     a report as Markdown, LaTeX, CSV and JSON
figures/      every figure; its table is in __init__.py
page.py       one self-contained page, by templates/
"""

from acclimate.report.figures import write_figures
from acclimate.report.page import write_page
from acclimate.results.comparison import Comparison
from acclimate.results.load import load_domainbed, load_report, report_of_runs
from acclimate.results.material import Report
from acclimate.results.runs import RunView, find_runs

__all__ = [
    "Comparison",
    "Report",
    "RunView",
    "find_runs",
    "load_domainbed",
    "load_report",
    "report_of_runs",
    "write_figures",
    "write_page",
]
