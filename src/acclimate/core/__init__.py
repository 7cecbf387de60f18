"""Errors, files, tensors, random streams, processes: what everything else stands on."""

from acclimate.core.exports import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    distributed="World pick_device",
    errors="AcclimateError ConfigError ImageError ManifestError RecordError RunError StateMismatch",
    files="append_line file_digest locked read_document write_atomically write_document write_text",
    progress="Watch bar unwatched",
    randomness="derive own_generator own_weights stream",
    tensors="fill read_tensors save_tensors tensors_digest",
    text="count csv_text duration percent printable signed",
)
