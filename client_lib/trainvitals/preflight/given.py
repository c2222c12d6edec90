"""Given: the batch as `fit` would hand it to the step, and its parts by name and role."""

from __future__ import annotations

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from trainvitals.autopsy.batch import Batch, Part
from trainvitals.autopsy.internals import identity_of
from trainvitals.probe.types import Value

MAX_SAMPLES = 1024  # of a larger batch the step is run with its first ones only


@dataclass(frozen=True, slots=True)
class Given:
    """The whole batch, and what the step is run with: its first samples, where it is very large."""

    whole: Batch
    run: Batch

    @property
    def is_cut(self) -> bool:
        """Whether the step is not run with all of it."""
        return self.whole is not self.run

    @property
    def x(self) -> Value:
        """The inputs."""
        data = self.run.data
        return data[0] if isinstance(data, tuple) else data

    @property
    def y(self) -> Value:
        """The labels, or None."""
        data = self.run.data
        return data[1] if isinstance(data, tuple) and len(data) > 1 else None

    @property
    def sample_weight(self) -> Value:
        """The sample weights, or None."""
        data = self.run.data
        return data[2] if isinstance(data, tuple) and len(data) > 2 else None

    def whole_part(self, identity: int) -> Part | None:
        """Return the part of the whole batch that the step knows by `identity`."""
        for part, whole in zip(self.run.parts, self.whole.parts, strict=True):
            if part.identity == identity:
                return whole
        return None


def given(batch: Value) -> Given:
    """Return the batch in its parts.

    Raises:
        TypeError: if it is a data set or a file of many batches, or nothing that a model takes.
        ValueError: if it holds no sample, or more than (x, y, sample_weight).
    """
    if isinstance(batch, tf.data.Dataset) or hasattr(batch, "__next__"):
        raise TypeError(
            f"preflight takes one batch, not a {type(batch).__name__} of many: "
            "give it next(iter(dataset)), or (x[:32], y[:32])"
        )
    if isinstance(batch, keras.utils.PyDataset):
        raise TypeError("preflight takes one batch, not a PyDataset of many: give it dataset[0]")
    if isinstance(batch, list):
        batch = tuple(batch)
    if isinstance(batch, tuple) and not 1 <= len(batch) <= 3:
        raise ValueError(f"a batch is x, (x, y) or (x, y, sample_weight), not {len(batch)} parts")
    whole = Batch(tf.nest.map_structure(_as_fit_does, batch))
    if not whole.parts:
        raise TypeError(f"a batch holds arrays or tensors, and {type(batch).__name__} is none: {batch!r:.80}")
    if not whole.size and all(not part.value.shape or 0 in part.value.shape for part in whole.parts):
        raise ValueError("the batch holds no samples")
    is_large = whole.is_divisible and whole.size > MAX_SAMPLES
    return Given(whole, Batch(whole.only(range(MAX_SAMPLES))) if is_large else whole)


def _as_fit_does(value: Value) -> Value:
    """Arrays of floats become those of Keras's default; tensors stay what they are. Each gets an identity."""
    if value is None or isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        return value
    if isinstance(value, tf.Tensor):
        return value if identity_of(value) >= 0 else tf.convert_to_tensor(value)
    if not isinstance(value, np.ndarray | np.generic) and hasattr(value, "__array__"):
        value = np.asarray(value)  # of pandas
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f":
        return np.asarray(value, keras.config.floatx())
    return value
