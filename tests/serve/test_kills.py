"""kill -9 while images come: what was acknowledged is there, and nothing counts twice."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from acclimate.serve import Store
from fixtures.serve_writer import NEW
from fixtures.uploads import ids, pixels

CALLS = 24
TESTS = Path(__file__).parents[1]


def start(url: str, first: int, step: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fixtures.serve_writer", url]
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [*command, str(CALLS), str(first), str(step)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("writers", [1, pytest.param(3, marks=pytest.mark.full)])
def test_writers_that_are_killed(database: str, writers: int) -> None:
    """Each goes on with the call that it had no answer to."""
    rng, acknowledged, kills = np.random.default_rng(0), set[int](), 0
    running = {start(database, first, writers): (first, int(rng.integers(1, 5))) for first in
               range(writers)}  # fmt: skip
    store = Store(database)
    while running:
        process, (following, left) = next(iter(running.items()))
        del running[process]
        assert process.stdout is not None
        for line in process.stdout:
            acknowledged.add(int(line))
            following = int(line) + writers
            left -= 1
            if left == 0 and kills < 2 + writers:
                process.send_signal(signal.SIGKILL)
                kills += 1
        code = process.wait(timeout=60)
        process.stdout.close()
        assert code in (0, -signal.SIGKILL)
        known = {f"{number % 2**64:016x}" for number in store.kept("north").hashes.tolist()}
        images = ids(pixels(NEW * CALLS))
        sent = [images[NEW * call + place] for call in acknowledged for place in range(NEW)]
        assert {*sent} <= known, "lost"
        if following < CALLS:
            again = start(database, following, writers)
            running[again] = (following, int(rng.integers(1, 5)))
    assert kills == 2 + writers and acknowledged == {*range(CALLS)}
    row = store.find("north")
    entries = store.history(row)
    assert store.kept("north").images == NEW * CALLS
    assert sum(entry["pictures"] for entry in entries) == NEW * CALLS, "counted twice"
    assert [entry["revision"] for entry in entries] == list(range(1, row.revision + 1))
    store.close()
