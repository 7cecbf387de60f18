"""What exists only to remake the paper, on top of the product, which does not know of it.

geo_yfcc/, released/  its data set, from YFCC100M's metadata and from the authors' table
published.py          its printed numbers, beside.py puts ours next to them
recipes/              its tables and figures, one recipe each; ablations/ its ablations
kernel/               its estimator in kernel form
guarantees.py         what its theorems say about a run
commands/             the command line of all that, found through `acclimate.cli.paper`
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acclimate.paper.kernel import KernelClassifier

__all__ = ["KernelClassifier"]


def __getattr__(name: str) -> Any:
    # On first use: `acclimate --help` imports this package, and should not pay for numpy.
    if name in __all__:
        from acclimate.paper import kernel

        return getattr(kernel, name)
    raise AttributeError(f"module 'acclimate.paper' has no attribute '{name}'")
