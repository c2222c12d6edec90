"""`on_nonfinite`: a poisoned update is kept out of the model, and nothing else changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import Array, RecordingSender, batch, recorded, small_model
from trainvitals import HealthReporter
from trainvitals.probe.types import Value

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
SIZE = 8
EXECUTIONS = [{}, {"jit_compile": True}, {"run_eagerly": True}, {"steps_per_execution": 16}]
NAMES = ["graph", "xla", "eager", "many"]


def rich_model(**options: Value) -> keras.Model:
    """Return a model whose forward pass changes statistics and seeds, too."""
    keras.utils.set_random_seed(3)
    layers = [
        keras.layers.Dense(16, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1, dtype="float32"),
    ]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"], **options)
    return model


def data(*bad: int, rows: int = 184) -> tuple[Array, Array]:
    x, y = batch(rows)
    y[[SIZE * step + 3 for step in bad]] = np.nan
    return x, y


def fitted(model: keras.Model, x: Array, y: Array, policy: str, *beside: Value) -> RecordingSender:
    reporter = HealthReporter(on_nonfinite=policy, autopsy=False)  # type: ignore[arg-type]
    sent = recorded(reporter)
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[*beside, reporter])
    return sent


def state(model: keras.Model) -> list[Array]:
    return [np.array(one) for one in [*model.variables, *model.optimizer.variables]]


def without(x: Array, y: Array, *steps: int) -> tuple[Array, Array]:
    keep = [row for row in range(len(x)) if row // SIZE not in steps]
    return x[keep], y[keep]


def assert_same(model: keras.Model, oracle: keras.Model, *, is_exact: bool = True) -> None:
    for one, other in zip(state(model), state(oracle), strict=True):
        assert np.isfinite(one).all()
        if is_exact:
            np.testing.assert_array_equal(one, other)
        else:  # XLA rounds otherwise with a branch around the update
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("options", EXECUTIONS, ids=NAMES)
def test_a_skip_is_as_if_the_batch_had_not_been_in_the_data(options: dict[str, Any]) -> None:
    x, y = data(4, 9)
    model, oracle = rich_model(**options), rich_model(**options)
    sent = fitted(model, x, y, "skip")
    oracle.fit(*without(x, y, 4, 9), batch_size=SIZE, shuffle=False, verbose=0)
    assert_same(model, oracle, is_exact="jit_compile" not in options)
    assert [step for step, skipped in sent.series("skipped").items() if skipped] == [4, 9]
    assert [step for step, loss in sent.series("loss").items() if np.isnan(loss)] == [4, 9]
    said = [line for line in sent.said if "was dropped" in line]
    assert len(said) == 1


@pytest.mark.parametrize("options", EXECUTIONS, ids=NAMES)
def test_a_stop_leaves_everything_as_it_was_before_the_step(options: dict[str, Any]) -> None:
    x, y = data(4)
    model, oracle = rich_model(**options), rich_model(**options)
    sent = fitted(model, x, y, "stop")
    oracle.fit(x[: 4 * SIZE], y[: 4 * SIZE], batch_size=SIZE, shuffle=False, verbose=0)
    assert_same(model, oracle, is_exact="jit_compile" not in options)
    assert model.stop_training
    assert sent.steps == [0, 1, 2, 3, 4]
    assert sent.series("skipped")[4] == 1
    (line,) = [line for line in sent.said if "training stops" in line]
    assert line.startswith("step 4 went non-finite: training stops before its update")
    ((status, _, error),) = sent.byes
    assert (status, error) == ("stopped", line)


def test_the_running_metrics_stay_finite() -> None:
    model = rich_model()
    reporter = HealthReporter(on_nonfinite="skip", autopsy=False)
    recorded(reporter)
    x, y = data(4, 22)
    guard = keras.callbacks.TerminateOnNaN()
    callbacks = [guard, reporter]
    fit = model.fit(x, y, batch_size=SIZE, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
    assert np.isfinite([fit.history["loss"], fit.history["mae"]]).all()
    assert len(fit.history["loss"]) == 2


def test_a_finite_overflow_of_the_sum_of_squares_is_no_failure() -> None:
    x, y = batch(SIZE * 3)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-30), "mae", loss_weights=[1e22])  # gradients of about 1e22
    sent = fitted(model, x, y, "skip")
    assert not any(sent.values("skipped"))
    assert sent.values("optimizer_step") == [1, 2, 3]


@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_what_a_loss_scaler_skips_is_left_to_it(policy: str) -> None:
    outcomes = []
    for chosen in ("continue", policy):
        model = small_model()
        inner = keras.optimizers.SGD(1e-3)
        model.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=3e38), "mse")
        sent = fitted(model, *batch(SIZE * 12), chosen)
        assert sum(sent.values("skipped")) > 0
        outcomes.append((state(model), sent.values("skipped"), sent.values("loss_scale")))
    for one, other in zip(outcomes[0][0], outcomes[1][0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert outcomes[0][1:] == outcomes[1][1:]


def test_under_a_loss_scaler_a_bad_loss_counts() -> None:
    model = small_model()
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-3))
    model.compile(scaler, "mse")
    x, y = data(2, rows=48)
    fitted(model, x, y, "stop")
    assert float(scaler.dynamic_scale) == 2.0**15  # no skip of its own
    assert int(scaler.iterations) == 2


class Adversaries(keras.Model):  # type: ignore[misc]
    """Two optimizers in one step: the second one's gradient fails after the first one's update."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(5)
        self.first = keras.layers.Dense(4)
        self.second = keras.layers.Dense(1)
        self.other = keras.optimizers.Adam(1e-2)

    def call(self, x: Value) -> Value:
        return self.second(self.first(x))

    def train_step(self, data: Value) -> dict[str, Value]:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            hidden = self.first(x)
            one = tf.reduce_mean(tf.square(hidden))
            two = tf.reduce_mean(tf.square(self.second(hidden) - y))
        weights = self.first.trainable_variables
        self.optimizer.apply(tape.gradient(one, weights), weights)
        weights = self.second.trainable_variables
        self.other.apply(tape.gradient(two, weights), weights)
        return {"one": one}


@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_of_two_optimizers_neither_has_made_its_update(policy: str) -> None:
    models = []
    x, y = data(3, rows=64)
    for is_ours in (True, False):
        model = Adversaries()
        model(x[:1])
        model.compile(keras.optimizers.Adam(1e-2))
        if is_ours:
            fitted(model, x, y, policy)
        else:
            clean = without(x, y, 3) if policy == "skip" else (x[: 3 * SIZE], y[: 3 * SIZE])
            model.fit(*clean, batch_size=SIZE, shuffle=False, verbose=0)
        models.append(model)
    assert_same(*models)
    assert int(models[0].other.iterations) == int(models[1].other.iterations)


def test_a_stop_keeps_the_backup_and_the_checkpoints_are_clean(tmp_path: Path) -> None:
    x, y = data(20)
    model = rich_model()
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=4)
    last = tmp_path / "last.weights.h5"
    saving = keras.callbacks.ModelCheckpoint(last, save_weights_only=True, save_freq=3)
    reporter = HealthReporter(on_nonfinite="stop", autopsy=False)
    recorded(reporter)
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[backup, saving, reporter], epochs=3)
    assert backup.delete_checkpoint is False
    metadata = json.loads((tmp_path / "backup" / "training_metadata.json").read_text())
    assert metadata["batch"] >= 15
    for path in (tmp_path / "backup" / "latest.weights.h5", last):
        again = rich_model()
        again.optimizer.build(again.trainable_variables)
        again.load_weights(path)
        assert all(np.isfinite(np.array(one)).all() for one in again.variables)
    y[np.isnan(y)] = 0.0
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[backup, saving, reporter])
    assert backup.delete_checkpoint is True
    assert not (tmp_path / "backup").exists()


def test_a_second_fit_trains_again_after_a_stop() -> None:
    model = rich_model()
    reporter = HealthReporter(on_nonfinite="stop", autopsy=False)
    sent = recorded(reporter)
    x, y = data(4)
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter])
    before = int(model.optimizer.iterations)
    model.fit(*data(), batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter])
    assert int(model.optimizer.iterations) == before + 23
    assert [status for status, _, _ in sent.byes] == ["stopped", "finished"]


def test_an_unknown_policy_fails_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="must be one of 'continue', 'stop', 'skip', not 'ski'"):
        HealthReporter(on_nonfinite="ski")  # type: ignore[arg-type]


REPLICAS = """
import sys
sys.path.insert(0, sys.argv[1])
import tensorflow as tf
device = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
from training import batch, small_model
from trainvitals import HealthReporter
mirrored = tf.distribute.MirroredStrategy
strategies = [mirrored(["CPU:0", "CPU:1"]), mirrored(["CPU:0"]), tf.distribute.OneDeviceStrategy("CPU:0")]
for strategy in strategies:
    with strategy.scope():
        model = small_model()
        model.compile("sgd", "mse")
    for policy in ("skip", "stop"):
        try:
            model.fit(*batch(32), verbose=0, callbacks=[HealthReporter(on_nonfinite=policy, console=False)])
        except ValueError as error:
            print("REFUSED", error)
        else:
            print("TRAINED", int(model.optimizer.iterations))
"""


def test_where_updates_cannot_be_kept_out_that_is_refused_before_the_training_begins() -> None:
    command = [sys.executable, "-c", REPLICAS, str(Path(__file__).parents[1])]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    end = ': use on_nonfinite="continue" there'
    mirrored = f"is not possible under MirroredStrategy, even with one replica{end}"
    assert answer.stdout.splitlines() == [
        f"REFUSED on_nonfinite='skip' is not possible with 2 replicas{end}",
        f"REFUSED on_nonfinite='stop' is not possible with 2 replicas{end}",
        f"REFUSED on_nonfinite='skip' {mirrored}",
        f"REFUSED on_nonfinite='stop' {mirrored}",
        "TRAINED 1",
        "TRAINED 2",
    ]
