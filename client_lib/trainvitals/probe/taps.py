"""Put an attribute on one object for a while, past whatever the object's own `__setattr__` does with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def attribute(target: object, name: str, value: object) -> Iterator[None]:
    """Let `target.name` be `value`; afterwards the instance is as it was, unless somebody else set it since.

    Keras tracks what is set on a model or an optimizer; this goes past it, and leaves nothing to save.
    """
    own = target.__dict__
    had, before = name in own, own.get(name)
    object.__setattr__(target, name, value)
    try:
        yield
    finally:
        if own.get(name) is value:
            if had:
                object.__setattr__(target, name, before)
            else:
                object.__delattr__(target, name)
