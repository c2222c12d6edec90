"""A search over two hundred short runs: each arrives whole, and as what it was."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from server_process import ServerProcess, running_server
from training import batch, by_hand, small_model
from trainvitals import HealthReporter

TIMEOUT_S = 60.0
PROGRAM = Path(__file__).parents[1] / "sweep.py"
RUNS, STEPS = 200, 50
TRIALS = 4  # of them by Keras: they take a second each
LOOPS = RUNS - TRIALS
SIZE = 4

pytestmark = pytest.mark.tensorflow


def asked(server: ServerProcess, path: str) -> bytes:
    with urllib.request.urlopen(f"{server.url}/api/v1/{path}", timeout=TIMEOUT_S) as answer:
        return bytes(answer.read())


def table(server: ServerProcess, run_id: str) -> dict[str, list[float]]:
    """Return the raw columns of a run, each with as many values as there are."""
    rows = [json.loads(line) for line in asked(server, f"runs/{run_id}/export.jsonl").splitlines()]
    return {name: [row[name] for row in rows if name in row] for name in rows[0]}


def search_by_keras(url: str, spool: Path) -> dict[str, float]:
    """Train models of several learning rates as Keras Tuner does: each trial has a copy of the callbacks."""
    callbacks = [HealthReporter(url, project="sweep", group="search", spool_dir=spool, console=False)]
    found = {}
    for number in range(TRIALS):
        (reporter,) = copied = copy.deepcopy(callbacks)
        rate = 0.01 * (number + 1)
        model = small_model()
        model.compile(keras.optimizers.SGD(rate), "mse", steps_per_execution=STEPS)
        model.fit(*batch(SIZE * STEPS), batch_size=SIZE, shuffle=False, verbose=0, callbacks=copied)
        found[reporter.run_id] = rate
        assert reporter._session.sender.flush(TIMEOUT_S)
        reporter._session.sender.close()
    return found


def assert_equal_to_what_was_reported(columns: dict[str, list[float]], number: int) -> None:
    steps = np.arange(STEPS)
    layers = 5.0 * (number + 1), steps.astype(float)
    expected: dict[str, Any] = {
        "step": steps,
        "loss": number + steps / 64,
        "grad_norm": np.hypot(*layers) / 2,
        "grad_nonfinite": 0 * steps,
        "loss_scale": 2.0 + 0 * steps,
        "accuracy": steps / 50,
    }
    for name, values in expected.items():
        np.testing.assert_allclose(columns[name], values, rtol=1e-12, err_msg=f"{name} of run {number}")
    assert {len(values) for values in columns.values()} == {STEPS}, columns.keys()


def test_of_two_hundred_runs_of_one_group_none_is_lost(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with running_server(tmp_path / "data") as server:
        command = [sys.executable, str(PROGRAM), server.url, str(spool), str(LOOPS), str(STEPS)]
        with subprocess.Popen(command) as loops:
            rates = search_by_keras(server.url, spool)
            assert loops.wait(TIMEOUT_S) == 0
        board = json.loads(asked(server, f"runs?group=search&limit={RUNS}"))
        tables = {run["run_id"]: table(server, run["run_id"]) for run in board["runs"]}
    assert board["total"] == len(tables) == RUNS
    assert {(run["state"], run["last_step"]) for run in board["runs"]} == {("finished", STEPS - 1)}
    for number in range(LOOPS):
        assert_equal_to_what_was_reported(tables[f"trial-{number}"], number)
    for run_id, rate in rates.items():
        oracle = by_hand(small_model(), keras.optimizers.SGD(rate), *batch(SIZE * STEPS), SIZE, 1)
        for name in ("loss", "grad_norm"):
            np.testing.assert_allclose(tables[run_id][name], [one[name] for one in oracle], rtol=1e-3)
    assert not list(spool.glob("sessions/*/*"))
