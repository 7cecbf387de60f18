"""Unlabelled images of a new domain in, a classifier for that domain out."""

from acclimate.core.exports import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    choice="adapt_by choose_method",
    classifier="Adapted adapt apply_state predictions unadapted",
    export="export_adapted",
    many="ManyDomains",
    methods="METHODS Chain Method find_chain",
    methods__chain="adapt_model",
    saved="save_model",
    trust="Trust judge",
)
