"""Intervals: in which steps something is measured that need not be in all of them."""

from __future__ import annotations

DEFAULT_EVERY = 10  # steps: what takes a tenth of a step then takes a hundredth of the time


def check_interval(activations: object) -> int:
    """Return in every how manyth step activations are measured; 0: never.

    Raises:
        TypeError: if it is neither True, False nor a whole number.
        ValueError: if it is a number below 1.
    """
    if isinstance(activations, bool):
        return DEFAULT_EVERY if activations else 0
    if not isinstance(activations, int):
        raise TypeError(f"activations must be True, False or a number of steps, not {activations!r}")
    if activations < 1:
        raise ValueError(f"activations must be at least every 1 step, or False, not {activations!r}")
    return activations
