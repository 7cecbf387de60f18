"""Objectives, penalties, models, embeddings, algorithms, and the trained model on disk."""
