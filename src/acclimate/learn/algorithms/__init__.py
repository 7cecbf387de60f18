"""THE table of algorithms. A new one is a file beside this one and a row here.

Each row gives two names: `coral` runs over a plain predictor, `da-coral` over a conditioned one,
but for algorithms that learn an embedding of domains themselves.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from acclimate.config import AlgorithmName, from_dict
from acclimate.config.settings import OVER_MU, PRESETS
from acclimate.core.errors import ConfigError, unknown
from acclimate.learn.algorithms.alignment import MMD, CausIRLCoral, CausIRLMMD, Coral
from acclimate.learn.algorithms.arm import ARM
from acclimate.learn.algorithms.dann import CDANN, DANN
from acclimate.learn.algorithms.eqrm import EQRM
from acclimate.learn.algorithms.erm import ERM
from acclimate.learn.algorithms.fish import Fish
from acclimate.learn.algorithms.fishr import Fishr
from acclimate.learn.algorithms.group_dro import GroupDRO
from acclimate.learn.algorithms.ib_erm import IBERM
from acclimate.learn.algorithms.irm import IRM
from acclimate.learn.algorithms.miro import MIRO
from acclimate.learn.algorithms.mixup import Mixup
from acclimate.learn.algorithms.mldg import MLDG
from acclimate.learn.algorithms.mtl import MTL
from acclimate.learn.algorithms.rsc import RSC
from acclimate.learn.algorithms.sagnet import SagNet
from acclimate.learn.algorithms.sd import SD
from acclimate.learn.algorithms.selfreg import SelfReg
from acclimate.learn.algorithms.vrex import VREx
from acclimate.learn.objective import Algorithm

__all__ = ["ALGORITHMS", "Algorithm", "ChosenAlgorithm", "choose", "names"]

ALGORITHMS: dict[str, tuple[type[Algorithm], str]] = {
    "erm": (ERM, "empirical risk minimisation"),
    "irm": (IRM, "invariant risk minimisation"),
    "group-dro": (GroupDRO, "the domain with the largest risk counts most"),
    "mixup": (Mixup, "images and labels mixed between domains"),
    "mldg": (MLDG, "a step on some domains must help on the others"),
    "coral": (Coral, "the same mean and covariance of features in every domain"),
    "mmd": (MMD, "the same kernel mean of features in every domain"),
    "dann": (DANN, "features that do not give the domain away"),
    "cdann": (CDANN, "features that, given the class, do not give the domain away"),
    "vrex": (VREx, "the same risk in every domain"),
    "eqrm": (EQRM, "a low quantile of the domains' risks"),
    "ib-erm": (IBERM, "features that vary little within a domain"),
    "sd": (SD, "small logits (spectral decoupling)"),
    "rsc": (RSC, "the features that count most are muted"),
    "selfreg": (SelfReg, "logits and features alike within a class"),
    "sagnet": (SagNet, "features whose mean and variance do not give the class away"),
    "causirl-coral": (CausIRLCoral, "coral between two random mixtures of the domains"),
    "causirl-mmd": (CausIRLMMD, "mmd between two random mixtures of the domains"),
    "fish": (Fish, "gradients of the same direction in every domain"),
    "fishr": (Fishr, "gradients of the same variance in every domain"),
    "mtl": (MTL, "a classifier that also sees the mean features of the domain"),
    "arm": (ARM, "a classifier that also sees the domain's mean context, learned with it"),
    "miro": (MIRO, "features near those of the pretrained backbone"),
}


@dataclass(frozen=True)
class ChosenAlgorithm:
    """An algorithm by its full name, with its checked settings."""

    name: str
    build: type[Algorithm]
    settings: Any
    adaptive: bool
    about: str
    over_mu: bool  # whether its Φ is learned before, in Step A


def choose(name: str, settings: dict[str, Any] | None = None) -> ChosenAlgorithm:
    parsed = AlgorithmName.of(name)
    if name in PRESETS:
        raise ConfigError(
            f"there is no algorithm '{name}': it is a preset; use --preset {name}, without "
            f"--algorithm"
        )
    if parsed.base not in ALGORITHMS:
        raise unknown(f"there is no algorithm '{name}'", name, names())
    build, about = ALGORITHMS[parsed.base]
    if parsed.over_mu and not build.over_mu:
        raise ConfigError(
            f"there is no '{name}': {parsed.base} has an embedding of domains of its own; use "
            f"--algorithm {parsed.base}, or {AlgorithmName('erm', over_mu=True)}"
        )
    checked = from_dict(build.Config, settings or {}, where=name, prefix="hparams.")
    if parsed.over_mu:
        about += OVER_MU
    return ChosenAlgorithm(name, build, checked, parsed.adaptive, about, parsed.over_mu)


def names() -> Iterable[str]:
    over_mu = [name for name, (build, _) in ALGORITHMS.items() if build.over_mu]
    return [*ALGORITHMS, *(str(AlgorithmName(name, over_mu=True)) for name in over_mu)]
