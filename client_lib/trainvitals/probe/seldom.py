"""A branch that is nearly never taken, at the price of one operation."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainvitals.probe.types import Tensor


def seldom(predicate: Tensor, action: Callable[[], None]) -> None:
    """Do `action`, which returns nothing but writes to variables, in the steps where `predicate` is True.

    `tf.cond` is lowered to one `Switch` for each tensor that a branch takes, and the executor visits every
    one of them in every step: with the gradients of a small model that costs as much as all else that is
    measured. An `If` that stays whole costs one operation. Where a GPU is present it is `tf.cond` after all:
    an `If` that stays whole runs on one device, and not every operation of ours has a kernel there.
    """
    if tf.executing_eagerly():
        if bool(predicate):
            action()
    elif tf.config.list_logical_devices("GPU"):
        tf.cond(predicate, lambda: _nothing(action), list)
    else:
        _whole_if(predicate, action)


def _nothing(action: Callable[[], None]) -> list[Tensor]:
    action()
    return []


def _whole_if(predicate: Tensor, action: Callable[[], None]) -> None:
    taken = tf.function(lambda: _nothing(action), autograph=False).get_concrete_function()
    inputs = taken.captured_inputs
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    passed = tf.function(lambda *tensors: None, autograph=False).get_concrete_function(*specs)
    graph = tf.compat.v1.get_default_graph()
    for function in (taken, passed):
        function.add_to_graph(graph)
    tf.raw_ops.If(
        cond=predicate,
        input=inputs,
        Tout=[],
        then_branch=tf.compat.v1.NameAttrList(name=taken.name),
        else_branch=tf.compat.v1.NameAttrList(name=passed.name),
    )
