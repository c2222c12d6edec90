"""The first gradients: missing, exactly 0, next to nothing or huge, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainvitals.preflight.finding import Finding
from trainvitals.probe.layers import group_variables
from trainvitals.probe.types import Model, Value

# A layer of which the gradient's norm is less than this share of the greatest of all layers' learns nothing:
# in healthy networks they lie within some powers of ten of each other.
VANISHING = 1e-6
# A gradient this many times as large as the weights: a step at any usual learning rate replaces them.
EXPLODING = 1e4
_MAX_NAMED = 5
_MAY_BE_ZERO = ("bias", "beta", "moving", "mean")


@dataclass(frozen=True, slots=True)
class LayerGradient:
    """What the first step sends into one layer; `norm` is None where the loss does not depend on it."""

    name: str
    norm: float | None
    weight_norm: float


def by_layer(pairs: Sequence[tuple[Value, Value]], model: Model) -> list[LayerGradient]:
    """Return the gradients by layer, given each variable with its own or None."""
    variables = [variable for variable, _ in pairs]
    groups = group_variables(variables, model)
    layers = []
    for number, layer in enumerate(groups.layers):
        members = [
            pair for pair, owner in zip(pairs, groups.layer_of.tolist(), strict=True) if owner == number
        ]
        norms = [_norm(gradient) for _, gradient in members if gradient is not None]
        weight = _together([_norm(variable) for variable, _ in members])
        layers.append(LayerGradient(layer.name, _together(norms) if norms else None, weight))
    return layers


def suspicious(pairs: Sequence[tuple[Value, Value]], model: Model) -> list[Finding]:
    """Return what the finite gradients of a first step show."""
    layers = by_layer(pairs, model)
    present = {one.name: one.norm for one in layers if one.norm is not None}
    missing = [one.name for one in layers if one.norm is None]
    zero = [name for name, norm in present.items() if norm == 0]
    findings = [_missing(missing)] if missing else []
    if present and len(zero) == len(present):
        findings.append(_all_zero())
    elif zero and not _begins_at_zero(pairs):
        findings.append(_zero(zero))
    greatest = max(present.values(), default=0.0)
    vanishing = {name: norm for name, norm in present.items() if 0 < norm < VANISHING * greatest}
    if vanishing:
        findings.append(_vanishing(vanishing, greatest))
    huge = [
        one for one in layers if one.norm is not None and one.norm > EXPLODING * max(one.weight_norm, 1.0)
    ]
    return [*findings, _exploding(huge)] if huge else findings


def _begins_at_zero(pairs: Sequence[tuple[Value, Value]]) -> bool:
    """A last layer or a gate that is initialised with 0 lets no gradient through in the first step."""
    return any(
        not str(variable.name).startswith(_MAY_BE_ZERO) and not np.asarray(variable).any()
        for variable, gradient in pairs
        if gradient is not None
    )


def _missing(names: Sequence[str]) -> Finding:
    return Finding(
        code="gradient_missing",
        severity="warning",
        what=f"the loss does not depend on the weights of {_named(names)}, and they stay as they are.",
        advice="Check that the layer's output is used and that nothing cuts the gradient: argmax, round, "
        "stop_gradient, a comparison, numpy. If it is meant so, set layer.trainable = False.",
        layer=names[0],
    )


def _all_zero() -> Finding:
    return Finding(
        code="gradient_zero",
        severity="error",
        what="the first gradient of every layer is exactly 0: no weight will move.",
        advice="Look at what the loss is computed from: a constant output, outputs that the loss clips, "
        "units that are all dead, or sample weights of 0.",
    )


def _zero(names: Sequence[str]) -> Finding:
    return Finding(
        code="gradient_zero",
        severity="warning",
        what=f"the first gradient of {_named(names)} is exactly 0 on this batch.",
        advice="Units behind it are dead or saturated: look at its initialisation and at the scale of the "
        "inputs, or take an activation with a slope everywhere.",
        snippet='keras.layers.Dense(units, activation="leaky_relu", kernel_initializer="he_normal")',
        layer=names[0],
    )


def _vanishing(norms: dict[str, float], greatest: float) -> Finding:
    least = min(norms, key=lambda name: norms[name])
    return Finding(
        code="gradient_vanishing",
        severity="warning",
        what=f"the first gradient of {_named(list(norms))} is next to nothing: "
        f"norm {norms[least]:.2g} beside {greatest:.2g}.",
        advice="Take relu or gelu in place of sigmoid and tanh, normalise between layers, or add "
        "connections around them.",
        snippet='keras.layers.Dense(units, activation="relu", kernel_initializer="he_normal")\n'
        "keras.layers.LayerNormalization()",
        layer=least,
    )


def _exploding(layers: Sequence[LayerGradient]) -> Finding:
    worst = max(layers, key=lambda one: one.norm or 0.0)
    return Finding(
        code="gradient_exploding",
        severity="warning",
        what=f"the first gradient of {_named([one.name for one in layers])} is huge: "
        f"norm {worst.norm:.2g} for weights of norm {worst.weight_norm:.2g}.",
        advice="Scale inputs and labels, take a standard initialisation, and clip the gradient.",
        snippet="keras.optimizers.Adam(1e-3, global_clipnorm=1.0)",
        layer=worst.name,
    )


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    return shown if len(names) <= _MAX_NAMED else f"{shown} and {len(names) - _MAX_NAMED} more layers"


def _norm(value: Value) -> float:
    array = np.abs(np.asarray(value).astype(np.float64))
    peak = float(array.max(initial=0.0))
    return peak * float(np.sqrt(np.sum((array / peak) ** 2))) if peak > 0 else 0.0


def _together(norms: Sequence[float]) -> float:
    return float(np.sqrt(np.sum(np.square(norms)))) if norms else 0.0
