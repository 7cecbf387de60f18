"""Work on a GPU that is asked for in one call."""

import threading
from collections.abc import Callable
from typing import Any

import torch

# While one thread records, another can neither do so nor give memory back.
_ALONE = threading.Lock()


def recorded_graph(work: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """`work` as a CUDA graph, recorded on the current stream, which must not be the default one.
    Graphs of one pool share memory: they are to be played one after the other."""
    graph = torch.cuda.CUDAGraph()
    with _ALONE:
        # Whatever else other threads do goes on meanwhile.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph


def give_back() -> None:
    """To a GPU, where there is one, what torch holds ready of its memory."""
    with _ALONE:
        torch.cuda.empty_cache()
