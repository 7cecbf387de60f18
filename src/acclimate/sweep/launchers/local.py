"""Persistent worker processes of this machine: torch is imported once for many jobs."""

import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from acclimate.core.distributed import cores, pick_device
from acclimate.core.errors import SweepError
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep.settings import LaunchOptions
from acclimate.sweep.worker import Task, TaskResult

TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Slot:
    device: str
    threads: int


def local_slots(options: LaunchOptions) -> list[Slot]:
    """One slot per core with one thread each, or one per GPU, or `max_parallel` shared out.

    On the CPU every job has one thread whatever `max_parallel`: thread counts change rounding.
    """
    devices = _devices(options.device)
    if devices == ["cpu"]:
        return [Slot("cpu", 1)] * (options.max_parallel or cores())
    count = options.max_parallel or len(devices)
    threads = max(1, cores() // count)
    return [Slot(devices[number % len(devices)], threads) for number in range(count)]


def _devices(device: str) -> list[str]:
    if device not in ("auto", "cuda"):
        return [device]
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [f"cuda:{number}" for number in range(gpus)] or ["cpu"]


class _Worker:
    """A process, the thread that reads its replies, and the task it is at."""

    def __init__(
        self, slot: Slot, log: IO[bytes], replies: "queue.SimpleQueue[tuple[_Worker, str | None]]"
    ) -> None:
        self.slot, self.log = slot, log
        self.task: Task | None = None
        self.ready = False
        environment = {key: value for key, value in os.environ.items() if key not in TORCHRUN}
        environment["OMP_NUM_THREADS"] = str(slot.threads)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "acclimate.sweep.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is the driver's to answer
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # on Windows
        )
        threading.Thread(target=self._listen, args=(replies,), daemon=True).start()

    def _listen(self, replies: "queue.SimpleQueue[tuple[_Worker, str | None]]") -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                if line.endswith("\n"):
                    replies.put((self, line))
        replies.put((self, None))

    def send(self, task: Task) -> None:
        assert self.process.stdin is not None
        self.task = task
        with suppress(OSError):  # it has just died; the end of its replies will say so
            self.process.stdin.write(json.dumps(asdict(task)) + "\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """At once: nothing is lost, as jobs resume."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        self.log.close()


class LocalLauncher:
    patience = 1.0  # only what is just being killed can be busy

    def __init__(self, folder: Path, options: LaunchOptions) -> None:
        slots = local_slots(options)
        self.slots = len(slots)
        self._logs = SweepFolder(folder).logs
        self._logs.mkdir(exist_ok=True)
        for old in self._logs.glob("worker-*.log"):
            old.unlink(missing_ok=True)
        self._slots = slots
        self._workers: list[_Worker | None] = [None] * len(slots)
        self._replies: queue.SimpleQueue[tuple[_Worker, str | None]] = queue.SimpleQueue()

    @staticmethod
    def check(options: LaunchOptions) -> None:
        if options.device not in ("auto", "cpu"):
            pick_device(options.device)

    def start(self, task: Task) -> None:
        busy = [worker is not None and worker.task is not None for worker in self._workers]
        number = busy.index(False)
        slot, worker = self._slots[number], self._workers[number]
        if worker is None:
            log = self._log(number).open("ab")
            worker = self._workers[number] = _Worker(slot, log, self._replies)
        worker.send(replace(task, device=slot.device, threads=slot.threads))

    def finished(self, wait: float) -> list[tuple[str, TaskResult]]:
        ends: list[tuple[str, TaskResult]] = []
        with suppress(queue.Empty):
            ends += self._handle(*self._replies.get(timeout=wait))
            while True:
                ends += self._handle(*self._replies.get_nowait())
        return ends

    def _handle(self, worker: _Worker, line: str | None) -> list[tuple[str, TaskResult]]:
        if line == "ready\n":
            worker.ready = True
            return []
        task, worker.task = worker.task, None
        if line is None:
            return self._handle_exit(worker, task)
        assert task is not None
        result = TaskResult(**json.loads(line))
        if result.state == "failed":  # it ends itself now; the next task needs a fresh one
            self._workers[self._workers.index(worker)] = None
            worker.end()
        return [(task.id, result)]

    def _handle_exit(self, worker: _Worker, task: Task | None) -> list[tuple[str, TaskResult]]:
        if worker not in self._workers:
            return []
        number = self._workers.index(worker)
        self._workers[number] = None
        code = worker.process.wait()
        worker.end()
        if not worker.ready and code > 0:
            log = self._log(number)
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise SweepError(
                f"a worker could not start ({lines[-1] if lines else f'exit code {code}'}); "
                f"see {log}"
            )
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return [] if task is None else [(task.id, TaskResult(state="died", error=how))]

    def _log(self, number: int) -> Path:
        return self._logs / f"worker-{number}.log"

    def close(self) -> None:
        for worker in self._workers:
            if worker is not None:
                worker.end()
