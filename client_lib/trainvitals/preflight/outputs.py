"""What stands between the last layer and the loss: an activation too many, or none, or over one unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainvitals.autopsy.layer_path import LayerPaths
from trainvitals.preflight.finding import Finding
from trainvitals.preflight.losses import BINARY, CATEGORICAL, SPARSE, LossCall
from trainvitals.preflight.node import Nodes, kind_of, source_of
from trainvitals.preflight.rules import is_linear_output
from trainvitals.preflight.trace import Trace
from trainvitals.probe.types import Value

_ROUNDING = 1e-3
_ACTIVATIONS = {"Sigmoid": "sigmoid", "Softmax": "softmax"}
_POSITIVE_OUTPUTS = frozenset({"poisson"})


def wrong_outputs(trace: Trace, calls: Sequence[LossCall], paths: LayerPaths) -> list[Finding]:
    """Return what does not fit between the outputs and their losses."""
    nodes = trace.nodes
    found: dict[tuple[str, int], Finding] = {}
    for call in calls:
        made = source_of(nodes, call.identity)
        finding = _one_class(call) or _logits(nodes, call) or _domain(nodes, call)
        if finding is not None:
            layer = paths.of_chain(trace.layers.get(made, ()))
            found.setdefault((finding.code, made), replace(finding, layer=layer))
    return list(found.values())


def _one_class(call: LossCall) -> Finding | None:
    """A loss over classes of which there is one."""
    is_over_classes = call.name in CATEGORICAL or call.name == SPARSE
    if not is_over_classes or not call.outputs.shape or call.outputs.shape[call.axis] != 1:
        return None
    return Finding(
        code="single_unit_softmax",
        severity="error",
        what=f"{call.name} is over one output, and of one class the loss is always 0.",
        advice="For two classes take one unit with a sigmoid and binary_crossentropy, or two units.",
        snippet='keras.layers.Dense(1, activation="sigmoid")  # loss="binary_crossentropy"',
    )


def _logits(nodes: Nodes, call: LossCall) -> Finding | None:
    if not call.is_crossentropy:
        return None
    activation = _ACTIVATIONS.get(kind_of(nodes, source_of(nodes, call.identity)), "")
    if call.from_logits:
        return _activation_before_logits(call, activation) if activation else None
    lowest, highest = _ends(call.outputs)
    is_outside = lowest < -_ROUNDING or (call.name in BINARY and highest > 1 + _ROUNDING)
    is_linear = is_linear_output(nodes, source_of(nodes, call.identity))
    if activation or not (is_outside or is_linear):
        return None
    wanted = "sigmoid" if call.name in BINARY else "softmax"
    return Finding(
        code="logits_without_activation",
        severity="error",
        what=f"{call.title} takes probabilities, and the outputs are raw: from {lowest:g} to {highest:g}.",
        advice=f"Tell the loss that they are logits; or end the model with a {wanted}.",
        snippet=f"model.compile(..., loss=keras.losses.{_class_of(call.name)}(from_logits=True))",
    )


def _activation_before_logits(call: LossCall, activation: str) -> Finding:
    # Keras takes the numbers from before the activation where it still finds them, with a warning; of the
    # focal losses it does so only in a part of what they compute.
    is_found = hasattr(call.outputs, "_keras_logits") and call.outputs.dtype.name == call.dtype
    is_rescued = is_found and "focal" not in call.name
    effect = (
        "Keras makes up for it here, but not once anything stands in between or the dtype changes."
        if is_rescued
        else f"the {activation} is taken twice, and the loss cannot come near 0."
    )
    return Finding(
        code="activation_before_logits_loss",
        severity="warning" if is_rescued else "error",
        what=f"{call.title} takes logits, and the outputs come from a {activation}: {effect}",
        advice=f"Remove the {activation} from the last layer, or say from_logits=False.",
        snippet=f"model.compile(..., loss=keras.losses.{_class_of(call.name)}(from_logits=False))",
    )


def _domain(nodes: Nodes, call: LossCall) -> Finding | None:
    if call.name not in _POSITIVE_OUTPUTS:
        return None
    lowest, highest = _ends(call.outputs)
    if lowest >= 0 and not is_linear_output(nodes, source_of(nodes, call.identity)):
        return None
    return Finding(
        code="outputs_outside_domain",
        severity="error",
        what=f"{call.name} takes the logarithm of the outputs, and they can be negative: "
        f"from {lowest:g} to {highest:g}.",
        advice="End the model with an activation that is above 0.",
        snippet='keras.layers.Dense(1, activation="softplus")',
    )


def single_units(trace: Trace, calls: Sequence[LossCall], paths: LayerPaths) -> list[Finding]:
    """Return the layers that take a softmax over the one unit that they have."""
    nodes = trace.nodes
    outputs = {source_of(nodes, call.identity) for call in calls}
    found: dict[str, Finding] = {}
    for step in trace.steps:
        if step.kind != "Softmax" or nodes[step.output].shape[-1:] != (1,):
            continue
        layer = step.place.layers[-1] if step.place.layers else None
        has_one = 1 in (getattr(layer, "units", 0), getattr(layer, "filters", 0))
        if has_one or step.output in outputs:
            name = paths.of_chain(step.place.layers)
            found.setdefault(name, _single_unit(name))
    return list(found.values())


def _single_unit(layer: str) -> Finding:
    return Finding(
        code="single_unit_softmax",
        severity="error",
        what="a softmax over one unit is 1 for every input, and nothing is learnt through it.",
        advice="Take a sigmoid, or one unit for each class; over a sequence, a softmax over its axis.",
        snippet='keras.layers.Dense(1, activation="sigmoid")  # or keras.layers.Softmax(axis=1)',
        layer=layer,
    )


def _ends(outputs: Value) -> tuple[float, float]:
    array = np.asarray(outputs).astype(np.float64)
    array = array[np.isfinite(array)]
    return (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)


def _class_of(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
