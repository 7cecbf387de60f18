"""The figures of a report with the paper's own among them: ablations, and consistency of μ."""

from acclimate.paper.figures import ablation, consistency
from acclimate.report import figures as product

FIGURES: product.Figures = {
    "ablation": ablation.illustrate,
    **product.FIGURES,
    "consistency": consistency.illustrate,
}
