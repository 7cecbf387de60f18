"""Metadata as YFCC100M has it, invented, with a known answer.

    python benchmarks/yfcc_rows.py OUT --rows 1000000 --seed 0 --files 4

writes a world (`world.geojson`), labels (`labels.txt`), metadata files and `answer.json`. The world
has countries with ragged coasts, one across the meridian of 180 degrees, one around the south pole
and one enclave. A country is given by its distance from a centre as a function of the angle, so
that a photo is put inside or outside by arithmetic alone. The answer is kept while writing, in
plain dictionaries: nothing here imports the package.
"""

import argparse
import bz2
import gzip
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from urllib.parse import quote

POLE, SEAM, HOST, ENCLAVE = "Southland", "Dateline Isles", "Hostland", "Enclavia"


@dataclass(frozen=True)
class Country:
    """Radius at angle a: radius * (1 + sum of wave heights * sin(n * a + shift))."""

    name: str
    longitude: float
    latitude: float
    radius: float
    waves: tuple[tuple[float, int, float], ...] = ()

    def reach(self, angle: float) -> float:
        return self.radius * (1 + sum(h * math.sin(n * angle + s) for h, n, s in self.waves))

    def point(self, angle: float, share: float) -> tuple[float, float]:
        reach = self.reach(angle) * share
        longitude = self.longitude + reach * math.cos(angle)
        return (longitude + 180) % 360 - 180, self.latitude + reach * math.sin(angle)


@dataclass
class Answer:
    """What a builder must find."""

    rows: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)
    photos: dict[int, tuple[str, tuple[str, ...]]] = field(default_factory=dict)


@dataclass(frozen=True)
class World:
    countries: tuple[Country, ...]
    vertices: int

    def geojson(self) -> dict[str, object]:
        features = [self._feature(country) for country in self.countries]
        corners: list[list[float]] = [[-180, -90], [180, -90], [180, -75], [-180, -75], [-180, -90]]
        features.append(_feature(POLE, [[corners]]))
        return {"type": "FeatureCollection", "features": features}

    def _feature(self, country: Country) -> dict[str, object]:
        angles = [2 * math.pi * i / self.vertices for i in range(self.vertices)]
        ring = []
        for angle in [*angles, 0.0]:
            reach = country.reach(angle)
            ring.append(
                [
                    round(country.longitude + reach * math.cos(angle), 6),
                    round(country.latitude + reach * math.sin(angle), 6),
                ]
            )
        if country.name != SEAM:
            return _feature(country.name, [[ring]])
        # Cut where it reaches over 180 degrees, as GeoJSON asks for.
        west = [[min(x, 180.0), y] for x, y in ring]
        east = [[max(x, 180.0) - 360, y] for x, y in ring]
        return _feature(country.name, [[west], [east]])


def _feature(name: str, polygons: list[list[list[list[float]]]]) -> dict[str, object]:
    shape = {"type": "MultiPolygon", "coordinates": polygons}
    return {"type": "Feature", "properties": {"name": name}, "geometry": shape}


def make_world(seed: int, countries: int = 70, vertices: int = 2000) -> World:
    """Countries on a grid of cells 14 degrees wide and 10 high, with sea between them."""
    rng = random.Random(f"world {seed}")
    cells = [(-173 + 14 * column, -60 + 11 * row) for row in range(12) for column in range(25)]
    cells = [cell for cell in cells if abs(cell[0]) > 12 or abs(cell[1]) > 12]  # 0/0 is at sea
    chosen = rng.sample([cell for cell in cells if cell[0] < 160], countries)
    made = []
    for number, (longitude, latitude) in enumerate(chosen):
        waves = tuple((0.25 / (n + 1), n * n + 2, rng.uniform(0, 2 * math.pi)) for n in range(1, 7))
        made.append(Country(f"Country {number:02d}", longitude, latitude, 3.2, waves))
    x, y = chosen[0]
    made[0] = Country(HOST, x, y, 4.0)
    made.append(Country(ENCLAVE, x, y, 0.5))
    made.append(Country(SEAM, 180.0, 5.0, 3.0))
    return World(tuple(made), vertices)


WORDS = re.split(
    ",",
    "temple,pagoda,shrine,lantern,harbour,orchard,meadow,glacier,fjord,market,bazaar,festival,"
    "carnival,parade,wedding,sunset,volcano,canyon,waterfall,dune,oasis,reef,lagoon,vineyard,"
    "windmill,castle keep,bell tower,tea house,rice paddy,sea wall,café,crêpe,piñata,tram,ferry",
)
NOISE = re.split(
    ",",
    "travel,holiday,2012,nikon,canon,summer,friends,blackandwhite,b%26w,new+york,foto,urlaub,"
    "%E6%97%A5%E6%9C%AC,caf%C3%A9+bar,geotagged,square,iphone,family,night,winter,templ,temple+bar",
)
ENDEMIC = "quokka"
_TEXT = random.Random("text")
DESCRIPTION = "+".join(
    "".join(_TEXT.choices("etaoinshrdlu%C3%A9", k=_TEXT.randint(2, 9))) for _ in range(2500)
)
USERS = [f"{10000000 + 7919 * i % 89999999}@N0{i % 8}" for i in range(1 << 14)]


def labels_file() -> dict[str, tuple[str, ...]]:
    """Label -> lemmas; two labels share the word "shrine", and one has three lemmas."""
    labels: dict[str, tuple[str, ...]] = {
        f"x{number:08d}": (word,) for number, word in enumerate(WORDS)
    }
    labels["x00000000"] = ("temple", "house of worship", "fane")
    labels["x00008888"] = (ENDEMIC,)
    labels["x00009999"] = ("sanctum", "shrine")
    return labels


def spelling(word: str, rng: random.Random) -> str:
    """The word as some user wrote it: case, separator and escapes vary."""
    separator = rng.choice(("+", "%20", "_", "-", "++"))
    written = "".join(quote(c) if ord(c) > 127 else c for c in word).replace(" ", separator)
    style = rng.random()
    if style < 0.2:
        return written.capitalize() if not written.startswith("%") else written
    if style < 0.3 and "%" not in written:
        return written.upper()
    if style < 0.35:
        return f"%{ord(written[0]):02X}{written[1:]}" if written[0].isalpha() else written
    return f"+{written}_" if style < 0.4 else written


class Writer:
    """Rows one by one, and what each must come to."""

    def __init__(self, world: World, seed: int, columns: int) -> None:
        self.world, self.columns = world, columns
        self.rng = random.Random(f"rows {seed}")
        self.answer = Answer()
        self.meaning: dict[str, list[str]] = {}
        for label, lemmas in labels_file().items():
            for lemma in lemmas:
                self.meaning.setdefault(lemma, []).append(label)
        self.words = sorted(set(self.meaning) - {ENDEMIC})
        # Large and small countries, frequent and rare words, as in life.
        self.weights = list(accumulate((1 + i) ** -0.7 for i in range(len(world.countries))))
        self.common = list(accumulate((1 + i) ** -0.9 for i in range(len(self.words))))
        self.next_id = 2_000_000_000
        self.kinds, self.odds = zip(*KINDS, strict=True)
        self.drawn: Iterator[str] = iter(self.kinds)  # every kind once, then as they come

    def row(self) -> bytes:
        kind = next(self.drawn, None)
        if kind is None:
            self.drawn = iter(self.rng.choices(self.kinds, self.odds, k=4096))
            kind = next(self.drawn)
        self.answer.rows += 1
        made: bytes = getattr(self, f"_{kind}")()
        return made

    def _line(
        self,
        place: tuple[str, str],
        tags: str,
        *,
        title: str = "",
        marker: str = "0",
        photo: int | None = None,
    ) -> bytes:
        if photo is None:
            self.next_id += self.rng.randint(1, 60)
            photo = self.next_id
        self.last = photo
        rng = self.rng
        user = USERS[rng.getrandbits(14)]
        secret, text = f"{rng.getrandbits(72):018x}", rng.getrandbits(30)
        fields = [
            *(str(photo), user, f"nick+{user[:5]}"),
            "null" if photo % 41 == 0 else f"{4501 if photo % 83 == 0 else 2012}-02-16 09:56:37.0",
            *(
                str(1331840483 + text % 10**6),
                f"Canon+PowerShot+ELPH+{text % 89}+HS",
                title or f"IMG_{text % 9999}",
            ),
            "" if photo % 3 else DESCRIPTION[text % 9999 : text % 9999 + 60 + text % 500],
            *(tags, "" if photo % 5 else "geo%3Alat%3D1", *place, "16" if place[0] else ""),
            f"http://www.flickr.com/photos/{user}/{photo}/",
            f"http://farm{photo % 9}.staticflickr.com/{photo % 9999}/{photo}_{secret[:10]}.jpg",
            "Attribution-NonCommercial License",
            "http://creativecommons.org/licenses/by-nc/2.0/",
            *(str(photo % 9999), str(photo % 9), secret[:10], secret[8:], "jpg", marker),
        ]
        if self.columns == 25:
            fields = [str(self.answer.rows), fields[0], f"{photo:032x}", *fields[1:]]
        return "\t".join(fields).encode() + b"\n"

    def _place(self) -> tuple[str, tuple[str, str]]:
        rng = self.rng
        country = rng.choices(self.world.countries, cum_weights=self.weights)[0]
        if rng.random() < 0.01:
            return POLE, (_degrees(rng.uniform(-180, 180)), _degrees(rng.uniform(-90, -75.1)))
        # The enclave has an eighth of its host's reach; stay clear of both borders.
        least = 0.13 if country.name == HOST else 0.0
        x, y = country.point(rng.uniform(0, 2 * math.pi), rng.uniform(least, 0.99))
        return country.name, (_degrees(x), _degrees(y))

    def _tags(self) -> tuple[str, tuple[str, ...]]:
        rng = self.rng
        count = 1 if rng.random() < 0.7 else rng.randint(2, 4)
        words = rng.choices(self.words, cum_weights=self.common, k=count)
        tags = [spelling(word, rng) for word in words] + rng.choices(NOISE, k=rng.randint(0, 8))
        rng.shuffle(tags)
        labels = sorted({label for word in words for label in self.meaning[word]})
        return ",".join(tags), tuple(labels)

    def _good(self) -> bytes:
        country, place = self._place()
        tags, labels = self._tags()
        line = self._line(place, tags)
        self.answer.photos[self.last] = (country, labels)
        return line

    def _endemic(self) -> bytes:
        """A category of three countries only."""
        country = self.world.countries[self.rng.randint(1, 3)]
        x, y = country.point(self.rng.uniform(0, 2 * math.pi), self.rng.uniform(0, 0.99))
        tags, labels = self._tags() if self.rng.random() < 0.5 else ("holiday", ())
        line = self._line((_degrees(x), _degrees(y)), f"Quokka,{tags}")
        self.answer.photos[self.last] = (country.name, tuple(sorted((*labels, "x00008888"))))
        return line

    def _unlabelled(self) -> bytes:
        tags = ",".join(self.rng.choices(NOISE, k=self.rng.randint(1, 9)))
        return self._lost("no tag is a label", self._line(self._place()[1], tags))

    def _untagged(self) -> bytes:
        return self._lost("no tags", self._line(self._place()[1], ""))

    def _nowhere(self) -> bytes:
        return self._lost("no coordinates", self._line(("", ""), self._tags()[0]))

    def _half(self) -> bytes:
        return self._lost("no coordinates", self._line(("", "1.5"), self._tags()[0]))

    def _sea(self) -> bytes:
        country = self.rng.choice(self.world.countries[1:-2])
        x, y = country.point(self.rng.uniform(0, 2 * math.pi), 1.02)
        return self._lost("in no country", self._line((_degrees(x), _degrees(y)), self._tags()[0]))

    def _north_pole(self) -> bytes:
        return self._lost("in no country", self._line(("12.5", "90.0"), self._tags()[0]))

    def _null_island(self) -> bytes:
        return self._lost("at 0/0", self._line(("0.0", "0.0"), self._tags()[0]))

    def _minus_one(self) -> bytes:
        return self._lost("at -1/-1", self._line(("-1.0", "-1"), self._tags()[0]))

    def _far_out(self) -> bytes:
        return self._lost("coordinates out of range", self._line(("181.5", "3"), self._tags()[0]))

    def _no_number(self) -> bytes:
        place = self.rng.choice((("null", "1.0"), ("1.0", "nan"), ("12,5", "3"), ("1e400", "2")))
        return self._lost("coordinates are no numbers", self._line(place, self._tags()[0]))

    def _video(self) -> bytes:
        line = self._line(self._place()[1], self._tags()[0], marker="1")
        return self._lost("videos", line)

    def _strange_marker(self) -> bytes:
        line = self._line(self._place()[1], self._tags()[0], marker=self.rng.choice(("", "2", "x")))
        return self._lost("neither photo nor video", line)

    def _tab_in_title(self) -> bytes:
        line = self._line(self._place()[1], self._tags()[0], title="a\ttitle")
        return self._lost("too many columns", line)

    def _short(self) -> bytes:
        line = self._line(self._place()[1], self._tags()[0])
        return self._lost("too few columns", line[: line.rindex(b"\t")] + b"\n")

    def _no_id(self) -> bytes:
        line = self._line(self._place()[1], self._tags()[0])
        wrong = line.replace(f"{self.last}\t".encode(), b"photo\t", 1)
        return self._lost("photo id is no number", wrong)

    def _duplicate(self) -> bytes:
        """Again the last good photo, which would be found in another country."""
        if not self.answer.photos:
            return self._good()
        photo = next(reversed(self.answer.photos))
        line = self._line(self._place()[1], self._tags()[0], photo=photo)
        return self._lost("duplicates of a photo", line)

    def _broken_escape(self) -> bytes:
        """The broken tag matches nothing, the others of the photo do."""
        country, place = self._place()
        tags, labels = self._tags()
        self.answer.odd["photos with a broken percent-escape in a tag"] += 1
        line = self._line(place, f"100%,{tags},temple%4")
        self.answer.photos[self.last] = (country, labels)
        return line

    def _not_utf8(self) -> bytes:
        country, place = self._place()
        tags, labels = self._tags()
        self.answer.odd["photos with a tag that is not UTF-8"] += 1
        line = self._line(place, f"LATIN1,{tags},caf%E9").replace(b"LATIN1", b"caf\xe9")
        self.answer.photos[self.last] = (country, labels)
        return line

    def _lost(self, reason: str, line: bytes) -> bytes:
        self.answer.lost[reason] += 1
        return line


# Half of YFCC100M's photos have no place, a fifth no tags.
KINDS = (
    *(("good", 24.0), ("nowhere", 50.0), ("untagged", 9.0), ("unlabelled", 14.0), ("video", 0.8)),
    *(("sea", 0.5), ("half", 0.1), ("north_pole", 0.05), ("null_island", 0.1), ("minus_one", 0.1)),
    *(("far_out", 0.05), ("no_number", 0.05), ("strange_marker", 0.05), ("tab_in_title", 0.05)),
    *(("short", 0.05), ("no_id", 0.05), ("duplicate", 0.2), ("broken_escape", 0.2)),
    *(("not_utf8", 0.2), ("endemic", 0.3)),
)


def _degrees(value: float) -> str:
    return f"{value:.6f}"


def write(
    folder: Path,
    *,
    rows: int,
    seed: int = 0,
    files: int = 1,
    columns: int = 23,
    suffix: str = "",
    countries: int = 70,
    vertices: int = 2000,
) -> Answer:
    """World, labels and metadata in `folder`; suffix: "", ".bz2" or ".gz"."""
    folder.mkdir(parents=True, exist_ok=True)
    world = make_world(seed, countries, vertices)
    (folder / "world.geojson").write_text(json.dumps(world.geojson()))
    lines = [f"{label}\t{', '.join(lemmas)}" for label, lemmas in labels_file().items()]
    (folder / "labels.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    writer = Writer(world, seed, columns)
    openers = {"": open, ".bz2": bz2.open, ".gz": gzip.open}
    for number in range(files):
        share = rows * (number + 1) // files - rows * number // files
        path = folder / f"yfcc100m_dataset-{number}{suffix}"
        with openers[suffix](path, "wb") as file:  # type: ignore[operator]
            for start in range(0, share, 10_000):
                file.write(b"".join(writer.row() for _ in range(min(10_000, share - start))))
    return writer.answer


def expected(
    answer: Answer, *, min_countries: int, min_images: int, max_images: int
) -> dict[str, object]:
    """The stages after reading, in plain Python: domains, their photos, and what was lost."""
    where: dict[str, set[str]] = {}
    for country, labels in answer.photos.values():
        for label in labels:
            where.setdefault(label, set()).add(country)
    common = {label for label, found in where.items() if len(found) >= min_countries}
    domains: dict[str, dict[int, list[str]]] = {}
    for photo, (country, labels) in answer.photos.items():
        kept = [label for label in labels if label in common]
        if kept:
            domains.setdefault(country, {})[photo] = kept
    labelled = sum(map(len, domains.values()))
    large = {name: photos for name, photos in domains.items() if len(photos) >= min_images}
    return {
        "domains": large,
        "found": {name: len(photos) for name, photos in domains.items()},
        "photos": {name: min(len(photos), max_images) for name, photos in large.items()},
        "categories": [len(where), len(common)],
        "lost": [
            len(answer.photos) - labelled,
            labelled - sum(map(len, large.values())),
            sum(max(0, len(photos) - max_images) for photos in large.values()),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="folder to write into")
    parser.add_argument("--rows", type=int, default=100_000, help="rows in all [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of everything invented [%(default)s]")
    parser.add_argument("--files", type=int, default=1, help="metadata files [%(default)s]")
    parser.add_argument(
        "--columns",
        type=int,
        default=23,
        choices=(23, 25),
        help="YFCC100M came with either [%(default)s]",
    )
    parser.add_argument(
        "--suffix", default="", choices=("", ".bz2", ".gz"), help="compress the files [no]"
    )
    given = parser.parse_args()
    answer = write(
        given.out,
        rows=given.rows,
        seed=given.seed,
        files=given.files,
        columns=given.columns,
        suffix=given.suffix,
    )
    countries = Counter(country for country, _ in answer.photos.values())
    facts = {"rows": answer.rows, "lost": answer.lost, "odd": answer.odd, "photos": countries}
    (given.out / "answer.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False))
    print(f"{answer.rows} rows, {len(answer.photos)} photos with place and label: {given.out}")


if __name__ == "__main__":
    main()
