"""Leave-one-domain-out evaluation of adaptation: how `train` chooses what `adapt` does."""
