"""THE table of builders. A new one is a file beside this one and a row here.

`acclimate build NAME` and its documentation are made from the row and from the builder's fields.
Rows name their class by its path: a builder is imported when it is asked for, and not before.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from acclimate.build.base import Builder, Built
from acclimate.core.errors import require_known
from acclimate.core.exports import load

__all__ = ["BUILDERS", "Builder", "Built", "Row", "builder"]


@dataclass(frozen=True)
class Row:
    where: str  # module:class
    about: str


BUILDERS: dict[str, Row] = {
    "folder": Row("acclimate.build.files:Folder", "From a tree of folders: domain/class/image."),
    "table": Row(
        "acclimate.build.files:Table",
        "From a table with columns image, label, domain and, if you have them, split and role.",
    ),
    "digits": Row(
        "acclimate.build.digits:Digits",
        "The embedded benchmark: real digits through many noisy sensors, images inside the table.",
    ),
    "long-tail": Row(
        "acclimate.build.long_tail:LongTail",
        "Domains with head and tail classes, sampled from any data, as LT-ImageNet was.",
    ),
    "shift": Row(
        "acclimate.build.shift.builder:ShiftBuilder",
        "Domains with label, covariate and conditional shift of known size, from any images.",
    ),
    "corrupt": Row("acclimate.build.corrupt:Corrupt", "Domains of known noise, blur and light."),
    "domainbed": Row(
        "acclimate.build.domainbed:DomainBed",
        "One of DomainBed's image folders, checked against what it should hold.",
    ),
    "wilds": Row("acclimate.build.wilds:Wilds", "An image data set of WILDS, official splits."),
    "spawrious": Row("acclimate.build.spawrious:Spawrious", "A challenge of Spawrious, checked."),
    "idx": Row("acclimate.build.idx:Idx", "RotatedMNIST or ColoredMNIST, from MNIST's own files."),
    "shards": Row("acclimate.build.shards:Shards", "From WebDataset's or Hugging Face's shards."),
    "fetch": Row(
        "acclimate.build.fetch.builder:Fetch",
        "Check the images of a manifest, fetch those that are missing, and say what is gone.",
    ),
}


def builder(name: str, rows: Mapping[str, Row] = BUILDERS) -> type[Builder]:
    """The class of a row; the command line adds rows of its own."""
    require_known(name, rows, f"there is no builder '{name}'")
    cls: type[Builder] = load(rows[name].where)
    return cls
