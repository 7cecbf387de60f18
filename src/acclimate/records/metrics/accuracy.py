"""How often the label is the prediction, or near it."""

from acclimate.records.predictions import Predictions


def top_1(rows: Predictions) -> float:
    return float((rows.rank == 1).mean())


def top_5(rows: Predictions) -> float | None:
    """None where there are no more than five classes: it would be 1 whatever was predicted."""
    return float((rows.rank <= 5).mean()) if len(rows.classes) > 5 else None


def worst_domain(rows: Predictions) -> float:
    """The lowest top-1 accuracy of a domain."""
    return min(top_1(rows.where(rows.domain == name)) for name in set(rows.domain))
