"""What an installed package says is what the source tree says: its own files lie among the packages then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trainvitals

pytestmark = pytest.mark.tensorflow
TIMEOUT_S = 300
PROGRAM = """
import keras
import numpy as np
import trainvitals
from keras import ops

assert "site-packages" in trainvitals.__file__

def loss(y, p):
    return -ops.mean(y * ops.log(p) + (1 - y) * ops.log(1 - p))

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
model.compile("adam", loss)
x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
focal = keras.losses.BinaryFocalCrossentropy(from_logits=True)
print(trainvitals.HealthReporter.preflight(model, (x, (x[:, :1] > 0).astype("float32"))))
model.compile("adam", focal)
print(trainvitals.HealthReporter.preflight(model, (x, (x[:, :1] > 0).astype("float32"))))
"""


def test_expressions_of_the_user_are_judged_and_focal_losses_are_not_made_up_for(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    shutil.copytree(Path(trainvitals.__file__).parent, installed / "trainvitals")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": str(installed), "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert "logarithm" in done.stdout.lower()
    assert "program.py" in done.stdout
    assert "the sigmoid is taken twice" in done.stdout
