"""The compiled steps that train given variables, for what they consist of. Nothing of them is called.

A loop reports what a function of its own has returned, and no graph comes with that. But the function is
alive. No frame is looked into: to ask for its names would keep all that they refer to alive.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import tensorflow as tf

from trainvitals.autopsy.state import components
from trainvitals.probe.operations import risky_operations
from trainvitals.probe.types import Value
from trainvitals.wire import MAX_OPERATIONS

BACKWARD = "gradient_tape"


def operations_of_steps(variables: Sequence[Any]) -> dict[str, list[str]]:
    """Return the risky operations, by kind, of the functions that take gradients of some of `variables`.

    Only what comes before the first gradient counts: the rest is TensorFlow's and the optimizer's own. It
    looks at every object there is, which takes some hundredths of a second: once is enough.
    """
    found: dict[str, list[str]] = {}
    if not variables:
        return found
    try:
        for graph in _training_graphs({id(plain) for one in variables for plain in components(one)}):
            operations = takewhile(lambda one: BACKWARD not in one.name, graph.get_operations())
            for kind, names in risky_operations(operations).items():
                found[kind] = list(dict.fromkeys([*found.get(kind, []), *names]))[:MAX_OPERATIONS]
    except Exception:  # TensorFlow's inner life
        return {}
    return found


def _training_graphs(variables: set[int]) -> Iterator[Value]:
    kind = type(tf.function(_training_graphs))
    functions: list[Any] = [one for one in gc.get_objects() if type(one) is kind]
    for function in functions:
        # Not `_list_all_concrete_functions`: that traces what has a signature and was never called.
        for concrete in function._function_cache.values():
            graph = concrete.graph
            is_theirs = any(id(one) in variables for one in graph.variables)
            if is_theirs and any(BACKWARD in one.name for one in graph.get_operations()):
                yield graph
