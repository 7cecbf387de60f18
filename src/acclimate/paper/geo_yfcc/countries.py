"""Longitude and latitude -> country, offline, from polygons.

Where polygons overlap the smallest wins: an enclave is drawn over its host more often than cut out
of it. Most photos are far from any border, and a grid answers for them; `grid.py` says how.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.core.errors import ConfigError, ManifestError, unknown
from acclimate.core.files import read_bytes
from acclimate.paper.geo_yfcc.grid import NOWHERE, BorderGrid

if TYPE_CHECKING:  # an extra, which only looking up countries needs
    import shapely

# Each line is a way to name countries. The first that names every feature of a file is taken, and
# in it the first property that a feature has: a part of a country comes before its own code.
_PROPERTIES = (
    ("ADMIN",),
    ("country", "iso1A2", "nameEn"),
    *((name,) for name in ("NAME_EN", "name_en", "NAME", "name", "COUNTRY", "CNTRY_NAME")),
    *((name,) for name in ("ISO_A2", "iso_a2", "ISO2", "ISO_A3", "iso_a3", "ISO3", "A3")),
)
_NO_NAME = (None, "", "-99", -99)  # Natural Earth writes -99 where there is no code
_REMEDY = "pip install 'acclimate[geo]'"


@dataclass(frozen=True, eq=False)
class Countries:
    """Polygons, [n] in the order in which they are asked, and the country of each."""

    names: tuple[str, ...]
    polygons: np.ndarray
    country: np.ndarray
    source: str
    # Tree and polygons build their indices when they are first asked, unsafely if by two threads.
    _lock: AbstractContextManager[object] = field(default_factory=threading.RLock, repr=False)

    def locate(self, longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
        """float64 [n], float64 [n] in degrees -> int16 [n]: index into `names`, or -1 at sea.

        Safe to ask from several threads.
        """
        with self._lock:
            grid = self._grid
        country = grid.locate(longitude, latitude)
        # The meridian of 180 degrees has two names, and a polygon may know it by either.
        seam = np.flatnonzero((country == NOWHERE) & (np.abs(longitude) == 180))
        if len(seam):
            country[seam] = grid.locate(-longitude[seam], latitude[seam])
        return country

    def exactly(self, longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
        """As `locate`, from the polygons alone."""
        import shapely

        country = np.full(len(longitude), NOWHERE, dtype=np.int16)
        with self._lock:
            point, polygon = self._tree.query(shapely.points(longitude, latitude))
            shapes = self.polygons[polygon]
            inside = shapely.intersects_xy(shapes, longitude[point], latitude[point])
        point, polygon = point[inside], polygon[inside]
        # The largest are written first, so that the smallest stays.
        order = np.argsort(-polygon, kind="stable")
        country[point[order]] = self.country[polygon[order]]
        return country

    @cached_property
    def _tree(self) -> shapely.STRtree:
        import shapely

        shapely.prepare(self.polygons)
        return shapely.STRtree(self.polygons)

    @cached_property
    def _grid(self) -> BorderGrid:
        return BorderGrid(self.polygons, self.exactly)

    def digest(self) -> str:
        """SHA-256 (hex) of names and polygons."""
        import shapely

        sha = hashlib.sha256(json.dumps(self.names).encode())
        for blob in shapely.to_wkb(self.polygons):
            sha.update(blob)
        sha.update(self.country.astype("<i2").tobytes())
        return sha.hexdigest()


def read_polygons(path: str | Path, *, name_property: str | None = None) -> Countries:
    """A GeoJSON file of countries; the property with their names is found unless given.

    Several features may have the same country. Features without an area are left out.
    """
    path = Path(path).expanduser()
    try:
        content = json.loads(read_bytes(path))
        features = content["features"] if content["type"] == "FeatureCollection" else [content]
        shaped = [
            (feature.get("properties") or {}, feature["geometry"])
            for feature in features
            if feature.get("geometry")
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(
            f"{path.name} is no GeoJSON of countries; give a file whose type is FeatureCollection"
        ) from error
    names = _names([properties for properties, _ in shaped], name_property, path.name)
    shapes = (json.dumps(shape) for _, shape in shaped)
    return _countries(zip(names, shapes, strict=True), path.name)


def _names(features: Sequence[dict[str, Any]], wanted: str | None, source: str) -> list[str]:
    """The country of each feature."""
    known = {name for properties in features for name in properties}
    if wanted is not None and wanted not in known:
        raise unknown(f"no feature of {source} has a property '{wanted}'", wanted, known)
    for tried in _PROPERTIES if wanted is None else ((wanted,),):
        values = [
            [properties[name] for name in tried if properties.get(name) not in _NO_NAME]
            for properties in features
        ]
        if all(values):
            return [str(names[0]).strip() for names in values]
    what = f"'{wanted}' does not name" if wanted else "no property is known that names"
    raise ManifestError(
        f"{what} each of the {len(features)} features of {source}; they have "
        f"{', '.join(sorted(known)) or 'none'}: name one with --country-property"
    )


def packaged_countries() -> Countries:
    """OpenStreetMap's time zones, each of which lies in one country, with territorial waters.

    From the extra `[geo]`: tzfpy's polygons, at most about 111 m from the border as OpenStreetMap
    has it, and tzdata's table of the country of each zone. The data are under the ODbL.
    """
    missing = [name for name in ("tzfpy", "tzdata") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"there are no packaged country polygons without {' and '.join(missing)}; "
            f"give --polygons FILE, or {_REMEDY}"
        )
    import tzfpy

    country_of = _zone_countries()
    shapes = (
        (country_of[zone], tzfpy.get_tz_polygon_geojson(zone))
        for zone in tzfpy.timezonenames()
        if zone in country_of  # zones at sea, such as Etc/GMT+1, have no country
    )
    return _countries(shapes, f"tzfpy {tzfpy.data_version()}")


def _zone_countries() -> dict[str, str]:
    """Time zone -> English name of its country."""
    from importlib.resources import files

    folder = files("tzdata") / "zoneinfo"

    def lines(name: str) -> list[list[str]]:
        text = (folder / name).read_text(encoding="utf-8")
        return [line.split("\t") for line in text.splitlines() if line and line[0] != "#"]

    names = dict(lines("iso3166.tab"))
    return {fields[2]: names[fields[0]] for fields in lines("zone.tab")}


def _countries(shapes: Iterable[tuple[str, str]], source: str) -> Countries:
    """From (country, GeoJSON)."""
    if importlib.util.find_spec("shapely") is None:
        raise ConfigError(f"polygons need shapely; {_REMEDY}")
    import shapely

    polygons: list[shapely.Polygon] = []
    owners: list[str] = []
    for name, shape in shapes:
        try:
            pieces = _on_the_map(shapely.from_geojson(shape))
        except shapely.errors.GEOSException as error:
            raise ManifestError(
                f"{source} has a broken shape for '{name}'; mend it or give another file"
            ) from error
        polygons += pieces
        owners += [name] * len(pieces)
    if not polygons:
        raise ManifestError(f"{source} has no polygons; give another file")
    names, country = np.unique(np.asarray(owners, dtype=object), return_inverse=True)
    # Smallest first; of two the same size, that of the smaller country.
    area = shapely.area(polygons)
    order = np.lexsort((country, np.bincount(country, area)[country], area))
    return Countries(
        tuple(names.tolist()),
        np.asarray(polygons, dtype=object)[order],
        country[order].astype(np.int16),
        source,
    )


def _on_the_map(shape: Any) -> list[shapely.Polygon]:
    """Valid polygons between -180 and 180 degrees; what reaches over the seam is cut there."""
    import shapely

    west, _, east, _ = shape.bounds
    if east - west > 180:
        shape = _unwrapped(shape)
    if not shape.is_valid:
        # Also makes holes of outlines inside outlines, as which some files draw enclaves.
        shape = shapely.make_valid(shape)
    map_of_the_world = shapely.box(-180, -90, 180, 90)
    parts = []
    for shift in (-360, 0, 360):
        moved = (
            shapely.transform(shape, lambda xy, by=shift: np.add(xy, (by, 0))) if shift else shape
        )
        west, _, east, _ = moved.bounds
        if west < 180 and east > -180:
            inside = west >= -180 and east <= 180
            parts += _polygons(moved if inside else moved.intersection(map_of_the_world))
    return parts


def _unwrapped(shape: Any) -> Any:
    """Rings that jump from 179 to -179 degrees get their western part beyond 180 instead.

    A step from -180 to 180 itself is no such jump: so files draw the edge around a pole.
    """
    import shapely

    def ring(coordinates: Any) -> np.ndarray:
        xy: np.ndarray = np.array(coordinates)[:, :2]
        step = np.abs(np.diff(xy[:, 0]))
        if np.any((step > 180) & (step < 360)):
            xy[xy[:, 0] < 0, 0] += 360
        return xy

    return shapely.MultiPolygon(
        [
            shapely.Polygon(
                ring(part.exterior.coords), [ring(hole.coords) for hole in part.interiors]
            )
            for part in _polygons(shape)
        ]
    )


def _polygons(shape: Any) -> list[shapely.Polygon]:
    """The polygons of a shape, which may have lines and points where it only touched."""
    import shapely

    parts = [part for part in shapely.get_parts(shape).tolist() if not part.is_empty]
    flat = [part for part in parts if part.geom_type == "Polygon"]
    nested = [part for part in parts if part.geom_type in ("MultiPolygon", "GeometryCollection")]
    return flat + [polygon for part in nested for polygon in _polygons(part)]
