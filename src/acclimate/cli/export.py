"""`export`."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli import app
from acclimate.cli.options import Json, Run, State
from acclimate.cli.output import say_facts
from acclimate.core.errors import ConfigError


@app.command(
    epilog="Example: acclimate export runs/pacs --domain new-site.safetensors --out new-site.onnx"
)
def export(
    run: Run,
    out: Annotated[
        Path,
        typer.Option(
            help=".onnx, or .pt2 for torch.export; .npz: a site's inputs for the conditioned form."
        ),
    ],
    domain: State = None,
    conditioned: Annotated[
        bool,
        typer.Option(
            "--conditioned",
            help="One file for all sites, with site vector and prior as inputs. So is an adaptive "
            "model exported without --domain.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Write one file that predicts without this library: pixels in, probabilities out.

    It is compared with PyTorch before it is written."""
    from acclimate.adapt.classifier import apply_state
    from acclimate.adapt.export import export_adapted, export_conditioned, write_site_inputs
    from acclimate.learn.embeddings import DomainState
    from acclimate.learn.model import Trained
    from acclimate.records.outputs import check_out

    if conditioned and domain is not None:
        raise ConfigError(
            "--conditioned serves all sites and --domain is one; leave one out, or give the site's "
            "inputs a file with --domain SITE --out SITE.npz"
        )
    if out.suffix == ".npz" and domain is None:
        raise ConfigError("--out SITE.npz holds the inputs of one site; name it with --domain FILE")
    check_out(out, f"{out.suffix} file", (run, domain))
    trained = Trained.load(run)
    state = None if domain is None else DomainState.load(domain)
    if out.suffix == ".npz" and state is not None:
        inputs = write_site_inputs(trained, state, out)
        say_facts({"inputs": out, "of": domain, "names": list(inputs)}, json=json)
        return
    if conditioned or (state is None and trained.table is not None):
        exported = export_conditioned(trained, out)
    else:
        exported = export_adapted(
            apply_state(trained, state), out, name=domain.stem if domain else ""
        )
    facts = {
        "model": exported.path,
        "form": exported.form,
        "method": exported.metadata["method"],
        "inputs": exported.inputs,
        "output": f"probabilities float32 [n, {len(trained.classes)}]",
        "licence": exported.metadata["licence"],
        "difference": exported.difference,
    }
    say_facts(facts, json=json)
