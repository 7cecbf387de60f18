"""A grid over the map that remembers what lies where no border runs.

A cell that no border enters lies in one country, or in none. Its answer is looked up once, when the
first point falls into it; points in cells with a border are looked up one by one.
"""

from collections.abc import Callable

import numpy as np

NOWHERE = -1
CELL = 0.05  # degrees; about 5 km
_COLUMNS, _ROWS = round(360 / CELL), round(180 / CELL)
_UNKNOWN, _BORDER, _FIRST = 0, -1, 2  # a cell holds its country + _FIRST

Locate = Callable[[np.ndarray, np.ndarray], np.ndarray]


class BorderGrid:
    def __init__(self, polygons: np.ndarray, exactly: Locate) -> None:
        self._exactly = exactly
        # Zeros take no memory until they are written to, and most of the Earth is never asked for.
        self._cells = np.zeros(_ROWS * _COLUMNS, dtype=np.int16)
        for row, column in _border_cells(polygons):
            self._cells[row * _COLUMNS + column] = _BORDER

    def locate(self, longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
        """float64 [n], float64 [n] -> int16 [n], as the exact look-up answers."""
        cell = _row(latitude) * _COLUMNS + _column(longitude)
        codes = self._cells[cell]
        unknown = np.flatnonzero(codes == _UNKNOWN)
        if len(unknown):
            self._look_up(np.unique(cell[unknown]))
            codes[unknown] = self._cells[cell[unknown]]
        country: np.ndarray = codes - np.int16(_FIRST)
        border = np.flatnonzero(codes == _BORDER)
        if len(border):
            country[border] = self._exactly(longitude[border], latitude[border])
        return country

    def _look_up(self, cells: np.ndarray) -> None:
        row, column = np.divmod(cells, _COLUMNS)
        country = self._exactly((column + 0.5) * CELL - 180, (row + 0.5) * CELL - 90)
        self._cells[cells] = country + np.int16(_FIRST)


def _row(latitude: np.ndarray) -> np.ndarray:
    return np.clip(((latitude + 90) / CELL).astype(np.int64), 0, _ROWS - 1)


def _column(longitude: np.ndarray) -> np.ndarray:
    return np.clip(((longitude + 180) / CELL).astype(np.int64), 0, _COLUMNS - 1)


def _border_cells(polygons: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """(rows, columns) of all cells that a border enters, and a few beside them."""
    import shapely

    xy, ring = shapely.get_coordinates(shapely.get_rings(polygons), return_index=True)
    start = np.flatnonzero(ring[1:] == ring[:-1])
    length = np.abs(xy[start + 1] - xy[start]).max(axis=1)
    # Cut so short that a piece lies in at most two rows and two columns: its corners are enough.
    pieces = np.maximum(1, np.ceil(2 * length / CELL)).astype(np.int64)
    segment = np.repeat(start, pieces)
    number = np.arange(len(segment)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    step = (xy[segment + 1] - xy[segment]) / np.repeat(pieces, pieces)[:, None]
    one = xy[segment] + number[:, None] * step
    other = xy[segment] + (number + 1)[:, None] * step
    rows, columns = (_row(one[:, 1]), _row(other[:, 1])), (_column(one[:, 0]), _column(other[:, 0]))
    return [(row, column) for row in rows for column in columns]
