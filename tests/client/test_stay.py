"""A `fit` that is left at a live prompt is told as interrupted or failed, though Keras tells nobody."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import keras
import pytest
from websockets.sync.client import ClientConnection, connect

from server_process import running_server
from training import batch, recorded, reporting, small_model
from trainvitals import Reporter
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow
TIMEOUT_S = 60.0
PROMPT = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import keras
from training import batch, small_model
from trainvitals import HealthReporter, stay

stay.LOOK_EVERY_S = 0.05

def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)

def fail():
    raise LookupError("where is it?")

class Leaving(keras.callbacks.Callback):
    def on_train_batch_end(self, number, logs=None):
        if number == 5:
            {how}()

reporter = HealthReporter(sys.argv[2], run_id="{how}", spool_dir=sys.argv[3], console=False)
model = small_model()
model.compile("sgd", "mse")
x, y = batch(64)
model.fit(x, y, batch_size=8, verbose=0, callbacks=[reporter, Leaving()])
"""
AGAIN = "model.fit(x, y, batch_size=8, verbose=0, callbacks=[reporter])\n"


def wait_for(board: ClientConnection, run_id: str, state: str) -> int:
    """Return the last step of the run once the board hears that it is in that state."""
    while True:
        message = json.loads(board.recv(TIMEOUT_S))
        if message["t"] == "run" and (message["run"]["run_id"], message["run"]["state"]) == (run_id, state):
            return int(message["run"]["last_step"])


@pytest.mark.parametrize(("how", "state"), [("press_ctrl_c", "interrupted"), ("fail", "failed")])
def test_a_fit_left_at_a_live_prompt_has_ended_and_another_one_goes_on(
    how: str, state: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROMPT.format(how=how))
    folder, spool = str(Path(__file__).parents[1]), str(tmp_path / "spool")
    pipe = subprocess.PIPE
    with running_server(tmp_path / "data") as server:
        command = [sys.executable, "-i", str(script), folder, server.url, spool]
        with (
            connect(server.url.replace("http", "ws") + "/api/v1/live", open_timeout=TIMEOUT_S) as board,
            subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True) as prompt,
        ):
            board.send('{"subscribe": {"board": true}}')
            assert prompt.stdin is not None
            assert prompt.stderr is not None
            assert wait_for(board, how, state) == 5
            assert prompt.poll() is None
            prompt.stdin.write(AGAIN)
            prompt.stdin.flush()
            assert wait_for(board, how, "finished") == 13
            prompt.stdin.close()
            assert "trainvitals failed" not in prompt.stderr.read()


class Looking(keras.callbacks.Callback):  # type: ignore[misc]
    """Looks from another thread, in the middle of things, at whether `fit` was left."""

    def __init__(self, reporter: keras.callbacks.Callback) -> None:
        super().__init__()
        self.session = reporter._session

    def _look(self) -> None:
        for _ in range(3):
            thread = threading.Thread(target=self.session.look)
            thread.start()
            thread.join(TIMEOUT_S)

    def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
        self._look()

    def on_test_batch_end(self, batch: int, logs: Value = None) -> None:
        self._look()


def test_a_fit_that_goes_on_is_not_left() -> None:
    model = small_model()
    model.compile("sgd", "mse")
    x, y = batch(32)
    reporter, sent = reporting()
    looking = Looking(reporter)
    model.fit(x, y, batch_size=8, verbose=0, validation_data=(x, y), callbacks=[reporter, looking])
    assert sent.byes == [("finished", 3, "")]
    assert sent.steps == [0, 1, 2, 3]


def test_it_takes_two_looks_and_reads_what_was_left() -> None:
    model = small_model()
    model.compile("sgd", "mse")
    x, y = batch(32)
    reporter, sent = reporting()

    class Raising(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
            if batch == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[reporter, Raising()])
    reporter._session.look()
    assert sent.byes == []
    reporter._session.look()
    reporter._session.look()
    assert sent.byes == [("interrupted", 2, "")]
    assert sent.steps == [0, 1, 2]


def test_of_a_loop_of_ones_own_nobody_knows_when_it_is_left() -> None:
    reporter = Reporter()
    sent = recorded(reporter)
    reporter.step(loss=1.0)
    for _ in range(3):
        reporter._session.look()
    assert sent.byes == []


def test_the_lookout_ends_with_the_last_fit() -> None:
    model = small_model()
    model.compile("sgd", "mse")
    x, y = batch(16)
    seen: list[threading.Thread] = []

    class Seeing(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
            seen.extend(one for one in threading.enumerate() if one.name == "trainvitals-lookout")

    reporter, _ = reporting()
    for _ in range(3):
        model.fit(x, y, batch_size=16, verbose=0, callbacks=[reporter, Seeing()])
    assert len(seen) == 3
    for thread in seen:
        thread.join(TIMEOUT_S)
    assert not any(thread.is_alive() for thread in seen)
