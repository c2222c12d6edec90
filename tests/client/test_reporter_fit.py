"""What `HealthReporter` measures in a real `fit`, against the same training done by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import batch, by_hand, recorded, reporting, small_model
from trainvitals import HealthReporter
from trainvitals.fit import RESUME_PROMISE_S, STARTUP_PROMISE_S
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow

SIZE, EPOCHS = 10, 2  # 64 rows: six batches of 10 and one of 4


@pytest.fixture(autouse=True)
def plain_policy() -> Iterator[None]:
    yield
    keras.mixed_precision.set_global_policy("float32")


def fit(model: keras.Model, reporter: HealthReporter, **options: Value) -> None:
    x, y = batch()
    settings = {"batch_size": SIZE, "epochs": EPOCHS, "shuffle": False, "verbose": 0, "callbacks": [reporter]}
    model.fit(x, y, **{**settings, **options})


@pytest.mark.parametrize(
    ("policy", "options", "tolerance"),
    [
        ("float32", {}, 1e-5),
        ("float32", {"jit_compile": True}, 1e-4),
        ("float32", {"steps_per_execution": 7}, 1e-5),
        ("float32", {"run_eagerly": True}, 1e-5),
        ("mixed_float16", {}, 1e-3),
        ("mixed_float16", {"jit_compile": True, "steps_per_execution": 32}, 1e-2),
        ("mixed_bfloat16", {}, 2e-2),
    ],
)
def test_every_step_is_measured_as_by_hand(policy: str, options: dict[str, Any], tolerance: float) -> None:
    keras.mixed_precision.set_global_policy(policy)
    model, twin = small_model(), small_model()
    optimizer = keras.optimizers.SGD(0.02, momentum=0.5)
    model.compile(optimizer, "mse", **options)
    reporter, sent = reporting()
    fit(model, reporter)

    twin.compile(keras.optimizers.SGD(0.02, momentum=0.5), "mse")
    expected = by_hand(twin, twin.optimizer, *batch(), SIZE, EPOCHS)
    assert sent.steps == list(range(14))
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(sent.values(name), [one[name] for one in expected], rtol=tolerance)
    np.testing.assert_allclose(
        sent.layer("layer_grad_norm", "hidden"), [one["hidden"] for one in expected], rtol=2 * tolerance
    )
    assert sent.values("grad_nonfinite") == [0.0] * 14
    assert sent.values("batch_size") == [10, 10, 10, 10, 10, 10, 4] * 2
    assert sent.values("optimizer_step") == list(range(1, 15))
    np.testing.assert_allclose(sent.values("learning_rate"), np.float32(0.02))
    assert len(sent.values("step_time_s")) == 14
    if policy == "mixed_float16":
        assert sent.values("loss_scale") == [2.0**15] * 14
        assert sent.values("skipped") == [0.0] * 14


@pytest.mark.parametrize("jit", [False, True])
def test_a_skipped_update_is_counted_with_the_scale_it_was_made_with(jit: bool) -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    model = small_model()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.001), initial_scale=2.0**24)
    model.compile(optimizer, "mse", jit_compile=jit)
    reporter, sent = reporting()
    fit(model, reporter)

    twin = small_model()
    other = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.001), initial_scale=2.0**24)
    other.build(twin.trainable_variables)
    expected = by_hand(twin, other, *batch(), SIZE, EPOCHS)
    assert expected[0]["grad_nonfinite"] > 0, "this training should begin with skips"
    assert sent.values("loss_scale") == [one["loss_scale"] for one in expected]
    counts = [one["grad_nonfinite"] for one in expected]
    if jit:  # XLA rounds float16 elsewhere: other elements overflow, in the same steps
        assert [count > 0 for count in sent.values("grad_nonfinite")] == [count > 0 for count in counts]
    else:
        assert sent.values("grad_nonfinite") == counts
    assert sent.values("skipped") == [float(one["grad_nonfinite"] > 0) for one in expected]
    updates = np.cumsum([one["grad_nonfinite"] == 0 for one in expected])
    assert sent.values("optimizer_step") == list(updates)
    assert sent.series("input_nonfinite") == {
        step: 0.0 for step, one in enumerate(expected) if one["grad_nonfinite"]
    }


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}, {"steps_per_execution": 4}])
def test_nan_inf_and_missing_stay_what_they_are(options: dict[str, Any]) -> None:
    class Scripted(keras.losses.Loss):  # type: ignore[misc]
        """A loss that is told by the labels what to be."""

        def call(self, y_true: Value, y_pred: Value) -> Value:
            return tf.reduce_mean(y_pred, axis=-1) * 0 + tf.reduce_mean(y_true, axis=-1)

    model = small_model()
    model.compile(keras.optimizers.SGD(0.0), Scripted(), **options)
    script = np.repeat(np.array([1, 2, np.nan, 3, np.inf, -np.inf], "float32"), 4)[:, None]
    reporter, sent = reporting()
    model.fit(batch(24)[0], script, batch_size=4, shuffle=False, verbose=0, callbacks=[reporter])

    losses = sent.values("loss")
    assert losses[0:2] == [1, 2]
    assert np.isnan(losses[2])
    assert losses[3:] == [3, np.inf, -np.inf]
    assert sent.series("label_nonfinite") == {2: 4.0, 4: 4.0, 5: 4.0}
    assert sent.series("input_nonfinite") == {2: 0.0, 4: 0.0, 5: 0.0}


def test_bad_weights_are_counted_before_the_update_that_follows() -> None:
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(1, name="only")]
    )  # no relu: it hides a NaN
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = batch(40)
    x[12, 3] = np.nan
    reporter, sent = reporting()
    model.fit(x, y, batch_size=10, shuffle=False, verbose=0, callbacks=[reporter])
    assert sent.series("input_nonfinite") == {1: 1.0, 2: 0.0, 3: 0.0}
    counts = sent.series("weight_nonfinite")
    assert counts[1] == 0
    assert counts[2] == sum(int(np.isnan(one).sum()) for one in model.get_weights())
    assert list(sent.layer("layer_grad_nonfinite", "only")) == [0, *sent.values("grad_nonfinite")[1:]]


def test_steps_go_on_over_two_fits_without_tracing_again() -> None:
    traced = []

    class Counting(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Value) -> Value:
            traced.append(1)
            return super().train_step(data)

    keras.utils.set_random_seed(1)
    model = Counting([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = batch(40)
    model.fit(x, y, batch_size=10, verbose=0)  # the user's own function, traced once
    reporter, sent = reporting()
    own = model.train_function
    model.fit(x, y, batch_size=10, verbose=0, callbacks=[reporter])
    after_one = len(traced)
    assert model.train_function is own
    model.fit(x, y, batch_size=10, verbose=0, callbacks=[reporter])
    model.fit(x, y, batch_size=10, verbose=0)
    assert len(traced) == after_one
    assert sent.steps == list(range(8))
    assert sent.byes == [("finished", 3, ""), ("finished", 7, "")]
    assert len(sent.layouts) == 1


def test_a_new_compile_and_thawed_layers_are_noticed() -> None:
    model, twin = small_model(), small_model()
    reporter, sent = reporting()
    expected = []
    for is_thawed, optimizer in ((False, keras.optimizers.SGD), (True, keras.optimizers.Adam)):
        for one in (model, twin):
            one.get_layer("hidden").trainable = is_thawed
        model.compile(optimizer(0.01), "mse")
        fit(model, reporter, epochs=1)
        other = optimizer(0.01)
        expected += by_hand(twin, other, *batch(), SIZE, 1)
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(sent.values(name), [one[name] for one in expected], rtol=1e-4)
    assert [[layer.name for layer in layers] for layers, _ in sent.layouts] == [["head"], ["hidden", "head"]]
    environments = [environment for _, environment in sent.layouts]
    assert [one.optimizer for one in environments if one] == ["SGD", "Adam"]
    assert sent.steps == list(range(14))


def test_a_reused_callback_list_reports_each_fit() -> None:
    model = small_model()
    model.compile("sgd", "mse")
    reporter, sent = reporting()
    callbacks = keras.callbacks.CallbackList([reporter], add_history=True, model=model, epochs=1, steps=7)
    fit(model, reporter, callbacks=callbacks, epochs=1)
    fit(model, reporter, callbacks=callbacks, epochs=1)
    assert sent.steps == list(range(14))


class Interrupting(keras.callbacks.Callback):  # type: ignore[misc]
    """Raises in a given batch, once."""

    def __init__(self, batch: int, error: BaseException) -> None:
        super().__init__()
        self._batch, self._error = batch, error
        self.is_done = False

    def on_train_batch_begin(self, batch: int, logs: Value = None) -> None:
        if batch == self._batch and not self.is_done:
            self.is_done = True
            raise self._error


def test_after_an_interrupt_the_next_fit_goes_on() -> None:
    model = small_model()
    model.compile("sgd", "mse")
    reporter, sent = reporting()
    with pytest.raises(KeyboardInterrupt):
        fit(model, reporter, callbacks=[reporter, Interrupting(3, KeyboardInterrupt())])
    x, y = batch()
    model.fit(x, y, batch_size=SIZE, verbose=0)  # ours is still in there, and says nothing
    rows_before = len(sent.steps)
    fit(model, reporter, epochs=1)
    assert rows_before <= 3
    assert sent.steps == list(range(len(sent.steps)))
    assert [status for status, _, _ in sent.byes] == ["interrupted", "finished"]


def test_an_error_inside_the_step_is_told() -> None:
    model = small_model()
    model.compile("sgd", "mse")
    reporter, sent = reporting()

    def batches() -> Iterator[Any]:
        yield from [batch(4), batch(4)]
        raise RuntimeError("the disk is gone")

    signature = (tf.TensorSpec((None, 8)), tf.TensorSpec((None, 1)))
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    with pytest.raises(tf.errors.OpError, match="the disk is gone"):
        model.fit(data, shuffle=False, verbose=0, callbacks=[reporter])
    assert sent.steps == [0, 1]
    status, step, error = sent.byes[0]
    assert (status, step) == ("failed", 1)
    assert "the disk is gone" in error


def test_epochs_and_validation_are_told() -> None:
    model = small_model()
    model.compile("sgd", "mse", metrics=["mae"])
    reporter, sent = reporting()
    fit(model, reporter, validation_data=batch(16, seed=9))
    kinds = [(kind, step) for kind, step, _ in sent.events]
    assert kinds == [("epoch", 6), ("validation", 6), ("epoch", 13), ("validation", 13)]
    epoch, validation = sent.events[0][2], sent.events[3][2]
    assert set(epoch) == {"epoch", "loss_running", "mae_running"}
    assert set(validation) == {"epoch", "val_loss", "val_mae"}
    assert validation["val_loss"] == pytest.approx(model.evaluate(*batch(16, seed=9), verbose=0)[0], rel=1e-5)
    assert "validation" in [activity for _, activity in sent.promises]
    assert 6 in sent.series("mae_running")


def test_only_what_may_take_long_is_promised_long() -> None:
    model = small_model()
    model.compile("sgd", "mse")
    reporter, sent = reporting()
    fit(model, reporter, validation_data=batch(16, seed=9))
    assert sent.promises[0] == (STARTUP_PROMISE_S, "training"), "the first step compiles"
    ends = [number for number, (_, activity) in enumerate(sent.promises) if activity == "validation"]
    assert len(ends) == 2
    assert min(seconds for seconds, _ in sent.promises[1 : ends[0]]) < RESUME_PROMISE_S
    assert all(seconds < STARTUP_PROMISE_S for seconds, _ in sent.promises[ends[0] + 1 : ends[1]])
    assert all(seconds <= RESUME_PROMISE_S for seconds, _ in sent.promises[ends[1] + 1 :])
    assert sent.promises[-1] == (RESUME_PROMISE_S, "training"), "other callbacks may take their time"


def test_the_environment_says_what_the_run_is_made_of() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8,))
    masked = keras.layers.Lambda(lambda x: tf.nn.softmax(x + tf.constant(-65504.0, tf.float16)))(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="head")(masked))
    rate = keras.optimizers.schedules.CosineDecay(0.1, 100)
    model.compile(keras.optimizers.Adam(rate, epsilon=1e-5), keras.losses.MeanSquaredError())
    reporter, sent = reporting()
    fit(model, reporter)
    environment = sent.layouts[0][1]
    assert environment is not None
    assert (environment.dtype_policy, environment.optimizer, environment.loss) == (
        "mixed_float16", "Adam", "MeanSquaredError",
    )  # fmt: skip
    assert environment.loss_scaling
    assert environment.optimizer_config["epsilon"] == 1e-5
    assert environment.optimizer_config["learning_rate"] == "CosineDecay"
    assert environment.optimizer_config["learning_rate.initial_learning_rate"] == 0.1
    assert (environment.steps_per_epoch, environment.epochs, environment.batch_size) == (7, 2, 10)
    assert len(environment.operations["float16_limit_constant"]) == 1
    assert len(environment.operations["Softmax"]) == 1
    assert not any("trainvitals" in name for names in environment.operations.values() for name in names)
    assert environment.versions["keras"] == keras.__version__
    layer = sent.layouts[0][0][0]
    assert (layer.name, layer.kind, layer.parameters, layer.dtype) == ("head", "Dense", 9, "float32")
    np.testing.assert_allclose(
        sent.values("learning_rate"), [float(rate(step)) for step in range(14)], rtol=1e-6
    )


def test_the_dashboard_can_stop_the_run() -> None:
    model = small_model()
    model.compile("sgd", "mse")
    reporter, sent = reporting()

    class Asking(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
            reporter._session.stop_requested = True

    fit(model, reporter, callbacks=[reporter, Asking()])
    assert sent.steps == [0, 1]
    assert sent.byes == [("stopped", 1, "")]


def test_a_broken_probe_leaves_the_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Value) -> Value:
        raise RuntimeError("our own mistake")

    monkeypatch.setattr("trainvitals.probe.measure.half_sums", broken)
    model, twin = small_model(), small_model()
    for one in (model, twin):
        one.compile("sgd", "mse")
    reporter = HealthReporter()
    recorded(reporter)
    fit(model, reporter)
    twin.fit(*batch(), batch_size=SIZE, epochs=EPOCHS, shuffle=False, verbose=0)
    for ours, theirs in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
