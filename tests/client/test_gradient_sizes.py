"""The largest gradient of each layer and its share of zeros, in a real `fit`, against steps done by hand."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import Array, RecordingSender, batch, layer_cells, recorded, small_model
from trainvitals import HealthReporter
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow

OFTEN = 0.999
ROWS, SIZE = 160, 4


@pytest.fixture(autouse=True)
def plain_policy() -> Iterator[None]:
    yield
    keras.mixed_precision.set_global_policy("float32")


class Reading(keras.callbacks.Callback):  # type: ignore[misc]
    """Has the rows read after each step."""

    def __init__(self, reporter: HealthReporter) -> None:
        super().__init__()
        self.reporter = reporter

    def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
        fit: Value = self.reporter._fit
        fit.hurry(is_training_thread=True)


def compiled(model: keras.Model, optimizer: Value = None, **options: Value) -> keras.Model:
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse", **options)
    return model


def trained(model: keras.Model, share: float = OFTEN, **options: Value) -> RecordingSender:
    reporter = HealthReporter(overhead_budget=share)
    sent = recorded(reporter)
    x, y = batch(ROWS)
    callbacks = [reporter, Reading(reporter)]
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=callbacks, **options)
    return sent


def by_hand(model: keras.Model, optimizer: Value) -> list[dict[str, list[Array]]]:
    """Train eagerly and return the gradients of each layer as `apply` gets them."""
    found = []
    x, y = batch(ROWS)
    for start in range(0, ROWS, SIZE):
        bx, by = tf.constant(x[start : start + SIZE]), tf.constant(y[start : start + SIZE])
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean(tf.square(model(bx, training=True) - by)))
        gradients = tape.gradient(loss, model.trainable_variables)
        values = [one.numpy() for one in gradients]
        optimizer.apply(gradients, model.trainable_variables)
        found.append({"hidden": values[:2], "head": values[2:]})
    return found


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "float16"])
@pytest.mark.parametrize("eager", [False, True])
def test_they_are_those_of_that_very_step_with_the_loss_scale(policy: str, eager: bool) -> None:
    keras.mixed_precision.set_global_policy(policy)
    sent = trained(compiled(small_model(), keras.optimizers.SGD(0.001), run_eagerly=eager, jit_compile=False))
    twin = compiled(small_model(), keras.optimizers.SGD(0.001))
    oracle = by_hand(twin, twin.optimizer)
    tolerance = 1e-4 if policy == "float32" else 2e-2
    for layer in ("hidden", "head"):
        largest = layer_cells(sent, "layer_grad_absmax", layer)
        assert len(largest) >= 3
        assert len(largest) < len(sent.steps)
        for step, value in largest.items():
            expected = max(float(np.abs(one).max()) for one in oracle[step][layer])
            np.testing.assert_allclose(value, expected, rtol=tolerance)
    shares = layer_cells(sent, "layer_grad_zero_share", "hidden")
    assert layer_cells(sent, "layer_grad_zero_share", "head") == {}, "it is float32"
    assert (len(shares) >= 3) == (policy != "float32")
    for step, share in shares.items():
        whole = np.concatenate([one.ravel() for one in oracle[step]["hidden"]])
        np.testing.assert_allclose(share, np.mean(whole == 0), atol=0.03)


def test_writing_the_details_of_a_healthy_step_keeps_no_step_and_bends_no_norm() -> None:
    often, never = (
        trained(compiled(small_model(), jit_compile=False)),
        trained(compiled(small_model(), jit_compile=False), share=0.0),
    )
    assert [kind for kind, _, _ in often.events if kind == "autopsy"] == []
    np.testing.assert_allclose(often.values("grad_norm"), never.values("grad_norm"), rtol=1e-6)
    assert often.values("grad_nonfinite") == never.values("grad_nonfinite")
    assert "input_nonfinite" not in [name for piece in often.pieces for name in piece.columns]
    assert not any("layer_grad_absmax" in piece.layer_columns for piece in never.pieces)


def test_a_failing_step_tells_its_largest_gradients_too() -> None:
    reporter = HealthReporter(overhead_budget=0.0)
    sent = recorded(reporter)
    x, y = batch(40)
    y[20] = np.inf
    model = compiled(small_model(), keras.optimizers.SGD(0.0), jit_compile=False)
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter])
    largest = layer_cells(sent, "layer_grad_absmax", "head")
    assert min(largest) == 5
    assert not np.isfinite(largest[5])


def test_near_trouble_weights_and_sizes_come_in_every_step() -> None:
    """What is measured seldom otherwise; the failing step does not spoil the weights."""
    reporter = HealthReporter(overhead_budget=1e-9)
    sent = recorded(reporter)
    x, y = batch(ROWS)
    bad = 20
    y[bad * SIZE] = np.nan
    model = compiled(small_model(), keras.optimizers.SGD(0.0), jit_compile=False)
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter, Reading(reporter)])
    for name in ("layer_weight_norm", "layer_grad_absmax"):
        steps = list(layer_cells(sent, name, "hidden"))
        assert [step for step in steps if step > bad] == list(range(bad + 1, ROWS // SIZE))
        assert len([step for step in steps if step < bad]) <= 2


def test_several_unread_rows_near_trouble_get_what_was_measured_of_each() -> None:
    reporter = HealthReporter(overhead_budget=1e-9)
    sent = recorded(reporter)
    model = compiled(small_model(), keras.optimizers.SGD(0.1), jit_compile=False)

    class Troubled(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Value = None) -> None:
            fit: Value = reporter._fit
            if batch == 3:
                reporter._session.trouble_told = True  # as the sender's thread does
                fit.hurry(is_training_thread=True)
            fit._next_read = np.inf  # none by time

    x, y = batch(ROWS)
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter, Troubled()])
    ratios = layer_cells(sent, "layer_update_ratio", "hidden")
    assert [step for step in ratios if step >= 3] == list(range(3, ROWS // SIZE))
    assert not reporter._session.trouble_told
