"""A run to serve, a server in a process of its own, and what it costs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from speeds.bench import make_images

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class ServerProcess:
    process: "subprocess.Popen[str]"
    url: str

    @classmethod
    def start(cls, run: Path, database: str, log: Path, *flags: str) -> "ServerProcess":
        """Returns once it listens."""
        command = [sys.executable, "-m", "acclimate", "serve", str(run), "--json"]
        command += ["--port", "0", "--database", database, *flags]
        with log.open("a") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
            )
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line == "}\n":
                break
        if not lines:
            raise SystemExit(f"the server did not start: {log.read_text()[-2000:]}")
        return cls(process, json.loads("".join(lines))["address"])

    def cpu(self) -> float:
        """Seconds of processor time so far, of the program and of the system for it."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident(self) -> float:
        """MiB in memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * PAGE / 2**20

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.communicate()


@contextmanager
def serving(run: Path, database: str, log: Path, *flags: str) -> Iterator[ServerProcess]:
    server = ServerProcess.start(run, database, log, *flags)
    try:
        yield server
    finally:
        server.stop()


def trained_run(folder: Path, small: bool) -> tuple[Path, list[Path]]:
    """A run, and the images that it was trained on; a `small` one has a small network for small
    images, the other a frozen backbone of ImageNet."""
    make_images(folder / "images", 20 if small else 60, 32 if small else 227)
    paths = sorted((folder / "images").rglob("*.jpg"))
    flags = ["--set", "train.steps=30", "--set", "adapt.rehearse=false"]
    flags += ["--backbone", "small-cnn"] if small else []
    command = [sys.executable, "-m", "acclimate", "train", str(folder / "images")]
    subprocess.run([*command, "--out", str(folder / "run"), *flags], check=True, stdout=sys.stderr)
    return folder / "run", paths
