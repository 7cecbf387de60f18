"""Builders: raw data in, manifests out. Nothing here imports torch."""
