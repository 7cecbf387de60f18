"""The cores that a process takes."""

import pytest
import torch

from acclimate.core import distributed
from acclimate.core.distributed import cores, one_thread, use_threads


def test_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_share", None)
    monkeypatch.setattr(distributed.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    before = torch.get_num_threads()
    try:
        assert cores() == 8
        use_threads(3)
        assert (cores(), torch.get_num_threads()) == (3, 3)
        use_threads(12)
        assert cores() == 8
    finally:
        torch.set_num_threads(before)


def test_one_thread_is_for_a_while() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="inside"), one_thread():
        assert torch.get_num_threads() == 1
        raise ValueError("inside")
    assert torch.get_num_threads() == before
