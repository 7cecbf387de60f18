"""A local worker: tasks come in as lines on stdin, outcomes go out as lines on stdout.

It lives exactly as long as the process that started it: the end of stdin, which also comes when
that process is killed, ends it at once, in the middle of whatever it does.
"""

import ctypes
import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict

from acclimate.sweep.task import Task, perform

PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


def main() -> None:
    _die_with_parent()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to the log, not between the replies
    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()

    import acclimate.runs.training  # once, before the first task: it takes seconds

    assert acclimate.runs
    replies.write("ready\n")
    replies.flush()
    while True:
        outcome = perform(Task(**json.loads(tasks.get())))
        replies.write(json.dumps(asdict(outcome)) + "\n")
        replies.flush()
        if outcome.state == "failed":
            return  # an error may have spoilt the process, as those of a GPU do


def _listen(tasks: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        tasks.put(line)
    os._exit(0)


def _die_with_parent() -> None:
    # A second string to the bow, where there is one: Linux.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
