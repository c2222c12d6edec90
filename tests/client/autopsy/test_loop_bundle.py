"""A bundle of a loop replays in a fresh process, by the loop's own program, with the same report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow
TIMEOUT_S = 90
PROGRAM = """
import keras
import numpy as np
import tensorflow as tf
from trainvitals import Reporter

keras.utils.set_random_seed(int.from_bytes(__import__("os").urandom(2)))  # other weights in each process
model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)])
model.add(keras.layers.Dense(1))
optimizer = keras.optimizers.Adam(0.01)
reporter = Reporter("http://127.0.0.1:1", replay=lambda batch: train_step(*batch))

{decorator}
def train_step(x, y):
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.math.sqrt(y) - model(x, training=True)))  # the root
    gradients = tape.gradient(loss, variables)
    {observe}
    optimizer.apply(gradients, variables)
    return loss, gradients

rng = np.random.default_rng(0)
with reporter:
    for step in range(8):
        x, y = tf.constant(rng.normal(size=(6, 4)), tf.float32), np.ones((6, 1), "float32")
        y[2] = -1.0 if step == 6 else 1.0
        batch = x, tf.constant(y)
        loss, gradients = train_step(*batch)
        reporter._rows.read_at_once()
        {step}
print("the loop has ended")
"""
GIVEN = "loss=loss, gradients=gradients, variables=model.trainable_variables, optimizer=optimizer, batch={}"
LOOPS = {
    "observe": ("@tf.function", f"reporter.observe({GIVEN.format('(x, y)')})", "reporter.step()"),
    "step": ("", "pass", f"reporter.step({GIVEN.format('batch')})"),
}


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, *command], env=environ, capture_output=True, text=True, timeout=TIMEOUT_S
    )


def same(report: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name not in ("took_s", "bundle")}


@pytest.mark.parametrize("kind", LOOPS)
def test_the_program_is_run_up_to_its_first_step_and_no_further(kind: str, tmp_path: Path) -> None:
    decorator, observe, step = LOOPS[kind]
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(decorator=decorator, observe=observe, step=step))
    spool = str(tmp_path / "spool")
    trained = run(str(program), TRAINVITALS_SPOOL=spool)
    assert "the loop has ended" in trained.stdout, trained.stderr
    (folder,) = (tmp_path / "spool" / "bundles").iterdir()
    assert f"trainvitals replay {folder}" in trained.stderr
    answer = run(
        "-m",
        "trainvitals_server.cli",
        "replay",
        str(folder),
        "--json",
        TRAINVITALS_SPOOL=str(tmp_path / "no"),
    )
    assert answer.returncode == 0, answer.stderr
    assert "the loop has ended" not in answer.stderr
    assert not (tmp_path / "no").exists()  # it reported to nobody
    first = json.loads((folder / "bundle.json").read_text())["report"]
    again = json.loads(answer.stdout)
    lines = program.read_text().splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if text.endswith("# the root"))
    assert (again["operation"], again["line"], again["samples"]) == ("Sqrt", line, [2])
    assert same(again) == same(first)
