"""Suspicion: the details of one `apply`, in the rare steps that need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainvitals.probe import measure
from trainvitals.probe.capture import inside
from trainvitals.probe.handles import Handles
from trainvitals.probe.ring import Ring
from trainvitals.probe.seldom import seldom, unless
from trainvitals.probe.types import Tensor, Value

Keep = Callable[[Tensor, Tensor, slice], None]  # a step, whether a gradient is bad, and the part of them


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What is known of the gradients of one `apply`; dense, with their half sums."""

    gradients: Sequence[Tensor]
    halves: Sequence[Tensor]
    variables: Sequence[Any]
    loss: Tensor | None
    batch: tuple[Sequence[Tensor] | None, Sequence[Tensor] | None]  # inputs and labels; None: out of reach
    handles: Handles | None  # of the variables, if they may be read by them
    number: Callable[[], Tensor]  # of the step
    keep: Keep
    smallest: Tensor | float  # half sum that is usual; infinity where the host asks for the details
    is_measured: Tensor | None = None  # whether the half sums are there; None: in every step

    def watch(self, part: slice, ring: Ring) -> Value:
        """Write the details of a part in the steps that need them; the last one also where others are bad.

        Returns:
            The operation that does it, where there is just one.
        """
        is_last = part.start == 0
        others = self.halves[part.stop :] if is_last else ()
        own = measure.stacked(self.halves[part])

        def write() -> None:
            step = self.number()
            batch = self.batch if is_last else (None, None)
            data = (*batch, [self._weight(variable) for variable in self.variables[part]])
            halves = own if self.is_measured is None else measure.half_sums(self.gradients[part])
            numbers = measure.details(self.gradients[part], halves, self.loss, data, others)
            ring.write(step, tf.concat([tf.cast(step, tf.float64)[tf.newaxis], numbers], 0))
            self.keep(step, measure.has_bad(numbers, part.stop - part.start, others), part)

        if is_last:
            return unless(self._is_usual(measure.stacked(self.halves)), write)
        return unless(self._is_usual(own), lambda: seldom(self._is_news(part), write))

    def _is_usual(self, halves: Tensor) -> Tensor:
        return measure.is_usual(halves, self.loss, self.smallest, self.is_measured)

    def _is_news(self, part: slice) -> Tensor:
        """Return whether a part has more to tell than that all of it is 0, which its half sums do."""
        is_alive = measure.is_alive(self.gradients[part], self.loss)
        if isinstance(self.smallest, float):
            return is_alive
        return tf.logical_or(is_alive, tf.math.is_inf(self.smallest))

    def _weight(self, variable: Value) -> Value:
        return inside(variable) if self.handles is None else self.handles.read(variable)
