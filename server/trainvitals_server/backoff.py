"""Backoff: when what failed may be tried again, by name; each failure in a row doubles the pause."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Remembers failures, not successes: empty while all goes well. Not thread-safe."""

    def __init__(self, first_s: float, longest_s: float, clock: Callable[[], float]) -> None:
        """Pause for `first_s` after the first failure, never longer than `longest_s`."""
        self._first_s, self._longest_s, self._clock = first_s, longest_s, clock
        self._rests: dict[str, tuple[float, float]] = {}  # the pause, and until when

    def is_resting(self, name: str) -> bool:
        """Return whether it is too early to try again."""
        return name in self._rests and self._clock() < self._rests[name][1]

    def failed(self, name: str) -> None:
        """Begin a pause."""
        before, _ = self._rests.get(name, (self._first_s / 2, 0.0))
        pause = min(2 * before, self._longest_s)
        self._rests[name] = pause, self._clock() + pause

    def forget(self, name: str) -> None:
        """Note that it went well, or is gone."""
        self._rests.pop(name, None)
