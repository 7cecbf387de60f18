"""`export`."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli import app
from acclimate.cli.options import Json, Run, State
from acclimate.cli.output import say, say_json
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

    if conditioned and domain is not None:
        raise ConfigError(
            "--conditioned serves all sites and --domain is one; leave one out, or give the site's "
            "inputs a file with --domain SITE --out SITE.npz"
        )
    if out.suffix == ".npz" and domain is None:
        raise ConfigError("--out SITE.npz holds the inputs of one site; name it with --domain FILE")
    trained = Trained.load(run)
    state = None if domain is None else DomainState.load(domain)
    if out.suffix == ".npz" and state is not None:
        inputs = write_site_inputs(trained, state, out)
        if json:
            say_json({"inputs": str(out), **{key: v.tolist() for key, v in inputs.items()}})
        else:
            say(f"{', '.join(inputs)} of {domain}, for the conditioned form: {out}")
        return
    if conditioned or (state is None and trained.table is not None):
        made = export_conditioned(trained, out)
    else:
        made = export_adapted(apply_state(trained, state), out, name=domain.stem if domain else "")
    if json:
        facts = {"form": made.form, "inputs": made.inputs, "difference": made.difference}
        say_json({"model": str(made.path), **facts, "metadata": made.metadata})
        return
    optional = ", may be left out" if made.path.suffix == ".onnx" else ""
    say(f"{made.form}: {made.metadata['method']}")
    for number, (name, shape) in enumerate(made.inputs.items()):
        say(f"input{optional if number else ''}: {name} {shape}")
    classes = len(trained.classes)
    say(f"output: probabilities float32 [n, {classes}]; the classes are in the metadata")
    say(f"licence of the backbone's first weights: {made.metadata['licence']}")
    say(f"largest difference to PyTorch: {made.difference:.1g}")
    say(f"model: {made.path}")
