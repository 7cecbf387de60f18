"""TensorBoard: event files in the run's folder, written anew whenever it starts or goes on."""

from acclimate.track.feed import Entry, RunFacts, require_library

FOLDER = "tensorboard"  # in the run's


class TensorBoard:
    def __init__(self) -> None:
        require_library("tensorboard", "tensorboard")

    def on_start(self, run: RunFacts) -> int:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / FOLDER
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()  # of a process that was killed, the last minutes are missing
        self._writer = SummaryWriter(str(folder), flush_secs=10)
        settings = [f"    {name}: {value}" for name, value in {**run.facts, **run.settings}.items()]
        self._writer.add_text("settings", "\n".join(settings), 0, run.started)
        return 0

    def on_record(self, entry: Entry) -> None:
        for name, value in entry.values.items():
            self._writer.add_scalar(name, value, entry.step)

    def on_end(self, *, finished: bool) -> None:
        self._writer.close()
