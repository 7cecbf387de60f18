"""Families of domains with a known shift, made from any images: the measuring stick."""

from acclimate.build.shift.builder import build_shift
from acclimate.build.shift.draws import ShiftSettings

__all__ = ["ShiftSettings", "build_shift"]
