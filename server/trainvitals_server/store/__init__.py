"""What the server remembers, and the one seam in front of it.

A `Store` runs functions of a connection: jobs one after the other, in groups that are committed together;
queries beside them, on their own connections. The modules of this package are those functions, with all SQL
by hand and every key beginning with the run; nobody else knows a table. `database.Database` is the store of
one machine: SQLite.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

T = TypeVar("T")


class Store(Protocol):
    """What the parts of the server ask of what keeps their data."""

    @property
    def failure(self) -> str | None:
        """Why the last change could not be written, or None."""

    @property
    def waiting(self) -> int:
        """How many jobs wait."""

    def write(self, job: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Queue a job; the future resolves after its commit.

        Raises:
            Busy: if the queue is full; nothing was queued.
            StorageFailed: if the store is closed.
        """

    def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query in the calling thread, which must not be the event loop's."""

    def close(self) -> None:
        """Write what waits, then close."""
