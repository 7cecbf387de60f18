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
    classes: tuple[str, ...]
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


_OFFICE_HOME = """
Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards
Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder
Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug
Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer Push_Pin Radio Refrigerator Ruler
Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon TV Table Telephone ToothBrush Toys
Trash_Can Webcam
"""

_DOMAINNET = """
The_Eiffel_Tower The_Great_Wall_of_China The_Mona_Lisa aircraft_carrier airplane alarm_clock
ambulance angel animal_migration ant anvil apple arm asparagus axe backpack banana bandage barn
baseball baseball_bat basket basketball bat bathtub beach bear beard bed bee belt bench bicycle
binoculars bird birthday_cake blackberry blueberry book boomerang bottlecap bowtie bracelet brain
bread bridge broccoli broom bucket bulldozer bus bush butterfly cactus cake calculator calendar
camel camera camouflage campfire candle cannon canoe car carrot castle cat ceiling_fan cell_phone
cello chair chandelier church circle clarinet clock cloud coffee_cup compass computer cookie cooler
couch cow crab crayon crocodile crown cruise_ship cup diamond dishwasher diving_board dog dolphin
donut door dragon dresser drill drums duck dumbbell ear elbow elephant envelope eraser eye
eyeglasses face fan feather fence finger fire_hydrant fireplace firetruck fish flamingo flashlight
flip_flops floor_lamp flower flying_saucer foot fork frog frying_pan garden garden_hose giraffe
goatee golf_club grapes grass guitar hamburger hammer hand harp hat headphones hedgehog helicopter
helmet hexagon hockey_puck hockey_stick horse hospital hot_air_balloon hot_dog hot_tub hourglass
house house_plant hurricane ice_cream jacket jail kangaroo key keyboard knee knife ladder lantern
laptop leaf leg light_bulb lighter lighthouse lightning line lion lipstick lobster lollipop mailbox
map marker matches megaphone mermaid microphone microwave monkey moon mosquito motorbike mountain
mouse moustache mouth mug mushroom nail necklace nose ocean octagon octopus onion oven owl
paint_can paintbrush palm_tree panda pants paper_clip parachute parrot passport peanut pear peas
pencil penguin piano pickup_truck picture_frame pig pillow pineapple pizza pliers police_car pond
pool popsicle postcard potato power_outlet purse rabbit raccoon radio rain rainbow rake
remote_control rhinoceros rifle river roller_coaster rollerskates sailboat sandwich saw saxophone
school_bus scissors scorpion screwdriver sea_turtle see_saw shark sheep shoe shorts shovel sink
skateboard skull skyscraper sleeping_bag smiley_face snail snake snorkel snowflake snowman
soccer_ball sock speedboat spider spoon spreadsheet square squiggle squirrel stairs star steak
stereo stethoscope stitches stop_sign stove strawberry streetlight string_bean submarine suitcase
sun swan sweater swing_set sword syringe t-shirt table teapot teddy-bear telephone television
tennis_racquet tent tiger toaster toe toilet tooth toothbrush toothpaste tornado tractor
traffic_light train tree triangle trombone truck trumpet umbrella underwear van vase violin
washing_machine watermelon waterslide whale wheel windmill wine_bottle wine_glass wristwatch yoga
zebra zigzag
"""

BENCHMARKS: dict[str, Benchmark] = {
    "vlcs": Benchmark(
        title="VLCS",
        editions={
            "as given out": {"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
        },
        classes=("bird", "car", "chair", "dog", "person"),
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
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
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
        classes=tuple(_OFFICE_HOME.split()),
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
        classes=tuple(_DOMAINNET.split()),
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
        classes=(
            *("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit"),
            *("raccoon", "squirrel"),
        ),
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
