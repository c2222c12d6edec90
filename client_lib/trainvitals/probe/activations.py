"""Activations: what the layers of a model give out, measured in some of the steps, within the graph.

A hook on each layer's `call` notes its outputs while the step is traced; once the step is complete, a branch
that most steps do not take measures them; under XLA, which bears no such branch, every step does. Nothing of
it takes part in the gradients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from trainvitals.probe import activations_decode
from trainvitals.probe.activations_layout import Merged, merged
from trainvitals.probe.activations_measure import NUMBERS, numbers_of
from trainvitals.probe.activations_rules import Rule, rule_of, watched_layers
from trainvitals.probe.decode import Decoded
from trainvitals.probe.layers import Groups
from trainvitals.probe.operations import OWN_SCOPE
from trainvitals.probe.ring import Ring
from trainvitals.probe.seldom import unless
from trainvitals.probe.taps import attribute
from trainvitals.probe.types import Model, Tensor, Value

_log = logging.getLogger("trainvitals")

# TensorFlow makes one operation of these and of what comes before them, if nobody else looks at what is in
# between. Then the last bits differ: an output that goes there alone is left alone.
FUSED = frozenset({
    "Relu", "Relu6", "Elu", "LeakyRelu", "Selu", "Tanh", "Sigmoid", "Softplus", "Erf", "BiasAdd", "Add",
    "AddV2", "AddN", "Mul", "Maximum", "Minimum", "Square", "Rsqrt", "FusedBatchNormV3", "Abs", "Neg",
    "Exp", "Log", "Sqrt", "Softsign", "Pow", "RealDiv",
})  # fmt: skip


@dataclass(slots=True)
class Outputs:
    """The outputs of the layers in one step, while it is traced or run."""

    graph: Value = field(default_factory=lambda: _graph())
    tensors: dict[int, tuple[Value, list[Tensor]]] = field(default_factory=dict)  # by layer, as they come
    _seen: set[int] = field(default_factory=set)  # what an inner layer gave out is not its owner's own

    def note(self, layer: Value, result: Value) -> None:
        """Remember what `layer` gave out, as far as it is within reach of the step."""
        if _graph() is not self.graph:
            return
        new = [one for one in tf.nest.flatten(result) if _is_output(one) and id(one) not in self._seen]
        self._seen.update(id(one) for one in new)
        if new:
            self.tensors.setdefault(id(layer), (layer, []))[1].extend(new)

    def measurable(self, *, use_xla: bool) -> list[tuple[Value, list[Tensor]]]:
        """Return layers with outputs that may be measured without changing what TensorFlow makes of them."""
        if use_xla:
            return list(self.tensors.values())
        kept = [
            (layer, [one for one in found if not _is_fused(one)]) for layer, found in self.tensors.values()
        ]
        return [(layer, found) for layer, found in kept if found]


class Activations:
    """Measures the outputs of one model's layers every `every` steps, and where something is not finite."""

    def __init__(self, model: Model, every: int, capacity: int, *, use_xla: bool) -> None:
        self._model = model
        self._every = every
        self._capacity = capacity
        self._use_xla = use_xla
        self._rules: dict[int, tuple[Value, Rule]] = {}  # by layer, in the order in which they give out
        self._measured: set[int] = set()
        self._rings: dict[tuple[int, ...], Ring] = {}
        self._merged = Merged({}, Groups((), activations_decode.NO_PLACES))
        self.is_off = False

    def begin(self) -> None:
        """Forget what was measured."""
        for ring in self._rings.values():
            ring.clear()

    @contextmanager
    def watching(self) -> Iterator[Outputs]:
        """Note what the layers give out in the step that is traced meanwhile."""
        outputs = Outputs()
        with ExitStack() as stack:
            with self._guard():
                for layer in () if self.is_off else watched_layers(self._model):
                    hooked = self._hooked(layer, layer.call, outputs)
                    stack.enter_context(attribute(layer, "call", hooked))
            yield outputs

    def write(self, outputs: Outputs, number: Tensor, loss: Tensor | None) -> bool:
        """Measure the outputs of step `number`, if it is one of those; return whether layers are new."""
        has_new = False
        with self._guard(), tf.name_scope(OWN_SCOPE):
            found = [] if self.is_off else outputs.measurable(use_xla=self._use_xla)
            if found:
                has_new = self._add(outputs, [layer for layer, _ in found])
                self._branch(found, number, loss)
        return has_new

    def extend(self, groups: Groups, variables: Sequence[Any]) -> Groups:
        """Return `groups` with the layers that have no variable there, in the order of their outputs."""
        self._merged = merged(groups, variables, self._model, list(self._rules.values()), self._measured)
        return self._merged.groups

    def join(self, pieces: list[Decoded]) -> list[Decoded]:
        """Return the same pieces with what was measured of their steps."""
        with self._guard():
            for key, ring in self._rings.items():
                rows = ring.read()
                if self._use_xla:
                    rows = activations_decode.wanted(rows, self._every)
                if len(rows):
                    places = self._merged.places_of(key)
                    count = len(self._merged.groups.layers)
                    pieces = [activations_decode.joined(piece, rows, places, count) for piece in pieces]
        return pieces

    def _hooked(self, layer: Value, call: Callable[..., Value], outputs: Outputs) -> Callable[..., Value]:
        def hooked_call(*args: Value, **kwargs: Value) -> Value:
            result = call(*args, **kwargs)
            with self._guard():
                outputs.note(layer, result)
            return result

        return hooked_call

    def _add(self, outputs: Outputs, measured: Sequence[Value]) -> bool:
        before = len(self._measured)
        self._measured.update(id(layer) for layer in measured)
        for layer, _ in outputs.tensors.values():
            self._rules.setdefault(id(layer), (layer, rule_of(layer)))
        return len(self._measured) > before

    def _branch(self, found: list[tuple[Value, list[Tensor]]], number: Tensor, loss: Tensor | None) -> None:
        ring = self._ring(tuple(id(layer) for layer, _ in found))

        def write() -> None:
            numbers = [numbers_of(tensors, self._rules[id(layer)][1]) for layer, tensors in found]
            ring.write(number, tf.concat([tf.cast(number, tf.float64)[tf.newaxis], *numbers], 0))

        if self._use_xla:  # with a branch that takes the outputs, XLA rounds the user's own step otherwise
            write()
            return
        usual = tf.not_equal(tf.math.floormod(number, self._every), 0)
        if loss is not None:
            usual = tf.logical_and(usual, tf.reduce_all(tf.math.is_finite(loss)))
        unless(usual, write)

    def _ring(self, key: tuple[int, ...]) -> Ring:
        if key not in self._rings:
            self._rings[key] = Ring(1 + NUMBERS * len(key), self._capacity)
        return self._rings[key]

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Keep our own failure out of the user's training: one log line, then off."""
        try:
            yield
        except Exception:
            self.is_off = True
            _log.warning("trainvitals cannot measure the activations of this model", exc_info=True)


def _is_output(value: object) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating and value.shape.rank != 0


def _is_fused(output: Tensor) -> bool:
    """Return whether TensorFlow may make one operation of this one and of those that take its output."""
    if tf.executing_eagerly():
        return False
    takers = output.consumers()
    # What the gradients take stays an output of its own anyway.
    return bool(takers) and all(one.type in FUSED and "gradient_tape" not in one.name for one in takers)


def _graph() -> Value:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
