"""Whether a tensor is finite, told on its device and on the host, and variables that are kept."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainvitals.autopsy.finite import badness_of, badness_on_device
from trainvitals.autopsy.numbers import FINITE, INFINITE, NAN
from trainvitals.autopsy.replay import eagerly
from trainvitals.autopsy.state import Keeper, TakesDataOfItsOwn, assign, kept
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_device_tells_the_same_of_a_tensor_as_the_host(dtype: str) -> None:
    for values, expected in (
        ([0.0, 1.0, -3.5], FINITE),
        ([0.0, np.inf], INFINITE),
        ([np.nan, -np.inf], NAN),
        ([], FINITE),
    ):
        tensor = tf.cast(tf.constant(values, tf.float64), dtype)
        assert (badness_of(tensor), badness_on_device(tensor)) == (expected, expected)


def test_what_holds_no_such_numbers_is_finite() -> None:
    for tensor in (tf.constant([1, 2]), tf.constant(["a"]), tf.constant([True]), "text", None):
        assert badness_of(tensor) == FINITE
    assert badness_of(tf.complex(tf.constant(np.nan), tf.constant(0.0))) == NAN


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_bit_of_a_variable_comes_back(dtype: str) -> None:
    bits = np.random.default_rng(0).integers(0, 255, 64, np.uint8)  # NaN with a payload among them
    values = np.frombuffer(bits.tobytes(), tf.as_dtype(dtype).as_numpy_dtype)
    variable = keras.Variable(np.zeros(len(values)), dtype=dtype)
    variable.value.assign(values)
    with kept([variable]):
        variable.assign(np.ones(len(values)))
    assert variable.numpy().tobytes() == bits.tobytes()


def test_what_is_kept_first_is_what_comes_back() -> None:
    variable, keeper = tf.Variable(1.0), Keeper()
    keeper.keep([variable])
    variable.assign(2.0)
    keeper.keep([variable])
    keeper.restore()
    assert float(variable) == 1.0


def test_variables_of_text_and_of_numbers_are_assigned() -> None:
    text, number = tf.Variable("old"), keras.Variable(0.0, dtype="float16")
    assign([(text, "new"), (number, np.float32(1.5))])
    assert (text.numpy(), float(number.numpy())) == (b"new", 1.5)


def test_variables_come_back_when_the_step_is_interrupted() -> None:
    variable = tf.Variable(1.0)

    def interrupted() -> None:
        with kept([]):
            variable.assign(2.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert float(variable) == 1.0


def test_a_ctrl_c_in_the_middle_of_giving_back_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tf.Variable(1.0), tf.Variable(1.0)
    holder: Value = next(one for one in type(first).__mro__ if "assign" in vars(one))
    assign, waiting = holder.assign, [KeyboardInterrupt()]

    def interrupted(self: tf.Variable, value: object) -> object:
        if waiting:
            raise waiting.pop()
        return assign(self, value)

    keeper = Keeper()
    keeper.keep([first, second])
    assign(first, 2.0)
    assign(second, 2.0)
    monkeypatch.setattr(holder, "assign", interrupted)
    with pytest.raises(KeyboardInterrupt):
        keeper.restore()
    assert [float(first), float(second)] == [1.0, 1.0]


def test_an_iterator_of_the_training_is_not_moved_and_one_of_the_step_s_own_is() -> None:
    data = iter(tf.data.Dataset.range(10))
    next(data)
    with kept([]):
        with pytest.raises(TakesDataOfItsOwn):
            next(data)
        with pytest.raises(TakesDataOfItsOwn):
            data.get_next()
        assert [int(one) for one in tf.data.Dataset.range(3)] == [0, 1, 2]
    assert int(next(data)) == 1


def test_functions_of_other_threads_stay_compiled_while_a_step_is_replayed() -> None:
    seen: list[bool] = []

    @tf.function  # type: ignore[untyped-decorator]
    def is_eager() -> Value:
        seen.append(tf.executing_eagerly())
        return tf.constant(0)

    with eagerly():
        is_eager()
        other = threading.Thread(target=is_eager)
        other.start()
        other.join()
    is_eager()
    assert seen == [True, False]  # the last one was compiled before
