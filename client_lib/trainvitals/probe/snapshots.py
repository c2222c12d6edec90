"""Snapshots: what a loop's variables held now and then, for it tells of a step after the update.

A snapshot takes references; the next update copies what it changes. It is taken so seldom that this costs a
two-hundredth of the time. One that rows have shown to be sound is kept until there is a newer one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainvitals.probe.capture import current
from trainvitals.probe.compiled import MEMORY_SHARE, device_memory, size_of

TIME_SHARE = 0.005
COPIED_BYTES_PER_S = 2e9  # by an update whose variables are held; a slow machine's memory


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after `step`."""

    step: int
    state: list[tuple[Any, Any]]


class Snapshots:
    """Keeps a sound snapshot and one that is not known to be so."""

    def __init__(self) -> None:
        self._sound: Snapshot | None = None
        self._newest: Snapshot | None = None
        self._next = 0.0
        self._is_off = False
        self._is_checked = False

    def note(
        self, step: int, variables: Sequence[Any], others: Callable[[], Sequence[Any]] = lambda: ()
    ) -> None:
        """Take a snapshot of `variables` and `others` if it is time; to be called after the update."""
        began = time.perf_counter()
        if began < self._next or self._newest is not None or self._is_off or not variables:
            return
        held = [*variables, *others()]
        size = size_of(held)
        if not self._is_checked:
            self._is_checked = True
            self._is_off = 2 * size > MEMORY_SHARE * device_memory()
        if not self._is_off:
            self._newest = Snapshot(step, [(variable, current(variable)) for variable in held])
        now = time.perf_counter()
        self._next = now + (now - began + size / COPIED_BYTES_PER_S) / TIME_SHARE

    def confirm(self, step: int) -> None:
        """Take note that all steps up to `step` were sound: an update is, if the step after it is."""
        if self._newest is not None and self._newest.step < step:
            self._sound, self._newest = self._newest, None

    def before(self, step: int) -> Snapshot | None:
        """Return the last snapshot from before `step`."""
        found = [one for one in (self._newest, self._sound) if one is not None and one.step < step]
        return found[0] if found else None

    def forget_newest(self) -> None:
        """Drop what was taken during the failure."""
        self._newest = None
