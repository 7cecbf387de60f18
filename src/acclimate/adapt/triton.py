"""The classifier of one domain as a model of Triton Inference Server's repository."""

import json
from pathlib import Path

from acclimate.adapt.classifier import Adapted
from acclimate.adapt.export import OUTPUT, Exported, export_adapted
from acclimate.core.files import write_text
from acclimate.core.text import printable

CONFIG, LABELS = "config.pbtxt", "labels.txt"
MOST = 64  # rows that Triton may put into a batch
SAYS = "# Made by acclimate.\n"


def export_triton(site: Adapted, folder: Path, *, half: bool = False) -> Exported:
    """Write FOLDER/1/model.onnx, FOLDER/config.pbtxt and FOLDER/labels.txt; the folder's name is
    the model's."""
    exported = export_adapted(site, folder / "1" / "model.onnx", name=folder.name, half=half)
    size = site.size
    (rows,) = exported.inputs
    kind, shape = ("UINT8", f"3, {size}, {size}") if rows == "images" else ("FP32", f"{size}")
    text = (
        f"{SAYS}"
        f"name: {json.dumps(folder.name)}\n"
        f'backend: "onnxruntime"\n'
        f"max_batch_size: {MOST}\n"
        f'input [ {{ name: "{rows}" data_type: TYPE_{kind} dims: [ {shape} ] }} ]\n'
        f'output [ {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ {len(site.classes)} ] '
        f'label_filename: "{LABELS}" }} ]\n'
        f"dynamic_batching {{ }}\n"
    )
    write_text(
        folder / LABELS, "".join(f"{printable(' '.join(c.split()))}\n" for c in site.classes)
    )
    write_text(folder / CONFIG, text)
    return exported
