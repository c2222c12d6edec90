"""A preflight changes nothing: what it touches is bit for bit what it was, and the training is the same."""

from __future__ import annotations

import random
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from trainvitals import HealthReporter
from trainvitals.preflight import preflight
from trainvitals.probe.types import Value

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("default_policy")]


class Counting(layers.Layer):  # type: ignore[misc]
    """Keeps numbers and lists of Python's, and makes its weight when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.seen: list[int] = []

    def build(self, shape: Value) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="random_normal")

    def call(self, x: Value) -> Value:
        self.calls += 1
        self.seen.append(self.calls)
        return x * self.scale + 0.01 * keras.random.normal((1,), dtype=x.dtype)


def members() -> list[Value]:
    return [
        layers.Dense(8, activation="relu"),
        layers.BatchNormalization(),
        layers.Dropout(0.5),
        Counting(),
        layers.GaussianNoise(0.1),
        layers.Dense(1, dtype="float32"),
    ]


def built() -> Value:
    return keras.Sequential([keras.Input((4,)), *members()])


def unbuilt() -> Value:
    return keras.Sequential(members())


class Subclassed(keras.Model):  # type: ignore[misc]
    """Makes its layers' weights in its first call, and has a train_step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = keras.Sequential(members())
        self.steps = 0

    def call(self, x: Value, training: bool = False) -> Value:
        return self.body(x, training=training)

    def train_step(self, data: Value) -> dict[str, Value]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.steps += 1
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, self(x))
        return {metric.name: metric.result() for metric in self.metrics}


def numbers(*shape: int) -> Value:
    return np.random.default_rng(2).normal(size=shape).astype("float32")


BATCH = (numbers(16, 4), numbers(16, 1))
MODELS: list[Callable[[], Value]] = [built, unbuilt, Subclassed]


def drawn() -> list[float]:
    """Return a number of every source of randomness."""
    eager = [tf.random.uniform(()), keras.random.uniform(()), tf.random.get_global_generator().uniform(())]
    return [random.random(), float(np.random.random()), *map(float, eager)]


def trained(make: Callable[[], Value], policy: str, has_preflight: bool) -> tuple[list[bytes], list[Value]]:
    """Return all that a training ends with, with a preflight before it and one in the middle, or without."""
    keras.backend.clear_session()
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(9)
    tf.random.get_global_generator().reset_from_seed(9)
    model = make()
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], jit_compile=False)
    drawings = []
    for _ in range(2):
        if has_preflight:
            assert preflight(model, BATCH).ok
        model.fit(*BATCH, batch_size=8, epochs=2, verbose=0)
        drawings.append(drawn())
    drawings.append(keras.layers.Dense(1).name)
    held = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [np.asarray(one).tobytes() for one in held], drawings


@pytest.mark.parametrize(
    ("make", "policy"), [(built, "mixed_float16"), (unbuilt, "float32"), (Subclassed, "mixed_float16")]
)
def test_a_training_is_bit_for_bit_the_one_without_a_preflight(
    make: Callable[[], Value], policy: str
) -> None:
    assert trained(make, policy, has_preflight=True) == trained(make, policy, has_preflight=False)


@pytest.mark.parametrize("make", MODELS, ids=lambda one: one.__name__)
def test_what_was_not_built_is_not_built_afterwards(make: Callable[[], Value]) -> None:
    model = make()
    model.compile("adam", "mse", metrics=["mae"])
    loss, metrics, function = model._compile_loss, model._compile_metrics, model.train_function
    before = (model.built, len(model.variables), list(vars(model)), len(model.layers))
    preflight(model, BATCH)
    assert (model.built, len(model.variables), list(vars(model)), len(model.layers)) == before
    assert not model.optimizer.built
    assert model._compile_loss is loss
    assert model._compile_metrics is metrics
    assert not loss.built
    assert not metrics.built
    assert model.train_function is function


def test_counters_and_lists_of_a_layer_are_as_before() -> None:
    model = built()
    model.compile("adam", "mse")
    (counting,) = (layer for layer in model.layers if isinstance(layer, Counting))
    calls, seen = counting.calls, list(counting.seen)
    preflight(model, BATCH)
    assert (counting.calls, list(counting.seen)) == (calls, seen)


def test_no_source_of_randomness_moves_on() -> None:
    model = built()
    model.compile("adam", "mse")
    keras.utils.set_random_seed(3)
    tf.random.get_global_generator().reset_from_seed(3)
    expected = drawn()
    keras.utils.set_random_seed(3)
    tf.random.get_global_generator().reset_from_seed(3)
    preflight(model, BATCH)
    assert drawn() == expected


def test_metrics_keep_what_they_have_counted() -> None:
    model = built()
    model.compile("adam", "mse", metrics=["mae"])
    model.train_on_batch(*BATCH)
    before = [one.numpy().tobytes() for one in model.metrics_variables]
    preflight(model, BATCH)
    assert [one.numpy().tobytes() for one in model.metrics_variables] == before


# What it takes


@pytest.mark.parametrize(
    "batch",
    [
        BATCH,
        [*BATCH],
        (*BATCH, np.ones(16, "float32")),
        (tf.constant(BATCH[0]), tf.constant(BATCH[1])),
        next(iter(tf.data.Dataset.from_tensor_slices(BATCH).batch(8))),
        (BATCH[0].astype("float64"), BATCH[1].astype("float64")),
    ],
    ids=["tuple", "list", "weights", "tensors", "element", "float64"],
)
def test_every_form_of_a_batch_is_taken(batch: Value) -> None:
    model = built()
    model.compile("adam", "mse")
    assert str(preflight(model, batch)) == "preflight: nothing found"


def test_a_model_that_is_not_compiled_is_looked_at_without_its_loss() -> None:
    model = keras.Sequential([layers.Dense(1, activation="softmax", name="one")])
    report = preflight(model, BATCH[0] * 100)
    assert [one.code for one in report.findings] == ["single_unit_softmax", "input_not_normalised"]
    assert report.notes == (
        "without a compiled loss, labels, gradients and what feeds the loss were not looked at",
    )


def test_of_a_very_large_batch_the_labels_are_all_looked_at() -> None:
    model = keras.Sequential([layers.Dense(3, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    labels = np.zeros(3000, "int64")
    labels[2999] = 3
    report = preflight(model, (numbers(3000, 4), labels))
    assert [(one.code, one.samples) for one in report.findings] == [("labels_outside_domain", (2999,))]
    assert report.notes == ("the step was run with the first 1024 samples of the batch only",)


def test_bad_labels_with_a_weight_of_0_are_left_alone() -> None:
    model = keras.Sequential([layers.Dense(1, activation="sigmoid")])
    model.compile("adam", "binary_crossentropy")
    labels = np.ones((16, 1), "float32")
    labels[3] = -1
    weights = np.ones(16, "float32")
    weights[3] = 0
    assert preflight(model, (BATCH[0], labels, weights)).findings == ()


def test_missing_values_that_the_model_replaces_are_a_note() -> None:
    replacing = layers.Lambda(lambda x: keras.ops.where(keras.ops.isnan(x), 0.0, x))
    model = keras.Sequential([replacing, layers.Dense(1)])
    model.compile("adam", "mse")
    x = BATCH[0].copy()
    x[2, 2] = np.nan
    report = preflight(model, (x, BATCH[1]))
    assert report.findings == ()
    assert report.notes == ("x is not finite everywhere, which does no harm in this step",)


@pytest.mark.parametrize(
    ("model", "batch", "error"),
    [
        (None, BATCH, TypeError),
        (BATCH[0], BATCH, TypeError),
        (unbuilt, "words", TypeError),
        (unbuilt, tf.data.Dataset.from_tensors(BATCH), TypeError),
        (unbuilt, (1, 2, 3, 4), ValueError),
        (unbuilt, (BATCH[0][:0], BATCH[1][:0]), ValueError),
    ],
    ids=["none", "array", "words", "dataset", "four", "empty"],
)
def test_what_is_plainly_no_model_or_no_batch_is_refused(model: Value, batch: Value, error: type) -> None:
    with pytest.raises(error):
        preflight(model() if callable(model) else model, batch)


def test_it_is_there_before_a_reporter_and_on_one() -> None:
    model = built()
    model.compile("adam", "mse")
    assert HealthReporter.preflight(model, BATCH) == HealthReporter(console=False).preflight(model, BATCH)


def test_a_train_step_that_raises_leaves_all_as_it_was() -> None:
    class Broken(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Value) -> dict[str, Value]:
            self.variables[0].assign_add(tf.ones_like(self.variables[0]))
            raise KeyError("no such thing")

    model = Broken([keras.Input((4,)), layers.Dense(1)])
    model.compile("adam", "mse")
    before = model.variables[0].numpy()
    report = preflight(model, BATCH)
    assert [one.code for one in report.findings] == ["step_raises"]
    assert np.array_equal(model.variables[0].numpy(), before)


def test_a_batch_without_labels_says_so() -> None:
    model = built()
    model.compile("adam", "mse")
    (found,) = preflight(model, BATCH[0]).findings
    assert "the batch has none" in found.what


def test_a_train_step_may_take_its_batch_apart() -> None:
    class Popping(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: dict[str, Value]) -> dict[str, Value]:
            y = data.pop("y")
            with tf.GradientTape() as tape:
                loss = keras.ops.mean(keras.ops.square(y - self(data["x"])))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    model = Popping([layers.Dense(1)])
    model.compile("adam")
    batch = dict(zip("xy", BATCH, strict=True))
    assert str(preflight(model, batch)) == "preflight: nothing found"
    assert set(batch) == {"x", "y"}


def test_what_a_step_raises_is_told_without_its_surroundings() -> None:
    model = keras.Sequential([keras.Input((5,)), layers.Dense(1)])
    model.compile("adam", "mse")
    (found,) = preflight(model, BATCH).findings
    assert "incompatible" in found.what
    assert "\x1b" not in found.what


def test_a_model_of_another_keras_is_a_note() -> None:
    class Other:
        pass

    Other.__module__ = "tf_keras.src.engine.training"
    report = preflight(Other(), BATCH)
    assert report.ok
    assert "nothing was looked at" in report.notes[0]
