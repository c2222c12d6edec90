"""Trace: one eager pass of the user's step, each tensor with its bounds, each risk with its place.

It keeps no tensor alive but those few that say what reaches the first weights.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import keras
import numpy as np
import tensorflow as tf

from trainvitals.autopsy.batch import Part
from trainvitals.autopsy.internals import every_operation, identity_of, untaped
from trainvitals.autopsy.source import Place, Stack
from trainvitals.autopsy.state import components
from trainvitals.preflight.bounds import POSITIVE, Bounds
from trainvitals.preflight.node import Node
from trainvitals.preflight.owner import is_own
from trainvitals.preflight.rules import LINEAR, derived
from trainvitals.probe.types import Value

MAX_OPERATIONS = 50_000  # of a long recurrent step the later ones are like the first
RISKY = frozenset(
    {
        "Log",
        "Log1p",
        "Sqrt",
        "Rsqrt",
        "RealDiv",
        "Div",
        "Reciprocal",
        "Inv",
        "Pow",
        "Exp",
        "AddV2",
        "Add",
        "Sub",
        "Mul",
    }
    | {"Select", "SelectV2"}
)
LOOKED_AT = RISKY | LINEAR | {"Softmax", "Sigmoid", "BiasAdd"}
_STEPS = RISKY | {"Softmax"}
_HANDLES = (tf.resource, tf.variant)
_LARGEST_CONSTANT = 1 << 20  # elements of which the range is looked at


@dataclass(frozen=True, slots=True)
class Step:
    """A risky operation, or one of a layer's, as it ran."""

    kind: str
    inputs: tuple[int, ...]
    output: int
    place: Place
    is_own: bool  # written by the user, and not a part of what Keras or a package does inside
    peak: float = 0.0  # of what an exponential took: the largest number
    first: Value = None  # of a weight's operation: the numbers from the batch that it met, where it met those


class Trace:
    """Watches a step; afterwards `nodes` are its tensors and `steps` what is to be judged."""

    def __init__(self, parts: Sequence[Part], variables: Sequence[Value]) -> None:
        self.nodes: dict[int, Node] = {}
        self.steps: list[Step] = []
        self.layers: dict[int, tuple[Value, ...]] = {}  # around what made a tensor, outermost first
        self.is_cut = False
        self.failure: Exception | None = None
        self._stack = Stack()
        self._count = 0
        self._is_busy = False
        self._variables: dict[tuple[object, tuple[int, ...]], list[Value]] = {}
        for part in parts:
            self.nodes[part.identity] = Node("batch", bounds_of_data(part.array()), (), _shape(part.value))
        for variable in variables:
            self._know(variable)

    def _know(self, variable: Value) -> None:
        is_positive = isinstance(getattr(variable, "constraint", None), keras.constraints.NonNeg)
        bounds = Bounds(0.0 if is_positive else -np.inf, of_weights=True)
        for one in components(variable):
            node = Node("variable", bounds, (), _shape(one), one.dtype.name)
            self.nodes[identity_of(one.handle)] = node
            self._variables.setdefault((one.dtype, node.shape), []).append(one)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See every operation of this thread."""
        with every_operation(self._see):
            yield

    def _see(self, kind: str, inputs: Value, outputs: Value) -> None:
        if self._is_busy or self.failure is not None:
            return
        self._count += 1
        if self._count > MAX_OPERATIONS:
            self.is_cut = True
            return
        self._is_busy = True
        try:
            with untaped():
                self._note(kind, _tensors(inputs), _tensors(outputs))
        except Exception as error:  # raised here it would end the step in the middle
            self.failure = error
        finally:
            self._is_busy = False

    def _note(self, kind: str, inputs: list[Value], outputs: list[Value]) -> None:
        if not outputs:
            return
        identities = tuple(identity_of(one) for one in inputs)
        for identity, tensor in zip(identities, inputs, strict=True):
            if identity not in self.nodes:
                self.nodes[identity] = self._leaf(tensor)
        for output in outputs:
            made = Node(kind, Bounds(), identities, _shape(output), output.dtype.name)
            bounds = derived(self.nodes, kind, identities, made)
            if bounds.is_constant and output.dtype not in _HANDLES:
                bounds = replace(bounds, is_known=True).to(*_range(output))
            self.nodes[identity_of(output)] = replace(made, bounds=bounds)
        if kind in LOOKED_AT:
            self._look(kind, identities, inputs, outputs[0])

    def _leaf(self, tensor: Value) -> Node:
        """A tensor from nowhere is a weight that was read unseen, or a constant of the user's."""
        if tensor.dtype in _HANDLES:
            return Node("handle", Bounds(is_known=False, of_weights=True, of_data=True))
        shape = _shape(tensor)
        # A single number is too easily the same as something else's.
        for variable in self._variables.get((tensor.dtype, shape), ()) if shape else ():
            if np.asarray(variable.read_value()).tobytes() == np.asarray(tensor).tobytes():
                return self.nodes[identity_of(variable.handle)]
        return Node("constant", Bounds(*_range(tensor)), (), shape, tensor.dtype.name)

    def _look(self, kind: str, identities: tuple[int, ...], inputs: list[Value], output: Value) -> None:
        frame = sys._getframe(2)
        place, _ = self._stack.place(frame)
        if place.direction != "forward":
            return
        self.layers[identity_of(output)] = place.layers
        step = Step(kind, identities, identity_of(output), place, is_own(place, frame))
        if kind == "Exp":
            step = replace(step, peak=_range(inputs[0])[1])
        elif kind in LINEAR:
            step = replace(step, first=self._first(identities, inputs))
        if kind in _STEPS or step.first is not None:
            self.steps.append(step)

    def _first(self, identities: tuple[int, ...], inputs: list[Value]) -> Value:
        """Return the numbers from the batch alone that meet a weight here."""
        nodes = [self.nodes[one] for one in identities[:2]]
        if len(nodes) != 2 or not any(one.bounds.of_weights and not one.bounds.of_data for one in nodes):
            return None
        alone = (at for at, one in enumerate(nodes) if one.bounds.of_data and not one.bounds.of_weights)
        return next((inputs[at] for at in alone), None)


def bounds_of_data(array: Value) -> Bounds:
    """Return what a part of the batch is taken to keep to: shares stay shares, counts stay counts."""
    if array.dtype.kind == "b":
        return Bounds(0.0, 1.0, of_data=True)
    if array.dtype.kind not in "iuf" or array.size == 0:
        return Bounds(of_data=True, is_known=array.dtype.kind == "f")
    low = float(np.fmin.reduce(array, axis=None))  # past NaN, and without a warning where all of it is
    high = float(np.fmax.reduce(array, axis=None))
    if low >= 0 and high <= 1:
        return Bounds(0.0, 1.0, of_data=True)
    if low >= 0:
        return Bounds(POSITIVE if low > 0 else 0.0, np.inf, of_data=True)
    return Bounds(of_data=True)


def _range(tensor: Value) -> tuple[float, float]:
    if tensor.dtype == tf.string or tensor.shape.num_elements() in (0, None):
        return -np.inf, np.inf
    if tensor.shape.num_elements() > _LARGEST_CONSTANT:
        tensor = tf.stack([tf.reduce_min(tensor), tf.reduce_max(tensor)])
    array = np.asarray(tensor)
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        return -np.inf, np.inf
    array = array.astype(np.float64)
    low, high = float(np.min(array)), float(np.max(array))
    return (-np.inf, np.inf) if np.isnan(low) else (low, high)


def _shape(tensor: Value) -> tuple[int, ...]:
    return tuple(int(size or 0) for size in tensor.shape) if tensor.shape.rank is not None else ()


def _tensors(values: Value) -> list[Value]:
    listed = values if isinstance(values, (list, tuple)) else [values]
    return [value for value in listed if isinstance(value, tf.Tensor)]
