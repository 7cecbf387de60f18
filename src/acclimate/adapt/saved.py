"""A model that travels: one folder with the weights, a card, a licence and lines that run it."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from acclimate import __version__
from acclimate.adapt.classifier import Adapted, apply_state
from acclimate.adapt.labels import Labels
from acclimate.config import AlgorithmName
from acclimate.core.distributed import pick_device
from acclimate.core.errors import RunError
from acclimate.core.files import read_document, write_text
from acclimate.core.text import count, percent, signed
from acclimate.learn.embeddings import DomainState
from acclimate.learn.model import Trained
from acclimate.learn.models import takes_features
from acclimate.learn.models.weights import weights_licence
from acclimate.records.folder import CARD, EXAMPLE, MODEL, RUN, SITE

SHOWN = 20


def save_model(
    trained: Trained, folder: Path, labels: Labels | None, site: Adapted | None = None
) -> Path:
    """A folder that `AdaptiveClassifier.load` opens, or, with the state of a `site`,
    `Adapted.load`."""
    _refuse_others(folder, trained)
    folder.mkdir(parents=True, exist_ok=True)
    if labels is not None:
        labels.write(folder)
    if site is not None and site.state is not None:
        site.state.save(folder / SITE)
    else:
        (folder / SITE).unlink(missing_ok=True)
    write_text(folder / EXAMPLE, _example(trained, site))
    write_text(folder / CARD, _card(trained, site))
    trained.save(folder)  # last: where the description of a model is, all of it is
    return folder


def load_site(folder: Path, device: str) -> Adapted:
    trained = Trained.load(folder, pick_device(device))
    path = folder / SITE
    state = DomainState.load(path) if path.exists() else None
    labels = Labels.read(folder, trained.classes)
    ordered = None if labels is None else labels.ordered(trained.classes)
    return replace(apply_state(trained, state), labels=ordered)


def _refuse_others(folder: Path, trained: Trained) -> None:
    """What is there already may be overwritten with the same, and nothing else is."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; save the model in a folder of its own")
    if (folder / RUN).exists():
        raise RunError(f"{folder} is a run's folder, which holds its model; choose another")
    if not (folder / MODEL).exists():
        if folder.exists() and any(folder.iterdir()):
            raise RunError(f"{folder} holds other files; save the model in a folder of its own")
        return
    if read_document(folder / MODEL).get("digest") != trained.digest():
        raise RunError(f"{folder} holds another model; choose another folder, or delete it first")


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
    code = _example(trained, site).splitlines()[1:]
    licence = weights_licence(trained.config.model)
    sections = {
        "What it is": _what(trained, site),
        "What to expect": _expected(trained),
        "Use": [f"`python {EXAMPLE} IMAGES`, which is:", "", "```python", *code, "```"],
        "Licence": [f"Of the weights that the backbone started from: {licence}."],
    }
    title = f"# {trained.config.algorithm}: {count(len(trained.classes), 'class', 'classes')}"
    parts = ["\n".join([f"## {name}", "", *lines]) for name, lines in sections.items()]
    return "\n\n".join([title, *parts]) + "\n"


def _what(trained: Trained, site: Adapted | None) -> Iterable[str]:
    features, size = takes_features(trained.predictor), trained.size
    takes = f"rows of features ({size} features)" if features else f"images ({size} px)"
    adaptive = AlgorithmName.of(trained.config.algorithm).adaptive
    kind = "conditioned on a domain's embedding" if adaptive else "the same for every domain"
    yield f"- A classifier of {takes}, {kind}: backbone {trained.config.model.backbone}"
    yield f"- Classes: {_listed(trained.classes)}"
    yield f"- Trained on the domains {_listed(trained.train_domains)}"
    if trained.val_domains:
        yield f"- Weights chosen by the domains {_listed(trained.val_domains)}"
    yield f"- Data: SHA-256 {trained.data}; weights: {trained.digest()}"
    if site is not None and site.state is not None:
        seen = count(site.state.count, "image")
        yield f"- Adapted to one domain by {site.method}, from {seen} of it"


def _expected(trained: Trained) -> Iterable[str]:
    rehearsal = trained.rehearsal
    if rehearsal is None:
        yield "Nothing was rehearsed: how it fares at a new domain is not known from this folder."
        return
    used = {"none", *rehearsal.chosen.values()}
    for promise in rehearsal.promises:
        if promise.frequencies == "as they are" and promise.chain in used:
            yield (
                f"- {promise.chain}, {count(promise.n, 'image')}: {percent(promise.low)} to "
                f"{percent(promise.high)} at a new domain ({signed(promise.gain)} points)"
            )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
