"""Template: the form of a batch without its tensors, so that these can be kept and be put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import tensorflow as tf

from trainvitals.probe.types import Tensor, Value


@dataclass(frozen=True, slots=True)
class Part:
    """One leaf of the batch: `count` tensors (a ragged one has several), or a value that is no tensor."""

    spec: Any
    count: int
    value: Any = None


@dataclass(frozen=True, slots=True)
class Template:
    """How a nested structure is taken apart."""

    skeleton: Any
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, data: Value) -> tuple[Self, list[Tensor]]:
        """Return the template of `data` and its tensors."""
        parts, tensors = [], []
        for leaf in tf.nest.flatten(data):
            if not tf.is_tensor(leaf):
                parts.append(Part(None, 0, leaf))
                continue
            found = tf.nest.flatten(leaf, expand_composites=True)
            parts.append(Part(tf.type_spec_from_value(leaf), len(found)))
            tensors += found
        return cls(tf.nest.map_structure(lambda _: 0, data), tuple(parts)), tensors

    def join(self, tensors: Sequence[Tensor]) -> Value:
        """Return the structure with these tensors in it."""
        leaves, start = [], 0
        for part in self.parts:
            found = list(tensors[start : start + part.count])
            start += part.count
            if part.spec is None:
                leaves.append(part.value)
            elif isinstance(part.spec, tf.TensorSpec):
                leaves.append(found[0])
            else:
                leaves.append(tf.nest.pack_sequence_as(part.spec, found, expand_composites=True))
        return tf.nest.pack_sequence_as(self.skeleton, leaves)
