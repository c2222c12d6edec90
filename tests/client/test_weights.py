"""Weights and what a step changes of them, measured now and then in a real `fit`, against numpy."""

from __future__ import annotations

import csv
import gc
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from server_process import running_server
from training import RecordingSender, batch, layer_cells, recorded, small_model
from trainvitals import HealthReporter
from trainvitals.probe.decode import Decoded
from trainvitals.probe.layers import group_variables
from trainvitals.probe.types import Model, Value
from trainvitals.probe.weights import Weights, norms_of
from trainvitals.rows import Cells

pytestmark = pytest.mark.tensorflow

OFTEN = 0.999  # of the time: a measurement may come nearly at once after the last one
ROWS = 160
TIMEOUT_S = 30.0


@pytest.fixture(autouse=True)
def plain_policy() -> Iterator[None]:
    yield
    keras.mixed_precision.set_global_policy("float32")


class Beside(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the weights of before and after each step, and has the rows read after each."""

    def __init__(self, reporter: HealthReporter) -> None:
        super().__init__()
        self.reporter = reporter
        self.before: list[dict[str, list[Value]]] = []
        self.after: list[dict[str, list[Value]]] = []

    def on_train_batch_begin(self, batch: int, logs: Value = None) -> None:
        self.before.append(self._weights())

    def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
        self.after.append(self._weights())
        fit = self.reporter._fit
        assert fit is not None
        fit.hurry(is_training_thread=True)

    def _weights(self) -> dict[str, list[Value]]:
        layers = self.model._flatten_layers()
        own = {one.name: [np.asarray(w, np.float64) for w in one._trainable_variables] for one in layers}
        return {name: weights for name, weights in own.items() if weights}

    def norm(self, step: int, layer: str) -> float:
        return whole_norm(self.before[step][layer])

    def ratio(self, step: int, layer: str) -> float:
        pairs = zip(self.before[step][layer], self.after[step][layer], strict=True)
        return whole_norm([after - before for before, after in pairs]) / self.norm(step, layer)


def whole_norm(values: list[Value]) -> float:
    return float(np.linalg.norm(np.concatenate([one.ravel() for one in values])))


def trained(
    model: Model, share: float = OFTEN, x: Value = None, y: Value = None, **options: Value
) -> tuple[Beside, RecordingSender]:
    """Train a compiled model and return its weights at each step and what the reporter sent."""
    reporter = HealthReporter(overhead_budget=share)
    sent, beside = recorded(reporter), Beside(reporter)
    if x is None:
        x, y = batch(ROWS)
    settings = {"batch_size": 4, "shuffle": False, "verbose": 0, "callbacks": [reporter, beside]}
    model.fit(x, y, **{**settings, **options})
    return beside, sent


def compiled(model: Model, optimizer: Value = None, loss: str = "mse", **options: Value) -> Model:
    model.compile(optimizer or keras.optimizers.Adam(0.01), loss, **options)
    return model


@pytest.mark.parametrize(
    ("policy", "options", "tolerance"),
    [
        ("float32", {}, 1e-5),
        ("float32", {"jit_compile": True}, 1e-5),
        ("float32", {"run_eagerly": True}, 1e-5),
        ("mixed_float16", {}, 1e-5),
        ("float16", {}, 1e-5),
        ("float64", {}, 1e-12),
    ],
)
def test_norm_and_update_ratio_are_those_of_that_very_step(
    policy: str, options: dict[str, Any], tolerance: float
) -> None:
    keras.mixed_precision.set_global_policy(policy)
    optimizer = keras.optimizers.SGD(0.01) if policy == "float16" else None
    beside, sent = trained(compiled(small_model(), optimizer, **options))
    for layer, exact in (("hidden", tolerance), ("head", 1e-5)):  # the head is float32 under every policy
        norms = layer_cells(sent, "layer_weight_norm", layer)
        ratios = layer_cells(sent, "layer_update_ratio", layer)
        assert len(norms) >= 3
        assert ratios.keys() == norms.keys()
        for step, norm in norms.items():
            np.testing.assert_allclose(norm, beside.norm(step, layer), rtol=exact)
            np.testing.assert_allclose(ratios[step], beside.ratio(step, layer), rtol=20 * exact)


def test_a_step_that_was_not_measured_has_no_cell() -> None:
    _, sent = trained(compiled(small_model()), share=1e-9)
    measured = layer_cells(sent, "layer_weight_norm", "hidden").keys()
    assert 1 in measured
    assert len(measured) <= 2  # the second time comes after seconds, the third long after
    assert sent.series("weight_nonfinite") == dict.fromkeys(measured, 0.0)
    assert sent.steps == list(range(40))


def test_what_was_not_measured_is_missing_at_the_server(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        reporter = HealthReporter(server.url, run_id="weights", console=False)
        compiled(small_model()).fit(*batch(ROWS), batch_size=4, verbose=0, callbacks=[reporter])
        assert reporter._session.sender.flush(TIMEOUT_S)
        names = "weight_nonfinite,layer_weight_norm,layer_update_ratio"
        address = f"{server.url}/api/v1/runs/weights/export.csv?names={names}"
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            rows = list(csv.DictReader(answer.read().decode().splitlines()))
    for name in ("weight_nonfinite", "layer_weight_norm/hidden", "layer_update_ratio/head"):
        assert float(rows[1][name]) >= 0
        assert rows[0][name] == rows[2][name] == "", "a step before the first or right after it"
    assert len(rows) == 40


def test_a_share_of_zero_measures_nothing() -> None:
    _, sent = trained(compiled(small_model()), share=0.0)
    assert not any("layer_weight_norm" in piece.layer_columns for piece in sent.pieces)
    assert sent.series("weight_nonfinite") == {}


def test_an_execution_of_several_steps_has_norms_and_no_ratio() -> None:
    beside, sent = trained(compiled(small_model(), steps_per_execution=5))
    norms = layer_cells(sent, "layer_weight_norm", "hidden")
    assert len(norms) >= 2
    for step, norm in norms.items():
        assert step % 5 == 0
        np.testing.assert_allclose(norm, beside.norm(step // 5, "hidden"), rtol=1e-5)
    assert layer_cells(sent, "layer_update_ratio", "hidden") == {}


def test_steps_that_only_accumulate_have_no_ratio() -> None:
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
    beside, sent = trained(compiled(small_model(), optimizer), epochs=3)
    ratios = layer_cells(sent, "layer_update_ratio", "hidden")
    assert len(ratios) < len(layer_cells(sent, "layer_weight_norm", "hidden"))
    assert {step % 4 for step in ratios} <= {3}
    for step, ratio in ratios.items():
        np.testing.assert_allclose(ratio, beside.ratio(step, "hidden"), rtol=1e-4)


def test_an_embedding_and_averaged_weights_are_measured() -> None:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Embedding(50, 4, name="words"), keras.layers.Flatten(), keras.layers.Dense(1)]
    optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2)
    model = compiled(keras.Sequential([keras.Input((3,), dtype="int32"), *layers]), optimizer)
    x = np.random.default_rng(0).integers(0, 50, (ROWS, 3))
    beside, sent = trained(model, x=x, y=np.ones((ROWS, 1), "float32"))
    ratios = layer_cells(sent, "layer_update_ratio", "words")
    assert len(ratios) >= 3
    for step, ratio in ratios.items():
        np.testing.assert_allclose(ratio, beside.ratio(step, "words"), rtol=1e-4)


def test_weights_that_are_not_finite_are_counted_and_their_norm_says_so() -> None:
    model = compiled(small_model(), keras.optimizers.SGD(0.0))
    kernel, bias = model.get_layer("hidden").get_weights()
    kernel[2, 3], kernel[5, 1] = np.nan, np.inf
    model.get_layer("hidden").set_weights([kernel, bias])
    beside, sent = trained(model)
    counts = sent.series("weight_nonfinite")
    assert counts[1] > 2, "the first update should spread them"
    for step, count in counts.items():
        weights = [one for layer in beside.before[step].values() for one in layer]
        assert count == sum(int((~np.isfinite(one)).sum()) for one in weights)
    assert np.isnan(list(layer_cells(sent, "layer_weight_norm", "hidden").values())).all()


def test_layers_frozen_between_two_fits_are_no_longer_measured() -> None:
    model = compiled(small_model())
    reporter = HealthReporter(overhead_budget=OFTEN)
    sent, beside = recorded(reporter), Beside(reporter)
    model.fit(*batch(ROWS), batch_size=4, verbose=0, callbacks=[reporter, beside])
    model.get_layer("hidden").trainable = False
    compiled(model)
    model.fit(*batch(ROWS), batch_size=4, verbose=0, callbacks=[reporter, beside])
    assert max(layer_cells(sent, "layer_weight_norm", "hidden")) < 40
    head = layer_cells(sent, "layer_update_ratio", "head")
    assert max(head) > 40
    for step, ratio in head.items():
        np.testing.assert_allclose(ratio, beside.ratio(step, "head"), rtol=1e-4)


@pytest.mark.parametrize(("policy", "jit"), [("float32", False), ("mixed_float16", True)])
def test_measuring_changes_no_bit_of_the_weights(policy: str, jit: bool) -> None:
    keras.mixed_precision.set_global_policy(policy)

    def weights_of(share: float) -> list[Value]:
        model = compiled(small_model(), jit_compile=jit)
        trained(model, share)
        return [one.tobytes() for one in model.get_weights()]

    assert weights_of(OFTEN) == weights_of(0.0)


class Raising(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the training by an exception in its third step's function."""

    def on_train_batch_begin(self, batch: int, logs: Value = None) -> None:
        if batch == 2:
            raise ZeroDivisionError


@pytest.mark.parametrize("callbacks", [[], [Raising()]])
def test_no_old_weight_is_kept(callbacks: list[Value]) -> None:
    model = compiled(small_model())
    reporter = HealthReporter(overhead_budget=OFTEN)
    recorded(reporter)
    try:
        model.fit(*batch(), batch_size=4, verbose=0, callbacks=[reporter, Beside(reporter), *callbacks])
    except ZeroDivisionError:
        assert callbacks
    gc.collect()
    shape = (8, 16)
    held = [one for one in gc.get_objects() if type(one).__name__ == "EagerTensor" and one.shape == shape]
    assert held == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.full((40, 3), 1e-24),  # squares are 0 in float32
        lambda: np.full((40, 3), 3e20),  # infinite
        lambda: np.zeros((4,)),
        lambda: np.array([1.0, np.inf]),
        lambda: np.array([1.0, np.inf, np.nan]),
    ],
)
def test_a_norm_keeps_its_range(make: Callable[[], Value]) -> None:
    values = make()
    norms = norms_of([tf.constant(values, tf.float32), tf.ones([4])])
    np.testing.assert_allclose(norms, np.array([np.linalg.norm(values), 2.0]), rtol=1e-6)


def test_a_measurement_waits_for_its_row_and_a_layer_without_gradient_has_no_ratio() -> None:
    model = small_model()
    variables = model.trainable_variables
    groups = group_variables(variables, model)
    weights, columns = Weights(OFTEN), dict[str, Cells]()
    strategy = SimpleNamespace(num_replicas_in_sync=1)
    weights.begin(SimpleNamespace(distribute_strategy=strategy, steps_per_execution=1, optimizer=None))
    weights.note_before(7, variables, groups)
    variables[0].assign(1.5 * variables[0])
    weights.note_after()
    assert weights.add_to(columns, Decoded(np.arange(5), {}, {}), groups) == {}
    gradients = (np.ones((3, 2)), np.array([[True, True], [True, False], [True, True]]))
    layers = weights.add_to(columns, Decoded(np.arange(6, 9), {}, {"layer_grad_norm": gradients}), groups)
    _, has_norm = layers["layer_weight_norm"]
    ratios, has_ratio = layers["layer_update_ratio"]
    assert has_norm is not None
    assert has_norm.tolist() == [[False, False], [True, True], [False, False]]
    assert has_ratio is not None
    assert has_ratio.tolist() == [[False, False], [True, False], [False, False]]
    np.testing.assert_allclose(ratios[1, 0], np.float64(0.5), rtol=1e-6)  # the bias is 0
    assert columns["weight_nonfinite"][1] is not None
    assert weights.add_to({}, Decoded(np.arange(7, 9), {}, {}), groups) == {}, "it is told once"


def test_several_replicas_are_left_alone() -> None:
    """Each holds a copy of every weight, and none of them is the weight."""
    weights, rows = Weights(OFTEN), Decoded(np.arange(1), {}, {})
    groups = group_variables(small_model().trainable_variables)
    for replicas, columns in ((2, []), (1, ["weight_nonfinite"])):
        strategy = SimpleNamespace(num_replicas_in_sync=replicas)
        weights.begin(SimpleNamespace(distribute_strategy=strategy, steps_per_execution=2))
        weights.note_before(0, small_model().trainable_variables, groups)
        weights.note_after()
        found: dict[str, Cells] = {}
        weights.add_to(found, rows, groups)
        assert list(found) == columns
