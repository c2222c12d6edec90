"""OneThread: says it once when several threads use what is meant for one."""

from __future__ import annotations

import logging
import threading

_log = logging.getLogger("trainvitals")


class OneThread:
    """The first thread that calls is the one."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._is_told = False

    def check(self) -> None:
        """Compare this thread with the first."""
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        elif thread != self._thread and not self._is_told:
            self._is_told = True
            _log.warning("one Reporter is used by two threads, as one run; give each a Reporter of its own")
