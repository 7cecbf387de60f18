"""A manifest from a domain/class/image tree."""

from pathlib import Path

from acclimate.data.manifest import Manifest


def build_folder(
    root: str | Path, out: str | Path, *, val_share: float = 0.2, seed: int = 0
) -> Manifest:
    """Check the tree under `root`, write its manifest to `out` and return it.

    Paths are stored relative to `root`, and `root` relative to `out`: move them together.
    """
    manifest = Manifest.from_folder(root, val_share=val_share, seed=seed)
    manifest.check()
    manifest.write(out)
    return manifest
