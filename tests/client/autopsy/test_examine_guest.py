"""An autopsy leaves nothing behind: no number of the training that goes on is another one."""

from __future__ import annotations

import random
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from scenes import compiled, dense, loop_report, numbers, report_of, scene_of
from trainvitals.autopsy import record
from trainvitals.autopsy.examine import examine
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow


def noisy_model() -> Value:
    """Return a model with everything that has a state: seeds, statistics, slots, metrics."""
    keras.utils.set_random_seed(5)
    layers = (
        keras.layers.Dense(8, name="hidden"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
    )
    model = dense(*layers, keras.layers.GaussianNoise(0.1), keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    return model


def trained_on(model: Value, is_examined: bool) -> list[bytes]:
    """Return every variable after three steps, an autopsy of a broken batch, and five steps more."""
    x, y = numbers(16, 4), numbers(16, 1)
    broken = x.copy()
    broken[3] = np.nan
    for _ in range(3):
        model.train_on_batch(x, y)
    if is_examined:
        assert report_of(model, broken, y).found == "input"
    for _ in range(5):
        model.train_on_batch(x, y)
    return [variable.numpy().tobytes() for variable in (*model.variables, *model.optimizer.variables)]


def test_a_training_goes_on_bit_for_bit_as_without_the_autopsy() -> None:
    control = trained_on(noisy_model(), is_examined=False)
    assert trained_on(noisy_model(), is_examined=False) == control
    assert trained_on(noisy_model(), is_examined=True) == control


def drawn(generator: tf.random.Generator) -> list[float]:
    """Return a number of every source of randomness that a step may use."""
    keras_default = keras.random.uniform(())
    eager = [tf.random.uniform(()), tf.random.normal(()), generator.uniform(()), keras_default]
    return [random.random(), float(np.random.random()), *map(float, eager)]


@pytest.mark.parametrize("is_examined", [False, True])
def test_no_source_of_randomness_moves_on(is_examined: bool) -> None:
    keras.utils.set_random_seed(11)
    generator = tf.random.Generator.from_seed(4)
    drawn(generator)  # the sources are in use before

    def run(batch: Value) -> Value:
        return tf.reduce_mean(batch[0]) * sum(drawn(generator))

    if is_examined:
        loop_report(run, (np.full((4, 2), np.nan, "float32"),), [])
    after = drawn(generator)
    keras.utils.set_random_seed(11)
    again = tf.random.Generator.from_seed(4)
    drawn(again)
    assert after == drawn(again)


def test_variables_that_nobody_named_are_given_back() -> None:
    counter, table = tf.Variable(0), tf.Variable(tf.zeros((4, 2)))

    def run(batch: Value) -> Value:
        counter.assign_add(1)
        table.scatter_nd_update([[1]], [[7.0, 7.0]])
        return tf.reduce_mean(tf.math.log(batch[0]))

    report = loop_report(run, (np.zeros((4, 2), "float32"),), [])
    assert report.operation == "Log"
    assert int(counter) == 0
    assert not np.asarray(table).any()


def test_what_another_thread_writes_meanwhile_stays_written() -> None:
    other = tf.Variable(0)

    def run(batch: Value) -> Value:
        writer = threading.Thread(target=other.assign_add, args=(5,))
        writer.start()
        writer.join()
        return tf.reduce_mean(batch[0])

    loop_report(run, (np.full((1, 2), np.nan, "float32"),), [])
    assert int(other) > 0


def test_another_thread_draws_the_random_numbers_that_it_would_have_drawn() -> None:
    def drawn_by_thread(meanwhile: bool) -> list[float]:
        keras.utils.set_random_seed(7)
        numbers_drawn: list[float] = []

        def run(batch: Value) -> Value:
            thread = threading.Thread(target=lambda: numbers_drawn.append(float(tf.random.uniform(()))))
            thread.start()
            thread.join()
            return tf.reduce_mean(batch[0])

        data = np.full((1, 2), np.nan, "float32")
        loop_report(run, (data,), []) if meanwhile else run((tf.constant(data),))
        return numbers_drawn[:1]

    assert drawn_by_thread(meanwhile=True) == drawn_by_thread(meanwhile=False)


def test_how_functions_run_and_what_was_patched_is_given_back() -> None:
    gradient, write = tf.GradientTape.gradient, type(tf.Variable(0.0)).assign
    call, scale = keras.layers.Layer.__call__, keras.optimizers.Optimizer.scale_loss
    report_of(compiled(dense(keras.layers.Dense(1))), numbers(4, 4), numbers(4, 1))
    assert not tf.config.functions_run_eagerly()
    assert (tf.GradientTape.gradient, type(tf.Variable(0.0)).assign) == (gradient, write)
    assert (keras.layers.Layer.__call__, keras.optimizers.Optimizer.scale_loss) == (call, scale)


def test_no_tensor_of_the_step_outlives_the_autopsy() -> None:
    import gc
    import weakref

    seen: list[Value] = []

    def run(batch: Value) -> Value:
        inner = tf.sqrt(batch[0])
        seen.append(weakref.ref(inner))
        return tf.reduce_mean(inner)

    report = loop_report(run, (-np.ones((4, 2), "float32"),), [])
    gc.collect()
    assert report.operation == "Sqrt"
    assert [reference() for reference in seen] == [None] * len(seen)


def test_a_step_of_endless_operations_is_recorded_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MAX_OPERATIONS", 4)

    def run(batch: Value) -> Value:
        return tf.reduce_mean(sum(tf.sqrt(batch[0]) for _ in range(9)))

    report = loop_report(run, (-np.ones((4, 2), "float32"),), [])
    assert (report.found, report.is_reproduced) == ("nothing", True)
    assert report.notes[0] == "only the first 4 operations of the step were looked at"


def test_a_failure_of_the_recording_is_no_failure_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Value) -> Value:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(record, "bad_rows", broken)
    report = loop_report(lambda batch: tf.sqrt(batch[0]), (-np.ones((4, 2), "float32"),), [])
    assert (report.found, report.is_reproduced) == ("nothing", True)
    assert report.notes[0] == "not every operation could be looked at: ZeroDivisionError"


def test_the_masks_of_a_dropout_are_those_of_the_failing_step() -> None:
    hidden = keras.layers.Dense(6, kernel_initializer="ones", use_bias=False)
    some = keras.layers.Lambda(lambda x: ops.log(ops.sum(x, axis=-1, keepdims=True)))
    model = compiled(dense(hidden, keras.layers.Dropout(0.7, seed=5), some))
    x, y = np.ones((4, 4), "float32"), np.ones((4, 1), "float32")
    weights, scenes, is_bad = model.get_weights(), [], []
    for _ in range(12):
        scenes.append(scene_of(model, x, y))
        is_bad.append(not np.isfinite(model.train_on_batch(x, y)))
        model.reset_metrics()
        model.set_weights(weights)  # the seeds go on
    assert {True, False} == set(is_bad)
    assert [examine(scene).operation for scene in scenes] == ["Log" if bad else "" for bad in is_bad]
