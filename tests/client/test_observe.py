"""`Reporter.observe` in a compiled step, against the same step done eagerly and by hand."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from observing import Loop, batches, compiled, norm, scaled, tower
from training import recorded
from trainvitals import Reporter
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow
STEPS = 7
DTYPES = ("float32", "float64", "mixed_float16", "mixed_bfloat16")


@pytest.mark.parametrize(
    ("dtype", "jit", "is_late"),
    [
        *((dtype, jit, False) for dtype in DTYPES for jit in (False, True)),
        *(("float32", False, True), ("mixed_float16", False, True), ("mixed_float16", True, True)),
    ],
)
def test_every_row_is_what_the_step_was(dtype: str, jit: bool, is_late: bool) -> None:
    make: Any = scaled if dtype == "mixed_float16" else lambda: keras.optimizers.Adam(0.01)
    data = batches(STEPS, dtype="float64" if dtype == "float64" else "float32")
    loop, twin = (Loop(dtype, jit, is_late=is_late, make_optimizer=make) for _ in range(2))
    sent = loop.run(data)
    for x, y in data:
        twin.judge(x, y)
    # XLA fuses casts to 16 bits away, so that they round elsewhere.
    rtol = {"float64": 1e-7, "float32": 1e-4}.get(dtype, 2e-2)
    assert sent.steps == list(range(STEPS))
    for name in ("loss", "grad_norm", "loss_scale"):
        expected = [one[name] for one in twin.truth]
        if name == "loss_scale" and dtype != "mixed_float16":
            expected = []
        np.testing.assert_allclose(sent.values(name), expected, rtol=rtol, err_msg=name)
    np.testing.assert_allclose(
        sent.layer("layer_grad_norm", "hidden"), [one["hidden"] for one in twin.truth], rtol=rtol
    )
    for name in ("optimizer_step", "batch_size"):
        assert sent.values(name) == [one[name] for one in twin.truth], name
    is_skipped = [one["grad_nonfinite"] > 0 for one in twin.truth]
    assert [value > 0 for value in sent.values("grad_nonfinite")] == is_skipped
    if dtype == "mixed_float16":
        assert [bool(value) for value in sent.values("skipped")] == is_skipped
        assert any(is_skipped)
        assert not all(is_skipped)
    rate = 0.01
    np.testing.assert_allclose(sent.values("learning_rate"), np.float32(rate), rtol=1e-6)


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_weights_are_bit_for_bit_those_of_a_loop_that_does_not_observe(dtype: str, jit: bool) -> None:
    make: Any = scaled if dtype == "mixed_float16" else lambda: keras.optimizers.Adam(0.01)
    found = []
    for observes in (True, False, False):  # the last two are the control
        loop = Loop(dtype, jit, observes=observes, make_optimizer=make)
        loop.run(batches(20))
        found.append(loop.weights)
    for ours, theirs, control in zip(*found, strict=True):
        np.testing.assert_array_equal(theirs, control)
        np.testing.assert_array_equal(ours, theirs)


def test_a_non_finite_step_is_counted_exactly() -> None:
    loop = Loop()
    data = batches(6)
    data[3][1][2] = np.inf
    sent = loop.run(data)
    assert np.isinf(sent.values("loss")[3])
    sizes = [int(np.prod(one.shape)) for one in loop.model.trainable_variables]
    assert sent.values("grad_nonfinite")[:4] == [0, 0, 0, sum(sizes)]
    assert sent.series("label_nonfinite")[3] == 1
    assert sent.series("input_nonfinite")[3] == 0


def test_nothing_is_said_of_a_batch_that_was_not_given() -> None:
    variable, reporter = tf.Variable([1.0, 2.0], name="w"), Reporter()

    @compiled
    def step(value: Value) -> None:
        reporter.observe(loss=value, gradients=[tf.stack([value, 0.0])], variables=[variable])

    sent = recorded(reporter)
    with reporter:
        for value in (3.0, np.nan):
            step(tf.constant(value))
            reporter.step()
    assert sent.values("grad_nonfinite") == [0, 1]
    assert sent.values("grad_norm")[0] == 3.0
    for name in ("input_nonfinite", "label_nonfinite", "batch_size", "optimizer_step", "learning_rate"):
        assert sent.values(name) == []
    assert sent.series("weight_nonfinite") == {1: 0.0}


def test_sparse_and_missing_gradients_will_do() -> None:
    table = keras.Variable(np.ones((5, 2), "float32"), name="table")
    unused = keras.Variable([1.0], name="unused")
    reporter = Reporter()
    sent = recorded(reporter)

    @compiled
    def step(ids: Value) -> Value:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.gather(table.value, ids)) * 3.0)
        gradients = tape.gradient(loss, [table.value, unused.value])
        assert isinstance(gradients[0], tf.IndexedSlices)
        reporter.observe(loss=loss, gradients=gradients, variables=[table, unused])
        return loss, tf.convert_to_tensor(gradients[0])

    expected = []
    with reporter:
        for ids in ([0, 1], [2, 2, 2, 4], []):
            expected.append(norm([step(tf.constant(ids, tf.int32))[1]]))
            reporter.step()
    np.testing.assert_allclose(sent.values("grad_norm"), expected, rtol=1e-6)


def test_a_scale_of_the_users_own_may_be_a_tensor() -> None:
    variable, reporter = tf.Variable([0.0, 0.0]), Reporter()
    sent = recorded(reporter)

    @compiled
    def step(scale: Value) -> None:
        reporter.observe(
            loss=1.0,
            gradients={"w": tf.constant([3.0, 4.0]) * scale},
            variables={"w": variable},
            optimizer=optimizer,
            loss_scale=scale,
            metrics={"scale": scale, "odd": tf.zeros([2])},
        )

    optimizer = keras.optimizers.SGD(0.5)
    with reporter:
        for scale in (1.0, 100.0, 7.0):
            step(tf.constant(scale))
            reporter.step()
    np.testing.assert_allclose(sent.values("grad_norm"), [5.0] * 3, rtol=1e-6)
    assert sent.values("loss_scale") == sent.values("scale") == [1.0, 100.0, 7.0]
    assert sent.values("learning_rate") == [0.5] * 3
    assert sent.values("odd") == []


def test_two_optimizers_of_one_step_make_one_row() -> None:
    models = tower(seed=1), tower(seed=2)
    optimizers = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01)
    reporter = Reporter()
    sent = recorded(reporter)

    @compiled
    def step(x: Value) -> Value:
        found = []
        for model, optimizer, target in zip(models, optimizers, (1.0, -1.0), strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - target))
            gradients = tape.gradient(loss, model.trainable_variables)
            reporter.observe(
                loss=loss, gradients=gradients, variables=model.trainable_variables, optimizer=optimizer
            )
            optimizer.apply(gradients, model.trainable_variables)
            found.append((loss, gradients))
        return found

    truth = []
    with reporter:
        for x, _ in batches(5):
            (first, ours), (second, theirs) = step(tf.constant(x))
            truth.append((float(first), float(second), norm([*ours, *theirs])))
            reporter.step()
    assert sent.steps == list(range(5))
    for place, name in enumerate(("loss", "loss_2", "grad_norm")):
        np.testing.assert_allclose(sent.values(name), [one[place] for one in truth], rtol=1e-6)
    assert sent.values("optimizer_step") == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(sent.values("learning_rate"), np.float32(0.1))
    assert len(sent.layouts[-1][0]) == 4


@pytest.mark.parametrize("count", [1, 3, 200], ids="{}_a_call".format)
def test_every_turn_of_a_loop_in_the_graph_is_a_step(count: int) -> None:
    variable, reporter = tf.Variable(1.0), Reporter()
    sent = recorded(reporter)

    @compiled
    def steps(count: Value) -> None:
        for number in tf.range(count):
            value = tf.cast(number, tf.float32) + 1.0
            reporter.observe(loss=variable, gradients=[value], variables=[variable])
            variable.assign_add(1.0)

    with reporter:
        for _ in range(5):
            steps(tf.constant(count))
            reporter.step(metrics={"call": 1.0})
    assert sent.steps == list(range(5 * count))
    assert sent.values("loss") == [1.0 + step for step in range(5 * count)]
    assert sent.values("grad_norm") == [1.0 + number for number in range(count)] * 5
    assert sent.losses == []
    assert list(sent.series("call")) == [count * call - 1 for call in range(1, 6)]
    assert len(sent.values("step_time_s")) == 5 * count


def test_what_the_ring_does_not_hold_is_a_gap_and_nothing_else_is_lost() -> None:
    variable, reporter = tf.Variable(0.0), Reporter()
    sent = recorded(reporter)

    @compiled
    def steps(count: Value) -> None:
        for _ in tf.range(count):
            reporter.observe(loss=variable)
            variable.assign_add(1.0)

    with reporter:
        steps(tf.constant(10))
        reporter.step()
        steps(tf.constant(3000))
        reporter.step()
        steps(tf.constant(1))
        reporter.step()
    ((reason, first, last, count),) = sent.losses
    assert (reason, first) == ("ring_overflow", 10)
    assert count == last - first + 1
    assert sent.steps == [*range(10), *range(last + 1, 3011)]
    assert sent.values("loss") == [float(step) for step in sent.steps]


def test_data_that_end_within_the_function_make_no_step() -> None:
    variable, reporter = tf.Variable(1.0), Reporter()
    sent = recorded(reporter)
    data = tf.data.Dataset.range(3)

    @compiled
    def step(iterator: Value) -> None:
        loss = tf.cast(next(iterator), tf.float32) * variable
        reporter.observe(loss=loss, gradients=[loss], variables=[variable])

    with reporter:
        for _ in range(4):
            iterator = iter(data)
            with suppress(tf.errors.OutOfRangeError):
                while True:
                    step(iterator)
                    reporter.step()
    assert sent.steps == list(range(12))
    assert sent.values("loss") == [0.0, 1.0, 2.0] * 4
    assert sent.losses == []


def test_a_branch_that_is_not_taken_makes_no_step() -> None:
    variable, reporter = tf.Variable([0.0]), Reporter()
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([variable])
    sent = recorded(reporter)

    @compiled
    def step(number: Value) -> None:
        if number % 3 == 0:
            gradient = tf.reshape(tf.cast(number, tf.float32), [1])
            reporter.observe(loss=gradient, gradients=[gradient], variables=[variable], optimizer=optimizer)
            optimizer.apply([gradient], [variable])

    with reporter:
        for number in range(10):
            step(tf.constant(number))
            reporter.step(metrics={"number": number})
    assert sent.steps == [0, 1, 2, 3]
    assert sent.values("loss") == [0.0, 3.0, 6.0, 9.0]
    assert sent.values("optimizer_step") == [1, 2, 3, 4]


def test_a_part_that_runs_less_often_joins_the_step_it_comes_in() -> None:
    critic, generator, reporter = tf.Variable(0.0, name="c"), tf.Variable(0.0, name="g"), Reporter()
    sent = recorded(reporter)

    @compiled
    def train_critic(value: Value) -> None:
        reporter.observe(loss=value, gradients=[value], variables=[critic])

    @compiled
    def train_generator(value: Value) -> None:
        reporter.observe(loss=value, gradients=[value], variables=[generator], metrics={"g": value})

    with reporter:
        for number in range(1, 7):
            train_critic(tf.constant(3.0 * number))
            if number % 3 == 0:
                train_generator(tf.constant(4.0 * number))
            reporter.step()
    assert sent.steps == list(range(6))
    assert sent.values("loss") == [3.0, 6.0, 9.0, 12.0, 15.0, 18.0]
    assert sent.series("g") == {2: 12.0, 5: 24.0}
    assert sent.values("grad_norm") == [3.0, 6.0, 15.0, 12.0, 15.0, 30.0]


def test_a_step_that_was_read_is_closed_and_nothing_joins_it() -> None:
    first, second, reporter = tf.Variable(0.0, name="a"), tf.Variable(0.0, name="b"), Reporter()
    sent = recorded(reporter)
    functions = [
        tf.function(lambda value, one=one: reporter.observe(loss=value, gradients=[value], variables=[one]))
        for one in (first, second)
    ]
    with reporter:
        for number in range(5):
            for function in functions:
                function(tf.constant(1.0 + number))
                reporter._rows.read_at_once()
                reporter.step()
    assert sent.steps == list(range(len(sent.steps)))
    assert sent.values("loss") == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert sum(np.square(sent.values("grad_norm"))) == pytest.approx(2 * (1 + 4 + 9 + 16 + 25))
    assert sent.losses == []


def test_the_function_is_traced_as_often_as_without_it() -> None:
    traces = []
    for observes in (True, False):
        loop = Loop(observes=observes)
        loop.optimizer.build(loop.model.trainable_variables)
        loop.run(batches(2))
        traces.append(loop.function.experimental_get_tracing_count())
    assert traces == [1, 1]


def test_another_shape_of_batch_and_another_function_count_on() -> None:
    loop = Loop()
    other = tf.function(loop.step)
    sizes = (8, 8, 3, 8, 5)
    with loop.reporter:
        for number, size in enumerate(sizes):
            x, y = batches(1, size)[0]
            (other if number % 2 else loop.function)(tf.constant(x), tf.constant(y))
            loop.reporter.step()
    assert loop.sent.steps == list(range(5))
    assert loop.sent.values("batch_size") == list(sizes)
    assert loop.sent.values("optimizer_step") == [1, 2, 3, 4, 5]


def test_a_second_training_goes_on_counting_without_a_new_trace() -> None:
    loop = Loop()
    loop.run(batches(3))
    loop.run(batches(2))
    assert loop.sent.steps == [0, 1, 2, 3, 4]
    assert [step for _, step, _ in loop.sent.byes] == [2, 4]
    assert len(loop.sent.layouts) == 1


def test_an_exception_in_the_function_is_told_and_the_rows_before_it_too() -> None:
    loop = Loop()
    with pytest.raises(tf.errors.InvalidArgumentError), loop.reporter:  # noqa: PT012
        for x, y in batches(3):
            loop.function(tf.constant(x), tf.constant(y))
        tf.debugging.assert_equal(1, 2)
    assert loop.sent.steps == [0, 1, 2]
    assert loop.sent.byes[0][0] == "failed"
