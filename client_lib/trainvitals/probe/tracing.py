"""Tracing: what the graph of the function that is being traced tells of the step so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import tensorflow as tf

from trainvitals.probe.capture import inside
from trainvitals.probe.optimizers import inner_of
from trainvitals.probe.types import Optimizer, Tensor, Value

READS = frozenset({"ReadVariableOp", "ResourceGather", "VariableShape"})

F = TypeVar("F", bound=Callable[..., object])


def as_written(function: F) -> F:
    """Keep AutoGraph, which rewrites whatever a traced function calls, away from `function`."""
    kept: F = tf.autograph.experimental.do_not_convert(function)
    return kept


def is_traced() -> bool:
    """Return whether a function is being traced: what is called now goes into its graph."""
    return not tf.executing_eagerly()


def outside() -> Value:
    """Return a context in which operations run at once, though a function is being traced."""
    return tf.init_scope()


def is_within_xla() -> bool:
    """Return whether XLA compiles what is being traced: then the function says `jit_compile=True`."""
    for graph in _graphs():
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
    return False


def is_one_of_several_replicas() -> bool:
    """Return whether a strategy runs this code once for each of several replicas."""
    context = tf.distribute.get_replica_context()
    return context is not None and int(context.num_replicas_in_sync) > 1


def was_applied(optimizer: Optimizer) -> bool:
    """Return whether the function has made the optimizer's update by now: its counter was written to."""
    inner = inner_of(optimizer)
    counter = getattr(inner, "_iterations", None)  # `iterations` is a quotient where gradients accumulate
    if counter is None:
        counter = getattr(inner, "iterations", None)
    uses = [use for graph in _graphs() for use in _uses(graph, counter)]
    return any(use.type not in READS for use in uses)


def value_before(variable: Value) -> Tensor | None:
    """Return what `variable` held before the function wrote to it.

    That is what the function itself has read first, as BatchNormalization does with its statistics and a
    dropout with its seed. None where it was never read or is written to in a function that this one calls.
    """
    graph = tf.compat.v1.get_default_graph()
    uses = _uses(graph, variable)
    if not uses:
        return inside(variable).read_value()
    return uses[0].outputs[0] if uses[0].type == "ReadVariableOp" else None


def _graphs() -> Iterator[Value]:
    """Yield the graph that is being traced, and those around it: a branch or a loop has one of its own."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


def _uses(graph: Value, variable: Value) -> list[Value]:
    """Return the operations of `graph` that take `variable`, in the order in which they were traced."""
    handle = getattr(inside(variable), "handle", None)
    for outer, inner in getattr(graph, "captures", ()):
        if outer is handle:
            order = {operation.name: place for place, operation in enumerate(graph.get_operations())}
            return sorted(inner.consumers(), key=lambda one: order[one.name])
    return []
