"""From files to batches: decoding, quarantine of what does not decode, augmentation."""

from acclimate.core.exports import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    batches="Batch DomainSampler EpisodeSampler Loader",
    cache="FeatureCache Pack",
    duplicates="near_copies perceptual_hash",
    images="decode",
    inspection="Inspection find_copies inspect try_images",
    manifest="Manifest",
    source="FeatureSource ImageSource Quarantine Unlabelled open_source pack_images readable",
)
