"""The branch that is nearly never taken: the same effect however it is built."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

from trainvitals.probe.seldom import seldom
from trainvitals.probe.types import Tensor

pytestmark = pytest.mark.tensorflow


def marks(is_compiled: bool) -> list[float]:
    """Return what the branch wrote in steps 0, 1, 2, of which only the second takes it."""
    written, weight = tf.Variable(tf.zeros(3)), tf.Variable(10.0)

    def run(step: Tensor) -> None:
        gradient = weight * tf.cast(step, tf.float32)

        def write() -> None:
            tf.raw_ops.ResourceScatterUpdate(
                resource=written.handle, indices=step, updates=gradient + weight.read_value()
            )

        seldom(tf.equal(step, 1), write)
        weight.assign_add(1.0)

    step = tf.function(run) if is_compiled else run
    for number in range(3):
        step(tf.constant(number))
    return [float(number) for number in written.numpy()]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_only_the_step_that_asks_for_it_takes_the_branch(
    is_compiled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        # In step 1 the weight is 11, before the update of that step.
        np.testing.assert_array_equal(marks(is_compiled), [0.0, 22.0, 0.0])
    assert not caplog.records


def test_beside_a_gpu_it_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    np.testing.assert_array_equal(marks(is_compiled=True), [0.0, 22.0, 0.0])


def test_the_branch_that_is_not_taken_costs_one_operation() -> None:
    variables = [tf.Variable(float(number)) for number in range(20)]
    written = tf.Variable(0.0)

    def run(is_taken: Tensor) -> None:
        numbers = [variable * 2.0 for variable in variables]
        seldom(is_taken, lambda: written.assign(tf.add_n(numbers)))

    graph = tf.function(run).get_concrete_function(tf.TensorSpec((), tf.bool)).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert kinds.count("If") == 1
    assert not [kind for kind in kinds if kind in {"Switch", "Merge", "AddN"}]
