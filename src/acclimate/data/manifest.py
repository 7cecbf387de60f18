"""The data model: one table, one row per (image, label), that everything else reads."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acclimate.core.errors import ManifestError, damage_is, require_known
from acclimate.core.plots import axes_or_new
from acclimate.core.progress import Watch, unwatched
from acclimate.core.text import count
from acclimate.data import readers
from acclimate.data.columns import (
    REGIONS,
    SPLITS,
    Problem,
    conform,
    digest,
    encode,
    feature_blocks,
    find_problems,
    first_rows,
    grouped,
    image_codes,
    require_columns,
    seeded_splits,
    summaries,
)
from acclimate.data.duplicates import joined, near_copies
from acclimate.data.pictures import (
    GROUP,
    group_keys,
    groups_in_paths,
    numbers,
    picture_keys,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REMEDY = (
    "restore it or make it again; or, if you changed it on purpose, write the changed table "
    "without its metadata, as a plain one"
)


# Tables have no hash and roots do not matter: compare manifests by `digest()`.
@dataclass(frozen=True, eq=False)
class Manifest:
    """Labelled images (or feature vectors) from named domains.

    Columns: `image` (path below the root) or `bytes` (an encoded image) or `features`, `label`,
    `domain`, `split`, optionally the domain's `role`, and whatever else the data came with.
    Reading refuses what cannot be a manifest; `check()` judges the rows.
    """

    table: pa.Table = field(repr=False)
    classes: tuple[str, ...]
    root: Path
    source: str
    declared_domains: tuple[str, ...] = ()
    """Domains that the source names, with or without rows."""

    @classmethod
    def from_folder(
        cls,
        root: str | Path,
        *,
        val_share: float = 0.2,
        seed: int = 0,
        alike: bool = False,
        group: str | None = None,
        only_domain: str = "",
        watch: Watch = unwatched,
    ) -> Self:
        """A domain/class/image tree, or class/image with `only_domain`; folders may nest below the
        class of a domain.

        Copies of a file are in one split. With `alike`, so are pictures that look the same, for
        which every image is read. `group` is a regular expression for what belongs together in a
        path, such as "patient-[0-9]+": its first group, or all that it matches.
        """
        folder = Path(root).expanduser()
        source = f"{folder.resolve().name}/"
        table, domains = readers.read_folder(folder, source, only_domain)
        if group:
            table = table.append_column(GROUP, groups_in_paths(table["image"], group, source))
        return cls.from_rows(
            table, folder, source,
            domains=domains, val_share=val_share, seed=seed, alike=alike, watch=watch,
        )  # fmt: skip

    @classmethod
    def from_table(
        cls,
        path: str | Path,
        *,
        root: str | Path | None = None,
        val_share: float = 0.2,
        seed: int = 0,
        alike: bool = False,
        watch: Watch = unwatched,
    ) -> Self:
        """A .csv, .tsv, .parquet, .jsonl or .ndjson file; `root` is its folder unless given.

        Without a `split` column, splits are drawn per domain. A manifest keeps its class list.
        """
        path = Path(path).expanduser()
        if readers.is_manifest(path):
            stored = cls.read(path)
            return stored if root is None else replace(stored, root=Path(root).expanduser())
        table = readers.read_rows(path)
        require_columns(table, path.name)
        folder = path.parent if root is None else Path(root).expanduser()
        return cls.from_rows(
            table, folder, path.name, val_share=val_share, seed=seed, alike=alike, watch=watch
        )

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any,
        domains: Any,
        *,
        splits: Any = None,
        val_share: float = 0.2,
        seed: int = 0,
    ) -> Self:
        """X: uint8 images [n, h, w] or [n, h, w, 3], or features [n, f]; the rest is [n]."""
        table, classes = readers.read_arrays(X, y, domains, splits)
        return cls.from_rows(
            table, Path.cwd(), "arrays", classes=classes, val_share=val_share, seed=seed
        )

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """A manifest that `write` wrote, wherever it and its images have moved together."""
        path = Path(path).expanduser()
        if not readers.is_manifest(path):
            raise ManifestError(
                f"{path.name} is a plain table, not a manifest; read it with Manifest.open"
            )
        with damage_is(ManifestError, REMEDY):
            table, facts = readers.read_manifest(path)
            return cls(
                table,
                facts.texts("classes"),
                (path.parent / facts.text("root")).resolve(),
                path.name,
                facts.texts("domains"),
            )

    @classmethod
    def open(cls, path: str | Path, *, watch: Watch | None = None) -> Self:
        """A folder tree, a manifest or a table, whichever `path` is; with a `watch` its files are
        compared at once, and it sees how far that is."""
        path = Path(path).expanduser()
        if not path.exists():
            raise ManifestError(f"there is no file or folder '{path}'; check the path")
        read = cls.from_folder if path.is_dir() else cls.from_table
        manifest = read(path, watch=watch or unwatched)
        if watch is not None:
            manifest._identify(watch)
        return manifest

    @classmethod
    def from_rows(
        cls,
        table: pa.Table,
        root: Path,
        source: str,
        *,
        classes: tuple[str, ...] | None = None,
        domains: tuple[str, ...] = (),
        val_share: float,
        seed: int,
        alike: bool = False,
        watch: Watch = unwatched,
    ) -> Self:
        """From rows as they come; splits are drawn where there are none."""
        table = conform(table, source)
        if classes is None:
            labels = pc.unique(pc.drop_null(table["label"])).to_pylist()
            classes = tuple(sorted(label for label in labels if label.strip()))
        if "split" not in table.column_names:
            whole = cls(table, classes, root.resolve(), source, domains)
            whole._identify(watch)
            units = whole.unit_ids
            if alike:
                units = joined(units, near_copies(whole, np.arange(len(whole))))
            splits = seeded_splits(table, units, val_share=val_share, seed=seed)
            table = table.append_column("split", splits)
            return whole._hand_on(replace(whole, table=table))
        return cls(table, classes, root.resolve(), source, domains)

    def _repr_html_(self) -> str:
        from acclimate.data.inspection import domains_grid

        caption = f"{self.source}: {count(len(self), 'row')}, {len(self.classes)} classes"
        return domains_grid(self).to_html(caption)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """The share of each class in each domain, on `ax` or new axes."""
        from acclimate.data.inspection import draw_labels

        axes = axes_or_new(ax)
        draw_labels(self, axes)
        return axes

    def write(self, path: str | Path) -> None:
        """Write Parquet, whole or not at all; the root is stored relative to the file."""
        readers.write_parts(
            Path(path).expanduser(),
            [self.table],
            classes=self.classes,
            root=self.root,
            domains=self.declared_domains,
        )

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains that have rows, sorted."""
        return tuple(self._domain_codes[0])

    @cached_property
    def all_domains(self) -> tuple[str, ...]:
        """Also those that were declared and have no rows, sorted."""
        return tuple(sorted({*self.domains, *self.declared_domains}))

    @cached_property
    def _domain_codes(self) -> tuple[list[str], np.ndarray]:
        return encode(self.table["domain"])

    @property
    def domain_index(self) -> np.ndarray:
        """int64 [n]: index into `domains`."""
        return self._domain_codes[1]

    @cached_property
    def domain_names(self) -> np.ndarray:
        """object [n]"""
        return np.asarray(self.table["domain"].fill_null("").to_numpy())

    @cached_property
    def splits(self) -> np.ndarray:
        """object [n]"""
        return np.asarray(self.table["split"].fill_null("").to_numpy())

    @cached_property
    def label_index(self) -> np.ndarray:
        """int64 [n]: index into `classes`, -1 for a label that is not among them."""
        known = pa.array(self.classes, pa.string())
        codes = pc.index_in(self.table["label"], value_set=known)
        return np.asarray(pc.fill_null(codes, -1).to_numpy().astype(np.int64))

    @cached_property
    def image_ids(self) -> np.ndarray:
        """int64 [n]: equal where two rows show the same image, by its path or else its bytes.

        Rows of features are images of their own unless paths name them: two measurements may agree.
        """
        return image_codes(self.table, "bytes", "image")

    @cached_property
    def picture_keys(self) -> np.ndarray:
        """int64 [n]: what picture each row shows, by content; see `data.pictures`."""
        return picture_keys(self.table, self.root)

    def _identify(self, watch: Watch) -> None:
        if "picture_keys" not in self.__dict__:
            self.__dict__["picture_keys"] = picture_keys(self.table, self.root, watch)

    @property
    def picture_ids(self) -> np.ndarray:
        """int64 [n]: equal where two rows show the same picture, in one file or several."""
        return numbers(self.picture_keys)

    @cached_property
    def group_keys(self) -> np.ndarray:
        """int64 [n]: the patient, burst or recording that each row belongs to."""
        return group_keys(self.table)

    @cached_property
    def unit_ids(self) -> np.ndarray:
        """int64 [n]: equal where rows belong on one side of every split: they show one picture, or
        pictures of one group."""
        pictures, groups = self.picture_ids, numbers(self.group_keys)
        if not self.group_keys.any():
            return pictures
        order = np.argsort(groups, kind="stable")
        neighbours = np.stack([order[:-1], order[1:]], axis=1)
        return joined(pictures, neighbours[groups[order[:-1]] == groups[order[1:]]])

    def shared_pictures(self) -> int:
        """How many pictures several domains show."""
        pairs = np.unique(np.stack([self.picture_ids, self.domain_index]), axis=1)
        return int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())

    def one_row_each(self, rows: np.ndarray) -> np.ndarray:
        """The first of `rows`, which ascend, for each of their images, ascending."""
        return first_rows(rows, self.image_ids)

    def same_image(self, rows: np.ndarray, as_in: np.ndarray) -> np.ndarray:
        """bool: which of `rows` show an image that a row of `as_in` shows."""
        return np.isin(self.image_ids[rows], self.image_ids[as_in])

    def roles(self) -> dict[str, str]:
        """The role of each domain that has one."""
        return dict(sorted(self._of_domains("role")))

    def groups(self) -> dict[str, str]:
        """The group of each domain by the first column of REGIONS that has one for each domain; a
        column that splits a domain is no grouping of domains."""
        for column in REGIONS:
            pairs = self._of_domains(column)
            if pairs and len(pairs) == len(dict(pairs)):
                return {domain: str(group) for domain, group in sorted(pairs)}
        return {}

    def _of_domains(self, column: str) -> list[tuple[str, Any]]:
        """(domain, value) of a column, each pair once, where there is a value."""
        if column not in self.table.column_names:
            return []
        pairs = self.table.group_by(["domain", column], use_threads=False).aggregate([])
        return [(row["domain"], row[column]) for row in pairs.to_pylist() if row[column]]

    def rows(self, *, domain: str | None = None, split: str | None = None) -> np.ndarray:
        """int64: the rows of a domain, of a split, or of both, ascending."""
        if domain is not None:
            self.require_domains(domain)
        if split is not None:
            require_known(split, SPLITS, f"{self.source} has no split '{split}'")
        return self._index.get((domain, split), np.empty(0, dtype=np.int64))

    @cached_property
    def _index(self) -> dict[tuple[str | None, str | None], np.ndarray]:
        """Rows by (domain, split), either may be None for all: one sort instead of many scans."""
        names, domains = self._domain_codes
        splits, codes = encode(self.table["split"])
        whole = {(None, None): np.arange(len(self))}
        by_split = grouped(codes, [(None, split) for split in splits])
        by_domain = grouped(domains, [(name, None) for name in names])
        pairs = [(name, split) for name in names for split in splits]
        return whole | by_split | by_domain | grouped(domains * len(splits) + codes, pairs)

    def without_domains(self, *names: str) -> Self:
        """All rows but those of the named domains; the class list stays."""
        self.require_domains(*names)
        codes = [code for code, domain in enumerate(self.domains) if domain in names]
        remaining = np.flatnonzero(~np.isin(self.domain_index, codes))
        declared = tuple(domain for domain in self.declared_domains if domain not in names)
        return self._of_rows(remaining, declared)

    def require_domains(self, *names: str) -> None:
        """Refuse names that the source does not know."""
        for name in names:
            if (name, None) not in self._index:
                require_known(name, self.all_domains, f"{self.source} has no domain '{name}'")

    def select(self, rows: np.ndarray) -> Self:
        """The given rows in the given order; the class list stays."""
        return self._of_rows(np.asarray(rows, dtype=np.int64), ())

    def _of_rows(self, rows: np.ndarray, declared: tuple[str, ...]) -> Self:
        some = replace(self, table=self.table.take(pa.array(rows)), declared_domains=declared)
        return self._hand_on(some, rows)

    def _hand_on(self, other: Self, rows: np.ndarray | slice = slice(None)) -> Self:
        """`other`, which has these of the rows, without a second look at their files."""
        if "picture_keys" in self.__dict__:
            other.__dict__["picture_keys"] = self.picture_keys[rows]
        return other

    def image_name(self, row: int) -> str:
        """What to call the row's image in a message: its path, or "row 17"."""
        return self._cell("image", row) or f"row {row}"

    def image_source(self, row: int) -> Path | bytes:
        """The encoded image where the manifest holds it, or else its absolute path."""
        encoded: bytes | None = self._cell("bytes", row)
        if encoded is not None:
            return encoded
        path: str | None = self._cell("image", row)
        if path is None:
            raise ManifestError(f"row {row} of {self.source} has no image; use features()")
        return self.root / path

    def image_sources(self, rows: np.ndarray) -> Iterator[str | bytes]:
        """As `image_source` of each, paths as text; of many rows in a fraction of the time."""
        names = self.table.column_names
        if "image" not in names or "bytes" in names or self.table["image"].null_count:
            for row in rows.tolist():
                source = self.image_source(row)
                yield source if isinstance(source, bytes) else os.fspath(source)
        else:
            for path in self.table["image"].take(pa.array(rows)).to_pylist():
                yield os.path.normpath(os.path.join(self.root, path))  # noqa: PTH118

    def _cell(self, column: str, row: int) -> Any:
        if column not in self.table.column_names:
            return None
        return self.table[column][int(row)].as_py()

    @property
    def has_features(self) -> bool:
        return "features" in self.table.column_names

    def features(self) -> np.ndarray:
        """float32 [n, f]"""
        if not self.has_features:
            raise ManifestError(f"{self.source} has no features; its rows are images")
        column = self.table["features"]
        empty = np.empty((0, column.type.list_size), dtype=np.float32)
        return np.concatenate([empty, *feature_blocks(column)])

    def digest(self) -> str:
        """SHA-256 (hex) of the classes and core columns in row order; not of root and extras."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return digest(self.table, self.classes)

    def problems(self, *, check_files: bool = True) -> list[Problem]:
        """Every problem of the rows and, with `check_files`, of the files that they name."""
        domains = self.declared_domains
        return list(
            find_problems(self.table, self.classes, domains, self.root, check_files=check_files)
        )

    def check(self, *, check_files: bool = True) -> None:
        """Raise one ManifestError that names all problems, a few of each kind."""
        problems = self.problems(check_files=check_files)
        if problems:
            number = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
            raise ManifestError(f"{self.source} has {number}: {'; '.join(summaries(problems))}")


def without_small(manifest: Manifest, least: int) -> tuple[Manifest, dict[str, int]]:
    """The domains with `least` images or more, and how many images each of the others has."""
    if least < 1:
        return manifest, {}
    sizes = {
        name: len(manifest.one_row_each(manifest.rows(domain=name)))
        for name in manifest.all_domains
    }
    small = {name: size for name, size in sizes.items() if size < least}
    return (manifest.without_domains(*small) if small else manifest), small


def left_out_sentence(small: dict[str, int], least: int) -> str:
    """Say which domains `without_small` left out."""
    listed = ", ".join(f"{name} ({size})" for name, size in small.items())
    what = count(len(small), "domain")
    return f"left out {what} with fewer than {count(least, 'image')}: {listed}"
