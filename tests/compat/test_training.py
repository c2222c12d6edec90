"""Real trainings with the Keras of this environment, against the same training done by hand."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat.frame import (
    EPOCHS,
    SIZE,
    STEPS,
    K,
    batch,
    fit,
    scale_of,
    scaled,
    scaler,
    small_model,
    unscaled,
)
from training import RecordingSender, recorded
from trainvitals import HealthReporter
from trainvitals.probe.types import Model, Optimizer, Tensor, Value
from trainvitals.response import Policy

IS_OLD = K.__name__ == "tf_keras"


@pytest.fixture(autouse=True)
def plain_policy() -> Iterator[None]:
    yield
    K.mixed_precision.set_global_policy("float32")


class Custom(K.Model):  # type: ignore[misc]
    """The small model with a `train_step` as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()
        self.tracker = K.metrics.Mean(name="loss")

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        return self.inner(x)

    @property
    def metrics(self) -> list[Value]:
        return [self.tracker]

    def train_step(self, data: Value) -> dict[str, Tensor]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            to_differentiate = scaled(self.optimizer, loss)
        gradients = tape.gradient(to_differentiate, self.trainable_variables)
        gradients = unscaled(self.optimizer, gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def custom_model() -> Model:
    model = Custom()
    model.build((None, 8))
    return model


def by_hand(optimizer: Optimizer, has_scaler: bool) -> list[dict[str, Any]]:
    """Train eagerly, batch by batch: the oracle."""
    model, found = small_model(), []
    (x, y), variables = batch(), model.trainable_variables
    optimizer = scaler(optimizer, 2.0**15) if has_scaler else optimizer
    for start in [start for _ in range(EPOCHS) for start in range(0, len(x), SIZE)]:
        bx, by = tf.constant(x[start : start + SIZE]), tf.constant(y[start : start + SIZE])
        scale = scale_of(optimizer)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(bx, training=True) - by))
            to_differentiate = scaled(optimizer, loss)
        gradients = tape.gradient(to_differentiate, variables)
        whole = [np.asarray(tf.cast(one, tf.float64)) / scale for one in gradients]
        optimizer.apply_gradients(zip(unscaled(optimizer, gradients), variables, strict=True))
        found.append(
            {
                "loss": float(loss),
                "grad_norm": float(np.sqrt(sum(np.square(one).sum() for one in whole))),
                "hidden": float(np.sqrt(sum(np.square(one).sum() for one in whole[:2]))),
                "grad_nonfinite": sum(int((~np.isfinite(one)).sum()) for one in whole),
                "loss_scale": scale,
            }
        )
    return found


def compiled(make: Value, optimizer: Optimizer, **options: Value) -> Model:
    model = make()
    model.compile(optimizer, "mse", **options)
    return model


def reporting() -> tuple[HealthReporter, RecordingSender]:
    reporter = HealthReporter(console=False)
    return reporter, recorded(reporter)


@pytest.mark.parametrize("make", [small_model, custom_model])
@pytest.mark.parametrize(
    ("policy", "options", "tolerance"),
    [
        ("float32", {}, 1e-5),
        ("float32", {"jit_compile": True}, 1e-4),
        ("float32", {"steps_per_execution": 7}, 1e-5),
        ("float32", {"run_eagerly": True}, 1e-5),
        ("mixed_float16", {}, 2e-3),
        ("mixed_float16", {"jit_compile": True}, 1e-2),
    ],
)
def test_every_step_is_measured_as_by_hand(
    make: Value, policy: str, options: dict[str, Any], tolerance: float
) -> None:
    K.mixed_precision.set_global_policy(policy)
    is_mixed = policy == "mixed_float16"
    model = compiled(make, K.optimizers.SGD(0.02), **options)
    reporter, sent = reporting()
    fit(model, reporter)
    twin = compiled(make, K.optimizers.SGD(0.02), **options)
    fit(twin)

    expected = by_hand(K.optimizers.SGD(0.02), is_mixed)
    assert sent.steps == list(range(STEPS))
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(sent.values(name), [one[name] for one in expected], rtol=tolerance)
    hidden = next(one.name for one in sent.layouts[-1][0] if "hidden" in one.name)
    found = sent.layer("layer_grad_norm", hidden)
    np.testing.assert_allclose(found, [one["hidden"] for one in expected], rtol=2 * tolerance)
    assert sent.values("grad_nonfinite") == [0.0] * STEPS
    assert sent.values("batch_size") == [10, 10, 10, 10, 10, 10, 4] * EPOCHS
    np.testing.assert_allclose(sent.values("learning_rate"), np.float32(0.02))
    assert sent.values("optimizer_step") == list(range(1, STEPS + 1))
    assert sent.values("loss_scale") == [2.0**15] * STEPS * is_mixed
    assert sent.values("skipped") == [0.0] * STEPS * is_mixed
    assert not sent.messages
    for ours, theirs in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("make", [small_model, custom_model])
def test_skipped_updates_are_counted_with_the_scale_they_were_made_with(make: Value) -> None:
    K.mixed_precision.set_global_policy("mixed_float16")
    model = compiled(make, scaler(K.optimizers.SGD(0.001), 2.0**24))
    reporter, sent = reporting()
    fit(model, reporter)
    other, twin = scaler(K.optimizers.SGD(0.001), 2.0**24), small_model()
    other.build(twin.trainable_variables)
    scales, counts = [], []
    x, y = batch()
    for start in [start for _ in range(EPOCHS) for start in range(0, len(x), SIZE)]:
        scales.append(scale_of(other))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(twin(x[start : start + SIZE]) - y[start : start + SIZE]))
            to_differentiate = scaled(other, loss)
        gradients = tape.gradient(to_differentiate, twin.trainable_variables)
        counts.append(sum(int((~np.isfinite(one.numpy())).sum()) for one in gradients))
        other.apply_gradients(zip(unscaled(other, gradients), twin.trainable_variables, strict=True))
    assert counts[0] > 0, "this training should begin with skips"
    assert sent.values("loss_scale") == scales
    assert sent.values("grad_nonfinite") == counts
    assert sent.values("skipped") == [float(count > 0) for count in counts]


def test_bad_inputs_are_counted() -> None:
    model = compiled(small_model, K.optimizers.SGD(0.01))
    x, y = batch()
    x[12, 3] = np.nan
    reporter, sent = reporting()
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter])
    assert sent.series("input_nonfinite")[1] == 1.0
    assert sent.series("weight_nonfinite")[1] == 0.0


def test_a_checkpoint_in_the_middle_is_written_and_told(tmp_path: Path) -> None:
    model = compiled(small_model, K.optimizers.Adam(0.01))
    path = str(tmp_path / "model.keras")
    reporter, sent = reporting()
    fit(model, reporter, K.callbacks.ModelCheckpoint(path, save_freq=5))
    assert [(kind, step) for kind, step, _ in sent.events if kind == "checkpoint"] == [
        ("checkpoint", 4), ("checkpoint", 9),
    ]  # fmt: skip
    loaded = K.models.load_model(path)
    loaded.fit(*batch(), batch_size=SIZE, verbose=0)


def test_after_an_interrupt_the_next_fit_goes_on() -> None:
    class Interrupting(K.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Value = None) -> None:
            if batch == 3:
                raise KeyboardInterrupt

    model = compiled(small_model, K.optimizers.SGD(0.01))
    reporter, sent = reporting()
    with pytest.raises(KeyboardInterrupt):
        fit(model, reporter, Interrupting())
    fit(model)  # ours is still in there, and says nothing
    fit(model, reporter, epochs=1)
    assert sent.steps == list(range(len(sent.steps)))
    assert [status for status, _, _ in sent.byes] == ["interrupted", "finished"]


def test_a_second_fit_goes_on_without_tracing_again() -> None:
    traced = []

    class Counting(Custom):
        def train_step(self, data: Value) -> dict[str, Tensor]:
            traced.append(1)
            return super().train_step(data)

    model = Counting()
    model.build((None, 8))
    model.compile(K.optimizers.SGD(0.01))
    fit(model, batch_size=8)
    own = model.train_function
    reporter, sent = reporting()
    fit(model, reporter, batch_size=8)
    after_one = len(traced)
    assert model.train_function is own
    fit(model, reporter, batch_size=8)
    fit(model, batch_size=8)
    assert len(traced) == after_one
    assert sent.steps == list(range(32))


def test_copies_are_runs_of_their_own() -> None:
    model = compiled(small_model, K.optimizers.SGD(0.01))
    reporter, _ = reporting()
    fit(model, reporter)
    copies = [copy.deepcopy(reporter), pickle.loads(pickle.dumps(reporter))]
    assert len({reporter.run_id, *(one.run_id for one in copies)}) == 3
    for one in copies:
        sent = recorded(one)
        fit(compiled(small_model, K.optimizers.SGD(0.01)), one)
        assert sent.steps == list(range(STEPS))


def test_a_model_in_training_is_copied_and_saved_as_without_us(tmp_path: Path) -> None:
    class Copying(K.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Value = None) -> None:
            self.model.save(str(tmp_path / f"{epoch}.keras"))
            self.model.save_weights(str(tmp_path / f"{epoch}.weights.h5"))
            pickle.loads(pickle.dumps(self.model))
            K.models.clone_model(self.model)

    reporter, sent = reporting()
    fit(compiled(small_model, K.optimizers.SGD(0.01)), reporter, Copying())
    assert sent.steps == list(range(STEPS))


def test_learning_rates_that_change_are_seen() -> None:
    rate = K.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    reporter, sent = reporting()
    fit(compiled(small_model, K.optimizers.SGD(rate)), reporter)
    expected = [0.1 * 0.5 ** (step / 2) for step in range(STEPS)]
    np.testing.assert_allclose(sent.values("learning_rate"), expected, rtol=1e-5)


def test_epochs_validation_and_versions_are_told() -> None:
    reporter, sent = reporting()
    fit(
        compiled(small_model, K.optimizers.SGD(0.01), metrics=["mae"]), reporter, validation_data=batch(16, 9)
    )
    assert [(kind, step) for kind, step, _ in sent.events] == [
        ("epoch", 6), ("validation", 6), ("epoch", 13), ("validation", 13),
    ]  # fmt: skip
    environment = sent.layouts[0][1]
    assert environment is not None
    assert environment.versions[K.__name__] == K.__version__
    assert (environment.optimizer, environment.loss, environment.batch_size) == ("SGD", "mse", 10)
    assert environment.optimizer_config["learning_rate"] == pytest.approx(0.01)


if IS_OLD:

    def test_legacy_optimizers_are_measured_too() -> None:
        K.mixed_precision.set_global_policy("mixed_float16")
        legacy = K.optimizers.legacy.SGD(0.02)
        reporter, sent = reporting()
        fit(compiled(small_model, K.mixed_precision.LossScaleOptimizer(legacy)), reporter)
        expected = by_hand(K.optimizers.legacy.SGD(0.02), has_scaler=True)
        for name in ("loss", "grad_norm"):
            np.testing.assert_allclose(sent.values(name), [one[name] for one in expected], rtol=2e-3)
        assert sent.values("loss_scale") == [2.0**15] * STEPS
        np.testing.assert_allclose(sent.values("learning_rate"), np.float32(0.02))

    def test_a_fixed_scale_is_told_and_nothing_is_skipped() -> None:
        K.mixed_precision.set_global_policy("mixed_float16")
        fixed = K.mixed_precision.LossScaleOptimizer(
            K.optimizers.SGD(0.02), dynamic=False, initial_scale=64.0
        )
        reporter, sent = reporting()
        fit(compiled(small_model, fixed), reporter)
        expected = by_hand(K.optimizers.SGD(0.02), has_scaler=True)
        np.testing.assert_allclose(
            sent.values("grad_norm"), [one["grad_norm"] for one in expected], rtol=1e-2
        )
        assert sent.values("loss_scale") == [64.0] * STEPS
        assert sent.values("skipped") == []

    def test_a_step_may_ask_tensors_as_without_us() -> None:
        class Asking(Custom):
            def train_step(self, data: Value) -> dict[str, Tensor]:
                x, y = data
                if tf.reduce_sum(x) > 0.0:  # autograph makes a tf.cond of it
                    y = y + 0.0
                return super().train_step((x, y))

        def asking() -> Model:
            model = Asking()
            model.build((None, 8))
            return model

        reporter, sent = reporting()
        fit(compiled(asking, K.optimizers.SGD(0.02)), reporter)
        expected = by_hand(K.optimizers.SGD(0.02), has_scaler=False)
        np.testing.assert_allclose(sent.values("loss"), [one["loss"] for one in expected], rtol=1e-5)

    @pytest.mark.parametrize("forgotten", ["get_scaled_loss", "get_unscaled_gradients"])
    def test_half_of_the_scaling_forgotten_is_told(forgotten: str) -> None:
        K.mixed_precision.set_global_policy("mixed_float16")

        class Forgetting(Custom):
            def train_step(self, data: Value) -> dict[str, Tensor]:
                x, y = data
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
                    is_scaled = forgotten != "get_scaled_loss"
                    to_differentiate = self.optimizer.get_scaled_loss(loss) if is_scaled else loss
                gradients = tape.gradient(to_differentiate, self.trainable_variables)
                if forgotten != "get_unscaled_gradients":
                    gradients = self.optimizer.get_unscaled_gradients(gradients)
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
                self.tracker.update_state(loss)
                return {"loss": self.tracker.result()}

        model = Forgetting()
        model.build((None, 8))
        model.compile(K.optimizers.SGD(1e-9))
        reporter, sent = reporting()
        fit(model, reporter)
        assert len(sent.messages) == 1
        assert f"never called optimizer.{forgotten}" in sent.messages[0]

    @pytest.mark.parametrize("policy", ["skip", "stop"])
    def test_keeping_updates_out_is_refused_in_words(policy: Policy) -> None:
        model = compiled(small_model, K.optimizers.SGD(0.01))
        with pytest.raises(ValueError, match=f"on_nonfinite='{policy}' is not possible with tf_keras"):
            fit(model, HealthReporter(on_nonfinite=policy, console=False))
