"""`auto`: which method to adapt by, from what rehearsal found and how many images there are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from acclimate.adapt.methods import chain_of
from acclimate.adapt.rehearsal import Rehearsal
from acclimate.core.layout import REHEARSAL
from acclimate.core.wording import count, percent, signed
from acclimate.learn.embeddings import DomainState
from acclimate.learn.model import Trained


@dataclass(frozen=True)
class MethodChoice:
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    why: tuple[str, ...] = ()


def choose_method(trained: Trained, images: int, into: DomainState | None = None) -> MethodChoice:
    """What `auto` means for `images` of a new domain, of which `into` has seen others before."""
    if into is not None:
        return MethodChoice(chain_of(into).name)
    found = rehearsal_of(trained)
    if found is None:
        if trained.adaptive:
            return MethodChoice("embedding")
        why = "nothing was rehearsed: the plain model is used as it is; see adapt.rehearse"
        return MethodChoice("none", why=(why,))
    chain = found.chain_for(images)
    return MethodChoice(chain, found.settings_for(chain), (_why(found, chain, images),))


def rehearsal_of(trained: Trained) -> Rehearsal | None:
    stored = trained.rehearsal
    return None if stored is None else Rehearsal.from_dict(stored, where=REHEARSAL)


def _why(found: Rehearsal, chain: str, images: int) -> str:
    sites = count(found.domains, "site")
    if chain != "none":
        promise = found.promise(chain, images)
        error = "" if promise.error is None else f" ± {percent(promise.error)}"
        return (
            f"{chain} was chosen by rehearsal on {sites}: {signed(promise.gain)}{error} points "
            f"with {count(promise.n, 'image')}"
        )
    later = [n for n, other in found.chosen.items() if other != "none"]
    if later:
        return (
            f"{count(images, 'image')} are too few to adapt by: rehearsal on {sites} shows a gain "
            f"from {min(later)} on; predictions are the plain model's"
        )
    return f"adaptation did not pay on your {sites}; predictions are the plain model's"
