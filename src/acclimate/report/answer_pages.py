"""The pages of `evaluate` and `predict`: how right and how sure a model is, and on which images it
is neither."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acclimate.core.grid import Cell, Grid, number, share
from acclimate.core.text import count, listed, percent, short
from acclimate.data.manifest import Manifest
from acclimate.records.doubt import Answer
from acclimate.records.folder import RunFolder
from acclimate.records.metrics import METRICS, metric_values
from acclimate.records.predictions import Predictions
from acclimate.records.records import Score
from acclimate.records.rehearsal import Rehearsal
from acclimate.report.figures import answers, confidence, confusion, label_shares
from acclimate.report.figures.canvas import Illustration
from acclimate.report.tables import classes_grid
from acclimate.report.view import Gallery, Picture, Section, write_view
from acclimate.results.runs import Key
from acclimate.results.sweep_folder import DomainLabels, LabelCounts

MOST = 48  # images of a gallery
DEPLOYED = ("auto", "embedding", "none")  # of the ways to predict, the one in use comes first


def write_scores_page(
    out: Path, run: RunFolder, manifest: Manifest, scores: Sequence[Score], every: Predictions
) -> Path:
    """Write the page of `evaluate`, of what the model in use predicted for unseen domains, or for
    the training domains where none is unseen; its path. `every` numbers rows of `manifest`."""
    unseen = [score for score in scores if score.role != "train"]
    domains = list(dict.fromkeys(score.domain for score in unseen or scores))
    rows, method = in_use(every, domains)
    kind = "unseen site" if unseen else "training site"
    table = {"Accuracy of each site in percent, by method": _by_method(scores)}
    sections = [
        Section("Sites", ["none: the plain model. auto: as rehearsal chose."], tables=table)
    ]
    lead = "No image was scored."
    if len(rows):
        lead = (
            f"{percent(METRICS['top-1'].of(rows))} % of {count(len(rows), 'image')} right on "
            f"{count(len(domains), kind)} ({method})."
        )
        sections += [
            _classes(rows),
            _confidence(rows, domains, _promised(run, scores)),
            *_mistakes(rows, manifest),
        ]
    return write_view(out, f"{run.path.name} on {manifest.source}", lead, (), sections)


def _promised(run: RunFolder, scores: Sequence[Score]) -> Sequence[Answer]:
    """What rehearsal says of the answers of `auto` with as many images as it had here."""
    stored = run.rehearsal()
    images = [score.adapt_n for score in scores if score.method == "auto" and score.adapt_n]
    if stored is None or not images:
        return ()
    rehearsal = Rehearsal.from_dict(stored, where=str(run.path))
    return rehearsal.promise(rehearsal.chain_for(min(images)), min(images)).answers


def in_use(every: Predictions, domains: Sequence[str]) -> tuple[Predictions, str]:
    """The rows of these domains by the first method of DEPLOYED that there is, and its name."""
    own = np.isin(every.domain, domains)
    methods = {*every.method[own]}
    method = next((name for name in DEPLOYED if name in methods), "none")
    return every.where(own & (every.method == method)), method


def _by_method(scores: Sequence[Score]) -> Grid:
    """Without controls and ceilings."""
    every = dict.fromkeys(score.method for score in scores)
    methods = [name for name in every if Key("erm", name).kind == "method"]
    by_site: dict[tuple[str, str, str], dict[str, Score]] = {}
    for score in scores:
        by_site.setdefault((score.domain, score.role, score.split), {})[score.method] = score
    rows = tuple(
        (
            Cell(domain),
            Cell(role if split == "all" else f"{role}, {split} split"),
            number(max(score.n for score in own.values()), ","),
            *(share(own[name].top1 if name in own else None) for name in methods),
        )
        for (domain, role, split), own in by_site.items()
    )
    return Grid(("Site", "Role", "Images", *methods), rows, frozenset({"Role"}))


def _classes(rows: Predictions) -> Section:
    figures = [confusion.illustration_of(rows)]
    return Section("Classes", figures=figures, tables={"Each class": classes_grid(rows)})


def _confidence(rows: Predictions, domains: Sequence[str], promised: Sequence[Answer]) -> Section:
    values = metric_values(rows)
    grid = Grid(
        ("Metric", "Value", "What it is"),
        tuple(
            (
                Cell(name + (", %" if METRICS[name].percent else "")),
                Cell(METRICS[name].write(value), value),
                Cell(METRICS[name].about, long=True),
            )
            for name, value in values.items()
        ),
        frozenset({"What it is"}),
    )
    figures = [
        Illustration(
            "Calibration",
            "Images in bins of confidence: how many of them are right. Below the line the model is "
            "surer than it is right; above, it is too modest. Larger dots have more images.",
            confidence.draw_calibration(rows),
        ),
        Illustration(
            "Coverage against accuracy",
            "Only images whose confidence reaches a threshold are answered; thresholds rise from "
            "right to left. The mean over sites"
            + (", beside what rehearsal promised." if promised else "."),
            answers.draw(promised, answers.true_answers(rows, domains)),
        ),
    ]
    return Section("Confidence", figures=figures, tables={"All of these images together": grid})


def _mistakes(rows: Predictions, manifest: Manifest) -> Iterable[Section]:
    """The surest mistakes and the images that the model is least sure of."""
    order = np.argsort(-rows.p_predicted, kind="stable")
    wrong = order[rows.rank[order] > 1]
    yield _gallery(
        "The surest mistakes", "Look here first for wrong labels.", rows, wrong, manifest
    )
    text = "The images that the model is least sure of."
    yield _gallery("Doubtful images", text, rows, order[::-1], manifest)


def _gallery(
    heading: str, text: str, rows: Predictions, places: np.ndarray, manifest: Manifest
) -> Section:
    """The first of the `places` of rows, with prediction, label and site."""
    if manifest.has_features or not len(places):
        return Section(heading)
    several, pictures = len({*rows.domain}) > 1, []
    for place in places[:MOST].tolist():
        row, label = int(rows.row[place]), rows.classes[rows.label[place]]
        pictures.append(
            Picture(
                manifest.image_source(row),
                manifest.image_name(row),
                _sure(rows.classes[rows.predicted[place]], rows.p_predicted[place]),
                ("right" if rows.rank[place] == 1 else f"labelled {label}")
                + f", {rows.domain[place]}" * several,
            )
        )
    return Section(heading, [text], galleries={"": [Gallery("", pictures)]})


def _sure(label: str, probability: float) -> str:
    return f"{short(label, 40)} {percent(float(probability))}\u00a0%"


@dataclass(frozen=True)
class Answers:
    """What `predict` says of images: probabilities [n, C]. `before` [n] has the numbers of the
    classes without adaptation, where there was one."""

    paths: Sequence[Path]
    classes: tuple[str, ...]
    probabilities: np.ndarray
    before: np.ndarray | None
    unsure_below: float
    training: Sequence[float]  # frequencies of the classes

    @property
    def best(self) -> np.ndarray:
        numbers: np.ndarray = self.probabilities.argmax(1)
        return numbers

    @property
    def confidences(self) -> np.ndarray:
        largest: np.ndarray = self.probabilities.max(1)
        return largest

    def picture(self, place: int, note: str = "") -> Picture:
        """An image with its likeliest class, and the next to likeliest unless there is a note."""
        order = np.argsort(-self.probabilities[place], kind="stable")[:2]
        likely = [_sure(self.classes[k], self.probabilities[place][k]) for k in order]
        second = f"or {likely[1]}" if len(likely) > 1 else ""
        return Picture(self.paths[place], str(self.paths[place]), likely[0], note or second)


def write_predictions_page(
    out: Path, title: str, said: Answers, notes: Sequence[str], unreadable: Sequence[str]
) -> Path:
    """Write the page of `predict`; its path."""
    labels = said.best[said.confidences >= said.unsure_below]
    sizes = np.bincount(labels, minlength=len(said.classes))
    mix = [
        f"{said.classes[k]} {percent(sizes[k] / len(labels))} %"
        for k in np.argsort(-sizes, kind="stable")
        if sizes[k]
    ]
    lead = f"{len(labels)} of {count(len(said.paths), 'image')} have a label: {listed(mix, 4)}."
    doubtful = np.argsort(said.confidences, kind="stable")[:MOST].tolist()
    sections = [
        Section(
            "Doubtful images",
            ["The least sure first, with the second likeliest class."],
            galleries={"": [Gallery("", [said.picture(place) for place in doubtful])]},
        ),
        _changes(said),
        _labels(said, labels),
        Section(
            "Confidence",
            figures=[
                Illustration(
                    "Confidence",
                    "How many images have which confidence: the probability of their label.",
                    confidence.draw_confidences(said.confidences, said.unsure_below),
                )
            ],
        ),
        Section("Files that cannot be read", lines=unreadable),
    ]
    return write_view(out, title, lead, notes, sections)


def _changes(said: Answers) -> Section:
    """What adaptation has changed, and the images of it, the surest first."""
    heading, before, now = "Changed by adaptation", said.before, said.best
    moved = np.flatnonzero(now != before) if before is not None else now[:0]
    if before is None or not len(moved):
        return Section(heading)
    pairs, sizes = np.unique(
        np.stack([before[moved], now[moved]], axis=1), axis=0, return_counts=True
    )
    rows = tuple(
        (*(Cell(said.classes[label]) for label in pairs[k]), number(int(sizes[k]), ","))
        for k in np.argsort(-sizes, kind="stable")
    )
    grid = Grid(("Without adaptation", "Now", "Images"), rows, frozenset({"Now"}))
    places = moved[np.argsort(-said.confidences[moved], kind="stable")][:MOST].tolist()
    pictures = [said.picture(place, f"was {said.classes[before[place]]}") for place in places]
    return Section(
        heading,
        [f"{len(moved)} of {count(len(now), 'prediction')}. The surest of them first."],
        tables={"Changed predictions": grid},
        galleries={"": [Gallery("", pictures)]},
    )


def _labels(said: Answers, labels: np.ndarray) -> Section:
    """How many images have which label, beside training."""
    counts = np.bincount(labels, minlength=len(said.classes))
    training = tuple(round(1_000_000 * share) for share in said.training)
    sums = np.bincount(said.best, weights=said.confidences, minlength=len(said.classes))
    every = np.bincount(said.best, minlength=len(said.classes))
    rows = tuple(
        (
            Cell(said.classes[k]),
            number(int(counts[k]), ","),
            share(counts[k] / len(labels) if len(labels) else None),
            share(said.training[k]),
            share(sums[k] / every[k] if every[k] else None),
        )
        for k in np.argsort(-counts, kind="stable")
    )
    grid = Grid(("Label", "Images", "Share, %", "In training, %", "Mean confidence, %"), rows)
    sites = {"these images": tuple(counts.tolist()), "training": training}
    mix = LabelCounts("", said.classes, {k: DomainLabels(None, v) for k, v in sites.items()})
    drawing = label_shares.draw(mix, over="training")
    caption = "How often each label was given, and how frequent the class was in training."
    figures = [] if drawing is None else [Illustration("Labels", caption, drawing)]
    return Section("Labels", figures=figures, tables={"Labels": grid})
