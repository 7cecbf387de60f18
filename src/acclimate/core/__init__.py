"""Errors, files, tensors, random streams, processes: what everything else stands on."""
