"""A bundle replays in a fresh process with the same report, and takes no more room than it may."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainvitals.autopsy import bundle
from trainvitals.autopsy.examine import Scene, examine
from trainvitals.autopsy.packing import Arrays, pack, unpack
from trainvitals.autopsy.rebuild import scene_of
from trainvitals.autopsy.report import Report
from trainvitals.probe.optimizers import optimizers_of
from trainvitals_server.cli import main

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
TIMEOUT_S = 90
PROGRAM = """
import os
import keras
import numpy as np
from trainvitals import HealthReporter

class Rooted(keras.layers.Layer):
    def call(self, x):
        return keras.ops.sqrt(x - 0.9)  # the root

class Model(keras.Model):
    def __init__(self):
        super().__init__()
        layers = keras.layers
        self.parts = [layers.BatchNormalization(), Rooted(), layers.Dropout(0.1), layers.Dense(1)]

    def call(self, x, training=False):
        for part in self.parts:
            x = part(x, training=training) if not isinstance(part, Rooted) else part(x)
        return x

keras.utils.set_random_seed(1)
warm = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
warm.compile("sgd", "mse")
warm.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
warm.save_weights(os.path.join(os.path.dirname(__file__), "warm.weights.h5"))
x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
model = Model()
model.compile("adam", "mse")
print("noise on stdout")
model.fit(x, x[:, :1], batch_size=8, verbose=0, shuffle=False, callbacks=[HealthReporter("http://127.0.0.1:1")])
"""


def replayed(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainvitals_server.cli", "replay", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)


def trained(program: Path, spool: Path) -> tuple[Path, str]:
    """Run a program that fails; return the folder of its bundle and what it printed."""
    answer = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "TRAINVITALS_SPOOL": str(spool)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    (folder,) = (spool / "bundles").iterdir()
    return folder, answer.stderr


def same(report: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name not in ("took_s", "bundle")}


def test_a_program_with_classes_of_its_own_is_replayed_up_to_its_fit(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    folder, said = trained(program, tmp_path / "spool")
    line = PROGRAM.splitlines().index("        return keras.ops.sqrt(x - 0.9)  # the root") + 1
    assert f"program.py:{line})" in said
    assert f"trainvitals replay {folder}" in said
    kept = (tmp_path / "warm.weights.h5").read_bytes()
    answer = replayed(folder, "--json")
    assert answer.returncode == 0, answer.stderr
    # Its first model was not trained again, and was not saved over the one that was.
    assert (tmp_path / "warm.weights.h5").read_bytes() == kept
    first = json.loads((folder / "bundle.json").read_text())["report"]
    again = json.loads(answer.stdout)
    assert (again["operation"], again["line"]) == ("Sqrt", line)
    assert same(again) == same(first)
    program.rename(tmp_path / "moved.py")
    answer = replayed(folder)
    assert answer.returncode == 2
    assert "give a program that makes the model and calls fit with --script FILE" in answer.stderr


def failing_scene(step: int = 3) -> Scene:
    """Return a step of layers that Keras knows, in a process of its own as well."""
    keras.utils.set_random_seed(0)
    last = keras.layers.Dense(1, activation="exponential")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.2), last])
    model.compile(keras.optimizers.Adam(), "mse")
    model.optimizer.build(model.trainable_variables)
    x = np.full((4, 3), 1.0, "float32")
    x[2] = 1e4
    state = [(one, np.array(one)) for one in [*model.variables, *model.optimizer.variables]]
    data = (tf.constant(x), tf.zeros((4, 1)))
    return Scene(step, model, model.train_step, data, state, "before_step", optimizers_of(model))


def test_a_model_of_layers_that_keras_knows_needs_no_program(tmp_path: Path) -> None:
    scene = failing_scene()
    report = examine(scene)
    assert report.found == "operation"
    folder = bundle.write(scene, report, tmp_path, "run")
    again = examine(scene_of(bundle.read(folder), None))
    assert same(again.to_data()) == same(report.to_data())
    answer = replayed(folder)
    assert answer.stdout.startswith(f"first bad operation at step 3: {report.operation}"), answer.stderr


def test_only_the_owner_may_read_it_and_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MAX_BUNDLES", 2)
    folders = [bundle.write(failing_scene(step), REPORT, tmp_path, "run") for step in (1, 2, 3)]
    assert sorted(one.name for one in (tmp_path / "bundles").iterdir()) == sorted(
        one.name for one in folders[1:]
    )
    for folder in (tmp_path / "bundles", folders[2]):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


REPORT = Report(step=3, found="nothing", is_reproduced=False)


def test_what_is_too_large_or_would_fill_the_disk_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MAX_BYTES", 100)
    with pytest.raises(OSError, match="more than"):
        bundle.write(failing_scene(), REPORT, tmp_path, "run")
    monkeypatch.undo()
    monkeypatch.setattr(bundle, "MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(OSError, match="disk is nearly full"):
        bundle.write(failing_scene(), REPORT, tmp_path, "run")
    assert not list(tmp_path.rglob("*.npz"))


def test_another_model_is_refused(tmp_path: Path) -> None:
    kept = bundle.read(bundle.write(failing_scene(), REPORT, tmp_path, "run"))
    other = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    other.compile("sgd", "mse")
    other.optimizer.build(other.trainable_variables)
    with pytest.raises(ValueError, match="the model is another one"):
        kept.scene(other)


def test_a_folder_that_is_no_bundle_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path)]) == 2
    assert f"cannot replay {tmp_path}: " in capsys.readouterr().err


def test_a_batch_of_any_make_is_packed_and_unpacked() -> None:
    half = tf.constant([1.5, np.nan], tf.bfloat16)
    ragged, sparse = tf.ragged.constant([[1, 2], [3]]), tf.sparse.from_dense([[0.0, 2.0]])
    data = ({"text": tf.constant(["ä", "b"]), "half": half}, [ragged, sparse], None, 5)
    arrays: Arrays = []
    form = json.loads(json.dumps(pack(data, arrays)))
    again = unpack(form, arrays)
    assert [one.decode() for one in again[0]["text"].numpy()] == ["ä", "b"]
    assert again[0]["half"].dtype == tf.bfloat16
    np.testing.assert_array_equal(tf.cast(again[0]["half"], tf.float32), [1.5, np.nan])
    assert again[1][0].to_list() == [[1, 2], [3]]
    np.testing.assert_array_equal(tf.sparse.to_dense(again[1][1]), [[0.0, 2.0]])
    assert (type(again), again[2:]) == (tuple, (None, 5))
    with pytest.raises(TypeError, match="a set in the batch"):
        pack({1, 2}, arrays)


NAMESAKE = """
import keras

def dice(y_true, y_pred):
    return keras.ops.mean(keras.ops.log(y_pred - 2.0))  # not Keras's own loss of that name

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
model.compile("sgd", dice)
if __name__ == "__main__":
    model.fit(keras.ops.ones((4, 3)), keras.ops.ones((4, 1)), verbose=0)
"""


def test_a_loss_that_is_called_as_one_of_keras_s_is_the_program_s_own(tmp_path: Path) -> None:
    program = tmp_path / "namesake.py"
    program.write_text(NAMESAKE)
    model = runpy.run_path(str(program))["model"]
    model.optimizer.build(model.trainable_variables)
    state = [(one, np.array(one)) for one in [*model.variables, *model.optimizer.variables]]
    data = (tf.ones((4, 3)), tf.ones((4, 1)))
    scene = Scene(3, model, model.train_step, data, state, "before_step", optimizers_of(model))
    kept = bundle.read(bundle.write(scene, examine(scene), tmp_path, "run"))
    assert kept.report.operation == "Log"
    again = examine(scene_of(dataclasses.replace(kept, script=str(program)), None))
    assert same(again.to_data()) == same(kept.report.to_data())
