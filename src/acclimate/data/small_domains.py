"""Domains with too few images to learn from or to score: left out by name."""

from dataclasses import replace

from acclimate.core.wording import count
from acclimate.data.manifest import Manifest


def image_counts(manifest: Manifest) -> dict[str, int]:
    """Different images of each domain, also of those that were declared and have none."""
    names = sorted({*manifest.domains, *manifest.declared_domains})
    present = {*manifest.domains}
    return {
        name: len(manifest.one_row_each(manifest.rows(domain=name))) if name in present else 0
        for name in names
    }


def without_small(manifest: Manifest, least: int) -> tuple[Manifest, dict[str, int]]:
    """(the domains with `least` images or more, how many images those have that are left out)."""
    if least < 1:
        return manifest, {}
    small = {name: size for name, size in image_counts(manifest).items() if size < least}
    if not small:
        return manifest, {}
    left = manifest.without_domains(*(name for name in small if name in manifest.domains))
    declared = tuple(name for name in left.declared_domains if name not in small)
    return replace(left, declared_domains=declared), small


def said(small: dict[str, int], least: int) -> str:
    """In a line, by name."""
    listed = ", ".join(f"{name} ({size})" for name, size in small.items())
    what = count(len(small), "domain")
    return f"left out {what} with fewer than {count(least, 'image')}: {listed}"
