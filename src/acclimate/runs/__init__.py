"""One run: its folder, its plan, the loop, checkpoints, records and scores."""
