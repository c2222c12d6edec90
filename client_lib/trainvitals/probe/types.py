"""Names for what TensorFlow and Keras hand over: neither has types that a checker can read."""

from __future__ import annotations

from typing import Any, TypeAlias

Model: TypeAlias = Any  # keras.Model
Optimizer: TypeAlias = Any  # keras.optimizers.Optimizer
Tensor: TypeAlias = Any  # tf.Tensor, tf.Variable, or a number that becomes one
Value: TypeAlias = Any  # whatever the user's code or Keras passes through
