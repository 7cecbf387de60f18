"""How fast Geo-YFCC is built, in how much memory, and how well countries are found.

    python benchmarks/geo_yfcc.py --rows 1000000 2000000 5000000 --polygons detailed.geojson

Rows are invented (`yfcc_rows.py`) and every build is held against their known answer. Each build
runs in a process of its own, so that its peak memory is its own. Prints Markdown.
"""

import argparse
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import yfcc_rows

# Landmarks beside a border or in a harbour: longitude, latitude, ISO 3166 codes, English name.
TOWNS = (
    ("Basel, market place", 7.5878, 47.5581, "CH CHE Switzerland"),
    ("Saint-Louis, beside Basel", 7.5598, 47.5890, "FR FRA France"),
    ("Weil am Rhein, beside Basel", 7.6220, 47.5930, "DE DEU Germany"),
    ("Geneva, Jet d'eau", 6.1560, 46.2074, "CH CHE Switzerland"),
    ("Annemasse, station", 6.2364, 46.1990, "FR FRA France"),
    ("Ferney-Voltaire", 6.1080, 46.2558, "FR FRA France"),
    ("Strasbourg, cathedral", 7.7507, 48.5818, "FR FRA France"),
    ("Kehl, station", 7.8090, 48.5760, "DE DEU Germany"),
    ("Singapore, Marina Bay", 103.8590, 1.2834, "SG SGP Singapore"),
    ("Singapore, Woodlands", 103.7860, 1.4370, "SG SGP Singapore"),
    ("Johor Bahru, station", 103.7646, 1.4625, "MY MYS Malaysia"),
    ("Niagara Falls, Prospect Point", -79.0690, 43.0870, "US USA United States"),
    ("Niagara Falls, Goat Island", -79.0660, 43.0810, "US USA United States"),
    ("Niagara Falls, Table Rock", -79.0790, 43.0790, "CA CAN Canada"),
    ("Niagara Falls, Clifton Hill", -79.0745, 43.0912, "CA CAN Canada"),
    ("Gibraltar, Casemates", -5.3526, 36.1447, "GI GIB Gibraltar"),
    ("Gibraltar, Europa Point", -5.3453, 36.1096, "GI GIB Gibraltar"),
    ("La Línea", -5.3470, 36.1640, "ES ESP Spain"),
    ("Vatican, St Peter's Square", 12.4573, 41.9022, "VA VAT Vatican City"),
    ("Vatican, museums", 12.4536, 41.9065, "VA VAT Vatican City"),
    ("Rome, Castel Sant'Angelo", 12.4663, 41.9031, "IT ITA Italy"),
    ("Monte Carlo, casino", 7.4280, 43.7392, "MC MCO Monaco"),
    ("Beausoleil", 7.4230, 43.7420, "FR FRA France"),
    ("San Marino", 12.4474, 43.9360, "SM SMR San Marino"),
    ("Helsingborg, harbour", 12.6900, 56.0430, "SE SWE Sweden"),
    ("Helsingør, castle", 12.6210, 56.0390, "DK DNK Denmark"),
    ("El Paso", -106.4870, 31.7590, "US USA United States"),
    ("Ciudad Juárez, cathedral", -106.4870, 31.7385, "MX MEX Mexico"),
    ("San Ysidro", -117.0300, 32.5480, "US USA United States"),
    ("Tijuana", -117.0380, 32.5330, "MX MEX Mexico"),
    ("Detroit, Hart Plaza", -83.0440, 42.3275, "US USA United States"),
    ("Windsor, riverfront", -83.0400, 42.3190, "CA CAN Canada"),
    ("Hong Kong, Star Ferry", 114.1686, 22.2937, "HK HKG Hong Kong"),
    ("Macau, St Paul's", 113.5409, 22.1975, "MO MAC Macau"),
    ("Zhuhai, Gongbei", 113.5480, 22.2200, "CN CHN China"),
    ("Görlitz", 14.9870, 51.1560, "DE DEU Germany"),
    ("Zgorzelec, town hall", 15.0076, 51.1505, "PL POL Poland"),
    ("Narva, castle", 28.2010, 59.3755, "EE EST Estonia"),
    ("Ivangorod", 28.2080, 59.3740, "RU RUS Russia"),
    ("Baarle-Hertog, church", 4.9300, 51.4420, "BE BEL Belgium"),
    ("Aachen, cathedral", 6.0839, 50.7747, "DE DEU Germany"),
    ("Vaals", 6.0180, 50.7720, "NL NLD Netherlands"),
    ("Victoria Falls, Zimbabwe", 25.8530, -17.9260, "ZW ZWE Zimbabwe"),
    ("Puerto Iguazú", -54.5736, -25.5991, "AR ARG Argentina"),
    ("Foz do Iguaçu", -54.5882, -25.5469, "BR BRA Brazil"),
    ("Ceuta", -5.3170, 35.8880, "ES ESP Spain"),
    ("Büsingen", 8.6900, 47.6960, "DE DEU Germany"),
    ("Campione d'Italia", 8.9710, 45.9690, "IT ITA Italy"),
    ("Llívia", 1.9810, 42.4640, "ES ESP Spain"),
    ("Vaduz", 9.5210, 47.1410, "LI LIE Liechtenstein"),
    ("Konstanz, harbour", 9.1790, 47.6600, "DE DEU Germany"),
    ("Kreuzlingen", 9.1750, 47.6450, "CH CHE Switzerland"),
    ("Golden Gate Bridge", -122.4783, 37.8199, "US USA United States"),
    ("Venice, Lido", 12.3680, 45.4170, "IT ITA Italy"),
    ("Waikiki beach", -157.8280, 21.2760, "US USA United States"),
    ("Taveuni, at 180 degrees", 179.99, -16.85, "FJ FJI Fiji"),
    ("Chukotka, beyond 180 degrees", -179.0, 67.5, "RU RUS Russia"),
    ("Atlantic", -30.0, 20.0, ""),
    ("Pacific", -120.0, -20.0, ""),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 2_000_000, 5_000_000])
    parser.add_argument("--compressed-rows", type=int, default=300_000)
    parser.add_argument("--points", type=int, default=2_000_000)
    parser.add_argument("--polygons", type=Path, nargs="*", default=[])
    parser.add_argument(
        "--folder", type=Path, help="Where rows are written; needs 0.5 GB a million."
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        builds = [_build(Path(folder), rows, "") for rows in given.rows]
        if given.compressed_rows:
            builds += [_build(Path(folder), given.compressed_rows, s) for s in (".gz", ".bz2")]
    columns = ("input", "rows", "MB", "seconds", "rows/s", "peak MiB", "photos", "as known")
    _say(columns, builds)
    sources: list[Path | None] = [None, *given.polygons]
    found = [_apart(_geocode, path, given.points) for path in sources]
    header = (
        "countries from",
        "polygons",
        "load s",
        "photo-like points/s",
        "border points/s",
        "towns",
    )
    _say(header, [row for row, _ in found])
    for row, wrong in found:
        print(f"\n{row[0]}: {'; '.join(wrong) or 'no town is wrong'}")


def _build(folder: Path, rows: int, suffix: str) -> tuple[str, ...]:
    # The same for all sizes, as in life: what is kept of a country is bounded.
    settings = {"min_images": 500, "max_images": 1500, "test_images": 100}
    data = folder / "rows"
    right = _apart(_generate, data, rows, suffix, settings)
    size = sum(path.stat().st_size for path in data.glob("yfcc100m*"))
    seconds, peak, got = _apart(_timed, data, settings)
    shutil.rmtree(data)
    facts = (f"{rows:,}", f"{size / 1e6:,.0f}", f"{seconds:.1f}", f"{rows / seconds:,.0f}")
    same = "yes" if got == right else "NO"
    return suffix or "plain", *facts, f"{peak:,.0f}", f"{sum(right['photos'].values()):,}", same


def _generate(data: Path, rows: int, suffix: str, settings: dict[str, int]) -> dict[str, Any]:
    """Two files; what the builder must find."""
    answer = yfcc_rows.write(data, rows=rows, files=2, suffix=suffix, vertices=20_000)
    limits = {name: settings[name] for name in ("min_images", "max_images")}
    right = yfcc_rows.expected(answer, min_countries=5, **limits)
    lost = {name: count for name, count in answer.lost.items() if count}
    return {"rows": answer.rows, "lost": lost, "late": right["lost"], "photos": right["photos"]}


def _timed(data: Path, settings: dict[str, Any]) -> tuple[float, float, dict[str, Any]]:
    from acclimate.core.progress import unwatched
    from acclimate.paper.geo_yfcc.builder import GeoSources, GeoYfcc
    from acclimate.paper.geo_yfcc.stages import GeoSettings

    sources = GeoSources(
        metadata=tuple(sorted(data.glob("yfcc100m*"))),
        labels=data / "labels.txt",
        polygons=data / "world.geojson",
    )
    out = data / "geo.parquet"
    builder = GeoYfcc(sources=sources, out=out, settings=GeoSettings(**settings))
    started = time.perf_counter()
    manifest, funnel = builder.made(unwatched)
    builder.write(manifest, funnel)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    stages = [stage for stage in funnel.stages if stage.lost_to != "country unknown"]
    got = {
        "rows": funnel.rows,
        "lost": {stage.lost_to: stage.lost for stage in stages[:-3] if stage.lost},
        "late": [stage.lost for stage in stages[-3:]],
        "photos": {domain.domain: domain.photos for domain in funnel.domains},
    }
    return seconds, peak, got


def _geocode(path: Path | None, points: int) -> tuple[tuple[str, ...], list[str]]:
    from acclimate.paper.geo_yfcc.countries import packaged_countries, read_polygons

    started = time.perf_counter()
    countries = packaged_countries() if path is None else read_polygons(path)
    countries.locate(np.zeros(1), np.zeros(1))
    loaded = time.perf_counter() - started
    x, y = (np.array([town[i] for town in TOWNS], dtype=float) for i in (1, 2))
    found = [countries.names[i] if i >= 0 else "" for i in countries.locate(x, y)]
    wrong = [
        f"{name} is in {got or 'no country'}"
        for (name, _, _, right), got in zip(TOWNS, found, strict=True)
        if not _same(got, right)
    ]
    rng = np.random.default_rng(0)
    # Photos crowd in towns, which are anywhere on the map; the second lot is all beside borders.
    towns = rng.uniform(-180, 180, 3000), np.degrees(np.arcsin(rng.uniform(-0.85, 0.95, 3000)))
    land = countries.locate(*towns) >= 0
    photos = _rate(countries.locate, towns[0][land], towns[1][land], points, rng)
    border = _rate(countries.locate, x[:-2], y[:-2], points, rng)
    right = f"{len(TOWNS) - len(wrong)} of {len(TOWNS)}"
    facts = (
        f"{len(countries.polygons):,}",
        f"{loaded:.1f}",
        f"{photos:,.0f}",
        f"{border:,.0f}",
        right,
    )
    return (countries.source, *facts), wrong


def _same(got: str, right: str) -> bool:
    two, _, rest = right.partition(" ")
    three, _, name = rest.partition(" ")
    return got in (two, three, name) if right else not got


def _rate(
    locate: Callable[[np.ndarray, np.ndarray], np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    points: int,
    rng: np.random.Generator,
) -> float:
    """Points a second around the given towns, on one thread, from the first one on."""
    town = rng.integers(0, len(x), points)
    longitude = np.clip(x[town] + rng.normal(0, 0.05, points), -180, 180)
    latitude = np.clip(y[town] + rng.normal(0, 0.05, points), -90, 90)
    started = time.perf_counter()
    for start in range(0, points, 50_000):
        locate(longitude[start : start + 50_000], latitude[start : start + 50_000])
    return points / (time.perf_counter() - started)


def _apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """`work(...)` in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def _say(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    lines = [header, tuple("---" for _ in header), *rows]
    print("\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
