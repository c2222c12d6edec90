"""What an exception between two batches leaves unread still arrives, and checkpoints are told."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import keras
import pytest

from server_process import running_server
from training import batch, recorded, reporting, small_model
from trainvitals import HealthReporter, Reporter
from trainvitals.probe.types import Value

# Keras's own saving meets a numpy that is newer than it knows.
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

TIMEOUT_S = 30.0
LEAVING = """
import sys
sys.path.insert(0, sys.argv[1])
import keras
from training import batch, small_model
from trainvitals import HealthReporter

class Failing(keras.callbacks.Callback):
    def on_train_batch_end(self, number, logs=None):
        if number == 5:
            raise LookupError("where is it?")

reporter = HealthReporter(sys.argv[2], run_id=sys.argv[4], spool_dir=sys.argv[3], console=False)
callbacks = [reporter, Failing()] if sys.argv[4] == "after" else [Failing(), reporter]
model = small_model()
model.compile("sgd", "mse")
x, y = batch(64)
model.fit(x, y, batch_size=8, verbose=0, callbacks=callbacks)
"""


class Raising(keras.callbacks.Callback):  # type: ignore[misc]
    """Raises once, after a batch."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.errors = [error]

    def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
        if batch == 3 and self.errors:
            raise self.errors.pop()


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_process_that_ends_by_another_callback_loses_no_row(place: str, tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        folder, spool = str(Path(__file__).parents[1]), str(tmp_path / "spool")
        command = [sys.executable, "-c", LEAVING, folder, server.url, spool, place]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        with urllib.request.urlopen(f"{server.url}/api/v1/runs/{place}", timeout=TIMEOUT_S) as answer:
            run = json.load(answer)
        export = f"{server.url}/api/v1/runs/{place}/export.csv"
        with urllib.request.urlopen(export, timeout=TIMEOUT_S) as answer:
            rows = list(csv.DictReader(answer.read().decode().splitlines()))
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith("LookupError: where is it?")
    assert "trainvitals failed" not in ended.stderr
    assert [int(row["step"]) for row in rows] == [0, 1, 2, 3, 4, 5]
    assert all(float(row["loss"]) > 0 for row in rows)
    assert (run["state"], run["last_step"]) == ("failed", 5)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_same", [True, False])
def test_the_next_fit_reads_what_was_left(is_first: bool, is_same: bool) -> None:
    model = small_model()
    model.compile("sgd", "mse")
    x, y = batch(64)
    reporter, sent = reporting()
    raising = Raising(KeyboardInterrupt())
    callbacks = [reporter, raising] if is_first else [raising, reporter]
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=8, verbose=0, callbacks=callbacks)
    other, others = (reporter, sent) if is_same else reporting()
    own = vars(model).keys() & {"save", "save_weights"}
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[other])
    assert own == {"save", "save_weights"}
    assert not vars(model).keys() & {"save", "save_weights"}
    assert sent.steps[:4] == [0, 1, 2, 3]
    assert sent.byes[0] == ("interrupted", 3, "")
    assert others.steps == list(range(12 if is_same else 8))


def test_a_fit_without_us_in_between_is_not_reported() -> None:
    model = small_model()
    model.compile("sgd", "mse")
    x, y = batch(64)
    reporter, sent = reporting()
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[reporter, Raising(KeyboardInterrupt())])
    model.fit(x, y, batch_size=8, verbose=0)
    reporter._session.read_rest()
    assert sent.steps == [0, 1, 2, 3]


def test_a_forgotten_loop_says_goodbye() -> None:
    reporter = Reporter()
    sent = recorded(reporter)
    reporter.step(loss=1.0)
    reporter.step(loss=2.0)
    reporter._session.read_rest()
    del reporter
    assert sent.steps == [0, 1]
    assert sent.byes == [("interrupted", 1, "")]


def test_checkpoints_are_told_with_the_last_step_in_them(tmp_path: Path) -> None:
    model = small_model()
    model.compile("sgd", "mse")
    x, y = batch(64)
    reporter, sent = reporting()

    class Saving(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
            if batch == 5:
                model.save(filepath=str(tmp_path / "mine.keras"))
                with pytest.raises(ValueError, match="filepath"):
                    model.save_weights(tmp_path / "wrong.name")

    best = tmp_path / "best.weights.h5"
    checkpoint = keras.callbacks.ModelCheckpoint(best, save_freq=3, save_weights_only=True)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    callbacks = [Saving(), reporter, checkpoint, backup]
    model.fit(x, y, batch_size=8, verbose=0, callbacks=callbacks)
    model.save(tmp_path / "later.keras")
    told = [(step, Path(str(data["path"])).name) for kind, step, data in sent.events if kind == "checkpoint"]
    assert told == [
        (2, "best.weights.h5"), (5, "mine.keras"), (5, "best.weights.h5"), (7, "latest.weights.h5")
    ]  # fmt: skip
    assert "checkpoint" in [activity for _, activity in sent.promises]
    assert sent.promises[-1][1] == "training"


def test_a_checkpoint_is_the_same_as_without_us(tmp_path: Path) -> None:
    x, y = batch(16)
    for name in ("with", "without"):
        keras.utils.clear_session()  # the names of models count up
        model = small_model()
        model.compile("sgd", "mse")
        reporter = HealthReporter()
        recorded(reporter)
        path = tmp_path / name
        path.mkdir()
        checkpoint = keras.callbacks.ModelCheckpoint(path / "model.keras", save_freq=2)
        callbacks = [reporter, checkpoint] if name == "with" else [checkpoint]
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)
    ours, theirs = (inside(tmp_path / name / "model.keras") for name in ("with", "without"))
    assert ours == theirs


def inside(path: Path) -> dict[str, object]:
    """Return what a saved model holds: names in the archive, its configuration, the names of its weights."""
    with zipfile.ZipFile(path) as archive:
        config = re.sub(r'"shared_object_id": \d+', "", archive.read("config.json").decode())
        with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as weights:
            names: list[str] = []
            weights.visit(names.append)
    return {"files": archive.namelist(), "config": config, "weights": names}
