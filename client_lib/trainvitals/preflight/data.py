"""What the batch itself shows: NaN and Infinity, what float16 cannot hold, and labels that no loss takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainvitals.autopsy.batch import Part, blame
from trainvitals.autopsy.internals import identity_of
from trainvitals.autopsy.numbers import Bools, bad_elements
from trainvitals.preflight.finding import Finding
from trainvitals.preflight.given import Given
from trainvitals.preflight.label_rules import fault_of, taken
from trainvitals.preflight.losses import LossCall
from trainvitals.preflight.node import PASSING, Nodes, source_of
from trainvitals.probe.types import Model

FLOAT16_MAX = 65504.0
_NOUNS = {"input": "inputs", "label": "labels", "sample_weight": "sample weights"}
_UNCHANGED = frozenset(PASSING) - {"Max", "Min", "MaxPool", "AvgPool", "TopKV2"}


def not_finite(given: Given) -> list[Finding]:
    """Return the parts of the batch that hold NaN or Infinity."""
    return [
        _of_part(part, bad, given) for part in given.whole.parts if (bad := bad_elements(part.array())).any()
    ]


def _of_part(part: Part, bad: Bools, given: Given) -> Finding:
    array = part.array()
    n_nan = int(np.isnan(array).sum())
    kinds = [
        f"{count} {name}" for count, name in ((n_nan, "NaN"), (int(bad.sum()) - n_nan, "Infinity")) if count
    ]
    blamed = blame(bad, given.whole.size)
    return Finding(
        code="data_not_finite",
        severity="error",
        what=f"the {_NOUNS[part.role]} hold {' and '.join(kinds)}.",
        advice="Drop or fill these samples before training: one of them makes every weight NaN in one step.",
        snippet="x = numpy.nan_to_num(x)  # or fill with the mean of the feature",
        part=part.name,
        feature=blamed.feature,
        samples=blamed.samples,
    )


def other_counts(given: Given) -> list[Finding]:
    """Return the labels and sample weights that are not as many as the inputs."""
    counts = {part.name: int(part.value.shape[0]) for part in given.whole.parts if len(part.value.shape)}
    inputs = [counts[part.name] for part in given.whole.parts if part.role == "input" and part.name in counts]
    others = (part for part in given.whole.parts if part.role != "input" and part.name in counts)
    return [
        Finding(
            code="labels_of_other_count",
            severity="error",
            what=f"there are {inputs[0]} samples in x, and {counts[part.name]} {_NOUNS[part.role]}.",
            advice="Give one for each sample: look at how the batch was cut, and at an axis that was lost.",
            part=part.name,
        )
        for part in others
        if inputs and counts[part.name] != inputs[0]
    ]


def beyond_float16(given: Given, model: Model) -> list[Finding]:
    """Return the inputs that become Infinity where the model computes in float16."""
    if getattr(model, "compute_dtype", "") != "float16":
        return []
    found = []
    for part in given.whole.parts:
        array = part.array()
        if part.role != "input" or array.dtype.kind != "f":
            continue
        bad = np.isfinite(array) & (np.abs(array) > FLOAT16_MAX)
        if bad.any():
            blamed = blame(bad, given.whole.size)
            finding = Finding(
                code="input_beyond_float16",
                severity="error",
                what=f"inputs reach {np.abs(array[bad]).max():g}: in float16, which ends at 65504, Infinity.",
                advice="Scale the inputs before the model, in float32.",
                part=part.name,
                feature=blamed.feature,
                samples=blamed.samples,
            )
            found.append(finding)
    return found


def part_of(given: Given, nodes: Nodes, identity: int) -> Part | None:
    """Return the part of the batch that a tensor is, but for its shape and dtype."""
    return given.run.part(source_of(nodes, identity, _UNCHANGED))


def wrong_labels(given: Given, calls: Sequence[LossCall], nodes: Nodes) -> list[Finding]:
    """Return the labels that the losses which they go to do not take."""
    found: dict[tuple[str, str], Finding] = {}
    for call in calls:
        part = part_of(given, nodes, identity_of(call.labels))
        if part is None or not call.name:  # labels that the step made itself are its own affair
            continue
        shape = taken(call.name, call.outputs, call.axis, call.ignore_class)
        whole = given.whole_part(part.identity) or part
        # The batch may be cut, and the loss may see its labels in another shape.
        array = np.asarray(call.labels) if not given.is_cut else whole.array()
        fault = fault_of(array, shape)
        if fault is None or _are_weighted_out(fault.bad, given):
            continue
        bad = fault.bad
        blamed = blame(bad, given.whole.size) if bad.size and not bad.all() else None
        finding = Finding(
            code=fault.code,
            severity=fault.severity,
            what=fault.what,
            advice=fault.advice,
            snippet=fault.snippet,
            part=part.name,
            samples=blamed.samples if blamed is not None else (),
        )
        found.setdefault((fault.code, part.name), finding)
    return list(found.values())


def _are_weighted_out(bad: Bools, given: Given) -> bool:
    """Tell whether samples with a weight of 0 hold all of the bad labels."""
    weights = given.sample_weight
    array = None if weights is None or isinstance(weights, (dict, list, tuple)) else np.asarray(weights)
    if array is None or bad.ndim == 0 or len(array) != len(bad):
        return False
    rows = bad.reshape(len(bad), -1).any(axis=1)
    return bool((array.reshape(len(array), -1)[rows] == 0).all())
