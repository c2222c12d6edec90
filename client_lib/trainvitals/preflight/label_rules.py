"""Label rules: which labels a loss of Keras's takes, and what is wrong with others. Pure numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trainvitals.autopsy.numbers import Array, Bools
from trainvitals.preflight.finding import Severity
from trainvitals.preflight.losses import CATEGORICAL, SPARSE
from trainvitals.probe.types import Value

_ROUNDING = 1e-3  # smoothed or averaged labels may be this far beyond
_UNIT = frozenset(
    {"binary_crossentropy", "binary_focal_crossentropy", "categorical_crossentropy"}
    | {"categorical_focal_crossentropy", "kl_divergence", "dice", "tversky"}
)
_HINGE = frozenset({"hinge", "squared_hinge"})


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with labels, and which elements are; severity and words for a finding."""

    code: str
    severity: Severity
    bad: Bools
    what: str
    advice: str
    snippet: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """A loss, as far as its labels depend on it."""

    name: str
    n_classes: int  # of the outputs, on the axis of the classes
    shape: tuple[int, ...]  # of the outputs
    ignore_class: int | None = None


def fault_of(labels: Array, loss: Taken) -> Fault | None:
    """Return what is wrong with finite labels, if anything is."""
    if labels.dtype.kind not in "biuf" or labels.size == 0:
        return None
    labels = np.where(np.isfinite(labels), labels, 0).astype(np.float64)
    if loss.name == SPARSE:
        return _of_sparse(labels, loss)
    if loss.name in CATEGORICAL and (fault := _of_one_hot(labels, loss)) is not None:
        return fault
    if loss.name in _UNIT:
        return _of_unit(labels, loss)
    if loss.name in _HINGE:
        return _of_hinge(labels, loss)
    rule = _OTHERS.get(loss.name)
    return None if rule is None else rule(labels)


def _of_sparse(labels: Array, loss: Taken) -> Fault | None:
    classes = loss.n_classes
    if labels.shape == loss.shape and classes > 1 and labels.ndim > 1:
        return Fault(
            "labels_one_hot_for_sparse",
            "error",
            np.ones(labels.shape, np.bool_),
            f"the labels have one column for each of {classes} classes, and {loss.name} takes class ids.",
            "Take the loss over one-hot labels, or hand it the ids.",
            'model.compile(..., loss="categorical_crossentropy")  # or y = y.argmax(axis=-1)',
        )
    broken = labels != np.rint(labels)
    if bool(broken.any()):
        return Fault(
            "labels_outside_domain",
            "error",
            broken,
            f"{loss.name} takes whole numbers, and {_some(broken)} not: {_range(labels)}.",
            "Hand it class ids from 0 on; for a number to predict, take a regression loss such as mse.",
        )
    bad = (labels < 0) | (labels >= classes)
    if loss.ignore_class is not None:
        bad &= labels != loss.ignore_class
    if not bool(bad.any()):
        return None
    is_shifted = labels.min() == 1 and labels.max() == classes
    return Fault(
        "labels_outside_domain",
        "error",
        bad,
        f"class ids are 0 to {classes - 1} for {classes} outputs, and {_some(bad)} not: {_range(labels)}.",
        "The ids begin with 1: subtract 1." if is_shifted else _for_ids(labels, classes, loss),
        "y = y - 1" if is_shifted else "",
    )


def _for_ids(labels: Array, classes: int, loss: Taken) -> str:
    if classes == 1:
        return "For two classes over one output, take binary_crossentropy and a sigmoid."
    if labels.min() < 0:
        return (
            "Map the labels to 0, 1, ...; for one that means none, set ignore_class or a sample weight of 0."
        )
    return f"Give the last layer {int(labels.max()) + 1} units, or map the labels to 0 to {classes - 1}."


def _of_one_hot(labels: Array, loss: Taken) -> Fault | None:
    ids = labels[..., 0] if labels.shape[-1:] == (1,) and labels.ndim == len(loss.shape) else labels
    is_of_ids = ids.shape == loss.shape[:-1] and loss.n_classes > 1
    if is_of_ids and bool((ids == np.rint(ids)).all()):
        return Fault(
            "labels_sparse_for_one_hot",
            "error",
            np.ones(labels.shape, np.bool_),
            f"the labels are class ids, and {loss.name} takes a column for each of {loss.n_classes} classes.",
            "Take the loss over class ids, or make the labels one-hot.",
            'model.compile(..., loss="sparse_categorical_crossentropy")  # or keras.ops.one_hot(y, classes)',
        )
    if labels.shape != loss.shape or labels.min() < -_ROUNDING or labels.max() > 1 + _ROUNDING:
        return None
    many = labels.sum(axis=-1, keepdims=True) > 1.01
    if not bool(many.any()):
        return None
    return Fault(
        "labels_not_one_class",
        "warning",
        np.broadcast_to(many, labels.shape),
        f"{loss.name} takes labels that sum to 1 over the classes, and {_some(many, 'sample')} of several.",
        "Where a sample may be of several classes at once, take binary_crossentropy over sigmoids.",
        'keras.layers.Dense(classes, activation="sigmoid")  # loss="binary_crossentropy"',
    )


def _of_unit(labels: Array, loss: Taken) -> Fault | None:
    bad = (labels < -_ROUNDING) | (labels > 1 + _ROUNDING)
    if not bool(bad.any()):
        return None
    advice, snippet = "Map the labels into [0, 1].", ""
    values = np.unique(labels)
    if set(values) <= {-1.0, 1.0}:
        advice, snippet = "Labels of -1 and 1 are for hinge: map them to 0 and 1.", "y = (y + 1) / 2"
    elif values[0] >= 0 and values[-1] <= 255 and values[-1] > 50:
        advice, snippet = "They look like bytes: divide by 255.", 'y = y.astype("float32") / 255'
    elif set(values) <= {1.0, 2.0}:
        advice, snippet = "The classes are numbered from 1: subtract 1.", "y = y - 1"
    elif bool((labels == np.rint(labels)).all()) and loss.n_classes == 1:
        advice = "For more than two classes take sparse_categorical_crossentropy over as many units."
    return Fault(
        "labels_outside_domain",
        "error",
        bad,
        f"{loss.name} takes labels in [0, 1], and {_some(bad)} outside: {_range(labels)}.",
        advice,
        snippet,
    )


def _of_hinge(labels: Array, loss: Taken) -> Fault | None:
    if np.isin(labels, (0, 1)).all():  # Keras makes -1 and 1 of them
        return None
    bad = ~np.isin(labels, (-1, 1))
    if not bool(bad.any()):
        return None
    return Fault(
        "labels_outside_domain",
        "error",
        bad,
        f"{loss.name} takes labels of -1 and 1 (or 0 and 1), and {_some(bad)} other: {_range(labels)}.",
        "Map the two classes to -1 and 1.",
    )


def _below(limit: float, severity: Severity, what: str, advice: str) -> Callable[[Array], Fault | None]:
    def rule(labels: Array) -> Fault | None:
        bad = labels < limit
        text = f"{what}, and {_some(bad)} below: {_range(labels)}."
        return Fault("labels_outside_domain", severity, bad, text, advice) if bool(bad.any()) else None

    return rule


def _percentage(labels: Array) -> Fault | None:
    bad = np.abs(labels) < 1e-6
    if not bool(bad.any()):
        return None
    return Fault(
        "labels_outside_domain",
        "warning",
        bad,
        f"mean_absolute_percentage_error divides by the labels, and {_some(bad)} 0.",
        "Take mean_absolute_error, or leave samples with a label of 0 out.",
    )


_OTHERS: dict[str, Callable[[Array], Fault | None]] = {
    "poisson": _below(
        0, "error", "poisson takes counts from 0 on", "Take mse for labels that can be negative."
    ),
    "mean_squared_logarithmic_error": _below(
        -_ROUNDING,
        "warning",
        "mean_squared_logarithmic_error takes labels from 0 on",
        "Keras takes negative ones for 0: take mse, or transform the labels yourself.",
    ),
    "mean_absolute_percentage_error": _percentage,
}


def taken(name: str, outputs: Value, axis: int, ignore_class: int | None) -> Taken:
    """Return what matters of a call of a loss."""
    shape = tuple(int(size) for size in outputs.shape)
    return Taken(name, shape[axis] if shape else 1, shape, ignore_class)


def _some(bad: Bools, noun: str = "label") -> str:
    count = int(bad.sum())
    return f"{count} {noun} is" if count == 1 else f"{count} {noun}s are"


def _range(labels: Array) -> str:
    return f"they are from {labels.min():g} to {labels.max():g}"
