"""The report of a sweep or of a folder of runs: data first, then its views.

Data
runs.py     run folders -> RunView: what each holds, and what its lines are called
summary.py  runs -> Summary: means, standard errors, paired differences
results.py  observations -> Results: a table per data set and rule, with the paired test of
            significance.py
load.py     a sweep, a folder of runs or (history.py) a DomainBed sweep -> Report
beside.py   the paper's rows beside ours; missing.py says what a table lacks

Views
lead.py     the first sentence of a page
tables.py   a Summary in words and as text, Markdown, CSV and JSON values
export.py   a Report's tables as text, Markdown, LaTeX (latex.py), CSV and JSON values
plots.py and the modules it names: figures, as SVG, PDF and PNG
html.py     a Report as one self-contained page
"""

from acclimate.report.figures import write_figures
from acclimate.report.html import write_page, write_report
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
    "write_report",
]
