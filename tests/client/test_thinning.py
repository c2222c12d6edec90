"""The norm pass of a heavy model in some steps only, in a real `fit`, against the same steps done by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import Array, RecordingSender, by_hand, recorded
from trainvitals import HealthReporter
from trainvitals.probe.thinning import HEAVY_BYTES, Thinning, pass_seconds
from trainvitals.probe.types import Value
from trainvitals.vigil import LENGTHS

pytestmark = pytest.mark.tensorflow

WIDTH, SIZE = 1024, 4
EVERY = 4
BAD_STEP = 9  # none of those that are measured


@pytest.fixture(autouse=True)
def plain_policy() -> Iterator[None]:
    yield
    keras.mixed_precision.set_global_policy("float32")


def heavy_model(optimizer: Value = "sgd", **options: Value) -> keras.Model:
    """Return a model of two large kernels, just large enough."""
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(WIDTH, name=name, use_bias=False) for name in ("hidden", "above")]
    model = keras.Sequential(
        [keras.Input((8,)), *layers, keras.layers.Dense(1, name="head", dtype="float32")]
    )
    assert sum(4 * int(np.prod(one.shape)) for one in model.trainable_variables) >= HEAVY_BYTES
    model.compile(optimizer, "mse", **{"jit_compile": False, **options})
    return model


def data(steps: int) -> tuple[Array, Array]:
    x = np.random.default_rng(0).normal(size=(steps * SIZE, 8)).astype("float32")
    return x, 0.1 * x[:, :1]


class Thinned(keras.callbacks.Callback):  # type: ignore[misc]
    """Lets the norm pass run every k-th step, as a budget far too small would."""

    def __init__(self, reporter: HealthReporter, every: int = EVERY) -> None:
        super().__init__()
        self.reporter, self.every = reporter, every

    def on_train_batch_begin(self, batch: int, logs: Value = None) -> None:
        thinning = thinning_of(self.reporter)
        assert thinning is not None
        thinning.set(self.every)


def thinning_of(reporter: HealthReporter) -> Thinning | None:
    fit: Value = reporter._fit
    dials = fit._probe.dials
    return None if dials is None else dials.thinning


def thinned(model: keras.Model, steps: int, **options: Any) -> RecordingSender:  # noqa: ANN401
    reporter = HealthReporter(overhead_budget=0.0)
    sent = recorded(reporter)
    x, y = options.pop("data", data(steps))
    callbacks = [Thinned(reporter), reporter]
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=callbacks, **options)
    return sent


def present_of(sent: RecordingSender, name: str) -> list[int]:
    """Return the steps in which all layers of a layer series are there; none may be there alone."""
    found: list[int] = []
    for piece in sent.pieces:
        values, present = piece.layer_columns[name]
        flags = np.ones(values.shape, dtype=bool) if present is None else present
        assert (flags.all(axis=1) == flags.any(axis=1)).all()
        found += [int(step) for step in piece.steps[flags.all(axis=1)]]
    return found


WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "graph": dict,
    "eager": lambda: {"run_eagerly": True},
    "several steps an execution": lambda: {"steps_per_execution": 5},
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_steps_that_are_measured_have_their_norms_and_the_others_have_none(way: str, policy: str) -> None:
    keras.mixed_precision.set_global_policy(policy)
    steps = 15
    sent = thinned(heavy_model("sgd", **WAYS[way]()), steps)
    twin = heavy_model("sgd")
    oracle = by_hand(twin, twin.optimizer, *data(steps), SIZE, epochs=1)
    measured = list(range(0, steps, EVERY))
    norms = sent.series("grad_norm")
    assert sorted(norms) == sorted(sent.series("grad_nonfinite")) == measured
    for name in ("layer_grad_norm", "layer_grad_nonfinite"):
        assert present_of(sent, name) == measured
    assert sorted(sent.series("loss")) == list(range(steps))
    tolerance = 1e-4 if policy == "float32" else 2e-2
    np.testing.assert_allclose(sent.values("loss"), [one["loss"] for one in oracle], rtol=tolerance)
    expected = [oracle[step]["grad_norm"] for step in measured]
    np.testing.assert_allclose([norms[step] for step in measured], expected, rtol=tolerance)
    if policy == "mixed_float16":
        skipped = {step: one["grad_nonfinite"] > 0 for step, one in enumerate(oracle)}
        assert {step: bool(value) for step, value in sent.series("skipped").items()} == skipped


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_leaving_the_pass_out_changes_no_bit_of_the_weights(policy: str) -> None:
    keras.mixed_precision.set_global_policy(policy)
    plain = heavy_model("adam")
    plain.fit(*data(12), batch_size=SIZE, shuffle=False, verbose=0)
    model = heavy_model("adam")
    thinned(model, 12)
    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_a_loss_that_is_not_finite_is_examined_in_a_step_without_the_pass() -> None:
    x, y = data(12)
    x[BAD_STEP * SIZE + 1, 3] = np.inf
    sent = thinned(heavy_model(), 12, data=(x, y))
    ((step, report),) = [(step, report) for kind, step, report in sent.events if kind == "autopsy"]
    assert (step, report["found"]) == (BAD_STEP, "input")
    assert BAD_STEP in sent.series("grad_norm"), "the failing step is measured after all"
    assert not np.isfinite(sent.series("grad_norm")[BAD_STEP])
    assert sent.series("grad_nonfinite")[BAD_STEP] > 0
    assert sent.series("input_nonfinite")[BAD_STEP] == 1


def test_a_budget_thins_the_pass_and_a_failure_brings_it_back_for_a_while() -> None:
    """No time is asserted: the step's is told to be tiny, so that the pass is over any budget."""
    reporter = HealthReporter(overhead_budget=1e-9)
    sent = recorded(reporter)
    steps = 600
    x, y = data(steps)
    bad = 300
    y[bad * SIZE] = np.nan

    class Reading(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
            fit: Value = reporter._fit
            fit.hurry(is_training_thread=True)

    model = heavy_model(keras.optimizers.SGD(0.0))
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter, Reading()])
    thinning = thinning_of(reporter)
    assert thinning is not None
    measured = np.array(sorted(sent.series("grad_norm")))
    assert sent.steps == list(range(steps))
    early = measured[(measured > 64) & (measured < bad)]
    assert (early % 64 == 0).all()
    assert len(early)
    near = measured[(measured >= bad) & (measured <= bad + LENGTHS["failure"])]
    assert near.tolist() == list(range(bad, bad + LENGTHS["failure"] + 1))
    assert thinning.interval > 1, "it ends again"
    shares = sent.values("overhead_share")
    assert all(share >= 0 for share in shares)


def test_another_interval_and_another_fit_trace_nothing_anew() -> None:
    traces: list[int] = []

    class Counting(keras.Model):  # type: ignore[misc]
        def call(self, inputs: Value) -> Value:
            traces.append(1)
            return self.inner(inputs)

    inner = heavy_model()
    model = Counting()
    model.inner = inner
    model.compile("sgd", "mse", jit_compile=False)
    reporter = HealthReporter(overhead_budget=0.0)
    sent = recorded(reporter)
    options = {"batch_size": SIZE, "shuffle": False, "verbose": 0}
    x, y = data(8)
    model.fit(x, y, callbacks=[Thinned(reporter, 2), reporter], **options)
    known = len(traces)
    model.fit(x, y, callbacks=[Thinned(reporter, 8), reporter], **options)
    assert len(traces) == known
    assert sorted(sent.series("grad_norm")) == [0, 2, 4, 6, 8]


def test_an_ordinary_model_has_no_branch_and_no_interval() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    reporter = HealthReporter()
    sent = recorded(reporter)
    model.fit(*data(6), batch_size=SIZE, verbose=0, callbacks=[reporter])
    thinning = thinning_of(reporter)
    assert thinning is not None
    assert thinning.variables == []
    assert sorted(sent.series("grad_norm")) == list(range(6))


def test_a_policy_that_keeps_updates_out_and_xla_measure_every_step() -> None:
    for options, own in (({"on_nonfinite": "skip"}, {}), ({}, {"jit_compile": True})):
        reporter = HealthReporter(overhead_budget=0.0, **options)  # type: ignore[arg-type]
        sent = recorded(reporter)
        model = heavy_model(**own)
        model.fit(*data(6), batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter])
        assert thinning_of(reporter) is None
        assert sorted(sent.series("grad_norm")) == list(range(6))


def test_the_pass_is_timed_by_the_largest_weights_for_all() -> None:
    variables = [tf.Variable(tf.ones([size])) for size in [3] * 40 + [1000]]
    ticks = iter(range(100))
    largest = 1000 + 7 * 3
    assert pass_seconds(variables, lambda: float(next(ticks))) == pytest.approx(1120 / largest)
