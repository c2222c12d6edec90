"""The compiled functions that a loop has at hand, for what its steps consist of. Nothing of them is called.

A loop reports what its own function has returned, and no graph comes with that. But the function is mostly
one of the names where `step` was called, or a method of the object that called it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice, takewhile
from types import FrameType
from typing import Any

import tensorflow as tf

from trainvitals.probe.operations import risky_operations
from trainvitals.probe.types import Value
from trainvitals.wire import MAX_OPERATIONS

MAX_NAMES = 2000  # a notebook may have many
PACKAGE = __name__.partition(".")[0]
BACKWARD = "gradient_tape"


def operations_of_caller() -> dict[str, list[str]]:
    """Return the risky operations, by kind, of the compiled training steps within the caller's reach.

    Only what comes before the first gradient counts: the rest is TensorFlow's and the optimizer's own.
    """
    found: dict[str, list[str]] = {}
    try:
        for graph in _training_graphs(_users_frame()):
            with graph.as_default():
                operations = takewhile(lambda one: BACKWARD not in one.name, graph.get_operations())
                for kind, names in risky_operations(operations).items():
                    found[kind] = list(dict.fromkeys([*found.get(kind, []), *names]))[:MAX_OPERATIONS]
    except Exception:  # TensorFlow's inner life, and any object of the user's
        return {}
    return found


def _users_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE:
        frame = frame.f_back
    return frame


def _training_graphs(frame: FrameType | None) -> Iterator[Value]:
    seen: set[int] = set()
    for function in _compiled_functions(frame):
        for concrete in function._list_all_concrete_functions():
            graph = concrete.graph
            if id(graph) not in seen and any(BACKWARD in one.name for one in graph.get_operations()):
                seen.add(id(graph))
                yield graph


def _compiled_functions(frame: FrameType | None) -> Iterator[Any]:
    if frame is None:
        return
    names = {**frame.f_globals, **frame.f_locals}
    for value in islice(list(names.values()), MAX_NAMES):
        if isinstance(value, tf.types.experimental.PolymorphicFunction):
            yield value
    owner = frame.f_locals.get("self")
    for name, value in vars(type(owner)).items() if owner is not None else ():
        if isinstance(value, tf.types.experimental.PolymorphicFunction):
            yield getattr(owner, name)  # of this very object
