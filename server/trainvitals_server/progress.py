"""Progress: one line on a terminal that says how far long work has come. Nothing anywhere else."""

from __future__ import annotations

import time
from typing import TextIO

PATIENCE_S = 0.7  # work that is done sooner needs no bar
REDRAW_S = 0.1
WIDTH = 30


class Progress:
    """Counts bytes; draws itself on `stream` if that is a terminal and the work takes a while."""

    def __init__(self, stream: TextIO, total_bytes: int) -> None:
        self._stream, self._total = stream, max(total_bytes, 1)
        self._done = 0
        self._next = time.monotonic() + PATIENCE_S if stream.isatty() else float("inf")
        self._is_drawn = False

    def advance(self, count: int) -> None:
        """Note that so many more bytes were read."""
        self._done += count
        now = time.monotonic()
        if now >= self._next:
            self._next, self._is_drawn = now + REDRAW_S, True
            share = min(self._done / self._total, 1.0)
            bar = "#" * int(share * WIDTH)
            self._stream.write(f"\r[{bar:<{WIDTH}}] {share:4.0%}")
            self._stream.flush()

    def clear(self) -> None:
        """Take the line off the terminal, so that something can be printed there."""
        if self._is_drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_drawn = False
