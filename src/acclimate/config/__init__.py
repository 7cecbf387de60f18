"""Every setting of a run, the presets, and how files and flags become one configuration."""

from acclimate.config.algorithm_name import AlgorithmName
from acclimate.config.fields import NoSettings, Search, choice, log2, log10, setting, settings_of
from acclimate.config.gather import gather, layered, parse_assignments, read_toml
from acclimate.config.presets import RECIPE
from acclimate.config.settings import (
    AdaptConfig,
    AverageConfig,
    DataConfig,
    EmbeddingConfig,
    ModelConfig,
    OptimiserConfig,
    RunConfig,
    SiteConfig,
    TrainConfig,
)
from acclimate.config.values import as_dict, component_settings, flat, from_dict, merged, nested

__all__ = [
    "RECIPE",
    "AdaptConfig",
    "AlgorithmName",
    "AverageConfig",
    "DataConfig",
    "EmbeddingConfig",
    "ModelConfig",
    "NoSettings",
    "OptimiserConfig",
    "RunConfig",
    "Search",
    "SiteConfig",
    "TrainConfig",
    "as_dict",
    "choice",
    "component_settings",
    "flat",
    "from_dict",
    "gather",
    "layered",
    "log2",
    "log10",
    "merged",
    "nested",
    "parse_assignments",
    "read_toml",
    "setting",
    "settings_of",
]
