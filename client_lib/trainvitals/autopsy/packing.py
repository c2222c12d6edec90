"""Packing: a nested batch as JSON and a list of arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainvitals.probe.types import Value
from trainvitals.wire import Scalar

Arrays = list[np.ndarray[Any, Any]]


def pack(data: Value, arrays: Arrays) -> dict[str, Any]:
    """Return the form of `data` as JSON; its tensors are added to `arrays`.

    Raises:
        TypeError: if there is something in it that is no tensor, no number and no text.
    """
    if isinstance(data, Mapping):
        return {"dict": {str(key): pack(value, arrays) for key, value in data.items()}}
    if isinstance(data, tuple | list):
        kind = "tuple" if isinstance(data, tuple) else "list"
        return {kind: [pack(value, arrays) for value in data]}
    if isinstance(data, tf.RaggedTensor):
        lengths = [pack(one, arrays) for one in data.nested_row_splits]
        return {"ragged": [pack(data.flat_values, arrays), *lengths]}
    if isinstance(data, tf.SparseTensor):
        return {"sparse": [pack(one, arrays) for one in (data.indices, data.values, data.dense_shape)]}
    if data is None or isinstance(data, bool | int | float | str):
        return {"value": data}
    if not (tf.is_tensor(data) or isinstance(data, np.ndarray | np.generic)):
        raise TypeError(f"a {type(data).__name__} in the batch")
    arrays.append(plain(data))
    return {"tensor": len(arrays) - 1, "dtype": tf.as_dtype(data.dtype).name}


def unpack(form: Mapping[str, Any], arrays: Sequence[Any]) -> Value:
    """Return the batch that `pack` has taken apart.

    Raises:
        ValueError: if `form` is none of its forms.
    """
    ((kind, content),) = [(key, value) for key, value in form.items() if key != "dtype"]
    if kind == "value":
        found: Scalar | None = content
        return found
    if kind == "tensor":
        return restored(arrays[content], form["dtype"])
    if kind == "dict":
        return {key: unpack(value, arrays) for key, value in content.items()}
    parts = [unpack(value, arrays) for value in content]
    if kind == "ragged":
        return tf.RaggedTensor.from_nested_row_splits(parts[0], parts[1:])
    if kind == "sparse":
        return tf.SparseTensor(*parts)
    if kind in ("tuple", "list"):
        return tuple(parts) if kind == "tuple" else parts
    raise ValueError(f"a batch of an unknown form: {kind}")


def plain(tensor: Value) -> np.ndarray[Any, Any]:
    """Return a tensor as an array that a file holds without pickling; bytes where numpy knows no better."""
    array = np.asarray(tensor)
    if array.dtype.kind in "biufc":
        return array
    if array.dtype.kind in "OSU":
        return np.asarray([str_of(one) for one in array.ravel()], dtype=np.str_).reshape(array.shape)
    return np.frombuffer(array.tobytes(), np.uint8).reshape(*array.shape, array.dtype.itemsize)


def restored(array: np.ndarray[Any, Any], dtype: str) -> Value:
    """Return the tensor that `plain` has made an array of."""
    kind = tf.as_dtype(dtype)
    if kind == tf.string or array.dtype == kind.as_numpy_dtype:
        return tf.constant(array)
    return tf.constant(np.frombuffer(array.tobytes(), kind.as_numpy_dtype).reshape(array.shape[:-1]))


def str_of(value: object) -> str:
    """Return text; bytes that are none keep what can be read."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
