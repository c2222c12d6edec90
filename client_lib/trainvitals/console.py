"""Console: what the user's own terminal shows: where the run is, its incidents, and that it was stopped."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

from trainvitals import wire
from trainvitals.titles import title_of

MAX_LINES = 10  # in one window of time; the page shows everything
WINDOW_S = 60.0
_MAX_REMEMBERED = 1000
_MAX_WAITING = 100

_log = logging.getLogger("trainvitals")


class Console:
    """Decides which notices become a line; `info` stays on the page."""

    def __init__(self, stream: Callable[[], TextIO]) -> None:
        self._stream = stream
        self._told: dict[str, wire.IncidentNotice] = {}
        self._times: deque[float] = deque()
        self._is_muted = False
        self._lock = threading.Lock()  # the training says something, and so does the sender's thread

    def say(self, line: str, now: float, *, is_below: bool = True) -> None:
        """Print a line; `is_below` when a progress bar may stand above it."""
        with self._lock:
            if self._may_print(now):
                self._print(line, is_below=is_below)

    def tell(self, notice: wire.IncidentNotice, now: float) -> None:
        """Print a line for `notice` if it is news."""
        if (line := self._line(notice)) is None:
            return
        self._told[notice.incident_id] = notice
        if len(self._told) > _MAX_REMEMBERED:
            del self._told[next(iter(self._told))]
        with self._lock:
            if self._may_print(now):
                self._print(line)
            elif not self._is_muted:
                self._is_muted = True
                self._print("more incidents; they are on the page")

    def _may_print(self, now: float) -> bool:
        while self._times and self._times[0] <= now - WINDOW_S:
            self._times.popleft()
        if len(self._times) >= MAX_LINES:
            return False
        self._is_muted = False
        self._times.append(now)
        return True

    def _line(self, notice: wire.IncidentNotice) -> str | None:
        if notice.severity == "info":
            return None
        link = f" -> {wire.clip(notice.url, 1000)}" if notice.url else ""
        what = f"{title_of(wire.clip(notice.kind))} since step {notice.onset_step}"
        told = self._told.get(notice.incident_id)
        if told is not None and told.state == notice.state:
            again = _again(notice, told)
            return again and f"{what}{again}{link}"
        if notice.state == "open":
            return f"{what}: {wire.clip(notice.verdict, 300)}{link}"
        if told is None:
            return None  # its onset was before our time
        return f"{what} is {'withdrawn' if notice.state == 'withdrawn' else 'over'}{link}"

    def _print(self, line: str, *, is_below: bool = True) -> None:
        stream = self._stream()
        try:
            encoding = getattr(stream, "encoding", None) or "utf-8"
            text = f"trainvitals: {line}".encode(encoding, "replace").decode(encoding)
            start = "\n" if is_below and stream.isatty() else ""  # below the progress bar, not into it
            stream.write(f"{start}{text}\n")
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # no terminal, or one that is closed


def _again(notice: wire.IncidentNotice, told: wire.IncidentNotice) -> str | None:
    """Return what is new about an incident that goes on."""
    if notice.state == "open" and notice.severity != told.severity:
        return f" is {wire.clip(notice.severity)} now: {wire.clip(notice.verdict, 300)}"
    if notice.news in ("", told.news):
        return None
    return f": {wire.clip(notice.news, 300)}"


class Callback:
    """Calls the user's function with notices, on a thread that lives only while there are some."""

    def __init__(self, function: Callable[[wire.IncidentNotice], None]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._waiting: deque[wire.IncidentNotice] = deque(maxlen=_MAX_WAITING)
        self._is_running = False

    def call(self, notice: wire.IncidentNotice) -> None:
        """Have the function called soon; the oldest notice goes when too many wait."""
        with self._lock:
            self._waiting.append(notice)
            if self._is_running:
                return
            self._is_running = True
        try:
            threading.Thread(target=self._run, name="trainvitals-callback", daemon=True).start()
        except RuntimeError:  # the interpreter is shutting down
            self._is_running = False

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                notice = self._waiting.popleft()
            try:
                self._function(notice)
            except Exception:
                _log.exception("on_incident failed")
