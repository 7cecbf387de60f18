"""The figures of a report with the paper's own among them: ablations, and consistency of μ."""

from acclimate.paper.figures import ablation, consistency
from acclimate.report import figures as product

_RUNS = ("search", "learning")  # figures about runs, which come last on a page

FIGURES: product.Figures = {
    "ablation": ablation.illustrate,
    **{name: draw for name, draw in product.FIGURES.items() if name not in _RUNS},
    "consistency": consistency.illustrate,
    **product.FIGURES,
}
