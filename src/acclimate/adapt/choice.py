"""`auto`: which method to adapt by, from what rehearsal found and how many images there are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from acclimate.adapt.methods import chain_of
from acclimate.core.layout import REHEARSAL
from acclimate.core.wording import count, percent, signed
from acclimate.learn.embeddings import DomainState
from acclimate.learn.model import Trained
from acclimate.records.rehearsal import ENOUGH_DOMAINS_TO_TELL, Rehearsal


@dataclass(frozen=True)
class MethodChoice:
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    why: tuple[str, ...] = ()


def choose_method(trained: Trained, images: int, into: DomainState | None = None) -> MethodChoice:
    """What `auto` means for `images` of a new domain, of which `into` has seen others before."""
    found = rehearsal_of(trained)
    if into is not None:
        return _going_on(chain_of(into).name, found, into.count + images)
    if found is None:
        if trained.embedding is not None:
            return MethodChoice("embedding")
        asked = trained.config.adapt.rehearse
        why = "too few sites or images to rehearse with" if asked else "nothing was rehearsed"
        remedy = "" if asked else "; see adapt.rehearse"
        return MethodChoice("none", why=(f"{why}: the plain model is used as it is{remedy}",))
    return rehearsed_choice(found, images)


def rehearsed_choice(found: Rehearsal, images: int) -> MethodChoice:
    """What rehearsal chose for so many images of a new domain."""
    chain = found.chain_for(images)
    return MethodChoice(chain, found.settings_for(chain), (_why(found, chain, images),))


def _going_on(begun: str, found: Rehearsal | None, images: int) -> MethodChoice:
    """A state is gone on with as it was begun; by now another method may be due."""
    if found is None:
        return MethodChoice(begun)
    settings = found.settings_for(begun) if begun in found.chains else {}
    due = found.chain_for(images)
    if due == begun:
        return MethodChoice(begun, settings)
    why = f"with {count(images, 'image')} rehearsal would choose {due}; adapt anew on all of them"
    return MethodChoice(begun, settings, (why,))


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
    if found.domains < ENOUGH_DOMAINS_TO_TELL:
        return (
            f"{sites} cannot tell whether adaptation pays, {ENOUGH_DOMAINS_TO_TELL} can; "
            f"predictions are the plain model's"
        )
    later = [n for n, other in found.chosen.items() if other != "none" and n > images]
    if later:
        return (
            f"{count(images, 'image')} are too few to adapt by: rehearsal on {sites} shows a gain "
            f"from {min(later)} on; predictions are the plain model's"
        )
    with_so_many = "" if set(found.chosen.values()) == {"none"} else " with so many images"
    return (
        f"adaptation did not pay on your {sites}{with_so_many}; predictions are the plain model's"
    )
