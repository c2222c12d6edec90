"""Scales: large raw numbers of the batch that reach the first weights.

What is embedded, rescaled or normalised on the way is not what is looked at: only what gets there.
"""

from __future__ import annotations

import keras
import numpy as np

from trainvitals.autopsy.layer_path import LayerPaths
from trainvitals.autopsy.numbers import Array
from trainvitals.preflight.data import part_of
from trainvitals.preflight.finding import Finding
from trainvitals.preflight.given import Given
from trainvitals.preflight.node import RESHAPING, source_of
from trainvitals.preflight.trace import Step, Trace

# The root mean square of a feature: standardised ones are at 1, pixels of 0 to 255 near 100. Below this
# first layers cope.
LARGE_RMS = 15.0
_NORMALISING = (
    keras.layers.BatchNormalization,
    keras.layers.LayerNormalization,
    keras.layers.GroupNormalization,
)
_THROUGH_BIAS = RESHAPING | {"BiasAdd", "AddV2"}
# Pixels less the mean of ImageNet, as the pretrained networks of that time take them on purpose.
_CENTRED_PIXELS = (-125.0, 155.0)


def not_normalised(given: Given, trace: Trace, paths: LayerPaths) -> list[Finding]:
    """Return the parts of the batch that meet a weight large and raw."""
    normalised = _normalised(trace)
    found: dict[str, Finding] = {}
    for step in trace.steps:
        if step.first is None or step.output in normalised or not _is_trained(step):
            continue
        array = np.asarray(step.first).astype(np.float64)
        array = np.where(np.isfinite(array), array, 0)
        if array.ndim == 0 or array.size == 0:
            continue
        rms = np.sqrt(np.mean(array.reshape(-1, array.shape[-1]) ** 2, axis=0))
        if rms.max() <= LARGE_RMS or _are_centred_pixels(array):
            continue
        inputs = [one for one in step.inputs if trace.nodes[one].bounds.of_data]
        part = part_of(given, trace.nodes, inputs[0]) if inputs else None
        name = part.name if part is not None else "x"
        is_same_axis = part is not None and part.value.shape[-1] == array.shape[-1]
        found.setdefault(name, _raw(name, paths.of_chain(step.place.layers), array, rms, is_same_axis))
    return list(found.values())


def _normalised(trace: Trace) -> set[int]:
    """Return what a normalisation takes next: before it the scale of the inputs does not matter."""
    taken: set[int] = set()
    for step in trace.steps:
        if step.place.layers and isinstance(step.place.layers[-1], _NORMALISING):
            taken.update(source_of(trace.nodes, one, _THROUGH_BIAS) for one in step.inputs)
    return taken


def _is_trained(step: Step) -> bool:
    """A frozen layer was trained on what it gets."""
    layer = step.place.layers[-1] if step.place.layers else None
    return bool(getattr(layer, "trainable", True))


def _are_centred_pixels(array: Array) -> bool:
    low, high = _CENTRED_PIXELS
    is_of_images = array.ndim == 4 and array.shape[-1] == 3
    return is_of_images and low <= array.min() < -1 and array.max() <= high


def _raw(name: str, layer: str, array: Array, rms: Array, is_same_axis: bool) -> Finding:
    worst = int(rms.argmax())
    is_of_one = is_same_axis and len(rms) > 1 and int((rms > LARGE_RMS).sum()) < len(rms)
    low, high = (
        (array[..., worst].min(), array[..., worst].max()) if is_of_one else (array.min(), array.max())
    )
    are_pixels = low >= 0 and 100 < high <= 255
    layer_of = "keras.layers.Rescaling(1 / 255)" if are_pixels else "keras.layers.Normalization()"
    adapt = "" if are_pixels else "  # call its adapt(x_train) before training"
    return Finding(
        code="input_not_normalised",
        severity="warning",
        what=f"numbers from {low:g} to {high:g} reach the first weights as they are.",
        advice="Bring each feature to about mean 0 and deviation 1 first: training is slow or unstable else.",
        snippet=f"{layer_of}{adapt}",
        layer=layer,
        part=name,
        feature=worst if is_of_one else None,
    )
