"""Speedometer: how many steps a second a run makes just now, from when its rows arrived."""

from __future__ import annotations

from collections import OrderedDict, deque

WINDOW_S = 10.0  # long enough for slow steps, short enough to show that a run slows down
MAX_RUNS = 1024


class Speedometer:
    """Remembers the last seconds of each run. Not thread-safe; the caller brings the clock."""

    def __init__(self) -> None:
        self._marks: OrderedDict[str, deque[tuple[float, int]]] = OrderedDict()

    def note(self, run_id: str, step: int, now: float) -> None:
        """Note that the run reached `step`."""
        marks = self._marks.setdefault(run_id, deque())
        self._marks.move_to_end(run_id)
        if len(self._marks) > MAX_RUNS:
            self._marks.popitem(last=False)
        if marks and step < marks[-1][1]:
            marks.clear()  # a resume went back
        marks.append((now, step))
        while len(marks) > 2 and marks[0][0] < now - WINDOW_S:
            marks.popleft()

    def steps_per_s(self, run_id: str, now: float) -> float | None:
        """Return the speed, or None where nothing came in lately."""
        marks = self._marks.get(run_id)
        if not marks or marks[-1][0] < now - WINDOW_S:
            return None
        (began_at, began), (ended_at, ended) = marks[0], marks[-1]
        return (ended - began) / (ended_at - began_at) if ended_at > began_at else None
