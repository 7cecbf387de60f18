"""What the name of an algorithm says: `da-coral` is `coral` over a predictor that adapts."""

from dataclasses import dataclass

_ADAPTIVE = "da-"
OVER_MU = ", over a predictor that also sees the domain's embedding"  # what such a name adds
_SPELLINGS = {"group-dro": "GroupDRO", "mixup": "Mixup", "cdann": "C-DANN"}


@dataclass(frozen=True)
class AlgorithmName:
    """`str` of it is the whole name. Whether there is such an algorithm, the table knows."""

    base: str
    adaptive: bool = False

    @classmethod
    def of(cls, name: str) -> "AlgorithmName":
        return cls(name.removeprefix(_ADAPTIVE), name.startswith(_ADAPTIVE))

    def __str__(self) -> str:
        return f"{_ADAPTIVE}{self.base}" if self.adaptive else self.base

    @property
    def adaptive_version(self) -> str | None:
        """The name of a plain algorithm that adapts; an adaptive one has no other."""
        return None if self.adaptive else f"{_ADAPTIVE}{self.base}"

    @property
    def usual_method(self) -> str:
        """How its models are meant to be used on a new domain: adapted where they can be."""
        return "embedding" if self.adaptive else "none"

    @property
    def label(self) -> str:
        """As papers write it: DA-ERM, C-DANN."""
        spelled = _SPELLINGS.get(self.base, self.base.upper() if self.base.islower() else self.base)
        return f"{_ADAPTIVE.upper()}{spelled}" if self.adaptive else spelled
