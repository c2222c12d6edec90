"""What range labels must be in: what a loss of Keras takes, or what an operation said that refused one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trainvitals.autopsy.batch import Part
from trainvitals.autopsy.numbers import Array, Bools
from trainvitals.probe.types import Model, Value

_ROUNDING = 1e-3  # smoothed or averaged labels may be this far beyond
_INFINITY = float("inf")
_RANGES = {
    "binary_crossentropy": (0.0, 1.0),
    "binary_focal_crossentropy": (0.0, 1.0),
    "categorical_crossentropy": (0.0, 1.0),
    "categorical_focal_crossentropy": (0.0, 1.0),
    "kl_divergence": (0.0, 1.0),
    "poisson": (0.0, _INFINITY),
    "hinge": (-1.0, 1.0),
    "squared_hinge": (-1.0, 1.0),
    "categorical_hinge": (-1.0, 1.0),
}
_LABEL = re.compile(r"label value of (-?\d+) which is outside the valid range of \[(-?\d+), (\d+)\)")
_INDEX = re.compile(r"= (-?\d+) is not in \[(\d+), (\d+)\)")


@dataclass(frozen=True, slots=True)
class Domain:
    """A range with both its ends."""

    low: float
    high: float

    def outside(self, array: Array) -> Bools:
        """Return which elements are outside."""
        return np.asarray((array < self.low - _ROUNDING) | (array > self.high + _ROUNDING))


def domain_of_loss(model: Model) -> Domain | None:
    """Return the range of the labels of a compiled model that has one loss of Keras, if that has one."""
    loss = getattr(model, "loss", None)
    name = loss if isinstance(loss, str) else type(loss).__name__ if _is_of_keras(loss) else ""
    if callable(loss) and not name:
        name = getattr(loss, "__name__", "") if _is_function_of_keras(loss) else ""
    found = _RANGES.get(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("k_l_", "kl_"))
    return None if found is None else Domain(*found)


def _is_of_keras(loss: Value) -> bool:
    return type(loss).__module__.split(".")[0] in ("keras", "tf_keras")


def _is_function_of_keras(loss: Value) -> bool:
    return str(getattr(loss, "__module__", "")).split(".")[0] in ("keras", "tf_keras")


def domain_of_error(error: Exception | None) -> Domain | None:
    """Return the range that an operation refused to leave, as its message tells it."""
    text = str(error or "")
    found = _LABEL.search(text) or _INDEX.search(text)
    return None if found is None else Domain(int(found[2]), int(found[3]) - 1)


def labels_outside(parts: Iterable[Part], domain: Domain) -> Part | None:
    """Return the part with labels outside of a range."""
    labels = (part for part in parts if part.role == "label")
    return next((part for part in labels if bool(domain.outside(part.array()).any())), None)


def integers_outside(parts: Iterable[Part], domain: Domain) -> Part | None:
    """Return the part of whole numbers that leaves a range: labels before inputs."""
    for part in sorted(parts, key=lambda part: part.role != "label"):
        array = part.array()
        if _is_whole(array) and bool(domain.outside(array).any()):
            return part
    return None


def _is_whole(array: Array) -> bool:
    return array.dtype.kind in "iu" or (array.dtype.kind == "f" and bool((array == np.rint(array)).all()))
