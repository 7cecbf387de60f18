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
        Path | None,
        typer.Option(
            help=".onnx, or .pt2 for torch.export; .npz: a site's inputs for the conditioned form."
        ),
    ] = None,
    triton: Annotated[
        Path | None,
        typer.Option(help="In place of --out: a model's folder in a repository of Triton's."),
    ] = None,
    domain: State = None,
    conditioned: Annotated[
        bool,
        typer.Option(
            "--conditioned",
            help="One file for all sites, with site vector and prior as inputs. So is an adaptive "
            "model exported without --domain.",
        ),
    ] = False,
    half: Annotated[
        bool, typer.Option("--half", help="Weights and layers in 16 bits, for GPUs.")
    ] = False,
    json: Json = False,
) -> None:
    """Write one file that predicts without this library: pixels in, probabilities out.

    It is compared with PyTorch before it is written."""
    from acclimate.adapt.classifier import apply_state
    from acclimate.adapt.export import export_adapted, export_conditioned, write_site_inputs
    from acclimate.adapt.triton import CONFIG, export_triton
    from acclimate.learn.embeddings import DomainState
    from acclimate.learn.model import Trained
    from acclimate.records.folder import check_out

    if conditioned and domain is not None:
        raise ConfigError(
            "--conditioned serves all sites and --domain is one; leave one out, or give the site's "
            "inputs a file with --domain SITE --out SITE.npz"
        )
    if (out is None) == (triton is None):
        raise ConfigError("give --out FILE or --triton FOLDER, one of them")
    path = triton / "1" / "model.onnx" if triton is not None else out
    assert path is not None
    if path.suffix == ".npz" and domain is None:
        raise ConfigError("--out SITE.npz holds the inputs of one site; name it with --domain FILE")
    check_out(path, f"{path.suffix} file", (run, domain))
    if triton is not None:
        check_out(triton / CONFIG, "configuration of Triton's")
    trained = Trained.load(run)
    state = None if domain is None else DomainState.load(domain)
    if path.suffix == ".npz" and state is not None:
        inputs = write_site_inputs(trained, state, path)
        say_facts({"inputs": path, "of": domain, "names": list(inputs)}, json=json)
        return
    for_all = conditioned or (state is None and trained.table is not None)
    if for_all and triton is not None:
        raise ConfigError(
            "Triton batches inputs by their first dimension, and those of the form for all sites "
            "have none but the images; name one site with --domain FILE"
        )
    if for_all:
        exported = export_conditioned(trained, path, half=half)
    elif triton is not None:
        exported = export_triton(apply_state(trained, state), triton, half=half)
    else:
        name = domain.stem if domain else ""
        exported = export_adapted(apply_state(trained, state), path, name=name, half=half)
    facts = {
        "model": exported.path,
        "form": exported.form,
        "method": exported.metadata["method"],
        "inputs": exported.inputs,
        "output": f"probabilities float32 [n, {len(trained.classes)}]",
        "licence": exported.metadata["licence"],
        "precision": exported.metadata["precision"],
        "difference": exported.difference,
    }
    say_facts(facts, json=json)
