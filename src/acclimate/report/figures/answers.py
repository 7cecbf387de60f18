"""Answers by confidence: how many images are answered, and how many of the answers are right, as
rehearsal promised and as it came on unseen test domains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from acclimate.records.doubt import THRESHOLDS, Answer, count_answers
from acclimate.records.folder import RunFolder
from acclimate.records.predictions import Predictions
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import INKS, Drawing, Illustration, of_data
from acclimate.results.material import Report, check_promises


def illustrate(report: Report) -> Iterable[Illustration]:
    for dataset, run, _ in report.rehearsals:
        check, rows = next(check_promises([run]), None), RunFolder(run.folder).predictions()
        if check is None or rows is None or not check.promise.answers:
            continue
        came = true_answers(rows.where(rows.method == "auto"), check.domains)
        yield Illustration(
            "Sure images alone",
            f"{of_data(dataset, len(report.runs_by_dataset))}Only images whose confidence "
            "reaches a threshold are answered; thresholds rise from right to left. Promised: mean "
            "over held-out training domains, less one standard error. True: mean over unseen test "
            "domains "
            f"({check.promise.chain}, run {run.name}).",
            draw(check.promise.answers, came),
        )


def true_answers(rows: Predictions, domains: Iterable[str]) -> list[Answer]:
    """What came of each threshold: means over the domains that answer at all."""
    parts = [rows.where(rows.domain == domain) for domain in domains]
    counts = np.array(
        [count_answers(p.p_predicted, p.predicted == p.label) for p in parts if len(p)]
    )
    found = []
    for place, threshold in enumerate(THRESHOLDS if len(counts) else ()):
        answered, right = counts[:, place].T
        if answered.any():
            share = float((answered / counts[:, 0, 0]).mean())
            good = float((right[answered > 0] / answered[answered > 0]).mean())
            found.append(Answer(threshold=threshold, share=share, right=good))
    return found


def draw(promised: Iterable[Answer], came: Iterable[Answer]) -> Drawing:
    """A line of answers each, over the share of images answered."""
    figure = canvas.figure_of(2.8)
    ax, titles = figure.subplots(), dict[str, str]()
    looks = {"promised": ("blue", "o", list(promised)), "true": ("orange", "D", list(came))}
    for name, (ink, marker, answers) in looks.items():
        if not answers:
            continue
        look: dict[str, Any] = {"color": INKS[ink], "markersize": 4}
        points = [(100 * one.share, 100 * one.right, one.threshold) for one in answers]
        ax.plot([p[0] for p in points], [p[1] for p in points], linewidth=1.1, **look)
        for place, (x, y, threshold) in enumerate(points):
            gid = f"{name}-{place}"
            ax.plot(x, y, marker, **look, gid=gid)
            titles[gid] = f"{name}: {y:.1f} % right of {x:.1f} % answered, from {threshold:g} on"
        ax.plot([], [], f"{marker}-", **look, label=name)
    ax.set_xlabel("images answered, %")
    ax.set_ylabel("answers that are right, %")
    canvas.plain(ax, "both")
    canvas.legend(figure, ax)
    return Drawing(figure, titles)
