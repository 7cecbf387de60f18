"""Coordinates to countries: hand-drawn maps, seam, poles, enclaves, and real border towns."""

import json
from pathlib import Path

import numpy as np
import pytest

from acclimate.core.errors import AcclimateError, ManifestError, UnknownName
from fixtures.errors import refused

shapely = pytest.importorskip("shapely")

from acclimate.paper.geo_yfcc.countries import (  # noqa: E402
    Countries,
    packaged_countries,
    read_polygons,
)


def square(west: float, south: float, east: float, north: float) -> list[list[float]]:
    return [[west, south], [east, south], [east, north], [west, north], [west, south]]


def feature(shape: list, kind: str = "Polygon", **properties: object) -> dict:
    geometry = {"type": kind, "coordinates": shape}
    return {"type": "Feature", "properties": properties, "geometry": geometry}


def written(folder: Path, *features: dict) -> Path:
    path = folder / "map.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return path


def drawn(folder: Path, *features: dict) -> Countries:
    return read_polygons(written(folder, *features))


def where(countries: Countries, *points: tuple[float, float]) -> list[str | None]:
    longitude, latitude = np.array(points, dtype=float).T
    found = countries.locate(longitude, latitude)
    assert found.dtype == np.int16
    assert found.tolist() == countries.locate(longitude, latitude).tolist(), "asked again"
    return [countries.names[i] if i >= 0 else None for i in found]


HOST = feature([[square(0, 0, 10, 10)], [square(4, 4, 6, 6)]], "MultiPolygon", name="A host")
ENCLAVE = feature([square(4, 4, 6, 6)], name="Enclave")
MAPS: dict[str, tuple[list[dict], dict[tuple[float, float], str | None]]] = {
    "a hole, and the sea": (
        [
            feature([square(0, 0, 10, 10), square(4, 4, 6, 6)], name="Ring"),
            feature([square(20, 0, 30, 10)], name="Far"),
        ],
        {(1, 1): "Ring", (25, 5): "Far", (15, 5): None, (5, 5): None, (5, 3.999): "Ring"},
    ),
    "of overlapping polygons the smallest wins": (
        [
            feature([square(0, 0, 10, 10)], name="Host"),
            ENCLAVE,
            feature([square(4.9, 4.9, 5.1, 5.1)], name="Host"),  # a piece of it in the enclave
        ],
        {(1, 1): "Host", (4.5, 4.5): "Enclave", (5, 5): "Host"},
    ),
    "an outline inside an outline of the same feature is a hole": (
        [HOST, ENCLAVE],
        {(1, 1): "A host", (5, 5): "Enclave"},
    ),
    "so an exclave of a large country in a small one is not lost to it": (
        [
            HOST,
            feature([[square(20, 0, 60, 40)], [square(4, 4, 6, 6)]], "MultiPolygon", name="Large"),
        ],
        {(1, 1): "A host", (5, 5): "Large", (30, 5): "Large"},
    ),
    "the seam is one place though only one side is drawn": (
        [feature([square(170, -5, 180, 5)], name="West")],
        {(180, 0): "West", (-180, 0): "West", (-179.9, 0): None},
    ),
    "poles": (
        [feature([square(-180, -90, 180, -60)], name="Ice")],
        {(0, -90): "Ice", (123.4, -90): "Ice", (-180, -90): "Ice", (0, 90): None, (0, -59.9): None},
    ),
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_by_hand_whatever_their_order(tmp_path: Path, name: str) -> None:
    features, answers = MAPS[name]
    for ordered in (features, features[::-1]):
        countries = drawn(tmp_path, *ordered)
        assert where(countries, *answers) == list(answers.values())
        assert list(countries.names) == sorted(countries.names)


@pytest.mark.parametrize(
    "shape",
    [
        [[square(170, -5, 180, 5)], [square(-180, -5, -170, 5)]],
        [[square(170, -5, 190, 5)]],
        [[square(-190, -5, -170, 5)]],
        [[[[170, -5], [-170, -5], [-170, 5], [170, 5], [170, -5]]]],
    ],
    ids=["cut at 180", "beyond 180", "beyond -180", "jumping over 180"],
)
def test_across_the_antimeridian(tmp_path: Path, shape: list) -> None:
    countries = drawn(tmp_path, feature(shape, "MultiPolygon", name="Isles"))
    inside = [(175, 0), (-175, 0), (180, 0), (-180, 0), (180, 5), (-179.99, 4.99)]
    assert where(countries, *inside) == ["Isles"] * len(inside)
    assert where(countries, (0, 0), (169.9, 0), (-169.9, 0), (180, 5.1)) == [None] * 4


def test_grid_and_polygons_agree_near_ragged_borders(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = []
    for number in range(6):
        angle = np.linspace(0, 2 * np.pi, 400, endpoint=False)
        reach = 2 + rng.uniform(-0.6, 0.6, len(angle))
        x, y = 3 * number + reach * np.cos(angle), reach * np.sin(angle)
        ring = np.column_stack([x, y]).tolist()
        features.append(feature([[*ring, ring[0]]], name=f"Land {number}"))
    countries = drawn(tmp_path, *features)
    longitude, latitude = rng.uniform(-4, 20, 50_000), rng.uniform(-4, 4, 50_000)
    exact = countries.exactly(longitude, latitude)
    assert len(np.unique(exact)) == 7
    np.testing.assert_array_equal(countries.locate(longitude, latitude), exact)
    # And against shapely's own, polygon by polygon: inside any, or at sea.
    union = shapely.union_all(countries.polygons)
    inside = shapely.intersects_xy(union, longitude, latitude)
    np.testing.assert_array_equal(exact >= 0, inside)


@pytest.mark.parametrize(
    ("properties", "names"),
    [
        ([{"ADMIN": "France", "ISO_A2": "-99"}, {"ADMIN": "Norway", "ISO_A2": "-99"}], None),
        (
            [{"country": "US", "nameEn": "Alaska"}, {"iso1A2": "VA", "nameEn": "Vatican"}],
            ("US", "VA"),
        ),
        ([{"A3": "FRA"}, {"A3": "NOR"}], ("FRA", "NOR")),
        ([{"NAME": "", "ISO3": "FRA"}, {"NAME": "Norway", "ISO3": "NOR"}], ("FRA", "NOR")),
    ],
)
def test_the_property_with_the_names_is_found(
    tmp_path: Path, properties: list[dict], names: tuple[str, ...] | None
) -> None:
    features = [feature([square(i, 0, i + 1, 1)], **p) for i, p in enumerate(properties)]
    assert drawn(tmp_path, *features).names == (names or ("France", "Norway"))


def test_a_named_property_and_messages(tmp_path: Path) -> None:
    land = feature([square(0, 0, 1, 1)], admin_name="Here", other="There")
    empty = {"type": "Feature", "properties": {"admin_name": "Group"}, "geometry": None}
    path = written(tmp_path, land, empty)
    assert read_polygons(path, name_property="other").names == ("There",)

    with refused(UnknownName, "map.geojson", "'admin_nam'", "'admin_name'"):
        read_polygons(path, name_property="admin_nam")
    with refused(ManifestError, "map.geojson", "admin_name, other", "--country-property"):
        read_polygons(path)
    names = ["A", None, "", "-99"]
    written(tmp_path, *(feature([square(i, 0, i + 1, 1)], name=n) for i, n in enumerate(names)))
    for wanted in (None, "name"):
        with refused(ManifestError, "map.geojson", 4, "name", "--country-property"):
            read_polygons(path, name_property=wanted)
    written(tmp_path, feature([[0, 0], [1, 1]], "LineString", name="A"))
    with refused(ManifestError, "map.geojson", "no polygons"):
        read_polygons(path)
    path.write_text("[1, 2]")
    with refused(ManifestError, "map.geojson", "FeatureCollection"):
        read_polygons(path)


def test_the_digest_tells_maps_apart(tmp_path: Path) -> None:
    one = drawn(tmp_path, feature([square(0, 0, 1, 1)], name="A")).digest()
    assert one == drawn(tmp_path, feature([square(0, 0, 1, 1)], name="A")).digest()
    assert one != drawn(tmp_path, feature([square(0, 0, 1, 1)], name="B")).digest()
    assert one != drawn(tmp_path, feature([square(0, 0, 1, 1.01)], name="A")).digest()


@pytest.mark.slow
def test_border_towns_with_the_packaged_polygons() -> None:
    pytest.importorskip("tzfpy")
    pytest.importorskip("tzdata")
    towns = {
        (7.5878, 47.5581): "Switzerland",  # Basel
        (7.5598, 47.5890): "France",  # Saint-Louis, beside it
        (7.6220, 47.5930): "Germany",  # Weil am Rhein, too
        (6.1560, 46.2074): "Switzerland",  # Geneva
        (6.2364, 46.1990): "France",  # Annemasse
        (7.7507, 48.5818): "France",  # Strasbourg
        (7.8090, 48.5760): "Germany",  # Kehl
        (103.8590, 1.2834): "Singapore",
        (103.7646, 1.4625): "Malaysia",  # Johor Bahru
        (-79.0690, 43.0870): "United States",  # Niagara Falls, Prospect Point
        (-79.0790, 43.0790): "Canada",  # Table Rock
        (-5.3526, 36.1447): "Gibraltar",
        (-5.3470, 36.1640): "Spain",  # La Línea
        (12.4573, 41.9022): "Vatican City",
        (12.4663, 41.9031): "Italy",  # Castel Sant'Angelo
        (8.6900, 47.6960): "Germany",  # Büsingen, in Switzerland
        (179.99, -16.85): "Fiji",
        (-179.0, 67.5): "Russia",
        (0.0, -90.0): "Antarctica",
        (-30.0, 20.0): None,
        (12.5, 90.0): None,
    }
    assert where(packaged_countries(), *towns) == list(towns.values())


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(AcclimateError, "tzfpy and tzdata", "--polygons", "acclimate[geo]"):
        packaged_countries()
