"""What pandas keeps in arrays of its own: text, categories, numbers with gaps; and a Series.

Gaps become None. A Series is the list of its values, whatever its index is.
"""

import numpy as np

from acclimate.paper.released.arrays import (
    Column,
    Unexpected,
    array,
    arrow_text,
    called,
    named,
    sequence,
)
from acclimate.paper.released.pickled import Call, Global

_NEW_INDEX = Global("pandas.core.indexes.base", "_new_Index")
_BACKED = Global("pandas._libs.arrays", "__pyx_unpickle_NDArrayBacked")
_STRINGS = named(["pandas.arrays", "pandas.core.arrays.string_"], ["StringArray"])
_ARROW_STRINGS = named(["pandas.arrays", "pandas.core.arrays.string_arrow"], ["ArrowStringArray"])
_CATEGORICAL = named(["pandas", "pandas.core.arrays.categorical"], ["Categorical"])
_MASKED = (
    named(["pandas.arrays", "pandas.core.arrays.integer"], ["IntegerArray"])
    | named(["pandas.arrays", "pandas.core.arrays.floating"], ["FloatingArray"])
    | named(["pandas.arrays", "pandas.core.arrays.boolean"], ["BooleanArray"])
)
_SERIES = named(["pandas", "pandas.core.series"], ["Series"])
_SINGLE = named(["pandas.core.internals.managers", "pandas.core.internals"], ["SingleBlockManager"])
_KINDS = (
    named(["pandas.core.indexes.base", "pandas"], ["Index"])
    | named(["pandas.core.indexes.range", "pandas"], ["RangeIndex"])
    | named(["pandas.core.indexes.numeric"], ["Int64Index", "UInt64Index", "Float64Index"])
    | named(["pandas", "pandas.core.dtypes.dtypes"], ["CategoricalDtype"])
    | named(["pandas", "pandas.core.arrays.string_"], ["StringDtype"])
    | named(
        ["pandas", "pandas.core.arrays.integer"],
        [f"{sign}{bits}Dtype" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)],
    )
    | named(["pandas", "pandas.core.arrays.floating"], ["Float32Dtype", "Float64Dtype"])
    | named(["pandas", "pandas.core.arrays.boolean"], ["BooleanDtype"])
)
MISSING = named(["pandas", "pandas._libs.missing"], ["NA"])
_MISSING_TIME = named(["pandas._libs.tslibs.nattype"], ["_nat_unpickle", "__nat_unpickle"])
_ARRAYS = _ARROW_STRINGS | _MASKED | {_BACKED}
EXTENSIONS = (
    (_ARRAYS | _STRINGS | _CATEGORICAL | _SERIES | _SINGLE | _KINDS)
    | (MISSING | _MISSING_TIME)
    | {_NEW_INDEX}
)


def is_extension(node: object) -> bool:
    return isinstance(node, Call) and node.target in _ARRAYS


def extension(node: object) -> list[object]:
    """A column of text, of categories, or of numbers with gaps."""
    call = called(node, _ARRAYS, "a column")
    if call.target in _MASKED:
        return _masked(call)
    kind = call.arguments[0] if call.arguments else None
    if call.target == _BACKED and isinstance(kind, Global) and kind in _CATEGORICAL:
        return _categories(call)
    return _text(call)


def series(node: object) -> Column | None:
    """The values of a Series; None where it is none."""
    if not isinstance(node, Call) or node.target not in _SERIES:
        return None
    state = node.state
    if not isinstance(state, dict):
        raise Unexpected("a Series without content")
    manager = called(state.get("_mgr", state.get("_data")), _SINGLE, "a block manager").state
    blocks = manager[1] if isinstance(manager, tuple) and len(manager) == 4 else None
    (values,) = found if len(found := sequence(blocks)) == 1 else (None,)
    if is_extension(values):
        return extension(values)
    column, shape = array(values)
    if len(shape) != 1:
        raise Unexpected("a Series of several dimensions")
    return column


def index_names(index: object) -> list[object]:
    """The names of an index that lists them."""
    call = called(index, {_NEW_INDEX}, "an index")
    facts = call.arguments[1] if len(call.arguments) == 2 else None
    if not isinstance(facts, dict) or "data" not in facts:
        raise Unexpected("an index without names")
    data = facts["data"]
    if isinstance(data, Call) and data.target in {_BACKED} | _ARROW_STRINGS:
        return _text(data)
    column, shape = array(data)
    if len(shape) != 1:
        raise Unexpected("an index of several dimensions")
    return list(column)


def _categories(node: Call) -> list[object]:
    if not isinstance(node.state, tuple) or len(node.state) < 2:
        raise Unexpected("categories without codes")
    dtype, codes = node.state[:2]
    facts = dtype.state if isinstance(dtype, Call) else None
    if not isinstance(facts, dict):
        raise Unexpected("categories without names")
    names = [*index_names(facts.get("categories")), None]
    index, shape = array(codes)
    if len(shape) != 1 or not isinstance(index, np.ndarray) or index.dtype.kind not in "iu":
        raise Unexpected("categories without codes")
    if len(index) and not (index.min() >= -1 and index.max() < len(names) - 1):
        raise Unexpected("a code without a category")
    return [names[code] for code in index.tolist()]


def _masked(node: Call) -> list[object]:
    """Numbers or truth values, and which of them are there."""
    state = node.state if isinstance(node.state, dict) else {}
    held, shape = array(state.get("_data"))
    gaps, other = array(state.get("_mask"))
    if isinstance(held, list) or isinstance(gaps, list) or gaps.dtype.kind != "b":
        raise Unexpected("numbers with gaps of an unknown kind")
    if len(shape) != 1 or other != shape:
        raise Unexpected("numbers with gaps of unknown shape")
    pairs = zip(held.tolist(), gaps.tolist(), strict=True)
    return [None if gap else number for number, gap in pairs]


def _text(node: Call) -> list[object]:
    """The text of pandas' own columns of text, kept by numpy or by pyarrow."""
    if node.target in _ARROW_STRINGS:
        held = node.state.get("_pa_array") if isinstance(node.state, dict) else None
        return arrow_text(held)
    kind = node.arguments[0] if node.arguments else None
    if not isinstance(kind, Global) or kind not in _STRINGS:
        raise Unexpected("a column of an unknown kind")
    held = node.state[1] if isinstance(node.state, tuple) and len(node.state) > 1 else None
    column, shape = array(held)
    if len(shape) != 1 or not isinstance(column, list):
        raise Unexpected("text that is no list of text")
    return column
