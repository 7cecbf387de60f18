"""`theory`: what the paper's theorems say about a run."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.output import Json, say, say_json, say_table
from acclimate.core.errors import ConfigError, RunError
from acclimate.learn.theory import best_split, images_needed, mean_radius, risk_terms

EXAMPLE = 100  # images that the sentence at the end speaks of


@app.command(epilog="Example: acclimate theory runs/pacs --radius 0.5 --budget 10000")
def theory(
    run: Annotated[Path, typer.Argument(help="A finished run of an adaptive algorithm.")],
    radius: Annotated[
        float | None,
        typer.Option(help="How near μ should be. [default: half the distance between domains]"),
    ] = None,
    delta: Annotated[float, typer.Option(help="The share of cases that may be worse.")] = 0.05,
    domains: Annotated[
        int | None, typer.Option(help="N of Theorem 2, training domains; with --points.")
    ] = None,
    points: Annotated[int | None, typer.Option(help="n of Theorem 2, images of each.")] = None,
    budget: Annotated[
        int | None, typer.Option(help="Images in all: Theorem 2 for every way to split them.")
    ] = None,
    ratio: Annotated[
        float, typer.Option(help="Constant of Theorem 2's first term over that of its second.")
    ] = 1.0,
    json: Json = False,
) -> None:
    """What the paper's theorems say about a run: how well μ is known, and how many images it takes.

    Theorem 1 bounds the error of μ from n unlabelled images. Theorem 2 has one term that falls
    with the number of domains N and one that falls with the images n of each; its constants are
    unknown, so that only the course of the terms means something, not their size.
    """
    check(radius, delta, domains, points, budget, ratio)
    found = theorem_1(read_consistency(run), radius, delta)
    splits: list[tuple[int, float]] = []
    if domains is not None and points is not None:
        splits = [(domains, points)]
    elif budget is not None:
        variance = relative_variance(found)
        best = best_split(budget, ratio=ratio, variance=variance, delta=delta)
        found["best_domains"] = best
        splits = [(n, budget / n) for n in sorted({*round_numbers(budget), best})]
    found["theorem_2"] = theorem_2(found, splits, ratio, delta)
    if json:
        say_json({"run": str(run), "delta": delta, **found})
        return
    show_theorem_1(found, delta)
    if splits:
        show_theorem_2(found)


def check(
    radius: float | None,
    delta: float,
    domains: int | None,
    points: int | None,
    budget: int | None,
    ratio: float,
) -> None:
    if radius is not None and not (radius > 0 and math.isfinite(radius)):
        raise ConfigError(f"--radius {radius:g}: a distance must be above 0")
    if not 0 < delta < 1:
        raise ConfigError(f"--delta {delta:g}: a share of cases lies between 0 and 1, e.g. 0.05")
    if (domains is None) != (points is None):
        raise ConfigError("--domains and --points belong together; give both, or --budget")
    if budget is not None and domains is not None:
        raise ConfigError("--budget splits the images itself; leave out --domains and --points")
    for flag, value in (("--domains", domains), ("--points", points), ("--budget", budget)):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} {value}: give 1 or more")
    if not (ratio > 0 and math.isfinite(ratio)):
        raise ConfigError(f"--ratio {ratio:g}: a ratio of constants must be above 0")
    if budget is not None and delta > math.exp(-1):
        raise ConfigError(f"--delta {delta:g}: with --budget it must be 0.36 or less")


def read_consistency(run: Path) -> dict[str, Any]:
    """What a run measured of its domain embedding."""
    try:
        identity = json.loads((run / "run.json").read_text(encoding="utf-8"))
        algorithm = str(identity["config"]["algorithm"])
    except FileNotFoundError:
        raise RunError(f"{run}: no run in it; train one with `acclimate train`") from None
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{run / 'run.json'} is damaged; restore it, or train again") from None
    if not algorithm.startswith("da-"):
        raise RunError(
            f"{run}: {algorithm} has no domain embedding to speak of; "
            f"name a run of an adaptive algorithm, such as da-{algorithm}"
        )
    path = run / "consistency.json"
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        complete = all(
            {"domain", "n", "variance", "bound"} <= set(row) for row in stored["domains"]
        ) and all({"n", "error", "error95"} <= set(row) for row in stored["points"])
    except FileNotFoundError:
        raise RunError(
            f"{run} has no {path.name}; finish the run by repeating its command, "
            f"or train again if an older version made it"
        ) from None
    except (ValueError, KeyError, TypeError):
        complete = False
    if not complete or not stored["domains"]:
        raise RunError(f"{path} is damaged; restore it, or train again")
    return stored


def theorem_1(stored: dict[str, Any], radius: float | None, delta: float) -> dict[str, Any]:
    between, within = stored.get("between"), stored.get("within")
    wanted = radius if radius is not None else between / 2 if between else None
    rows = [
        {
            **row,
            "radius": mean_radius(row["n"], row["variance"], row["bound"], delta=delta),
            "images": None
            if wanted is None
            else images_needed(wanted, row["variance"], row["bound"], delta=delta),
        }
        for row in stored["domains"]
    ]
    curve = [
        {**point, "radius": _worst_radius(rows, point["n"], delta)} for point in stored["points"]
    ]
    return {
        "wanted_radius": wanted,
        "domains": rows,
        "points": curve,
        "valid_from": max(
            images_needed(math.inf, row["variance"], row["bound"], delta=delta) for row in rows
        ),
        "between": between,
        "within": within,
    }


def _worst_radius(rows: list[dict[str, Any]], n: int, delta: float) -> float | None:
    """What Theorem 1 gives for every one of the domains, or nothing."""
    radii = [mean_radius(n, row["variance"], row["bound"], delta=delta) for row in rows]
    known = [radius for radius in radii if radius is not None]
    return max(known) if len(known) == len(radii) else None


def theorem_2(
    found: dict[str, Any], splits: Sequence[tuple[int, float]], ratio: float, delta: float
) -> list[dict[str, float]]:
    """Both terms for each (domains, images of each), and their sum by the ratio of constants."""
    rows = []
    for domains, points in splits:
        terms = risk_terms(domains, points, variance=relative_variance(found), delta=delta)
        rows.append(
            {
                "domains": domains,
                "points": points,
                "of_points": terms.of_points,
                "of_domains": terms.of_domains,
                "sum": terms.weighted(ratio),
            }
        )
    return rows


def relative_variance(found: dict[str, Any]) -> float:
    """Mean σ² in squared distances between domains, lest the scale of Φ decide: it is arbitrary."""
    variance = fmean(row["variance"] for row in found["domains"])
    return variance / found["between"] ** 2 if found["between"] else variance


def round_numbers(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, … up to `most`."""
    return [
        n
        for power in range(len(str(most)))
        for n in (k * 10**power for k in (1, 2, 5))
        if n <= most
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def show_theorem_1(found: dict[str, Any], delta: float) -> None:
    wanted, share = found["wanted_radius"], f"{100 * (1 - delta):g} %"
    say_table(
        ("training domain", "images", "σ²", "B", f"radius in {share}", "images for the radius"),
        [
            (
                row["domain"],
                str(row["n"]),
                _number(row["variance"]),
                _number(row["bound"]),
                _number(row["radius"]),
                "–" if row["images"] is None else str(row["images"]),
            )
            for row in found["domains"]
        ],
    )
    say()
    say_table(
        ("unlabelled images", "error of μ, mean", "95 % quantile", f"Theorem 1, {share}"),
        [
            (str(p["n"]), _number(p["error"]), _number(p["error95"]), _number(p["radius"]))
            for p in found["points"]
        ],
    )
    say()
    for sentence in _in_words(found, share):
        say(sentence)
    if wanted is not None:
        most = max(row["images"] for row in found["domains"])
        say(f"For a radius of {_number(wanted)} in each of them, Theorem 1 asks for {most} images.")


def _in_words(found: dict[str, Any], share: str) -> list[str]:
    """What the numbers mean."""
    rows = found["domains"]
    delta_radius = found["points"] and min(
        found["points"], key=lambda point: abs(math.log(point["n"] / EXAMPLE))
    )
    said = []
    if delta_radius:
        n = f"{delta_radius['n']} images" if delta_radius["n"] != 1 else "1 image"
        known = delta_radius["radius"]
        said.append(
            f"With {n} μ is within {_number(known)} of the true one in {share} of cases "
            f"(Theorem 1); measured, it is {_number(delta_radius['error'])} away on average."
            if known is not None
            else f"With {n} μ is {_number(delta_radius['error'])} away from the true one on "
            f"average; Theorem 1 says nothing below {found['valid_from']} images."
        )
    between, within = found["between"], found["within"]
    if between is not None:
        said.append(f"Training domains lie {_number(between)} apart.")
    if between is not None and within:
        verdict = (
            "they differ by more than the choice of images does"
            if between > within
            else "no more than the choice of images makes them differ"
        )
        said.append(
            f"Two halves of one domain lie {_number(within)} apart, a ratio of "
            f"{_number(between / within)}: {verdict}."
        )
    if any(row["radius"] is None for row in rows):
        said.append("A dash: too few images for Theorem 1 to say anything.")
    return said


def show_theorem_2(found: dict[str, Any]) -> None:
    say()
    best = found.get("best_domains")
    say_table(
        ("domains N", "images each n", "term of n", "term of N", "sum", ""),
        [
            (
                str(row["domains"]),
                _number(row["points"]),
                _number(row["of_points"]),
                _number(row["of_domains"]),
                _number(row["sum"]),
                "smallest" if row["domains"] == best else "",
            )
            for row in found["theorem_2"]
        ],
        title="Theorem 2, up to its constants; σ in distances between domains",
    )
    if best is not None:
        say(
            "With more domains of fewer images the term of n grows and that of N shrinks; where "
            "their sum is smallest depends on the constants, which nobody knows (--ratio)."
        )
