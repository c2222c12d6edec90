"""Losses: each call of a Keras loss in the step, with what it was given, and what is known of such a loss."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import keras
import tensorflow as tf

from trainvitals.autopsy.internals import identity_of
from trainvitals.probe.types import Value

_ALIASES = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "bce": "binary_crossentropy",
    "kld": "kl_divergence",
    "kl_div": "kl_divergence",
}
BINARY = frozenset({"binary_crossentropy", "binary_focal_crossentropy"})
CATEGORICAL = frozenset({"categorical_crossentropy", "categorical_focal_crossentropy"})
SPARSE = "sparse_categorical_crossentropy"


@dataclass(frozen=True, slots=True)
class LossCall:
    """One loss of Keras's, as it was called in the step."""

    name: str  # "binary_crossentropy"; empty for a function of the user's
    from_logits: bool
    axis: int
    ignore_class: int | None
    dtype: str
    labels: Value
    outputs: Value

    @property
    def identity(self) -> int:
        """What identifies the outputs in the trace."""
        return identity_of(self.outputs)

    @property
    def is_crossentropy(self) -> bool:
        """Whether it has a `from_logits`."""
        return self.name in BINARY or self.name in CATEGORICAL or self.name == SPARSE

    @property
    def title(self) -> str:
        """The loss in the user's words."""
        return f"{self.name}(from_logits={self.from_logits})" if self.is_crossentropy else self.name


@contextmanager
def losses_seen(calls: list[LossCall]) -> Iterator[None]:
    """Put each call of a loss of Keras's in this thread into `calls`."""
    owner = threading.get_ident()
    holder = keras.losses.Loss
    original = vars(holder)["__call__"]

    @functools.wraps(original)
    def seen(self: Value, y_true: Value, y_pred: Value, *args: Value, **kwargs: Value) -> Value:
        if threading.get_ident() == owner and isinstance(y_pred, tf.Tensor) and _is_single(y_true):
            calls.append(_call(self, y_true, y_pred))
        return original(self, y_true, y_pred, *args, **kwargs)

    holder.__call__ = seen
    try:
        yield
    finally:
        holder.__call__ = original


def _is_single(value: Value) -> bool:
    return value is not None and not tf.nest.is_nested(value) and not isinstance(value, tf.RaggedTensor)


def _call(loss: Value, labels: Value, outputs: Value) -> LossCall:
    options = dict(getattr(loss, "_fn_kwargs", None) or {})
    axis = options.get("axis", getattr(loss, "axis", -1))
    ignored = options.get("ignore_class", getattr(loss, "ignore_class", None))
    return LossCall(
        name=name_of(loss),
        from_logits=bool(options.get("from_logits", getattr(loss, "from_logits", False))),
        axis=axis if isinstance(axis, int) else -1,
        ignore_class=ignored if isinstance(ignored, int) else None,
        dtype=str(getattr(loss, "dtype", "") or ""),
        labels=labels,
        outputs=outputs,
    )


def name_of(loss: Value) -> str:
    """Return what Keras calls a loss of its own; empty for any other."""
    kind = type(loss)
    function = getattr(loss, "fn", None)
    if kind.__name__ == "LossFunctionWrapper" and function is not None:
        name = getattr(function, "__name__", "") if _is_of_keras(function) else ""
    else:
        name = kind.__name__ if _is_of_keras(kind) else ""
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("kldivergence", "kl_divergence")
    return _ALIASES.get(plain, plain)


def _is_of_keras(one: Value) -> bool:
    return str(getattr(one, "__module__", "")).split(".")[0] in ("keras", "tf_keras")
