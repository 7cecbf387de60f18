"""Unlabelled images of a new domain in, a classifier for that domain out."""
