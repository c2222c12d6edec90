"""Names of the operations in a traced step that can overflow or be undefined, for the diagnosis."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from trainvitals import wire
from trainvitals.probe.types import Value

RISKY = frozenset({"Log", "Sqrt", "Rsqrt", "Exp", "Pow", "RealDiv", "Reciprocal", "Softmax"})
FLOAT16_END = 6e4  # float16 ends at 65504: nothing can be added to a constant beyond this
LIMIT_KIND = "float16_limit_constant"
OWN_SCOPE = "trainvitals"
_MAX_CONSTANT_BYTES = 4096  # a mask value is small; a large table is data


def risky_operations(operations: Iterable[Value] | None = None) -> dict[str, list[str]]:
    """Return names by kind, at most 16 a kind, of `operations`.

    Without them it is what the current graph holds so far: {} outside a graph.
    """
    if operations is None:
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        operations = () if graph is None else graph.get_operations()
    found: dict[str, list[str]] = {}
    for operation in operations:
        kind = _kind(operation)
        if kind is None or "gradient_tape" in operation.name or OWN_SCOPE in operation.name:
            continue
        names = found.setdefault(kind, [])
        if len(names) < wire.MAX_OPERATIONS:
            names.append(wire.clip(operation.name))
    return found


def _kind(operation: Value) -> str | None:
    if operation.type in RISKY:
        return str(operation.type)
    if operation.type == "Const" and operation.get_attr("dtype") == tf.float16:
        proto = operation.get_attr("value")
        if proto.ByteSize() <= _MAX_CONSTANT_BYTES and (abs(tf.make_ndarray(proto)) >= FLOAT16_END).any():
            return LIMIT_KIND
    return None
