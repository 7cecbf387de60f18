"""Pretrained weights: files read without running code, fitted with every mismatch named."""

import os
import socket
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from acclimate.core.errors import WeightsError
from acclimate.core.tensors import all_finite

# What stands before a classifier's own tensors in the files of timm, torchvision and others.
_HEADS = ("fc.", "_fc.", "classifier.", "head.", "head_dist.", "last_linear.")
_SHOWN = 3
_PROBE_SECONDS = 3.0
_TRUE = ("1", "ON", "YES", "TRUE")
_FROM_SCRATCH = "train from scratch with --set model.pretrained=false"


def no_weights(name: str, reason: str, *remedies: str) -> WeightsError:
    """`reason` why backbone `name` has no weights, then the ways out; the last always works."""
    ways = ", ".join([*remedies, f"or {_FROM_SCRATCH}"])
    return WeightsError(f"no weights for '{name}': {reason}; {ways}")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Tensors by name from a safetensors file or a torch state dict; halves become float32.

    Nothing but tensors is ever unpickled. A state dict may be nested under "state_dict" or
    "model", and the "module." that data parallelism puts before every name is dropped.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"there is no weights file {path}; check the path")
    tensors = {
        name: value
        for name, value in _state_dict(_load(path)).items()
        if isinstance(name, str) and isinstance(value, Tensor)
    }
    if not tensors:
        raise WeightsError(f"{path} holds no tensors by name; give a state dict")
    if not all_finite(tensors.values()):
        raise WeightsError(f"{path} holds weights that are not finite; give another file")
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    return {name: _single(value) for name, value in tensors.items()}


def fit_weights(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Load `tensors` into `module`, all or nothing; a classifier's tensors are left aside.

    `where` says in the error what was loaded for what.
    """
    own = module.state_dict()
    # The batch counter is no weight: eval never reads it, and older files do not have it.
    missing = [k for k in own if k not in tensors and not k.endswith("num_batches_tracked")]
    unexpected = [k for k in tensors if k not in own and not k.startswith(_HEADS)]
    shapes = [
        f"{k} {list(tensors[k].shape)} instead of {list(own[k].shape)}"
        for k in own
        if k in tensors and tensors[k].shape != own[k].shape
    ]
    found = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    faults = [f"{len(names)} {what} ({_few(names)})" for what, names in found.items() if names]
    if faults:
        raise WeightsError(
            f"{where} does not fit: {', '.join(faults)}; give a file made for this backbone"
        )
    module.load_state_dict({k: tensors.get(k, own[k]) for k in own})


def rename_by_order(
    module: nn.Module, tensors: Mapping[str, Tensor], where: str
) -> dict[str, Tensor]:
    """`tensors` under `module`'s names, paired one by one in order, heads left aside.

    Shape and kind (the last part of the name: weight, bias, running_mean ...) must agree.
    """
    own = module.state_dict()
    given = {name: value for name, value in tensors.items() if not name.startswith(_HEADS)}
    if len(given) != len(own):
        raise WeightsError(
            f"{where} does not fit: {len(given)} tensors instead of {len(own)}; "
            "give a file made for this backbone"
        )
    for (name, value), (target, expected) in zip(given.items(), own.items(), strict=True):
        same_kind = name.rpartition(".")[2] == target.rpartition(".")[2]
        if value.shape != expected.shape or not same_kind:
            raise WeightsError(
                f"{where} does not fit: {name} {list(value.shape)} stands where "
                f"{target} {list(expected.shape)} belongs; give a file made for this backbone"
            )
    return dict(zip(own, given.values(), strict=True))


def find_hub_weights(name: str, source: Any) -> Path | None:
    """The cached file of timm's pretrained configuration `source`, None when it can be fetched.

    Looking in the cache first and then knocking at the host's door takes seconds; timm itself
    would retry for most of a minute before it gave up.
    """
    remedies = ("give --weights FILE", "--backbone efficientnet-lite0")
    if not source or not (source.hf_hub_id or source.url):
        raise no_weights(name, "timm has none", *remedies)
    cached = _cached_hub(source) if source.hf_hub_id else _cached_download(source.url)
    if cached is not None:
        return cached
    from huggingface_hub import constants

    # The constant is read when huggingface_hub is imported; a later setting counts as well.
    if constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
        raise no_weights(name, "HF_HUB_OFFLINE is set and nothing is cached", *remedies)
    if not reachable(constants.ENDPOINT if source.hf_hub_id else source.url):
        raise no_weights(name, "the hub cannot be reached and nothing is cached", *remedies)
    return None


def reachable(url: str, seconds: float = _PROBE_SECONDS) -> bool:
    """Whether `url`'s host accepts a connection within `seconds`; assumed behind a proxy."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
    proxies = urllib.request.getproxies()
    if ({parts.scheme, "all"} & proxies.keys()) and not urllib.request.proxy_bypass(host):
        return True
    answered = threading.Event()

    def knock() -> None:
        try:
            with socket.create_connection((host, port), timeout=seconds):
                answered.set()
        except OSError:
            pass

    # In a thread, because the timeout of a connection does not cover looking up the host.
    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()


def _cached_hub(source: Any) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    repository, _, revision = source.hf_hub_id.partition("@")
    names = [source.hf_hub_filename] if source.hf_hub_filename else []
    for name in [*names, "model.safetensors", "pytorch_model.bin"]:
        found = try_to_load_from_cache(repository, name, revision=revision or None)
        if isinstance(found, str):
            return Path(found)
    return None


def _cached_download(url: str) -> Path | None:
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(url).path).name
    return file if file.is_file() else None


def _load(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a broken or hostile file raises is not one family
        raise WeightsError(
            f"{path} cannot be read as weights: it is neither a safetensors file nor a torch file "
            "of nothing but tensors (anything else in it could run code, so it is refused); "
            "give a file of weights alone"
        ) from error


def _state_dict(loaded: Any) -> Mapping[Any, Any]:
    for key in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    return loaded if isinstance(loaded, Mapping) else {}


def _single(tensor: Tensor) -> Tensor:
    half = tensor.is_floating_point() and tensor.element_size() < 4
    return tensor.float() if half else tensor


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
