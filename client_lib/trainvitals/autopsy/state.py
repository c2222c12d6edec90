"""Keeping and restoring: after a replay every variable and every random state is bit for bit what it was."""

from __future__ import annotations

import functools
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import tensorflow as tf

from trainvitals.autopsy.internals import own_seeds, untaped
from trainvitals.probe.types import Value

_WRITES = (
    "assign",
    "assign_add",
    "assign_sub",
    "scatter_add",
    "scatter_sub",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_div",
    "scatter_update",
    "batch_scatter_update",
    "scatter_nd_add",
    "scatter_nd_sub",
    "scatter_nd_max",
    "scatter_nd_min",
    "scatter_nd_update",
)
_READS = ("__next__", "get_next", "get_next_as_optional")


def components(variable: Value) -> list[tf.Variable]:
    """Return the TensorFlow variables in a Keras or a distributed one; none where it has no value yet."""
    inner = getattr(variable, "_value", variable) if not isinstance(variable, tf.Variable) else variable
    if isinstance(inner, tf.distribute.DistributedValues):
        inner = inner.values
    listed = inner if isinstance(inner, (list, tuple)) else [inner]
    return [one for one in listed if isinstance(one, tf.Variable)]


class Keeper:
    """Holds what variables were, on the host."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[tf.Variable, Value]] = {}

    def keep(self, variables: Iterable[Value]) -> None:
        """Keep the values of `variables`; the first value counts."""
        with untaped():
            for variable in variables:
                for one in components(variable):
                    if id(one) not in self._kept:
                        self._kept[id(one)] = (one, one.numpy())

    def restore(self) -> None:
        """Give back to every kept variable what it held."""
        failure = None
        with untaped():
            for variable, value in self._kept.values():
                try:
                    variable.assign(value)
                except BaseException as error:  # the others must be given back all the same: a Ctrl-C comes
                    failure = error  # only once, mostly in the middle of this
                    with suppress(Exception):
                        variable.assign(value)
        if failure is not None:
            raise failure


def assign(state: Sequence[tuple[Value, Value]]) -> None:
    """Give each variable its value."""
    for variable, value in state:
        for one in components(variable):
            one.assign(tf.cast(value, one.dtype) if one.dtype != tf.string else value)


@contextmanager
def kept(variables: Iterable[Value]) -> Iterator[Keeper]:
    """Let variables be changed inside; afterwards these, and all that were written to, are as before."""
    keeper = Keeper()
    keeper.keep(variables)
    with ExitStack() as stack:
        stack.callback(keeper.restore)  # after our watch on writes has ended: these are not new ones
        stack.enter_context(own_seeds())
        stack.enter_context(_noticed_writes(keeper))
        stack.enter_context(_no_data_of_others())
        yield keeper


@contextmanager
def random_states() -> Iterator[None]:
    """Give Python's and numpy's random numbers back as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def _noticed_writes(keeper: Keeper) -> Iterator[None]:
    """Keep what a variable that nobody named held, just before this thread writes to it."""
    owner = threading.get_ident()
    with ExitStack() as stack:
        for holder in _subclasses(tf.Variable):
            for name in (name for name in _WRITES if name in vars(holder)):
                stack.enter_context(_patched(holder, name, keeper, owner, lambda variable: [variable]))
        # A generator's state moves on by an operation, not by an assignment.
        stack.enter_context(
            _patched(tf.random.Generator, "skip", keeper, owner, lambda generator: [generator.state])
        )
        yield


class TakesDataOfItsOwn(Exception):
    """The step reads an iterator that the training reads on: no replay may move it, and its batch is gone."""


@contextmanager
def _no_data_of_others() -> Iterator[None]:
    """Refuse this thread the elements of iterators over data that are older than the replay."""
    owner = threading.get_ident()
    own: weakref.WeakSet[Value] = weakref.WeakSet()
    with ExitStack() as stack:
        for holder in _subclasses(tf.data.Iterator):
            for name in ("__init__", *_READS):
                if name in vars(holder):
                    stack.enter_context(_watched_reads(holder, name, own, owner))
        yield


@contextmanager
def _watched_reads(holder: Value, name: str, own: weakref.WeakSet[Value], owner: int) -> Iterator[None]:
    original = vars(holder)[name]

    @functools.wraps(original)
    def watched(self: Value, *args: Value, **kwargs: Value) -> Value:
        if threading.get_ident() == owner:
            if name == "__init__":
                own.add(self)
            elif self not in own:
                raise TakesDataOfItsOwn
        return original(self, *args, **kwargs)

    setattr(holder, name, watched)
    try:
        yield
    finally:
        setattr(holder, name, original)


def _subclasses(kind: type) -> list[type]:
    direct: list[type] = kind.__subclasses__()
    return list(dict.fromkeys(one for kind in direct for one in (kind, *_subclasses(kind))))


@contextmanager
def _patched(
    holder: Value, name: str, keeper: Keeper, owner: int, variables: Callable[[Value], list[Value]]
) -> Iterator[None]:
    original = vars(holder)[name]

    @functools.wraps(original)
    def noticed(self: Value, *args: Value, **kwargs: Value) -> Value:
        if threading.get_ident() == owner:
            keeper.keep(variables(self))
        return original(self, *args, **kwargs)

    setattr(holder, name, noticed)
    try:
        yield
    finally:
        setattr(holder, name, original)
