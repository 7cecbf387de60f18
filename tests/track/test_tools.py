"""Each tool's own reader finds a run there: once, also after a kill, live or told afterwards."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acclimate.adapt.classifier import adapt, apply_state
from acclimate.config import RunConfig
from acclimate.core.errors import ConfigError, UnknownName
from acclimate.data.manifest import Manifest
from acclimate.learn.embeddings import DomainState
from acclimate.learn.model import Trained
from acclimate.records.folder import RunFolder
from acclimate.records.records import Finished
from acclimate.rehearse.training import train
from acclimate.track import replay, tracked
from fixtures.command_line import command
from fixtures.errors import refused
from fixtures.interruption import Killed, count_writes
from fixtures.settings import TINY, as_flags

Tiny = Callable[..., RunConfig]
KILLED_AT = 25  # of the writes of a run: after its first checkpoint
BLOCK = 1 << 15

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore:::(mlflow|wandb|trackio).*")]


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own for whatever a tool keeps, and no way out."""
    monkeypatch.chdir(tmp_path)
    for name in [one for one in os.environ if one.startswith(("MLFLOW_", "WANDB_", "TRACKIO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield tmp_path


@pytest.fixture
def resumed(
    home: Path, features: Manifest, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """A run that was killed once and went on, tracked from its beginning."""

    def make(name: str) -> Path:
        out, config = home / "run", tiny("erm", test_domains=["site-4"])

        def go_on() -> None:
            with tracked(out, [name], pytest.fail) as listen:
                train(config, features, out, listen=listen)

        with monkeypatch.context() as patch, pytest.raises(Killed):
            count_writes(patch, die_at=KILLED_AT)
            go_on()
        assert list(out.glob("checkpoint-*"))
        go_on()
        return out

    return make


def told(run: Path) -> dict[str, list[float]]:
    """Some of what has to be there: all values of a loss, and one final score."""
    records = RunFolder(run).records()
    own = [score for score in records.scores if score.domain == "site-4"]
    (final,) = [score for score in own if (score.moment, score.method) == ("final", "none")]
    return {
        "main/risk": [loss.risk for loss in records.losses],
        "final/site-4/all/top-1": [final.top1 or 0.0],
    }


@needs("tensorboard")
def test_tensorboard(resumed: Any, home: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = resumed("tensorboard")
    for _ in range(2):
        assert len(list((run / "tensorboard").iterdir())) == 1
        read = EventAccumulator(str(run / "tensorboard")).Reload()
        for name, values in told(run).items():
            assert [event.value for event in read.Scalars(name)] == pytest.approx(values)
        assert [event.step for event in read.Scalars("main/risk")] == [2, 4, 6]
        (text,) = read.Tensors("settings/text_summary")
        assert b"train.steps: 6" in text.tensor_proto.string_val[0]
        replay(run, "tensorboard")


@pytest.fixture
def store(home: Path) -> Any:
    pytest.importorskip("mlflow")
    import mlflow

    mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
    return mlflow.MlflowClient()


def only_run(store: Any) -> Any:
    (run,) = store.search_runs([store.get_experiment_by_name("acclimate").experiment_id])
    return run


@needs("alembic")
def test_mlflow(resumed: Any, store: Any, home: Path) -> None:
    run = resumed("mlflow")
    for _ in range(2):
        there = only_run(store)
        for name, values in told(run).items():
            history = store.get_metric_history(there.info.run_id, name)
            assert [metric.value for metric in history] == pytest.approx(values)
        assert there.data.params["train.steps"] == "6"
        assert there.data.tags["train_domains"] == "site-0, site-1, site-2, site-3"
        records = RunFolder(run).records()
        assert there.data.tags["acclimate.records"] == str(len(records.all))
        seconds = (there.info.end_time - there.info.start_time) / 1000
        assert isinstance(records.finished, Finished)
        assert there.info.status == "FINISHED" and seconds == records.finished.seconds
        assert replay(run, "mlflow") == 0


@needs("alembic")
def test_the_model_for_a_site(store: Any, home: Path, tree: Path) -> None:
    import mlflow
    import pandas as pd

    flags = ["--algorithm", "da-erm", "--test-domains", "west", *as_flags(TINY)]
    command("train", tree, *flags, "--out", "run")
    command("adapt", "run", tree / "west", "--out", "west.safetensors")
    command("track", "run", "--to", "mlflow", "--model", "--site", "west.safetensors")
    (logged,) = store.search_logged_models([only_run(store).info.experiment_id])
    served = mlflow.pyfunc.load_model(logged.model_uri)
    files = sorted((tree / "west").rglob("*.jpg"))
    images = pd.DataFrame({"image": [file.read_bytes() for file in files]})
    answers = served.predict(images, params={"site": "west"})
    site = apply_state(Trained.load(Path("run")), DomainState.load(Path("west.safetensors")))
    assert answers["label"].tolist() == site.predict(files)
    expected = site.predict_proba(files).max(1)
    np.testing.assert_allclose(answers["confidence"], expected, rtol=1e-6)
    with refused(ConfigError, "west"):  # an adaptive model without a site
        served.predict(images)
    with refused(UnknownName, "'vest'", "'west'"):
        served.predict(images, params={"site": "vest"})
    files = [
        path.name for path in Path(logged.artifact_location.removeprefix("file://")).rglob("*")
    ]
    assert "model.safetensors" in files and not any(name.endswith(".pkl") for name in files)


@needs("alembic")
def test_the_model_of_features(store: Any, home: Path, features: Manifest, tiny: Tiny) -> None:
    import mlflow

    train(tiny("erm"), features, home / "run")
    trained = Trained.load(home / "run")
    rows = features.features()[:20]
    site = adapt(trained, rows, method="prior")
    assert site.state is not None
    site.state.save(home / "new.safetensors")
    replay(home / "run", "mlflow", options={"model": [home / "new.safetensors"]})
    (logged,) = store.search_logged_models([only_run(store).info.experiment_id])
    served = mlflow.pyfunc.load_model(logged.model_uri)
    plain, own = served.predict(rows), served.predict(rows, params={"site": "new"})
    assert plain["label"].tolist() == apply_state(trained, None).predict(rows)
    np.testing.assert_allclose(own["confidence"], site.predict_proba(rows).max(1), rtol=1e-6)
    with pytest.raises(Exception, match=r"shape|enforce"):
        served.predict(rows[:, :3])


@needs("trackio")
def test_trackio(resumed: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(home / "trackio"))
    run = resumed("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    for _ in range(2):
        (name,) = SQLiteStorage.get_runs("acclimate")
        rows = SQLiteStorage.get_logs("acclimate", name)
        for key, values in told(run).items():
            assert [row[key] for row in rows if key in row] == pytest.approx(values)
        config = SQLiteStorage.get_run_config("acclimate", name)
        assert config is not None and config["train.steps"] == 6
        # In a process of its own: what a tool says when that ends is no part of the result.
        again = [sys.executable, "-m", "acclimate", "track", str(run), "--to=trackio", "--json"]
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(again, capture_output=True, check=True, env={**os.environ, **path})
        assert json.loads(done.stdout)["new_records"] == 0


def wandb_history(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of an offline run: W&B's own records, framed as LevelDB's log is."""
    from wandb.proto import wandb_internal_pb2 as kinds

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := BLOCK - at % BLOCK) < 7:  # no room for another part
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += 7 + length
        part = data[at - length : at]
        whole = part if kind in (1, 2) else whole + part
        if kind in (1, 4):  # all of a record, or its last part
            record = kinds.Record.FromString(whole)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                yield {item.nested_key[0]: json.loads(item.value_json) for item in items}


@needs("wandb")
def test_wandb_offline(resumed: Any, home: Path) -> None:
    """Offline each session writes the whole run, so that the newest folder has all of it."""
    run = resumed("wandb")
    replay(run, "wandb")
    *_, before, last = sorted(home.glob("wandb/offline-run-*/run-*.wandb"), key=_made)
    assert before.name == last.name
    for file in (before, last):
        rows = list(wandb_history(file))
        for key, values in told(run).items():
            assert [row[key] for row in rows if key in row] == pytest.approx(values)
        assert [row["training step"] for row in rows if "main/risk" in row] == [2, 4, 6]


def _made(file: Path) -> int:
    return file.stat().st_mtime_ns
