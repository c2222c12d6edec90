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


def _nothing(action: Callable[[], None]) -> list[Tensor]:
    action()
    return []


def _whole_if(usual: Tensor, action: Callable[[], None]) -> Value:
    taken = tf.function(lambda: _nothing(action), autograph=False).get_concrete_function()
    inputs = taken.captured_inputs
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    passed = tf.function(lambda *tensors: None, autograph=False).get_concrete_function(*specs)
    graph = tf.compat.v1.get_default_graph()
    for function in (taken, passed):
        function.add_to_graph(graph)
    return tf.raw_ops.If(
        cond=usual,
        input=inputs,
        Tout=[],
        then_branch=tf.compat.v1.NameAttrList(name=passed.name),
        else_branch=tf.compat.v1.NameAttrList(name=taken.name),
    )
