"""A branch that is nearly never taken, at the price of one operation."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainvitals.probe.types import Tensor, Value


def seldom(predicate: Tensor, action: Callable[[], None]) -> None:
    """Do `action` in the steps where `predicate` is True; see `unless`."""
    unless(tf.logical_not(predicate), action)


def unless(usual: Tensor, action: Callable[[], None]) -> Value:
    """Do `action`, which returns nothing but writes to variables, in the steps where `usual` is False.

    `tf.cond` is lowered to one `Switch` for each tensor that a branch takes, and the executor visits every
    one of them in every step: with the gradients of a small model that costs as much as all else that is
    measured. An `If` that stays whole costs one operation. (So does a `For` of no turns, but TensorFlow takes
    it for an operation without effects and may leave it out.) Where a GPU is present it is `tf.cond` after
    all: an `If` that stays whole runs on one device, and not every operation of ours has a kernel there.

    Returns:
        The operation that has done it, where there is just one.
    """
    if tf.executing_eagerly():
        if not bool(usual):
            action()
        return None
    if tf.config.list_logical_devices("GPU"):
        tf.cond(usual, list, lambda: _nothing(action))
        return None
    return _whole_if(usual, action)


def either(predicate: Tensor, usual: Callable[[], Tensor], other: Callable[[], Tensor]) -> Tensor:
    """Return what `usual` makes where `predicate` is True, else what `other` makes: of one dtype and shape.

    Neither writes to a variable. For the reasons that `unless` has it is a branch that stays whole.
    """
    if tf.executing_eagerly():
        return usual() if bool(predicate) else other()
    if tf.config.list_logical_devices("GPU"):
        return tf.cond(predicate, usual, other)
    taken = tf.function(usual, autograph=False).get_concrete_function()
    inputs = taken.captured_inputs
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    passed = tf.function(lambda *tensors: other(), autograph=False).get_concrete_function(*specs)
    _add(taken, passed)
    (result,) = tf.raw_ops.StatelessIf(
        cond=predicate,
        input=inputs,
        Tout=[taken.structured_outputs.dtype],
        then_branch=tf.compat.v1.NameAttrList(name=taken.name),
        else_branch=tf.compat.v1.NameAttrList(name=passed.name),
    )
    result.set_shape(taken.structured_outputs.shape)
    return result


def _add(*functions: Value) -> None:
    graph = tf.compat.v1.get_default_graph()
    for function in functions:
        function.add_to_graph(graph)


def _nothing(action: Callable[[], None]) -> list[Tensor]:
    action()
    return []


def _whole_if(usual: Tensor, action: Callable[[], None]) -> Value:
    taken = tf.function(lambda: _nothing(action), autograph=False).get_concrete_function()
    inputs = taken.captured_inputs
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    passed = tf.function(lambda *tensors: None, autograph=False).get_concrete_function(*specs)
    _add(taken, passed)
    return tf.raw_ops.If(
        cond=usual,
        input=inputs,
        Tout=[],
        then_branch=tf.compat.v1.NameAttrList(name=passed.name),
        else_branch=tf.compat.v1.NameAttrList(name=taken.name),
    )
