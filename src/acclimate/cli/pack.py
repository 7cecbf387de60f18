"""`pack`."""

from typing import Annotated

import typer

from acclimate.cli import app
from acclimate.cli.options import Data, Json
from acclimate.cli.output import progress_bar, say_facts, stoppable


@app.command(epilog="Example: acclimate pack pacs.parquet --size 224")
def pack(
    data: Data,
    size: Annotated[
        int, typer.Option(min=1, max=4096, help="Side of the images, as runs will have them.")
    ] = 224,
    workers: Annotated[int, typer.Option(min=0, help="Threads or processes; 0: by cores.")] = 0,
    json: Json = False,
) -> None:
    """Decode all images once, into a folder that runs share; a repeated command resumes.

    Runs do so by themselves where it fits into data.pack_gib; what this command made is used
    whatever its size, and stays until its folder is deleted.
    """
    from acclimate.config import DataConfig
    from acclimate.core.errors import ManifestError
    from acclimate.data.manifest import Manifest
    from acclimate.data.source import Quarantine, pack_images

    manifest = Manifest.open(data)
    if manifest.has_features:
        raise ManifestError(f"{manifest.source} holds features; there are no images to decode")
    manifest.check()
    quarantine = Quarantine()
    config = DataConfig(workers=workers)
    with stoppable(), progress_bar() as watch:
        packed = pack_images(manifest, size, config, quarantine, watch)
    images, gib = len(packed.slot) - len(quarantine), 3 * size**2 * len(packed.slot) / 2**30
    facts = {"folder": packed.folder, "images": images, "gib": gib}
    say_facts({**facts, "unreadable": quarantine.as_dicts()}, json=json)
