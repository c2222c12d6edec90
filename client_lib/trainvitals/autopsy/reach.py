"""Reach: the models that a loop's function can get hold of, to know which statistics and seeds it changes.

Nothing is called: the names in its code are looked up where Python would, and what they hold is followed.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from trainvitals.probe.capture import moving_of
from trainvitals.probe.types import Value

MAX_VISITS = 2000
MAX_ELEMENTS = 64  # of a list or a dict: beyond that it is data
_FRAMEWORKS = ("keras", "tf_keras", "tensorflow", "numpy", "trainvitals", "builtins")
_VALUES = (str, bytes, int, float, complex, type(None), type)


def moving_variables(function: Callable[..., Any]) -> list[Any]:
    """Return the variables, not trained, of all models and layers that `function` can reach."""
    found: list[Any] = []
    for one in reached(function):
        if isinstance(one, keras.Model):
            found += moving_of(one)
        elif isinstance(one, keras.layers.Layer):
            found += one.non_trainable_variables
        else:
            found += [variable for variable in one.variables if not variable.trainable]
    return list({id(variable): variable for variable in found}.values())


def reached(function: Callable[..., Any]) -> list[Any]:
    """Return the models, layers and modules that `function` can reach, nearest first."""
    waiting: deque[Any] = deque([function])
    seen: dict[int, Any] = {}  # held, so that an id stays theirs
    found = []
    while waiting and len(seen) < MAX_VISITS:
        one = waiting.popleft()
        if id(one) in seen or isinstance(one, _VALUES):
            continue
        seen[id(one)] = one
        if isinstance(one, keras.layers.Layer | tf.Module) and not isinstance(one, tf.Variable):
            found.append(one)
        else:
            waiting.extend(_next(one))
    return found


def _next(one: Value) -> Iterator[Any]:
    if isinstance(one, types.FunctionType):
        yield from _named(one)
    elif isinstance(one, types.MethodType):
        yield from (one.__self__, one.__func__)
    elif isinstance(one, functools.partial):
        yield from (one.func, *one.args, *one.keywords.values())
    elif callable(getattr(one, "python_function", None)):  # a tf.function
        yield one.python_function
    elif isinstance(one, Mapping):
        yield from one.values() if len(one) <= MAX_ELEMENTS else ()
    elif isinstance(one, list | tuple):
        yield from one[:MAX_ELEMENTS]
    elif not isinstance(one, types.ModuleType) and type(one).__module__.split(".")[0] not in _FRAMEWORKS:
        yield from vars(one).values() if hasattr(one, "__dict__") else ()


def _named(function: types.FunctionType) -> Iterator[Any]:
    """Yield what the code of `function`, and functions within it, names; of modules what it takes of them."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from function.__defaults__ or ()
    names = set(_names(function.__code__))
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if isinstance(value, types.ModuleType):
            if value.__name__.split(".")[0] not in _FRAMEWORKS:
                yield from (vars(value)[one] for one in names & vars(value).keys())
        else:
            yield value


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
