"""Real trainings whose layers die, saturate or grow: what was measured of their outputs proves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import keras
import numpy as np
import pytest

from training import RecordingSender, recorded
from trainvitals import HealthReporter
from trainvitals.probe.types import Model, Value
from trainvitals.rows import Cells
from trainvitals.wire import Environment
from trainvitals_server.batch import Batch, Series
from trainvitals_server.fold import scan
from trainvitals_server.incident import Incident

pytestmark = pytest.mark.tensorflow

Layers = keras.layers
Change = Callable[[Model, int], None]
KINDS = ("dead_units", "saturation", "activation_overflow")
PROVEN = 0.95


@pytest.fixture(autouse=True)
def plain_policy() -> Iterator[None]:
    yield
    keras.mixed_precision.set_global_policy("float32")


class Beside(keras.callbacks.Callback):  # type: ignore[misc]
    """Does something to the model before each step."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def on_train_batch_begin(self, batch: int, logs: Value = None) -> None:
        self.change(self.model, batch)


def trained(model: Model, every: int, change: Change, steps: int = 128) -> list[Incident]:
    """Train on labels that depend on the inputs, and return what the server says of the rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16 * steps, 8)).astype("float32")
    y = (x[:, :1] - 2 * x[:, 1:2]).astype("float32")
    reporter = HealthReporter(activations=every, overhead_budget=0.0)
    sent = recorded(reporter)
    model.compile(keras.optimizers.SGD(0.001), "mse")
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0, callbacks=[Beside(change), reporter])
    layers, environment = sent.layouts[-1]
    found = scan(batches(sent), environment=environment or Environment(), layers=layers)
    return [item for item in found if item.kind in KINDS]


def batches(sent: RecordingSender) -> Iterator[Batch]:
    for piece in sent.pieces:
        layers = tuple(sent.layouts[piece.layout_id - 1][0])
        columns = {name: series(cells) for name, cells in piece.columns.items()}
        layer_columns = {name: series(cells) for name, cells in piece.layer_columns.items()}
        yield Batch(piece.steps, columns, layer_columns, layers)


def series(cells: Cells) -> Series:
    values, present = cells
    return Series(values.astype(np.float64), np.ones(values.shape, bool) if present is None else present)


def nothing(model: Model, step: int) -> None:
    return None


def network(*hidden: Value) -> Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((8,)), *hidden, Layers.Dense(1, name="head", dtype="float32")])


def test_units_that_are_thrown_below_zero_are_proven_dead() -> None:
    def throw(model: Model, step: int) -> None:
        if step == 40:
            model.get_layer("hidden").bias.assign(np.full(16, -50.0))

    (incident,) = trained(network(Layers.Dense(16, name="hidden"), Layers.ReLU(name="relu")), 5, throw)
    assert (incident.kind, incident.onset_step, incident.layer) == ("dead_units", 40, "hidden")
    assert (incident.causes[0].cause, incident.causes[0].confidence >= PROVEN) == ("dead_relu", True)
    assert "no unit of relu fired" in incident.verdict


def test_a_tanh_with_far_too_large_weights_is_proven_saturated() -> None:
    large = keras.initializers.RandomNormal(0.0, 60.0, seed=1)
    hidden = Layers.Dense(16, activation="tanh", kernel_initializer=large, name="bent")

    def forget(model: Model, step: int) -> None:
        model.get_layer("head").kernel.assign(np.full((16, 1), 0.01))  # else the head would learn

    (incident,) = trained(network(hidden), 4, forget)
    assert (incident.kind, incident.layer) == ("saturation", "bent")
    first = incident.causes[0]
    assert (first.cause, first.confidence >= PROVEN) == ("saturated_activation", True)


def test_a_float16_layer_that_grows_is_told_before_it_overflows_and_a_steady_one_is_not() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")

    def grow(model: Model, step: int) -> None:
        kernel = model.get_layer("grow").kernel
        kernel.assign(1.1 * kernel)

    def half() -> Model:
        return network(Layers.Dense(16, use_bias=False, name="grow"), Layers.LayerNormalization(name="norm"))

    (incident,) = trained(half(), 2, grow, steps=98)
    assert (incident.kind, incident.layer, incident.severity) == ("activation_overflow", "grow", "warning")
    size = incident.findings[0].facts["largest_output"]
    assert isinstance(size, float)
    assert 8000 < size < 40_000
    assert incident.causes[0].cause == "float16_activation_overflow"
    assert trained(half(), 2, nothing, steps=98) == []
