"""Families of domains with a known shift, made from any images: the measuring stick."""
