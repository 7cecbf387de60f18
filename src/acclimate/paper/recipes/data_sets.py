"""The data that recipes need: by which command each comes below a folder, and, for `--small`, what
the builders make of the embedded digits to stand in for it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from acclimate.build.digits import DigitsSettings, build_digits
from acclimate.build.long_tail import LongTailSettings, build_long_tail
from acclimate.core.errors import ConfigError
from acclimate.data.manifest import Manifest
from acclimate.data.readers import data_name
from acclimate.paper.ablations.study import digit_pool
from acclimate.paper.published import DATASETS, plain

STAND_IN = "digits-for-"  # before the name of what it stands in for


@dataclass(frozen=True, kw_only=True)
class PaperData:
    made_by: str  # a command; ROOT is the folder that recipes are given
    stand_in: Callable[[], Manifest]


def _sensors(seed: int) -> Callable[[], Manifest]:
    """Four domains without roles, so that each can be unseen in turn."""

    def build() -> Manifest:
        settings = DigitsSettings(train_domains=4, test_domains=1, train_images=120, seed=seed)
        digits = build_digits(replace(settings, concentration=1.0))
        unseen = [name for name, role in digits.roles().items() if role == "test"]
        seen = digits.without_domains(*unseen)
        return replace(seen, table=seen.table.drop_columns(["role"]))

    return build


def _pool() -> Manifest:
    return digit_pool(
        build_digits(DigitsSettings(train_domains=20, test_domains=10, test_images=200))
    )


def _long_tail() -> Manifest:
    settings = LongTailSettings(
        domains=12, heads=2, per_class=20, val_per_class=10, test_per_class=10, val_domains=3,
        test_domains=5, pools="splits",
    )  # fmt: skip
    return build_long_tail(_pool(), settings)


def _countries() -> Manifest:
    """Training, validation and test domains, grouped by how strongly their sensors respond."""
    digits = build_digits(
        DigitsSettings(train_domains=15, test_domains=5, train_images=80, test_images=80)
    )
    names, table = digits.domain_names, digits.table
    last = sorted(name for name, role in digits.roles().items() if role == "train")[-3:]
    roles = np.where(np.isin(names, last), "val", table["role"].to_numpy(zero_copy_only=False))
    gains = np.digitize(table["gain"].to_numpy(), (0.8, 1.2))
    groups = np.array(["weak sensors", "medium sensors", "strong sensors"])[gains]
    table = table.set_column(table.column_names.index("role"), "role", pa.array(roles))
    return replace(digits, table=table.append_column("continent", pa.array(groups)))


def _domainbed(name: str, folder: str, seed: int) -> PaperData:
    command = f"acclimate build domainbed --dataset {name} {folder} --out ROOT/{name}.parquet"
    return PaperData(made_by=command, stand_in=_sensors(seed))


DATA_SETS: Mapping[str, PaperData] = {
    "vlcs": _domainbed("vlcs", "VLCS", 1),
    "pacs": _domainbed("pacs", "PACS", 2),
    "office-home": _domainbed("office-home", "office_home", 3),
    "domainnet": _domainbed("domainnet", "domain_net", 4),
    "terra-incognita": _domainbed("terra-incognita", "terra_incognita", 5),
    "imagenet-5k": PaperData(
        made_by="acclimate build folder IMAGENET --out ROOT/imagenet-5k.parquet", stand_in=_pool
    ),
    "lt-imagenet": PaperData(
        made_by="acclimate build long-tail ROOT/imagenet-5k.parquet --preset lt-imagenet "
        "--out ROOT/lt-imagenet.parquet",
        stand_in=_long_tail,
    ),
    "geo-yfcc": PaperData(
        made_by="acclimate build geo-yfcc-released TABLE --out ROOT/geo-yfcc.parquet",
        stand_in=_countries,
    ),
}


def stand_in(name: str) -> Manifest:
    return replace(DATA_SETS[name].stand_in(), source=STAND_IN + name)


def find_data(root: Path, names: Iterable[str]) -> dict[str, Path]:
    """Where each data set lies in `root`, however its name is spelt; all that are missing are named
    at once, each with the command that makes it."""
    if not root.is_dir():
        raise ConfigError(f"--data: there is no folder {root}; give the one that holds the data")
    entries = sorted(root.iterdir(), key=lambda path: (path.is_dir(), path.name))  # tables first
    there: dict[str, Path] = {}
    for path in entries:
        there.setdefault(plain(data_name(path)), path)
    places, missing = {}, []
    for name in names:
        spelt = map(plain, (name, *DATASETS.get(name, ())))
        place = next((there[one] for one in spelt if one in there), None)
        if place is not None:
            places[name] = place
        else:
            missing.append(f"{name} (`{DATA_SETS[name].made_by.replace('ROOT', str(root))}`)")
    if missing:
        raise ConfigError(
            f"{root} lacks {', '.join(missing)}; make what is missing, or try the recipe with "
            f"--small, which needs no data"
        )
    return places
