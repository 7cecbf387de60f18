"""timm and torchvision, imported on demand, also beside a torch without CUDA libraries.

torchvision's compiled operators need the CUDA libraries of an ordinary torch. Beside a CPU-only
torch they do not load, and `import torchvision` then fails while registering the gradients of
`torchvision::nms`, an operator nobody here calls. Declaring the operator's schema (no
implementation) lets the import go through: models and transforms work, torchvision's own nms and
image decoding do not.
"""

import importlib
import sys
from types import ModuleType

import torch

_SYMPTOM = "operator torchvision::nms does not exist"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# A schema lives as long as the library object that declared it.
_declared: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """torchvision by a plain import; its missing operators are declared only if that fails."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if _SYMPTOM not in str(error) or _declared:
            raise
    _forget("torchvision")
    _declare_operators()
    return importlib.import_module("torchvision")


def import_timm() -> ModuleType:
    """timm, which imports torchvision at once and so must find it importable."""
    import_torchvision()
    return importlib.import_module("timm")


def _forget(package: str) -> None:
    # The failed import leaves submodules behind that hold the half-made package.
    for name in list(sys.modules):
        if name == package or name.startswith(f"{package}."):
            del sys.modules[name]


def _declare_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
