"""Work on a GPU that is asked for in one call."""

import threading
from collections.abc import Callable
from contextlib import suppress
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
            _end(graph, pool)
    return graph


def _end(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    try:
        graph.capture_end()
    except RuntimeError:
        # Where work does what graphs cannot hold, torch (2.11 and before) goes on as if this were
        # still being recorded: memory is not given back, and nothing can be drawn at random.
        with suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        with suppress(RuntimeError):
            other = torch.cuda.CUDAGraph()
            other.capture_begin(capture_error_mode="thread_local")
            torch.zeros(1, device="cuda")
            other.capture_end()
        raise


def give_back() -> None:
    """To a GPU, where there is one, what torch holds ready of its memory."""
    with _ALONE:
        torch.cuda.empty_cache()
