"""Work on a GPU that is asked for in one call."""

from collections.abc import Callable
from typing import Any

import torch


def recorded_graph(work: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """`work` as a CUDA graph, recorded on the current stream, which must not be the default one.
    Graphs of one pool share memory: they are to be played one after the other."""
    graph = torch.cuda.CUDAGraph()
    # Other threads may go on meanwhile.
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        work()
    finally:
        graph.capture_end()
    return graph
