"""The autopsy of half precision: what overflows at 65504, and what a loss scale hides."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from scenes import compiled, dense, line_of, loop_report, numbers, report_of
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def _mixed() -> Iterator[None]:
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


class Attention(keras.layers.Layer):  # type: ignore[misc]
    """Masks with the lowest number of float16: the sum with a score below -16 is beyond it."""

    def call(self, inputs: Value) -> Value:
        x, mask = inputs
        score = -ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        low = np.array(np.finfo("float16").min)
        score = score + low * (1 - mask)[:, None, :]  # mask
        return ops.matmul(ops.softmax(score, axis=-1), x)


def test_a_mask_of_the_lowest_float16_overflows_where_nothing_is_left_to_see() -> None:
    x, mask = keras.Input((3, 2)), keras.Input((3,))
    hidden = Attention(name="attention")([x, mask])
    head = keras.layers.Dense(1, dtype="float32", name="head")
    model = compiled(keras.Model([x, mask], head(hidden)), optimizer=keras.optimizers.Adam())
    sequences = numbers(6, 3, 2)
    sequences[2] = [[5, 0]] * 3  # scores of -25, and nothing but padding
    sequences[4] = [[5, 0]] * 3  # the same scores, of which one key is seen
    masks = np.ones((6, 3), "float32")
    masks[2], masks[4, 1:] = 0, 0
    report = report_of(model, [sequences, masks], numbers(6, 3, 1))
    assert (report.found, report.operation, report.direction) == ("operation", "AddV2", "forward")
    assert (report.layer, report.line) == ("attention", line_of("mask"))
    score, low = report.inputs
    assert (score.dtype, score.min, low.min, low.max) == ("float16", -25.0, -65504.0, 0.0)
    assert report.output is not None
    assert (report.output.n_neginf, report.output.n_nan) == (report.n_bad, 0)
    assert report.samples == (2,)  # not 4, whose softmax takes its -Infinity well


def test_an_activation_beyond_float16() -> None:
    square = keras.layers.Lambda(ops.square, name="square")
    own = keras.layers.Lambda(lambda x: x * x - x, name="own")  # own product
    head = keras.layers.Dense(1, dtype="float32")
    x = numbers(6, 4)
    x[1, 3] = 300
    for layer, line in ((square, 0), (own, line_of("own product"))):
        report = report_of(compiled(dense(layer, head)), x, numbers(6, 1))
        assert (report.found, report.layer, report.line) == ("operation", layer.name, line)
        assert report.inputs[0].dtype == "float16"
        assert report.inputs[0].max == 300.0
        assert report.samples == (1,)


def test_bfloat16_has_the_range_of_float32_and_its_numbers_are_read() -> None:
    layer = keras.layers.Lambda(lambda x: ops.sqrt(x), name="root", dtype="mixed_bfloat16")  # bfloat16 sqrt
    x = np.abs(numbers(6, 4)) + 1
    x[5, 0] = -4
    report = report_of(compiled(dense(layer, keras.layers.Dense(1, dtype="float32"))), x, numbers(6, 1))
    assert (report.operation, report.line, report.samples) == ("Sqrt", line_of("bfloat16 sqrt"), (5,))
    assert (report.inputs[0].dtype, report.inputs[0].min) == ("bfloat16", -4.0)


@pytest.mark.parametrize("is_scaled", [True, False])
def test_a_loop_that_scales_its_loss_by_hand_or_forgets_to(is_scaled: bool) -> None:
    model = dense(
        keras.layers.Dense(3, name="hidden"),
        keras.layers.Lambda(lambda x: ops.log(ops.abs(x)), name="log"),  # log of a loop
        keras.layers.Dense(1, dtype="float32"),
    )
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    scaler.build(model.trainable_variables)

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def run(batch: Value) -> Value:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            scaled = scaler.scale_loss(loss) if is_scaled else loss
        scaler.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        return loss

    x = numbers(6, 4)
    x[3] = 0
    report = loop_report(run, (x, numbers(6, 1)), model.variables, (scaler,))
    assert (report.found, report.operation, report.direction) == ("operation", "Log", "forward")
    assert (report.layer, report.line) == ("log", line_of("log of a loop"))
    assert report.samples == (3,)
