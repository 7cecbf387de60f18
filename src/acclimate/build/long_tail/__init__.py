"""Long-tailed domains from any data: settings, pools, and the builder."""

from acclimate.build.long_tail.builder import build_long_tail, facts
from acclimate.build.long_tail.settings import LT_IMAGENET, LongTailSettings, raised_total

__all__ = ["LT_IMAGENET", "LongTailSettings", "build_long_tail", "facts", "raised_total"]
