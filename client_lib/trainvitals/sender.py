"""Sender: takes rows and events from the training, and sees to it that they reach the server.

Thread-safe; never raises into its caller and never blocks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from trainvitals import wire
from trainvitals.rows import Rows

EventKind = Literal["epoch", "validation", "message", "autopsy", "checkpoint", "resume"]
Status = Literal["finished", "interrupted", "failed", "stopped"]
CLOSE_TIMEOUT_S = 5.0


class Sender:
    """Sends the frames of one session; nothing happens before the first one."""

    def __init__(
        self,
        hello: wire.Hello,
        *,
        url: str,
        token: str | None = None,
        spool_dir: Path | None = None,
        transport: object | None = None,
        on_incident: Callable[[wire.IncidentNotice], None] | None = None,
        on_command: Callable[[wire.Command], None] | None = None,
        console: bool = True,
    ) -> None:
        self._hello = hello
        self._layout_id = 0

    @property
    def dropped(self) -> dict[str, int]:
        """Return how many frames or rows were dropped, by reason."""
        return {}

    def update_hello(self, environment: wire.Environment) -> None:
        """Replace the environment of the Hello; without effect once a frame was sent."""

    def layout(self, layers: Sequence[wire.Layer], environment: wire.Environment | None = None) -> int:
        """Announce the layers that later layer columns mean; return their layout_id."""
        self._layout_id += 1
        return self._layout_id

    def rows(self, rows: Rows) -> None:
        """Take rows of steps."""

    def event(self, kind: EventKind, step: int, data: Mapping[str, object]) -> None:
        """Take something that happened once."""

    def lost(self, reason: str, first_step: int, last_step: int, steps_lost: int) -> None:
        """Declare rows that were lost before they got here."""

    def heartbeat(self, next_within_s: float, activity: str = "training") -> None:
        """Promise when the server hears from us again."""

    def bye(self, status: Status, step: int | None, error: str = "") -> None:
        """Say how the session ended; a later frame revives it."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is on the server; return whether it is."""
        return False

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush within `timeout_s`, spool the rest, stop the thread. May be called again."""
