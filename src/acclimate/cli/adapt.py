"""`adapt`."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli import app
from acclimate.cli.options import Device, Images, Json, MethodSettings, Run
from acclimate.cli.output import progress_bar, say, say_facts, say_json
from acclimate.config import parse_assignments
from acclimate.core.errors import StateMismatch
from acclimate.core.text import percent

if TYPE_CHECKING:
    from acclimate.adapt.classifier import Adapted
    from acclimate.records.doubt import Forecast


@app.command(epilog="Example: acclimate adapt runs/pacs new-site/ --out new-site.safetensors")
def adapt(
    run: Run,
    images: Images,
    out: Annotated[Path, typer.Option(help="Where the domain's state goes; see --keep.")],
    method: Annotated[
        str,
        typer.Option(
            help="auto: as rehearsed; or see `acclimate list methods`; several are joined: "
            "embedding+prior."
        ),
    ] = "auto",
    labels: Annotated[
        Path | None,
        typer.Option(
            help="A table with columns image and label, for some of the images; see "
            "`acclimate suggest`."
        ),
    ] = None,
    settings: MethodSettings = None,
    into: Annotated[
        Path | None, typer.Option(help="Add the images to those of this state, of the same domain.")
    ] = None,
    keep: Annotated[
        int,
        typer.Option(help="Images whose features the state keeps: 1.3 MB for 500 times 1,280."),
    ] = 500,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Adapt to a new domain from unlabelled images: no retraining, and no gradient of the network
    unless the method is tent or sar. A few labels help, where there are some."""
    from acclimate.adapt.classifier import adapt as adapt_to
    from acclimate.adapt.suggest import read_labels
    from acclimate.core.distributed import pick_device
    from acclimate.core.files import locked
    from acclimate.data.readers import find_images
    from acclimate.data.source import Quarantine
    from acclimate.learn.embeddings import DomainState
    from acclimate.learn.model import Trained
    from acclimate.records.folder import check_out

    check_out(out, "domain state", (run, labels, *images))
    chosen = parse_assignments(settings or [], only="adapt").get("adapt", {})
    paths = find_images(images)
    trained = Trained.load(run, pick_device(device))
    quarantine = Quarantine()
    # Who goes on from the state that another is about to write waits for it: neither is lost.
    in_place = into is not None and into.resolve() == out.resolve()
    lock = locked(out.with_name(f".{out.name}.lock"), "adapting", StateMismatch, wait=True)
    with lock if in_place else nullcontext(), progress_bar() as watch:
        site = adapt_to(
            trained,
            paths,
            method=method,
            labels=None if labels is None else read_labels(labels, paths),
            settings=chosen,
            into=None if into is None else DomainState.load(into),
            keep=keep,
            quarantine=quarantine,
            watch=watch,
        )
        assert site.state is not None
        site.state.save(out)
    if json:
        facts = {
            "state": out,
            "method": site.method,
            "n": site.state.count,
            "engine": site.engine,
            "notes": site.notes,
            "label_prior": site.label_prior,
            "changes": site.changes,
            "unreadable": quarantine.as_dicts(),
        }
        say_json(facts | ({} if site.trust is None else asdict(site.trust)))
        return
    for line in _lines(site):
        say(line)
    say_facts({"state": out, "skipped": quarantine.as_dicts()})


def _lines(site: "Adapted") -> Iterator[str]:
    """Describe an adaptation, line by line."""
    assert site.state is not None
    yield f"adapted on {site.state.count} images by {site.method}"
    yield from site.notes
    if site.label_prior is not None:
        most = sorted(site.label_prior.items(), key=lambda item: -item[1])[:5]
        shares = ", ".join(f"{name} {percent(share)}" for name, share in most)
        yield f"classes: {shares}" + (", …" if len(site.label_prior) > len(most) else "")
    if site.changes is not None:
        yield str(site.changes)
    trust = site.trust
    if trust is None:
        return
    if trust.expected_accuracy is not None:
        yield expected_line(trust.expected_accuracy)
    if trust.explained_by_labels is not None:
        share = f"{trust.explained_by_labels:.0%}"
        yield f"label frequencies explain {share} of how predictions change here"
    if trust.nearest_domain is not None:
        yield (
            f"this domain lies {trust.nearest_distance:.2f} from the nearest training domain, "
            f"{trust.nearest_domain}; {1 - (trust.warned_share or 0.0):.0%} of domains like the "
            f"training domains lie within {trust.typical_distance:.2f}"
        )
    yield from (f"note: {warning}" for warning in trust.warnings)


def expected_line(expected: "Forecast") -> str:
    """The accuracy to expect at this site, where its floor tells anything."""
    if expected.vague:
        return "expected accuracy at this site: not known; too few sites, or too unlike each other"
    return f"expected accuracy at this site: {expected}"
