"""Guard: keeps a failure of ours out of the training."""

from __future__ import annotations

import logging
from types import TracebackType

_log = logging.getLogger("trainvitals")


class Guard:
    """`with guard:` ends an exception of ours: one line in the log, then `is_off`.

    What the user or the interpreter raises on purpose (Ctrl-C, an exit) passes through. Whoever holds a guard
    must look at `is_off` before it measures anything again; letting go of what is held stays its duty.
    """

    def __init__(self) -> None:
        self.is_off = False

    def __enter__(self) -> None:
        """Begin what may fail."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Swallow and log a failure; only the first is told."""
        if not isinstance(error, Exception):
            return False
        if not self.is_off:
            _log.warning("trainvitals failed and is off for this run; your training goes on", exc_info=error)
        self.is_off = True
        return True
