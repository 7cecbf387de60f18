"""Leave-one-domain-out evaluation of adaptation: how `train` chooses what `adapt` does."""

from acclimate.core.exports import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    conclusion="conclude",
    folds="Fold make_folds",
    rehearsal="rehearse rehearse_run",
    training="train",
)
