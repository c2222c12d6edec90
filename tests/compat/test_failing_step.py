"""A step that goes bad, with the Keras of this environment: the row, the operation, and its replay."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat.frame import SIZE, TIMEOUT_S, URL, K, batch, incidents_of, rows_of
from trainvitals import HealthReporter
from trainvitals.probe.types import Model, Tensor, Value

PROGRAM = f"""
import pathlib
import numpy as np
import tensorflow as tf
import {K.__name__} as K
from trainvitals import HealthReporter
class Spoiling(K.layers.Layer):
    def call(self, x):
        return tf.sqrt(x)
K.utils.set_random_seed(1)
model = K.Sequential([
    K.Input((8,)), Spoiling(name="spoiling"), K.layers.Dropout(0.1), K.layers.BatchNormalization(),
    K.layers.Dense(1),
])
model.compile(K.optimizers.Adam(0.01), "mse")
x = np.ones((40, 8), "float32")
x[12, 3] = -1
model.fit(x, x[:, :1], batch_size=10, shuffle=False, verbose=0, callbacks=[HealthReporter("http://127.0.0.1:9")])
pathlib.Path(__file__).with_name("trained").touch()
"""


class Spoiling(K.layers.Layer):  # type: ignore[misc]
    """Takes the square root of what is negative in the second batch."""

    def call(self, x: Tensor) -> Tensor:
        return tf.sqrt(x)


def spoilt_model(**options: Value) -> Model:
    K.utils.set_random_seed(1)
    model = K.Sequential([K.Input((8,)), Spoiling(name="spoiling"), K.layers.Dense(1, name="head")])
    model.compile(K.optimizers.SGD(0.01), "mse", **options)
    return model


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}])
def test_a_step_that_goes_bad_arrives_with_the_operation_that_did_it(options: dict[str, Any]) -> None:
    x, y = batch()
    x = np.abs(x)
    x[SIZE + 2, 3] = -1
    told: queue.SimpleQueue[object] = queue.SimpleQueue()
    reporter = HealthReporter(URL, console=False, on_incident=told.put)
    spoilt_model(**options).fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter])
    rows = rows_of(reporter)
    assert [row["step"] for row in rows] == list(range(7))
    assert np.isfinite(rows[0]["loss"])
    assert rows[1]["loss"] == "NaN"
    assert rows[1]["grad_nonfinite"] == 9
    assert rows[1]["weight_nonfinite"] == 0
    told.get(timeout=TIMEOUT_S)
    incident = incidents_of(reporter)[0]
    assert incident["nonfinite_step"] == 1
    if options and not can_be_captured_under_xla():
        return
    found = incident["first_bad_operation"]
    assert (found["operation"], found["layer"], found["samples"]) == ("Sqrt", "spoiling", [2])
    assert Path(found["file"]).name == Path(__file__).name


def test_a_bundle_is_replayed_in_a_fresh_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environ = {**os.environ, "TRAINVITALS_SPOOL": str(tmp_path / "spool")}
    done = subprocess.run([sys.executable, str(program)], env=environ, capture_output=True, text=True)
    (line,) = [one for one in done.stderr.splitlines() if "first bad operation" in one]
    bundle = line.rpartition(" ")[2]
    (tmp_path / "trained").unlink()
    command = [sys.executable, "-m", "trainvitals_server", "replay", bundle]
    again = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert "Sqrt in spoiling (program.py:9)" in line
    assert "Sqrt in spoiling (program.py:9)" in again.stdout
    assert not (tmp_path / "trained").exists(), "a replay trains nothing"


def can_be_captured_under_xla() -> bool:
    """Return whether this Keras has the place where a batch is kept: older ones have none."""
    return hasattr(K.Model, "_autoconvert_optionals")
