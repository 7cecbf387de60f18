"""Pretrained weights: files read without running code, timm's hub, and the licences.

timm and torchvision are imported on demand, also beside a torch without CUDA libraries.
torchvision's compiled operators need the CUDA libraries of an ordinary torch. Beside a CPU-only
torch they do not load, and `import torchvision` then fails while registering the gradients of
`torchvision::nms`, an operator nobody here calls. Declaring the operator's schema (no
implementation) lets the import go through: models and transforms work, torchvision's own nms and
image decoding do not.
"""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.config import ModelConfig, from_dict
from acclimate.core.errors import WeightsError
from acclimate.core.files import read_document
from acclimate.core.tensors import all_finite, below
from acclimate.core.text import reason_of
from acclimate.records.folder import MODEL, WEIGHTS

# What stands before a classifier's own tensors in the files of timm, torchvision and others.
_HEADS = ("fc.", "_fc.", "classifier.", "head.", "head_dist.", "last_linear.")
OF_A_RUN = "predictor.backbone.body."  # before the names of a trained model's backbone
_LONGEST = 300  # characters of a list of tensors that do not fit
FROM_ELSEWHERE = ("give --weights FILE", "--backbone efficientnet-lite0")
_FROM_SCRATCH = "train from scratch with --set model.pretrained=false"
_SYMPTOM = "operator torchvision::nms does not exist"
_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# A schema lives as long as the library object that declared it.
_declared: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """torchvision by a plain import; its missing operators are declared only if that fails."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if _SYMPTOM not in str(error) or _declared:
            raise
    # The failed import leaves submodules behind that hold the half-made package.
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        library.define(operator + _BOXES)  # type: ignore[no-untyped-call]
    _declared.append(library)
    return importlib.import_module("torchvision")


def import_timm() -> ModuleType:
    """timm, which imports torchvision at once and so must find it importable."""
    import_torchvision()
    return importlib.import_module("timm")


def weights_licence(model: ModelConfig) -> str:
    """Under which licence the weights came that a model started from: whoever passes it on needs
    it. What is not known is said to be so."""
    if model.weights:
        name, described = Path(model.weights).name, Path(model.weights).with_name(MODEL)
        if name == WEIGHTS and described.exists():  # of a run, which started from others
            known = read_document(described)["config"]["model"]
            return weights_licence(from_dict(ModelConfig, known, where=str(described)))
        return f"unknown: the backbone started from {name}; ask where it is from"
    if not model.pretrained or model.backbone in ("small-cnn", "mlp"):
        return "none: no pretrained weights, so that they are yours"
    if model.backbone == "efficientnet-lite0":
        where = "EfficientNet-Lite0 of tensorflow/tpu (the package that carries them names none)"
        return f"Apache-2.0: {where}"
    source = import_timm().models.get_pretrained_cfg(model.backbone)
    licence = getattr(source, "license", None)
    where = getattr(source, "hf_hub_id", None) or getattr(source, "url", None) or "timm"
    return f"{licence}: {where}" if licence else f"unknown: {where} names none; ask there"


def no_weights(name: str, reason: str, *remedies: str) -> WeightsError:
    """`reason` why backbone `name` has no weights, then the ways out; the last always works."""
    ways = ", ".join([*remedies, f"or {_FROM_SCRATCH}"])
    return WeightsError(f"no weights for '{name}': {reason}; {ways}")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Tensors by name from a safetensors file or a torch state dict; halves become float32.

    Nothing but tensors is ever unpickled. A state dict may be nested under "state_dict" or
    "model", and the "module." that data parallelism puts before every name is dropped. Of a run's
    model it is the predictor's backbone.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"there is no weights file {path}; check the path")
    tensors = {
        name: value
        for name, value in _load(path).items()
        if isinstance(name, str) and isinstance(value, Tensor)
    }
    if not tensors:
        raise WeightsError(f"{path} holds no tensors by name; give a state dict")
    if not all_finite(tensors.values()):
        raise WeightsError(f"{path} holds weights that are not finite; give another file")
    tensors = below(tensors, OF_A_RUN) or tensors
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    halves = (torch.float16, torch.bfloat16)
    return {name: t.float() if t.dtype in halves else t for name, t in tensors.items()}


def fit_weights(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Load `tensors` into `module`; a classifier's tensors are left aside.

    `where` says in the error what was loaded for what.
    """
    state = module.state_dict()
    # The batch counter is no weight: eval never reads it, and older files do not have it.
    counters = {name: t for name, t in state.items() if name.endswith("num_batches_tracked")}
    weights = {n: t for n, t in tensors.items() if n in state or not n.startswith(_HEADS)}
    try:
        module.load_state_dict({**counters, **weights})
    except RuntimeError as error:
        raise _misfit(where, reason_of(error, _LONGEST)) from None


def rename_by_order(
    module: nn.Module, tensors: Mapping[str, Tensor], where: str
) -> dict[str, Tensor]:
    """`tensors` under `module`'s names, paired one by one in order, heads left aside."""
    weights = {name: t for name, t in tensors.items() if not name.startswith(_HEADS)}
    names = list(module.state_dict())
    theirs, mine = ([name.rpartition(".")[2] for name in some] for some in (weights, names))
    if theirs != mine:  # weight, bias, running_mean ...
        raise _misfit(where, f"its {len(theirs)} tensors are not in the order of our {len(mine)}")
    return dict(zip(names, weights.values(), strict=True))


def _misfit(where: str, reason: str) -> WeightsError:
    return WeightsError(f"{where} does not fit: {reason}; give a file made for this backbone")


def hub_options(name: str, source: Any) -> dict[str, Any]:
    """What makes timm load the cached file of its pretrained configuration `source`; nothing where
    it is not cached. timm by itself asks the host first, for most of a minute if there is none.
    """
    from huggingface_hub import try_to_load_from_cache

    if not source or not (source.hf_hub_id or source.url):
        raise no_weights(name, "timm has none", *FROM_ELSEWHERE)
    if not source.hf_hub_id:  # a plain download, which timm caches and does not repeat
        return {}
    repository, _, revision = source.hf_hub_id.partition("@")
    for file in (source.hf_hub_filename, "model.safetensors", "pytorch_model.bin"):
        cached = file and try_to_load_from_cache(repository, file, revision=revision or None)
        if isinstance(cached, str):
            # timm reads a hub's file as a state dict unless told otherwise.
            overlay = {"file": cached, "custom_load": source.custom_load == "hf"}
            return {"pretrained_cfg_overlay": overlay}
    return {}


def _load(path: Path) -> Mapping[Any, Any]:
    """What a file holds under names, taken out of what it is nested in; nothing for a list."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            loaded: Any = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a broken or hostile file raises is not one family
        raise WeightsError(
            f"{path} cannot be read as weights: it is neither a safetensors file nor a torch file "
            "of nothing but tensors (anything else in it could run code, so it is refused); "
            "give a file of weights alone"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    return dict(loaded) if isinstance(loaded, Mapping) else {}
