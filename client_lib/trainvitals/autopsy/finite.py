"""How bad a tensor is, told on its own device: what is finite, nearly everything, is not copied from it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from trainvitals.autopsy.internals import untaped
from trainvitals.autopsy.numbers import FINITE, array_of, badness_of_array
from trainvitals.probe.types import Tensor

_ON_DEVICE = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.float64})  # what `is_finite` takes


def badness_of(tensor: Tensor) -> int:
    """Return FINITE, INFINITE or NAN, by the worst element; FINITE for what holds no such numbers."""
    if not _is_on_host(tensor) and tensor.dtype in _ON_DEVICE:
        return badness_on_device(tensor)
    array = array_of(tensor)
    return FINITE if array is None else badness_of_array(array)


def badness_on_device(tensor: Tensor) -> int:
    """Return the same, having copied the tensor to the host only if it is bad."""
    with untaped():
        if bool(tf.reduce_all(tf.math.is_finite(tensor))):
            return FINITE
        return badness_of_array(np.asarray(tensor))


def _is_on_host(tensor: Tensor) -> bool:
    device = getattr(tensor, "device", None)
    return not isinstance(device, str) or "GPU" not in device
