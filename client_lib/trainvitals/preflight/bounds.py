"""Bounds: between which numbers all elements of a tensor lie, and what they were computed from. Pure.

Bounds hold for every batch and all weights, not only for those at hand: a sigmoid is in [0, 1], and reaches
both ends, since it rounds. They may be wider than the truth. Where nothing is known of an operation its
result `is_known` to nobody, and nothing is said against it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

INFINITY = math.inf
POSITIVE = 1e-300  # the lower end of what is above 0 without reaching it


@dataclass(frozen=True, slots=True)
class Bounds:
    """A closed interval; `low` is POSITIVE where 0 itself is not in it."""

    low: float = -INFINITY
    high: float = INFINITY
    is_known: bool = True
    of_weights: bool = False
    of_data: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether neither a weight nor the batch has part in it."""
        return not (self.of_weights or self.of_data)

    @property
    def holds_zero(self) -> bool:
        """Whether 0 is among the possible numbers."""
        return self.low <= 0 <= self.high

    @property
    def is_of_both(self) -> bool:
        """Whether it changes with the training and with the batch: only then it is a risk for later steps.

        What is of the batch alone can be judged on the batch; a weight alone is as it was initialised.
        """
        return self.of_weights and self.of_data

    def to(self, low: float, high: float) -> Bounds:
        """Return these origins with other ends."""
        return replace(self, low=low, high=high)


UNBOUNDED = (-INFINITY, INFINITY)


def together(*parts: Bounds) -> Bounds:
    """Return unbounded bounds of what is computed from all `parts`."""
    return Bounds(
        is_known=all(part.is_known for part in parts),
        of_weights=any(part.of_weights for part in parts),
        of_data=any(part.of_data for part in parts),
    )


def unknown(*parts: Bounds) -> Bounds:
    """Return the bounds of what nothing is known of."""
    return replace(together(*parts), is_known=False)


def added(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a sum."""
    return together(a, b).to(a.low + b.low, a.high + b.high)


def negated(a: Bounds) -> Bounds:
    """Return the bounds of -a."""
    return a.to(-a.high, -a.low)


def multiplied(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a product."""
    corners = [_times(one, other) for one in (a.low, a.high) for other in (b.low, b.high)]
    low = max(min(corners), POSITIVE) if a.low > 0 and b.low > 0 else min(corners)
    return together(a, b).to(low, max(corners))


def inverse(a: Bounds) -> Bounds:
    """Return the bounds of 1 / a."""
    if a.low > 0:
        return a.to(POSITIVE if a.high == INFINITY else 1 / a.high, _inverse_of_low(a.low))
    return a.to(0.0 if a.low == 0 else -INFINITY, INFINITY)


def united(*parts: Bounds) -> Bounds:
    """Return the bounds of what is one of `parts`."""
    return together(*parts).to(min(part.low for part in parts), max(part.high for part in parts))


def summed(a: Bounds, count: float) -> Bounds:
    """Return the bounds of a sum of `count` elements."""
    if count < 1:
        return a.to(0.0, 0.0)
    return a.to(_times(a.low, count), _times(a.high, count))


def squared(a: Bounds) -> Bounds:
    """Return the bounds of a * a: never below 0, whatever a is."""
    ends = (_times(a.low, a.low), _times(a.high, a.high))
    low = max(min(ends), POSITIVE) if a.low > 0 or a.high < 0 else 0.0
    return replace(a, low=low, high=max(ends), is_known=True)


def absolute(a: Bounds) -> Bounds:
    """Return the bounds of |a|."""
    low = max(a.low, 0.0) if a.low > 0 else max(-a.high, 0.0)
    return replace(a, low=low, high=max(abs(a.low), abs(a.high)), is_known=True)


def greatest(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of the greater of two."""
    known = (a.is_known and b.is_known) or any(one.is_known and one.low > -INFINITY for one in (a, b))
    return replace(together(a, b), low=max(a.low, b.low), high=max(a.high, b.high), is_known=known)


def least(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of the lesser of two."""
    return negated(greatest(negated(a), negated(b)))


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _inverse_of_low(low: float) -> float:
    return INFINITY if low <= POSITIVE else 1 / low
