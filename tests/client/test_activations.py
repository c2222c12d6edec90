"""What layers give out, measured in a real `fit`, against the same layers run eagerly and numpy."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import RecordingSender, batch, recorded, small_model
from trainvitals import HealthReporter
from trainvitals.probe.types import Model, Value

pytestmark = pytest.mark.tensorflow

Layers = keras.layers
Rows = dict[int, float]
ROWS = 44  # three batches of 16, of which the last one is short
SERIES = (
    "layer_activation_absmax", "layer_dead_share", "layer_saturated_share", "layer_activation_nonfinite",
)  # fmt: skip


@pytest.fixture(autouse=True)
def plain_policy() -> Iterator[None]:
    yield
    keras.mixed_precision.set_global_policy("float32")


class Beside(keras.callbacks.Callback):  # type: ignore[misc]
    """Runs the model's layers eagerly, with the weights from before each step, on that step's batch."""

    def __init__(self, x: Value, size: int) -> None:
        super().__init__()
        self.batches = [x[start : start + size] for start in range(0, len(x), size)]
        self.outputs: list[dict[str, Value]] = []

    def on_train_batch_begin(self, batch: int, logs: Value = None) -> None:
        value, found = tf.constant(self.batches[batch]), {}
        for layer in self.model.layers:
            value = layer(value, training=True) if "dropout" in layer.name else layer(value)
            found[layer.name] = np.asarray(tf.cast(value, tf.float64))
        self.outputs.append(found)


def cells(sent: RecordingSender, name: str, layer: str) -> Rows:
    """Return the present cells of one layer by their step."""
    found = {}
    for piece in sent.pieces:
        layers = [one.name for one in sent.layouts[piece.layout_id - 1][0]]
        if name not in piece.layer_columns or layer not in layers:
            continue
        values, present = piece.layer_columns[name]
        for row, step in enumerate(piece.steps):
            if present is None or present[row, layers.index(layer)]:
                found[int(step)] = float(values[row, layers.index(layer)])
    return found


def trained(
    model: Model, every: bool | int = 1, x: Value = None, y: Value = None, **options: Value
) -> RecordingSender:
    reporter = HealthReporter(activations=every, overhead_budget=0.0)
    sent = recorded(reporter)
    if x is None:
        x, y = batch(ROWS)
    callbacks = [reporter, *options.pop("callbacks", [])]
    settings = {"batch_size": 16, "shuffle": False, "verbose": 0}
    model.fit(x, y, **{**settings, **options}, callbacks=callbacks)
    return sent


def many_layers() -> Model:
    """Return a model with each kind of judgement: relu with and without a layer of its own, tanh, sigmoid."""
    keras.utils.set_random_seed(1)
    large = keras.initializers.RandomNormal(0.0, 3.0, seed=1)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            Layers.Dense(16, activation="relu", name="inside"),
            Layers.Dense(12, name="bare"),
            Layers.ReLU(name="apart"),
            Layers.Dense(8, activation="tanh", name="bent", kernel_initializer=large),
            Layers.Dense(8, activation="sigmoid", name="gate"),
            Layers.Dense(1, name="head", dtype="float32"),
        ]
    )
    model.get_layer("bare").bias.assign([0.0] * 9 + [-50.0] * 3)
    return model


def dead_share(values: Value) -> float:
    return float((values <= 0).all(axis=0).mean())


@pytest.mark.parametrize(
    ("policy", "options", "tolerance"),
    [
        ("float32", {}, 1e-5),
        ("float32", {"run_eagerly": True}, 1e-6),
        ("mixed_float16", {}, 3e-3),
        ("mixed_bfloat16", {"jit_compile": True}, 3e-2),
    ],
)
def test_every_number_is_that_of_the_layer_run_eagerly_on_that_batch(
    policy: str, options: dict[str, Any], tolerance: float
) -> None:
    keras.mixed_precision.set_global_policy(policy)
    x, y = batch(ROWS)
    model, beside = many_layers(), Beside(x, 16)
    model.compile(keras.optimizers.SGD(0.01), "mse", **options)
    sent = trained(model, 1, x, y, callbacks=[beside])
    shares = {}
    for layer in ("inside", "apart", "bent", "gate", "head"):
        sizes = cells(sent, "layer_activation_absmax", layer)
        assert list(sizes) == [0, 1, 2]
        for step, size in sizes.items():
            np.testing.assert_allclose(size, abs(beside.outputs[step][layer]).max(), rtol=tolerance)
        shares[layer] = cells(sent, "layer_dead_share", layer)
    for step, found in enumerate(beside.outputs):
        for layer in ("inside", "apart"):
            assert shares[layer][step] == pytest.approx(dead_share(found[layer]), abs=1e-6)
        bent = cells(sent, "layer_saturated_share", "bent")[step]
        assert bent == pytest.approx(
            (abs(found["bent"]) >= 0.99).mean(), abs=0.03
        )  # one or two at the very edge
        assert bent > 0.1
    assert set(cells(sent, "layer_activation_nonfinite", "inside").values()) == {0.0}
    assert cells(sent, "layer_saturated_share", "inside") == {}  # a relu has no end
    assert dead_share(beside.outputs[0]["apart"]) >= 0.25


def test_steps_that_are_not_measured_have_no_cell_and_layers_stand_in_the_order_of_their_outputs() -> None:
    model = many_layers()
    model.compile("sgd", "mse", steps_per_execution=2)
    sent = trained(model, 4, *batch(160))
    assert list(cells(sent, "layer_activation_absmax", "apart")) == [0, 4, 8]
    assert sent.steps == list(range(10))
    names = [layer.name for layer in sent.layouts[-1][0]]
    assert names == ["inside", "bare", "apart", "bent", "gate", "head"]
    told = {layer.name: (layer.activation, layer.has_gradient) for layer in sent.layouts[-1][0]}
    assert (told["apart"], told["inside"], told["head"]) == (
        ("relu", False),
        ("relu", True),
        ("linear", True),
    )
    assert list(cells(sent, "layer_grad_norm", "bare")) == list(range(10))
    assert cells(sent, "layer_grad_norm", "apart") == {}


def test_the_step_whose_loss_is_not_finite_is_measured_and_shows_where_it_began() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            Layers.Dense(8, activation="relu", name="first"),
            Layers.Lambda(tf.math.log, name="log"),
            Layers.Dense(1, name="head"),
        ]
    )
    model.compile("sgd", "mse")
    sent = trained(model, 100, *batch(16), epochs=4)
    counts = {name: cells(sent, "layer_activation_nonfinite", name) for name in ("first", "log", "head")}
    assert counts["first"][0] == 0
    assert counts["log"][0] > 0
    assert cells(sent, "layer_activation_absmax", "log")[0] == np.inf
    assert np.isnan(cells(sent, "layer_activation_absmax", "head")[0])


def test_a_layer_that_is_called_twice_shows_the_worst_of_its_calls_and_a_cell_in_a_loop_is_left_out() -> None:
    keras.utils.set_random_seed(1)
    given = keras.Input((4, 8))
    shared = Layers.Dense(8, name="shared")
    near, far = shared(given), shared(Layers.Rescaling(100.0, name="far")(given))
    rnn = Layers.RNN(Layers.GRUCell(4, name="cell"), name="rnn")(Layers.Multiply(name="product")([near, far]))
    model = keras.Model(given, Layers.Dense(1, name="head")(rnn))
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(16, 4, 8)).astype("float32")
    expected = float(abs(np.asarray(shared(x * 100.0))).max())
    sent = trained(model, 1, x, np.zeros((16, 1), "float32"))
    assert cells(sent, "layer_activation_absmax", "shared")[0] == pytest.approx(expected, rel=1e-5)
    assert cells(sent, "layer_activation_absmax", "rnn")[0] <= 1.0
    assert not any("cell" in layer.name and not layer.has_gradient for layer in sent.layouts[-1][0])
    assert cells(sent, "layer_activation_absmax", "rnn/cell") == {}


class OwnStep(keras.Model):  # type: ignore[misc]
    """A model with layers, a call and a `train_step` of its own."""

    def __init__(self) -> None:
        super().__init__(name="own")
        self.inner = keras.Sequential([Layers.Dense(4, activation="relu", name="dense")], name="inner")
        self.head = Layers.Dense(1, name="head")

    def call(self, x: Value) -> Value:
        return 3.0 * self.head(self.inner(x))

    def train_step(self, data: Value) -> Value:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def test_a_model_with_a_step_of_its_own_shows_its_own_output_and_no_container_twice() -> None:
    model, (x, y) = OwnStep(), batch(16)
    model.compile("sgd")
    largest = float(tf.reduce_max(tf.abs(model(x))))
    sent = trained(model, 1, x, y)
    assert [layer.name for layer in sent.layouts[-1][0]] == ["inner/dense", "head", "own"]
    assert cells(sent, "layer_activation_absmax", "own")[0] == pytest.approx(largest, rel=1e-5)


def with_everything(*, is_small: bool) -> Model:
    """Return a model with what TensorFlow fuses, dropout and batch normalisation."""
    keras.utils.set_random_seed(3)
    convolution = [] if is_small else [Layers.Conv2D(8, 3), Layers.Activation("elu")]
    return keras.Sequential(
        [
            keras.Input((6, 6, 3)),
            *convolution,
            Layers.BatchNormalization(),
            Layers.ReLU(),
            Layers.Dropout(0.3),
            Layers.Flatten(),
            Layers.Dense(16),
            Layers.Activation("tanh"),
            *([] if is_small else [Layers.Dense(16, activation="gelu")]),
            Layers.LayerNormalization(name="layer_normalization"),
            Layers.Dense(1, dtype="float32"),
        ]
    )


@pytest.mark.parametrize(
    ("policy", "jit"), [("float32", False), ("mixed_float16", False), ("mixed_float16", True)]
)
def test_weights_are_bit_for_bit_those_without_it(policy: str, jit: bool) -> None:
    keras.mixed_precision.set_global_policy(policy)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(48, 6, 6, 3)).astype("float32"), rng.normal(size=(48, 1)).astype("float32")

    def weights(every: int) -> list[bytes]:
        model = with_everything(is_small=jit)  # XLA takes long to compile a convolution
        model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=jit)
        if every:
            sent = trained(model, every, x, y, epochs=2)
            assert len(cells(sent, "layer_activation_absmax", "layer_normalization")) == 3
        else:
            model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return [np.asarray(variable).tobytes() for variable in model.variables]

    assert weights(2) == weights(0)


class Copies(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves, pickles and clones the model in the middle of its training."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
        self.model.save(self.path / "model.keras")
        self.pickled = pickle.loads(pickle.dumps(self.model))
        self.clone = keras.models.clone_model(self.model)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, with NumPy 2
def test_the_model_is_saved_pickled_and_cloned_as_without_it(tmp_path: Path) -> None:
    model, copies = small_model(), Copies(tmp_path)
    model.compile("sgd", "mse")
    trained(model, 1, *batch(16), callbacks=[copies])
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for copy in (loaded, copies.pickled):
        for one, other in zip(copy.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
    assert [layer.name for layer in copies.clone.layers] == [layer.name for layer in model.layers]
    assert own_calls(model) == []


def own_calls(model: Model) -> list[str]:
    """Return the layers that have a `call` beside that of their class."""
    return [layer.name for layer in model._flatten_layers() if "call" in layer.__dict__]


class Leaves(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
        raise KeyboardInterrupt


class Breaks(keras.layers.Layer):  # type: ignore[misc]
    """A layer that fails while the step is traced."""

    def call(self, x: Value) -> Value:
        raise RuntimeError("mine")


def test_nothing_is_left_behind_by_a_fit_that_is_left_and_by_one_that_fails_while_it_is_traced() -> None:
    model = small_model()
    model.compile("sgd", "mse")
    with pytest.raises(KeyboardInterrupt):
        trained(model, 1, callbacks=[Leaves()])
    assert own_calls(model) == []
    keras.utils.set_random_seed(1)
    broken = keras.Sequential([Layers.Dense(2), Breaks(name="breaks")])
    broken.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match="mine"):
        trained(broken, 1)
    assert own_calls(broken) == []


def graphs_of(**options: Value) -> list[int]:
    """Return how many operations are in each graph that is traced of a step."""
    model, found = small_model(), []
    model.compile("sgd", "mse")
    original = model.train_step

    def counting(data: Value) -> Value:
        found.append(tf.compat.v1.get_default_graph())
        return original(data)

    object.__setattr__(model, "train_step", counting)
    reporter = HealthReporter(overhead_budget=0.0, **options)
    recorded(reporter)
    model.fit(*batch(32), batch_size=16, verbose=0, callbacks=[reporter])
    return [len(graph.get_operations()) for graph in found]


def test_it_makes_one_branch_no_further_trace_and_without_it_nothing() -> None:
    plain, watching = graphs_of(), graphs_of(activations=True)
    assert graphs_of(activations=False) == plain
    assert len(watching) == len(plain)
    assert all(0 < more - before < 20 for more, before in zip(watching, plain, strict=True))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (0, ValueError, "at least every 1 step"),
        (-3, ValueError, "at least every 1 step"),
        ("often", TypeError, "True, False or a number of steps, not 'often'"),
        (0.5, TypeError, "True, False or a number of steps, not 0.5"),
    ],
)
def test_an_interval_that_is_none_is_refused_at_once(
    given: Value, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        HealthReporter(activations=given)
