"""What runs wrote, as observations, statistics and choices. Nothing here imports torch."""
