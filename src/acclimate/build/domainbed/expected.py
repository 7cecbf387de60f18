"""What DomainBed's image folders should hold: domains, classes and numbers of images.

Numbers come from the data sets' papers and from DomainBed's lists, and were checked to add up:
VLCS against `vlcs_files.txt`, DomainNet with and without the 9,431 files of
`domain_net_duplicates.txt`. The camera traps of TerraIncognita have been published twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from acclimate.core.errors import unknown


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A data set's expected content, and other names that its folders go by."""

    title: str
    editions: Mapping[str, Mapping[str, int]]  # as it is, or was, given out: images of each domain
    classes: int  # how many each domain has
    sources: tuple[str, ...]  # official pages
    licence: str
    aliases: Mapping[str, str]  # of domains
    folders: tuple[str, ...]  # in which archives put the domains
    class_aliases: Mapping[str, str] = field(default_factory=dict)
    lists: tuple[str, ...] = ()  # files that its authors put beside the domains

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(next(iter(self.editions.values())))


def benchmark(name: str) -> Benchmark:
    key = folded(name)
    for known, found in BENCHMARKS.items():
        if folded(known) == key:
            return found
    raise unknown(f"there is no benchmark '{name}'", name, BENCHMARKS)


def folded(name: str) -> str:
    """Equal for 'Real World', 'Real_World' and 'realworld'."""
    return "".join(filter(str.isalnum, name.casefold()))


BENCHMARKS: dict[str, Benchmark] = {
    "vlcs": Benchmark(
        title="VLCS",
        editions={
            "as given out": {"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
        },
        classes=5,
        sources=("https://github.com/facebookresearch/DomainBed (download.py, download_vlcs)",),
        licence="see the four data sets that it is made of",
        aliases={
            **dict.fromkeys(("caltech", "c"), "Caltech101"),
            **dict.fromkeys(("lm", "l"), "LabelMe"),
            **dict.fromkeys(("sun", "s"), "SUN09"),
            **dict.fromkeys(("pascal", "voc", "v", "pascalvoc2007"), "VOC2007"),
        },
        class_aliases={"0": "bird", "1": "car", "2": "chair", "3": "dog", "4": "person"},
        folders=("VLCS",),
    ),
    "pacs": Benchmark(
        title="PACS",
        editions={
            "as given out": {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
        },
        classes=7,
        sources=(
            "https://github.com/facebookresearch/DomainBed (download.py, download_pacs)",
            "http://www.eecs.qmul.ac.uk/~dl307/project_iccv2017 (the authors' page)",
        ),
        licence="see the authors' page",
        aliases={
            **dict.fromkeys(("art", "a", "artpaintings"), "art_painting"),
            **dict.fromkeys(("cartoons", "c"), "cartoon"),
            **dict.fromkeys(("photos", "p"), "photo"),
            **dict.fromkeys(("sketches", "s"), "sketch"),
        },
        folders=("PACS", "kfold", "pacs_data"),
    ),
    "office-home": Benchmark(
        title="OfficeHome",
        editions={
            "10 July 2016": {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357},
        },
        classes=65,
        sources=("https://www.hemanthdv.org/officeHomeDataset.html",),
        licence="for non-commercial research and teaching, under fair use; see the page",
        aliases={
            **dict.fromkeys(("a",), "Art"),
            **dict.fromkeys(("c",), "Clipart"),
            **dict.fromkeys(("p", "products"), "Product"),
            **dict.fromkeys(("real", "rw", "r"), "Real World"),
        },
        folders=("office_home", "OfficeHomeDataset_10072016", "OfficeHome"),
        lists=("ImageInfo.csv", "imagelist.txt"),
    ),
    "domainnet": Benchmark(
        title="DomainNet",
        editions={
            "without duplicates": {
                "clipart": 48129,
                "infograph": 51605,
                "painting": 72266,
                "quickdraw": 172500,
                "real": 172947,
                "sketch": 69128,
            },
            "with duplicates": {
                "clipart": 48833,
                "infograph": 53201,
                "painting": 75759,
                "quickdraw": 172500,
                "real": 175327,
                "sketch": 70386,
            },
        },
        classes=345,
        sources=("https://ai.bu.edu/M3SDA/ (take the cleaned version of clipart and painting)",),
        licence="for non-commercial research and teaching, under fair use; see the page",
        aliases={
            **dict.fromkeys(("clip", "c"), "clipart"),
            **dict.fromkeys(("info", "i"), "infograph"),
            **dict.fromkeys(("paint", "p"), "painting"),
            **dict.fromkeys(("quick", "q"), "quickdraw"),
            **dict.fromkeys(("r",), "real"),
            **dict.fromkeys(("s",), "sketch"),
        },
        folders=("domain_net", "DomainNet"),
    ),
    "terra-incognita": Benchmark(
        title="TerraIncognita",
        editions={
            "as given out now": {
                "location_100": 4741,
                "location_38": 9736,
                "location_43": 3970,
                "location_46": 5883,
            },
            "as in DomainBed's paper": {
                "location_100": 4879,
                "location_38": 9767,
                "location_43": 4020,
                "location_46": 6122,
            },
        },
        classes=10,
        sources=(
            "https://lila.science/datasets/caltech-camera-traps (images and annotations)",
            "https://github.com/facebookresearch/DomainBed (download.py, "
            "download_terra_incognita, sorts them into folders)",
        ),
        licence="Community Data License Agreement (permissive); see LILA's page",
        aliases={
            alias: f"location_{number}"
            for number in (100, 38, 43, 46)
            for alias in (f"l{number}", f"{number}", f"loc{number}")
        },
        folders=("terra_incognita", "TerraIncognita"),
    ),
}
