"""Undo: after a preflight every attribute of the model, and what Keras keeps for all models, is as before.

Variables and random states are `autopsy.state`'s part; this one gives back what Python objects held: a model,
a loss, metrics or an optimizer that were not built are not built afterwards, and counters of the user's
layers stand where they stood.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import keras

from trainvitals.probe.types import Value

try:
    from keras.src.backend.common import global_state as _global_state
except ImportError:
    _global_state = None

_CONTAINERS = (list, dict, set)
_MAX_OBJECTS = 100_000


@dataclass(slots=True)
class Attributes:
    """Holds what objects and their containers held, to the depth of everything that belongs to Keras."""

    _objects: list[tuple[Value, dict[str, Value]]] = field(default_factory=list)
    _contents: list[tuple[Value, Value]] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    def keep(self, *roots: Value) -> None:
        """Keep what can be reached from `roots`."""
        waiting = list(roots)
        while waiting and len(self._seen) < _MAX_OBJECTS:
            one = waiting.pop()
            if id(one) in self._seen:
                continue
            if isinstance(one, _CONTAINERS):
                self._seen.add(id(one))
                self._contents.append((one, _copied(one)))
                waiting.extend(one.values() if isinstance(one, dict) else one)
            elif isinstance(one, tuple):
                waiting.extend(one)
            elif _is_of_keras(one):
                self._seen.add(id(one))
                self._objects.append((one, dict(vars(one))))
                waiting.extend(vars(one).values())

    def restore(self) -> None:
        """Give everything back."""
        for one, attributes in self._objects:
            held: dict[str, Value] = one.__dict__
            if held.keys() != attributes.keys() or any(held[key] is not attributes[key] for key in held):
                held.clear()
                held.update(attributes)
        for container, content in self._contents:
            _refill(container, content)


@contextmanager
def unchanged(*roots: Value) -> Iterator[None]:
    """Let objects of Keras's be changed inside; afterwards they are as before."""
    attributes = Attributes()
    attributes.keep(*roots)
    shared = vars(_global_state.GLOBAL_STATE_TRACKER) if _global_state is not None else {}
    before = {
        key: _copied(value) if isinstance(value, _CONTAINERS) else value for key, value in shared.items()
    }
    containers = {key: value for key, value in shared.items() if isinstance(value, _CONTAINERS)}
    try:
        yield
    finally:
        attributes.restore()
        shared.clear()
        shared.update(before)
        for key, container in containers.items():
            _refill(container, before[key])
            shared[key] = container


def _is_of_keras(one: Value) -> bool:
    """Layers, models, losses, metrics, optimizers, trackers: what has attributes and is of Keras's kind."""
    if isinstance(one, (type, keras.Variable)) or not hasattr(one, "__dict__"):
        return False
    return any(kind.__module__.split(".")[0] in ("keras", "tf_keras") for kind in type(one).__mro__)


def _copied(container: Value) -> Value:
    # Keras's own lists and dictionaries note what is put in: a plain copy does not.
    kind = next(kind for kind in _CONTAINERS if isinstance(container, kind))
    return kind(container)


def _refill(container: Value, content: Value) -> None:
    """Through the plain types' methods: those of Keras's containers would track everything once more."""
    if isinstance(container, list):
        if len(container) != len(content) or any(a is not b for a, b in zip(container, content, strict=True)):
            list.__setitem__(container, slice(None), content)
    elif isinstance(container, dict):
        if list(container) != list(content) or any(container[key] is not content[key] for key in content):
            dict.clear(container)
            dict.update(container, content)
    elif container != content:
        set.clear(container)
        set.update(container, content)
