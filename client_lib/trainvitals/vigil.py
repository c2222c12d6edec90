"""Vigil: near trouble everything is measured in every step for a while. Pure; it counts in steps.

A run that is in trouble for ever must not pay for ever: each vigil of one reason is followed by a rest, in
which that reason does not count, and every rest is twice as long as the one before. After a long calm the
first vigil may come at once again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Reason: TypeAlias = Literal["failure", "incident", "skip"]

# Steps. Trouble that shows in numbers mostly ends, or ends the run, within as many as a flight record has. A
# loss scaler's skip is normal every two thousand steps: what matters is whether others follow at once.
LENGTHS: Mapping[Reason, int] = {"failure": 256, "incident": 256, "skip": 32}
CALM_STEPS = 10_000  # without a reason: what comes after it is new


@dataclass(slots=True)
class _Watch:
    """The vigils of one reason."""

    length: int
    until: int = 0  # the step after the last one of the vigil
    _deaf_until: int = 0
    _rest: int = 0
    _last: int | None = None  # step with this reason

    def note(self, step: int) -> None:
        is_new = self._last is None or step - self._last > CALM_STEPS
        self._last = step
        if step < self._deaf_until:
            return
        self._rest = self.length if is_new else 2 * self._rest
        self.until = step + self.length
        self._deaf_until = self.until + self._rest


@dataclass(slots=True)
class Vigil:
    """Says in which steps everything is measured."""

    _watches: dict[Reason, _Watch] = field(
        default_factory=lambda: {reason: _Watch(length) for reason, length in LENGTHS.items()}
    )

    def note(self, reason: Reason, step: int) -> None:
        """Take note that there was a reason in `step`."""
        self._watches[reason].note(step)

    def counts_gradients(self, step: int) -> bool:
        """Return whether the gradients of `step` are to be measured whatever it costs."""
        return any(step < watch.until for watch in self._watches.values())

    def counts_everything(self, step: int) -> bool:
        """Return whether all else is, too: not for a skip, which is no trouble yet."""
        return any(step < watch.until for reason, watch in self._watches.items() if reason != "skip")
