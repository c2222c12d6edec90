"""Budget: how often something may be measured that costs time. It reads the clock that it is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

DEFAULT_SHARE = 0.01
FIRST_WAIT_S = 2.0  # at most: the first time may take so long because it loads what later ones find


@dataclass(slots=True)
class Budget:
    """Lets something happen as often as `share` of all time allows; a share of 0 never does."""

    share: float
    clock: Callable[[], float]
    spent_s: float = field(default=0.0, init=False)
    _next: float = field(default=0.0, init=False)

    @property
    def is_due(self) -> bool:
        """Return whether it may happen now."""
        return self.share > 0 and self.clock() >= self._next

    def pay(self, seconds: float) -> None:
        """Take note of what it cost: it may happen again once that is `share` of the time since."""
        most = math.inf if self.spent_s else FIRST_WAIT_S
        self.spent_s += seconds
        if self.share > 0:
            self._next = self.clock() + min(seconds / self.share, most)


class Overhead:
    """What share of the time is spent on measuring, told about every second."""

    EVERY_S = 1.0

    def __init__(self, now: float = 0.0) -> None:
        self._since = now
        self._spent_s = 0.0

    def note(self, seconds: float) -> None:
        """Take note of time that was spent on measuring."""
        self._spent_s += seconds

    def share(self, now: float) -> float | None:
        """Return the share since it was last told; None while that is not long ago."""
        elapsed = now - self._since
        if elapsed < self.EVERY_S:
            return None
        share = self._spent_s / elapsed
        self._since, self._spent_s = now, 0.0
        return share


def check_share(share: object) -> float:
    """Return a share of time.

    Raises:
        TypeError: if it is no number.
        ValueError: if it is none from 0 to below 1.
    """
    if isinstance(share, bool) or not isinstance(share, int | float):
        raise TypeError(f"overhead_budget must be a share of the time such as {DEFAULT_SHARE}, not {share!r}")
    if not 0 <= share < 1:
        raise ValueError(f"overhead_budget must be from 0 (off) to below 1, not {share!r}")
    return float(share)
