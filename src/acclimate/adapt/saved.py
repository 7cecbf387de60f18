"""A model that travels: one folder with the weights, a card, a licence and lines that run it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acclimate import __version__
from acclimate.adapt.classifier import Adapted
from acclimate.core.errors import DamagedFile, RunError
from acclimate.core.files import read_document, write_document, write_text
from acclimate.core.text import count, listed
from acclimate.learn.model import Trained
from acclimate.learn.models import takes_features
from acclimate.learn.models.weights import weights_licence
from acclimate.records.folder import CARD, EXAMPLE, LABELS, MODEL, RUN, SITE
from acclimate.records.rehearsal import verdict

NUMBERS = "iufb"  # kinds of numpy's types
SHOWN = 20  # names in one line of the card
NOT_REHEARSED = "Nothing was rehearsed: how it fares at a new domain is not known from this folder."


def save_model(
    trained: Trained, folder: Path, labels: np.ndarray | None, site: Adapted | None = None
) -> Path:
    """A folder that `AdaptiveClassifier.load` opens, or, with the state of a `site`,
    `Adapted.load`."""
    _refuse_others(folder, trained)
    folder.mkdir(parents=True, exist_ok=True)
    if labels is not None:
        write_labels(folder, labels)
    if site is not None and site.state is not None:
        site.state.save(folder / SITE)
    else:
        (folder / SITE).unlink(missing_ok=True)
    write_text(folder / EXAMPLE, _example(trained, site))
    write_text(folder / CARD, _card(trained, site))
    trained.save(folder)  # last: where the description of a model is, all of it is
    return folder


def write_labels(folder: Path, labels: np.ndarray) -> None:
    """Write the labels of a model's classes. Names need no file: they are the classes."""
    if labels.dtype.kind in NUMBERS:
        facts = {"values": labels.tolist(), "dtype": str(labels.dtype)}
        write_document(folder / LABELS, facts)


def read_labels(folder: Path, classes: Sequence[str]) -> np.ndarray | None:
    """The labels of `classes`, in their order; None where they are the names."""
    path = folder / LABELS
    if not path.exists():
        return None
    facts = read_document(path)
    try:
        if np.dtype(facts["dtype"]).kind in NUMBERS:
            labels = np.asarray(facts["values"], dtype=facts["dtype"])
            if [str(value) for value in labels.tolist()] == list(classes):
                return labels
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    raise DamagedFile(path)


def _refuse_others(folder: Path, trained: Trained) -> None:
    """Write into folders that are new, empty or hold this very model, and into no others."""
    model = folder / MODEL
    if model.exists() and not (folder / RUN).exists():
        if read_document(model).get("digest") == trained.digest():
            return
    elif not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    raise RunError(f"{folder} holds something else; save the model in a folder of its own")


def _example(trained: Trained, site: Adapted | None) -> str:
    """Five lines that run it."""
    features = takes_features(trained.predictor)
    rows = "numpy.load(sys.argv[1])" if features else "sys.argv[1]"
    what = "a .npy file of features [n, f]" if features else "a folder of images"
    if site is not None:
        name, make = "Adapted", "Adapted.load(here)"
    else:
        name, make = "AdaptiveClassifier", f"AdaptiveClassifier.load(here).adapt({rows})"
    return (
        f"# python {EXAMPLE} IMAGES, with {what}; needs acclimate {__version__} or newer\n"
        f"import {'numpy, ' if features else ''}pathlib, sys\n"
        f"from acclimate import {name}\n"
        f"here = pathlib.Path(__file__).parent\n"
        f"site = {make}\n"
        f"print(*site.predict({rows}), sep='\\n')\n"
    )


def _card(trained: Trained, site: Adapted | None) -> str:
    """What it is, what to expect, how to use it and whose weights it started from."""
    config, size = trained.config, trained.size
    features = takes_features(trained.predictor)
    state, rehearsal = None if site is None else site.state, trained.rehearsal
    facts = {
        "Input": f"rows of {size} features" if features else f"images ({size} px)",
        "Output": f"one of {count(len(trained.classes), 'class', 'classes')}, and no other: "
        f"{listed(trained.classes, SHOWN)}",
        "Backbone": config.model.backbone,
        "Licence of the weights that it started from": weights_licence(config.model),
        "Trained on the domains": listed(trained.train_domains, SHOWN),
        "Weights chosen by the domains": listed(trained.val_domains, SHOWN),
        "Data": f"SHA-256 {trained.data}",
        "Model": trained.digest(),
        "Adapted to one domain": site
        and state
        and f"by {site.method}, from {count(state.count, 'image')} of it",
    }
    expected = [NOT_REHEARSED] if rehearsal is None else verdict(rehearsal)
    lines = [
        *(f"# {config.algorithm}", ""),
        *(f"- {name}: {value}" for name, value in facts.items() if value),
        *("", "## What to expect", "", *expected),
        *("", "## Use", "", f"`python {EXAMPLE} IMAGES`, which is:", ""),
        *("```python", *_example(trained, site).splitlines()[1:], "```", ""),
    ]
    return "\n".join(lines)
