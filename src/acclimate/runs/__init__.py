"""One run: its folder, its plan, the loop, checkpoints, records and scores."""

from acclimate.core.exports import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    evaluate="evaluate_run",
    loop="Loop",
    plan="Plan make_plan",
    scoring="final_scores validate",
    session="Session",
    training="RunResult train train_embedding",
)
