"""Many sites behind one process: what is stored of them, and who predicts for all of them."""

from acclimate.core.exports import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    batcher="Batcher",
    limits="Limits",
    service="Service",
    store="Store",
    views="Added Prediction SiteView",
)
