"""Objectives, penalties, models, embeddings, algorithms, and the trained model on disk."""

from acclimate.core.exports import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    algorithms="ALGORITHMS Algorithm choose",
    consistency="measure",
    embeddings="EMBEDDINGS DomainState DomainTable Embedding",
    frozen="Extraction",
    images="Images",
    model="Model Networks Trained",
    models="Backbone Head Predictor build_backbone list_backbones",
    objective="Losses Objective",
    penalties="coral irm mmd2",
    site="Features Site fit_plain fit_site",
)
