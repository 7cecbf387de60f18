"""From folder trees, tables and arrays to manifest tables, and from those to files.

Nothing here judges the rows.
"""

import codecs
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from acclimate.core.errors import DamagedFile, ImageError, ManifestError
from acclimate.core.files import (
    FORMAT,
    Fields,
    parse_json,
    require_format,
    require_regular,
    write_atomically,
)
from acclimate.data.columns import TEXT, conform, require_columns, require_exact

HEADER = 132  # bytes that tell a format: DICOM says what it is behind 128 that may hold anything
_INDEX = "DICOMDIR"  # what lies on a disc of DICOM files, and no image


IMAGE_EXTENSIONS = frozenset(
    {"jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "heic", "heif", "dcm", "dicom"}
)
_KINDS = ", ".join(sorted(IMAGE_EXTENSIONS))
TABLE_EXTENSIONS = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")
MANIFEST_KEY = b"acclimate.data.manifest"
SEAL_KEY = b"acclimate.data.seal"  # its checksum
SEPARATORS = ",;\t|"
# By the archiver of macOS, and by Synology's file stations: thumbnails, and what was deleted.
_LEFT_BEHIND = ("__MACOSX", "@eaDir", "#recycle")
_LONGEST_ROW = 1 << 26  # bytes
_ENCODINGS = {"jpeg": {"quality": 95, "subsampling": 0}, "png": {"compress_level": 1}}
_LAYOUT = "put each image under <domain>/<class>/"


def data_name(path: str | Path) -> str:
    """What a data set is called: its folder's or file's name, without the ending of a table."""
    whole = Path(path).expanduser().resolve()
    return whole.stem if whole.suffix.lower() in TABLE_EXTENSIONS else whole.name


def read_folder(root: Path, source: str, only_domain: str = "") -> tuple[pa.Table, tuple[str, ...]]:
    """(table of image, label, domain; every domain folder) of a domain/class/image tree.

    Rows are sorted by path. Folders may nest below the class; hidden files and files that are not
    images are passed over. With `only_domain` a class/image tree is read as well: all of it is the
    domain of that name.
    """
    if not root.exists():
        raise ManifestError(f"there is no folder '{root}'; check the path")
    if not root.is_dir():
        raise ManifestError(f"'{root}' is a file, not a folder; read tables with from_table")
    domains, loose = _entries(root)
    paths: list[str] = []
    unclassed: list[str] = []
    for domain in domains:
        classes, beside = _entries(root / domain)
        unclassed += [f"{domain}/{name}" for name in beside]
        for name in classes:
            paths += _images_below(root, f"{domain}/{name}")
    if unclassed and not paths and only_domain:
        table = _tree_table(sorted(unclassed), source, levels=("label",))
        return table.append_column("domain", pa.repeat(only_domain, len(table))), (only_domain,)
    if unclassed:
        raise ManifestError(
            f"{source} has images without a class folder, such as {unclassed[0]}; put them under "
            f"{unclassed[0].split('/')[0]}/<class>/, or name the parent folder if {source} is a "
            "single domain"
        )
    if not paths:
        lacks = f"images without domain and class folders, such as {loose[0]}" if loose else ""
        raise ManifestError(f"{source} has {lacks or f'no image ({_KINDS}) in it'}; {_LAYOUT}")
    return _tree_table(sorted(paths), source), tuple(domains)


def class_folders(root: Path) -> list[str] | None:
    """The folders of a class/image tree, sorted; None if `root` is no such tree.

    The first folder that is not empty decides: in a class's folder there are images and nothing
    else to look into.
    """
    folders, _ = _entries(root)
    for folder in folders:
        inside, images = _entries(root / folder)
        if inside:
            return None
        if images:
            return folders
    return None


def read_class_folders(root: Path, source: str, folders: Iterable[str]) -> pa.Table:
    """Table of image and label, of the named folders of a class/image tree, sorted by path."""
    paths = sorted(path for folder in folders for path in _images_below(root, folder))
    if not paths:
        raise ManifestError(f"{source} has no image in the folders of its classes; add some")
    return _tree_table(paths, source, levels=("label",))


def _tree_table(
    paths: Sequence[str], source: str, levels: Sequence[str] = ("domain", "label")
) -> pa.Table:
    """Table of image and what the folders above it say, in the order of `levels` backwards."""
    try:
        image = pa.array(paths, pa.string())
    except UnicodeEncodeError as error:
        name = str(error.object)
        raise ManifestError(
            f"{source} has a file name that is not UTF-8, {os.fsencode(name)!r}; rename it"
        ) from None
    parts = pc.split_pattern(image, "/", max_splits=len(levels))
    values = {name: pc.list_element(parts, level) for level, name in enumerate(levels)}
    return pa.table({"image": image, **dict(reversed(values.items()))})


def _images_below(root: Path, folder: str) -> Iterator[str]:
    """Paths of the images below root/folder, relative to the root.

    Links are followed, since validation has to see where they lead, but to no folder twice.
    """
    visited = {os.path.realpath(root / above) for above in Path(folder).parents}
    ahead = [folder]
    while ahead:
        current = ahead.pop()
        real = os.path.realpath(root / current)
        if real not in visited:
            visited.add(real)
            folders, images = _entries(root / current)
            ahead += [f"{current}/{name}" for name in folders]
            yield from (f"{current}/{name}" for name in images)


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the folders and of the images in `folder`, sorted, without hidden ones."""
    folders, images = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _LEFT_BEHIND:
                    continue
                if _is_folder(entry):
                    folders.append(entry.name)
                elif is_image(entry.path):
                    images.append(entry.name)
    except OSError as error:
        raise ManifestError(f"cannot list the folder '{folder}': {error.strerror}") from error
    return sorted(folders), sorted(images)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def find_images(paths: Sequence[str | Path]) -> list[Path]:
    """Files as given, and the images below folders; sorted, each once."""
    remedy = "give a folder or files with images"
    if not paths:
        raise ImageError(f"no images given; {remedy}")
    images: dict[str, Path] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise ImageError(f"{path} does not exist; {remedy}")
        inside = [path / name for name in _images_below(path, ".")] if path.is_dir() else [path]
        if not inside:
            raise ImageError(f"{path} holds no images ({_KINDS}); {remedy}")
        for image in inside:
            images.setdefault(os.path.abspath(image), image)  # noqa: PTH100 (links stay links)
    return sorted(images.values())


def is_image(path: str) -> bool:
    """By the ending of its name. A file without one is looked into, for hospitals write DICOM
    under such names, or under a number such as 1.2.840.10008.17."""
    name = path.rpartition("/")[2]
    ending = name.rpartition(".")[2].lower()
    if ending in IMAGE_EXTENSIONS:
        return True
    named = ending != name.lower() and not ending.isdecimal()
    if named or name == _INDEX or not os.path.isfile(path):  # noqa: PTH113 (many)
        return False
    try:
        with Path(path).open("rb") as file:
            return is_dicom(file.read(HEADER))
    except OSError:
        return False


def is_dicom(header: bytes) -> bool:
    return header[128:132] == b"DICM"


def read_rows(path: Path, also_text: Sequence[str] = ()) -> pa.Table:
    """The rows of a .csv, .tsv, .parquet, .jsonl or .ndjson file; core text columns, and of .csv
    and .tsv `also_text`, as text."""
    if not path.exists():
        raise ManifestError(f"there is no file '{path}'; check the path")
    kind = path.suffix.lower()
    if kind not in TABLE_EXTENSIONS:
        known = ", ".join(TABLE_EXTENSIONS)
        raise ManifestError(f"{path.name} is none of {known}; save it as one of them")
    require_regular(path)
    try:
        if kind in (".csv", ".tsv"):
            table = _read_separated(path, (*TEXT, *also_text))
        elif kind == ".parquet":
            # Not pq.read_table: it takes a folder called "domain=x" above the file for a column.
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                table = file.read()
        else:
            table = _read_json_lines(path)
        table.validate(full=True)  # text that is no UTF-8 is told of here, not where it is met
        return table
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).splitlines() or ["not such a table"])[0].rstrip(".")
        raise ManifestError(
            f"cannot read {path.name} as a {kind} table: {reason}; mend it, or make it again"
        ) from error


def is_manifest(path: Path) -> bool:
    """Whether `path` is Parquet that carries a manifest's metadata."""
    return not {MANIFEST_KEY, SEAL_KEY}.isdisjoint(_file_metadata(path))


def read_manifest(path: Path) -> tuple[pa.Table, Fields]:
    """The rows that `write_parts` wrote, in their types, and the facts beside them."""
    table, metadata = read_rows(path), _file_metadata(path)
    text = metadata.get(MANIFEST_KEY, b"")
    if metadata.get(SEAL_KEY) != _seal(text, table.column_names, table.num_rows):
        raise DamagedFile(path)
    facts = Fields(parse_json(text), path)
    require_format(facts.values.get("version"), path)
    require_columns(table, path.name)
    if "split" not in table.column_names or "\0" in facts.text("root"):
        raise DamagedFile(path)
    return conform(table, path.name), facts


def _seal(facts: bytes, names: Sequence[str], rows: int) -> bytes:
    """A checksum of what a Parquet file says of its content; pages have their own."""
    whole = json.dumps([facts.decode("utf-8", "replace"), list(names), rows])
    return hashlib.sha256(whole.encode()).hexdigest().encode()


def _file_metadata(path: Path) -> dict[bytes, bytes]:
    """What a Parquet file says of itself, which need not be all that comes with its table."""
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return {}
    try:
        return pq.read_metadata(path).metadata or {}
    except (pa.ArrowException, OSError, ValueError):
        return {}  # reading the rows will say what is wrong


def _read_json_lines(path: Path) -> pa.Table:
    options = pyarrow.json.ReadOptions(block_size=1 << 24)
    schema = pa.schema([(name, pa.string()) for name in TEXT])
    try:
        table = pyarrow.json.read_json(
            path, options, pyarrow.json.ParseOptions(explicit_schema=schema)
        )
    except pa.ArrowInvalid:  # labels or domains that are numbers
        return pyarrow.json.read_json(path, options)
    # The explicit schema adds the columns that the file does not have.
    empty = [name for name in TEXT if table[name].null_count == table.num_rows]
    return table.drop_columns(empty)


def _read_separated(path: Path, as_text: Sequence[str]) -> pa.Table:
    """The rows of a .csv or .tsv file, with the separator that its header uses; columns `as_text`
    are not taken for numbers."""
    content = path.read_bytes()
    # Spreadsheets write "Unicode text" as UTF-16, which begins with a mark.
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{path.name} is not UTF-8 at byte {error.start}; save it as CSV (UTF-8)"
        ) from None
    header = text.lstrip().splitlines()[:1] or [""]

    def columns(mark: str) -> tuple[int, int]:
        names = {name.strip(' "').casefold() for name in header[0].split(mark)}
        return len(names & {*as_text}), header[0].count(mark)

    # Text by decree: inference would turn label 007 into 7 and domain 2020-01-01 into a date.
    return pyarrow.csv.read_csv(
        pa.BufferReader(text.encode()),
        read_options=pyarrow.csv.ReadOptions(block_size=_LONGEST_ROW, use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter=max(SEPARATORS, key=columns), newlines_in_values=True
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(as_text, pa.string())
        ),
    )


def read_arrays(
    X: Any, y: Any, domains: Any, splits: Any = None
) -> tuple[pa.Table, tuple[str, ...]]:
    """(table, classes) of arrays; whole-number classes are listed in the order of the numbers."""
    X, y, domains = np.asarray(X), np.asarray(y), np.asarray(domains)
    sizes = {"X": X, "y": y, "domains": domains}
    if splits is not None:
        sizes["splits"] = splits = np.asarray(splits)
    flat = all(a.ndim == 1 for name, a in sizes.items() if name != "X") and X.ndim > 0
    if not flat or len({len(a) for a in sizes.values()}) > 1:
        shapes = ", ".join(f"{name} {list(a.shape)}" for name, a in sizes.items())
        raise ManifestError(f"the arrays do not fit together: {shapes}; give one entry per row")
    if len(X) == 0:
        raise ManifestError("the arrays have no rows; give at least one")
    columns = {**_content(X), "label": _text(y), "domain": _text(domains)}
    if splits is not None:
        columns["split"] = _text(splits)
    by_number = int if y.dtype.kind in "iu" else None
    return pa.table(columns), tuple(sorted(set(columns["label"].to_pylist()), key=by_number))


def _text(values: np.ndarray) -> pa.Array:
    if values.dtype.kind == "f":
        require_exact(pa.array(values), "of names", "arrays")
    return pa.array([None if v is None else str(v) for v in values.tolist()], pa.string())


def _content(X: np.ndarray) -> dict[str, pa.Array]:
    if X.ndim == 2 and X.dtype.kind in "fiub" and X.shape[1] > 0:
        flat = pa.array(np.ascontiguousarray(X, dtype=np.float32).ravel())
        return {"features": pa.FixedSizeListArray.from_arrays(flat, X.shape[1])}
    if X.dtype == np.uint8 and (X.ndim == 3 or (X.ndim == 4 and X.shape[3] == 3)):
        return {"bytes": pa.array([encode_image(image) for image in X], pa.large_binary())}
    raise ManifestError(
        f"X is {X.dtype} {list(X.shape)}; give features as numbers [n, f] or images as uint8 "
        "[n, h, w] or [n, h, w, 3]"
    )


def encode_image(pixels: np.ndarray, kind: Literal["png", "jpeg"] = "png") -> bytes:
    """uint8 [h, w] or [h, w, 3] -> an encoded image."""
    from PIL import Image  # only arrays need it here

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, format=kind, **_ENCODINGS[kind])
    return file.getvalue()


def write_parts(
    path: Path,
    parts: Iterable[pa.Table],
    *,
    classes: Sequence[str],
    root: Path,
    domains: Sequence[str] = (),
) -> None:
    """A manifest from tables of equal columns, each gone before the next is asked for; whole or
    not at all."""
    require_name(path)
    coming = iter(parts)
    first = next(coming)
    named = "image" in first.column_names
    facts = {
        "version": FORMAT,
        "classes": tuple(classes),
        # Without paths the root means nothing, and where it was is nobody's business.
        "root": os.path.relpath(root, path.parent.resolve()) if named else ".",
        "domains": tuple(domains),
    }
    text = json.dumps(facts)
    schema, rows = first.schema.with_metadata({MANIFEST_KEY: text}), 0

    def fill(file: Path) -> None:
        nonlocal rows
        options = {"compression": "zstd", "write_page_checksum": True}
        with pq.ParquetWriter(file, schema, **options) as writer:
            for part in chain([first], coming):
                writer.write_table(part.cast(schema), row_group_size=1 << 16)
                rows += part.num_rows
            writer.add_key_value_metadata({SEAL_KEY: _seal(text.encode(), schema.names, rows)})

    write_atomically(path, fill)


def require_name(path: Path) -> None:
    """For those who work long before they write, and want to know at once."""
    if path.suffix.lower() != ".parquet":
        raise ManifestError(f"'{path.name}' is no name for a manifest; end it in .parquet")
