"""Suspects: operations of the traced step that can be undefined or overflow, each with its layer. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainvitals.wire import Environment, Layer

LOSS = "loss"  # the layer that an operation of the loss function counts for
# Keras' own losses guard their logarithms, divisions and exponentials.
GUARDED_LOSSES = frozenset(
    {
        "mse", "mae", "mape", "msle", "mean_squared_error", "mean_absolute_error",
        "mean_absolute_percentage_error", "mean_squared_logarithmic_error", "binary_crossentropy",
        "binary_focal_crossentropy", "categorical_crossentropy", "categorical_focal_crossentropy",
        "sparse_categorical_crossentropy", "kl_divergence", "poisson", "log_cosh", "huber", "hinge",
        "squared_hinge", "categorical_hinge", "cosine_similarity", "ctc",
    }
)  # fmt: skip
GUARDED_KINDS = ("BatchNormalization", "LayerNormalization", "GroupNormalization", "UnitNormalization")
_NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class Suspect:
    """One operation: its kind, its graph name, the layer or loss it belongs to; guarded ones are unlikely."""

    kind: str
    name: str
    layer: str | None
    guarded: bool


def suspects_of(environment: Environment, layers: Sequence[Layer]) -> list[Suspect]:
    """Return the operations of the traced step, the unguarded ones first."""
    found = [
        Suspect(kind, name, *_place(name, layers))
        for kind, names in environment.operations.items()
        for name in names
    ]
    return sorted(found, key=lambda suspect: suspect.guarded)


def _place(name: str, layers: Sequence[Layer]) -> tuple[str | None, bool]:
    scopes = [_NUMBER.sub("", part) for part in name.split("/")[:-1]]
    if "compile_loss" in scopes:
        inside = scopes[scopes.index("compile_loss") + 1 :]
        return LOSS, any(scope in GUARDED_LOSSES for scope in inside)
    for scope in scopes:
        for layer in layers:
            if scope in layer.name.split("/"):
                return layer.name, layer.kind in GUARDED_KINDS
    for scope in scopes:
        if "normalization" in scope:
            return scope, True
    if len(scopes) >= 2:
        return scopes[1], False
    return None, False
