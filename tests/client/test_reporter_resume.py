"""A run that is gone on with in a later process: it continues at its step, and the newer rows win."""

from __future__ import annotations

import argparse
import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from server_process import running_server
from training import batch, recorded, small_model
from trainvitals import HealthReporter, Reporter, sync
from trainvitals.probe.types import Value

# Keras's own saving meets a numpy that is newer than it knows.
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

TIMEOUT_S = 30.0
NOWHERE = "http://127.0.0.1:9"  # the port of the discard service: nobody listens


def asked(url: str, path: str) -> Any:  # noqa: ANN401 - JSON
    with urllib.request.urlopen(f"{url}/api/v1/{path}", timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def losses(url: str, session: str = "") -> dict[int, float]:
    """Return the loss by step: the main line's, or one session's."""
    query = f"&session={session}" if session else ""
    found = asked(url, f"runs/night/series?names=loss&pixels=2000{query}")["series"]["loss"]
    steps, values = (
        np.frombuffer(base64.b64decode(found[part]["bdata"]), found[part]["dtype"])
        for part in ("step", "value")
    )
    return {int(step): float(value) for step, value in zip(steps, values, strict=True)}


class Failing(keras.callbacks.Callback):  # type: ignore[misc]
    """The machine goes away after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
        self._left -= 1
        if not self._left:
            raise RuntimeError("the machine goes away")


def one_life(url: str, folder: Path, shift: float, *others: Value) -> str:
    """Train up to four epochs of eight steps in what could be a process of its own; return its session."""
    x, y = batch(64)
    model = small_model()
    model.compile(keras.optimizers.SGD(0.01), "mse")
    reporter = HealthReporter(url, run_id="night", spool_dir=folder / "spool", console=False)
    backup = keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)
    callbacks = [reporter, backup, *others]
    try:
        model.fit(x, y + shift, batch_size=8, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
    except RuntimeError:
        reporter._session.read_rest()
        reporter._session.leave()
    sender = reporter._session.sender
    assert sender.flush(TIMEOUT_S) == (url != NOWHERE)
    sender.close()
    return sender._hello.session_id


def test_a_restored_fit_goes_on_at_its_step(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        first = one_life(server.url, tmp_path, 0.0, Failing(19))
        before = losses(server.url)
        second = one_life(server.url, tmp_path, 5.0)
        main, older, newer = (losses(server.url, session) for session in ("", first, second))
        sessions = asked(server.url, "runs/night")["sessions"]
        last_step = asked(server.url, "runs/night")["last_step"]
    assert list(before) == list(range(19))
    assert older == before
    assert list(newer) == list(range(16, 32))
    assert main == {step: before[step] for step in range(16)} | newer
    assert newer[16] != before[16]
    assert [one["resume_step"] for one in sessions] == [None, 16]
    assert last_step == 31


def test_a_late_spool_of_an_earlier_life_changes_nothing_and_notifies_nobody(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with Reporter(NOWHERE, run_id="night", spool_dir=spool, console=False) as reporter:
        for step in range(40):
            reporter.step(loss=1.0 if step < 30 else float("nan"))
    older = reporter._session.sender
    older.close()
    with running_server(tmp_path / "data") as server:
        with Reporter(server.url, run_id="night", spool_dir=spool, console=False) as reporter:
            for step in range(20, 60):
                reporter.step(loss=2.0, step=step)
        newer = reporter._session.sender
        assert newer.flush(TIMEOUT_S)
        newer.close()
        shown = asked(server.url, "runs/night")
        assert sync.run(argparse.Namespace(directory=spool, url=server.url, token=None)) == 0
        main, again = losses(server.url), asked(server.url, "runs/night")
        old = losses(server.url, older._hello.session_id)
        incidents = asked(server.url, "runs/night/incidents")["incidents"]
        alerts = asked(server.url, "alerts")["alerts"]
    assert main == dict.fromkeys(range(20), 1.0) | dict.fromkeys(range(20, 60), 2.0)
    assert sum(np.isnan(value) for value in old.values()) == 10
    for name in ("state", "last_step"):
        assert again[name] == shown[name]
    assert {incident["late"] for incident in incidents} == {True}
    assert alerts == []


def trained(steps: int, optimizer: Value, epoch: int = 0, **options: Value) -> tuple[list[int], Any]:
    """Train so many steps without a reporter, then one epoch with one; return its steps and what it told."""
    x, y = batch(8 * steps)
    model = small_model()
    model.compile(optimizer, "mse")
    if steps:
        model.fit(x, y, batch_size=8, verbose=0)
    reporter = HealthReporter(**options)
    sent = recorded(reporter)
    x, y = batch(16)
    model.fit(x, y, batch_size=8, initial_epoch=epoch, epochs=epoch + 1, verbose=0, callbacks=[reporter])
    return sent.steps, sent


def test_the_first_step_is_told_by_what_was_restored() -> None:
    accumulating = keras.optimizers.SGD(0.01, gradient_accumulation_steps=3)
    assert trained(5, accumulating, run_id="x")[0] == [5, 6]
    skipping = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0**127)
    steps, sent = trained(4, skipping, epoch=2, run_id="x")
    assert sent.values("optimizer_step")[0] < 5, "this training should begin with skips"
    assert steps == [4, 5]
    assert ("resume", 4, {"step": 4}) in sent.events
    assert trained(0, "sgd", epoch=3, run_id="x")[0] == [6, 7]  # weights alone were restored
    assert trained(0, "sgd", run_id="x")[0] == [0, 1]
    steps, sent = trained(5, "sgd")
    assert steps == [0, 1]  # a run of its own
    assert [kind for kind, _, _ in sent.events] == ["epoch"]
    assert trained(5, "sgd", run_id="x", resume_step=500)[0] == [500, 501]


def test_a_loop_goes_on_at_its_step() -> None:
    variable = keras.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(0.0)
    for _ in range(7):
        optimizer.apply([tf.constant([3.0, 4.0])], [variable])
    told = []
    choices: list[dict[str, Any]] = [{"run_id": "x"}, {"run_id": "x", "resume_step": 30}, {}]
    for options in choices:
        with Reporter(**options) as reporter:
            sent = recorded(reporter)
            reporter.step(loss=1.0, optimizer=optimizer)
            reporter.step(loss=1.0, optimizer=optimizer)
        told.append(sent.steps)
    assert told == [[6, 7], [30, 31], [0, 1]]


def test_a_step_to_go_on_with_is_a_step() -> None:
    for wrong in (-1, 2**63):
        with pytest.raises(ValueError, match="resume_step must be from 0"):
            HealthReporter(resume_step=wrong)
    with pytest.raises(TypeError, match="whole number"):
        Reporter(resume_step=1.5)  # type: ignore[arg-type]
