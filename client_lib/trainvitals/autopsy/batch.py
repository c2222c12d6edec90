"""The batch: its parts by name and role, what is bad in them, and smaller batches of some of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import tensorflow as tf

from trainvitals.autopsy.internals import identity_of
from trainvitals.autopsy.numbers import Array, Bools, bad_elements
from trainvitals.probe.types import Value

Role = Literal["input", "label", "sample_weight"]
_TOP: tuple[tuple[str, Role], ...] = (("x", "input"), ("y", "label"), ("sample_weight", "sample_weight"))


# Of a batch that is a dictionary, as those of many loops.
_LABEL_KEYS = frozenset({"y", "label", "labels", "target", "targets", "y_true"})


@dataclass(frozen=True, slots=True)
class Part:
    """One array of the batch."""

    name: str
    role: Role
    value: Value

    @property
    def identity(self) -> int:
        """What identifies it in a recording."""
        return identity_of(self.value)

    def array(self) -> Array:
        """Return its numbers."""
        return np.asarray(self.value)


@dataclass(frozen=True, slots=True)
class Blame:
    """The bad elements of a part of the batch."""

    n_bad: int
    samples: tuple[int, ...]
    feature: int | None


class Batch:
    """The data of one step, as tensors: each has an identity by which a recording knows it again.

    Or, for a step that wants numpy's own arrays, as those.
    """

    def __init__(self, data: Value, *, is_converted: bool = True) -> None:
        self.data = tf.nest.map_structure(_tensor, data) if is_converted else data
        self.parts = tuple(_parts(self.data))
        leaves = tf.nest.flatten(self.data)
        self.is_divisible = not any(isinstance(one, tf.RaggedTensor | tf.SparseTensor) for one in leaves)
        self.size = next((len_of(one) for one in leaves if len_of(one)), 0)

    def part(self, identity: int) -> Part | None:
        """Return the part that a recording knows by `identity`."""
        return next((part for part in self.parts if part.identity == identity), None)

    def bad_part(self) -> Part | None:
        """Return the first part that holds something not finite."""
        return next((part for part in self.parts if bool(bad_elements(part.array()).any())), None)

    def only(self, samples: Sequence[int]) -> Value:
        """Return data of these samples alone."""
        return self._mapped(np.asarray(samples, np.int64))

    def overwritten(self, samples: Sequence[int]) -> Value:
        """Return data as large as before in which every sample but these is a copy of one of them."""
        places = np.resize(np.asarray(samples, np.int64), self.size)
        places[list(samples)] = samples
        return self._mapped(places)

    def _mapped(self, places: Array) -> Value:
        def taken(value: Value) -> Value:
            if len_of(value) != self.size:
                return value
            return tf.gather(value, places) if isinstance(value, tf.Tensor) else value[places]

        return tf.nest.map_structure(taken, self.data)


def len_of(value: Value) -> int:
    """Return how long the first axis is; 0 for what has none."""
    if isinstance(value, tf.RaggedTensor):
        return int(value.nrows())
    shape = getattr(value, "shape", None) or ()
    return int(next(iter(shape), 0) or 0) if isinstance(value, tf.Tensor | np.ndarray) else 0


def blame(bad: Bools, size: int) -> Blame:
    """Return which samples and which feature the bad elements are of."""
    if bad.ndim == 0 or len(bad) != size:
        return Blame(int(bad.sum()), (), None)
    rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
    columns = np.flatnonzero(bad.reshape(-1, bad.shape[-1]).any(axis=0)) if bad.ndim > 1 else np.zeros(0)
    feature = int(columns[0]) if len(columns) == 1 and bad.shape[-1] > 1 else None
    return Blame(int(bad.sum()), tuple(int(row) for row in rows), feature)


def _tensor(value: Value) -> Value:
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return tf.convert_to_tensor(value)
    return value


def _parts(data: Value) -> list[Part]:
    if isinstance(data, (tuple, list)) and 1 <= len(data) <= len(_TOP):
        named = [(name, role, value) for (name, role), value in zip(_TOP, data, strict=False)]
    elif isinstance(data, (tuple, list)):
        named = [(f"batch[{place}]", "input", value) for place, value in enumerate(data)]
    elif isinstance(data, dict):
        named = [(f"x[{key!r}]", _role_of_key(str(key)), value) for key, value in data.items()]
    else:
        named = [("x", "input", data)]
    return [part for name, role, value in named for part in _leaves(name, role, value)]


def _role_of_key(key: str) -> Role:
    return "label" if key.lower() in _LABEL_KEYS else "input"


def _leaves(name: str, role: Role, value: Value) -> list[Part]:
    if isinstance(value, dict):
        return [part for key in value for part in _leaves(f"{name}[{key!r}]", role, value[key])]
    if isinstance(value, (tuple, list)):
        return [part for key, one in enumerate(value) for part in _leaves(f"{name}[{key}]", role, one)]
    if isinstance(value, tf.RaggedTensor):
        value = value.flat_values
    elif isinstance(value, tf.SparseTensor):
        value = value.values
    return [Part(name, role, value)] if isinstance(value, tf.Tensor | np.ndarray) else []
