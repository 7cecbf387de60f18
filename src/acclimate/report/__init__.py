"""The report of a folder of runs: data first (`summary`), then its views.

summary.py  runs -> Summary: means, standard errors, paired differences; no text, no drawing
tables.py   a Summary in words and as text, Markdown, CSV and JSON values
plots.py    a Summary as figures, SVG and PNG
html.py     a Summary as one self-contained page
Beside them, label_plots.py draws how labels are spread over the domains of a data set.
"""

from acclimate.report.html import write_report
from acclimate.report.summary import RunView, Summary, find_runs, summarise

__all__ = ["RunView", "Summary", "find_runs", "summarise", "write_report"]
