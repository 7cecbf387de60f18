"""`theory`: what the paper's theorems say about a run."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import Json
from acclimate.cli.output import say, say_json, say_table
from acclimate.core.text import count

EXAMPLE = 100  # images that the sentence at the end speaks of


@app.command(epilog="Example: acclimate theory runs/pacs --radius 0.5 --budget 10000")
def theory(
    run: Annotated[Path, typer.Argument(help="A finished run of an adaptive algorithm.")],
    radius: Annotated[
        float | None,
        typer.Option(
            help="How near μ should be, as `adapt` tells distances. [default: half the distance "
            "between domains]"
        ),
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
    from acclimate.paper.consistency import unit_of_adapt
    from acclimate.paper.guarantees import Question, answer, read_consistency

    question = Question(
        radius=radius, delta=delta, domains=domains, points=points, budget=budget, ratio=ratio
    )
    facts = answer(read_consistency(run), question)
    facts["adapt_unit"] = unit_of_adapt(run)
    if json:
        say_json({"run": str(run), "delta": delta, **facts})
        return
    _show_theorem_1(facts, delta)
    if facts["theorem_2"]:
        _show_theorem_2(facts)


def _show_theorem_1(facts: dict[str, Any], delta: float) -> None:
    target, share = facts["wanted_radius"], f"{100 * (1 - delta):g} %"
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
            for row in facts["domains"]
        ],
    )
    say()
    say_table(
        ("unlabelled images", "error of μ, mean", "95 % quantile", f"Theorem 1, {share}"),
        [
            (str(p["n"]), _number(p["error"]), _number(p["error95"]), _number(p["radius"]))
            for p in facts["points"]
        ],
    )
    say()
    for sentence in _in_words(facts, share):
        say(sentence)
    if target is not None:
        most = max(row["images"] for row in facts["domains"])
        say(
            f"For a radius of {_number(target)} in each of them, Theorem 1 asks for {most} images; "
            f"{_measured(facts['points'], target)}."
        )


def _measured(points: Sequence[dict[str, Any]], target: float) -> str:
    """How many images it took: a bound that holds for every distribution asks for many more."""
    enough = [point["n"] for point in points if point["error95"] <= target]
    if enough:
        return f"measured, {count(min(enough), 'image')} were enough in 95 % of cases"
    if not points:
        return "nothing was measured"
    return f"{count(max(point['n'] for point in points), 'image')}, the most measured, were not"


def _in_words(facts: dict[str, Any], share: str) -> list[str]:
    """What the numbers mean."""
    sentences = []
    if facts["points"]:
        near = min(facts["points"], key=lambda point: abs(math.log(point["n"] / EXAMPLE)))
        n, error, known = count(near["n"], "image"), _number(near["error"]), near["radius"]
        sentences.append(
            f"With {n} μ is within {_number(known)} of the true one in {share} of cases "
            f"(Theorem 1); measured, it is {error} away on average."
            if known is not None
            else f"With {n} μ is {error} away from the true one on average; Theorem 1 says nothing "
            f"below {facts['valid_from']} images."
        )
    between, within, unit = facts["between"], facts["within"], facts["adapt_unit"]
    if between is not None:
        units = f"; distances are those of `adapt`, divided by {_number(unit)}, the root of μ's"
        sentences.append(
            f"Training domains lie {_number(between)} apart"
            + (f"{units} dimensions." if unit else ".")
        )
    if between is not None and within:
        verdict = (
            "they differ by more than the choice of images does"
            if between > within
            else "no more than the choice of images makes them differ"
        )
        sentences.append(
            f"Two halves of one domain lie {_number(within)} apart, a ratio of "
            f"{_number(between / within)}: {verdict}."
        )
    if any(row["radius"] is None for row in facts["domains"]):
        sentences.append("A dash: too few images for Theorem 1 to say anything.")
    return sentences


def _show_theorem_2(facts: dict[str, Any]) -> None:
    say()
    best = facts.get("best_domains")
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
            for row in facts["theorem_2"]
        ],
        title="Theorem 2, up to its constants; σ in distances between domains",
    )
    if best is not None:
        say(
            "With more domains of fewer images the term of n grows and that of N shrinks; where "
            "their sum is smallest depends on the constants, which nobody knows (--ratio)."
        )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
