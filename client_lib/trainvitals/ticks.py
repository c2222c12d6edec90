"""Ticks: when a loop called `step`, and what it said then, shared out among the rows of its functions.

Values only. The rows come from the graph and know no time; a call may have made none, one or many of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainvitals.wire import FloatArray

Metrics = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Share:
    """For each row: when its call ended, how long the step took (None: no call was made), its metrics."""

    ends: FloatArray
    seconds: FloatArray | None
    metrics: list[Metrics]


class Ticks:
    """The calls since the last read."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, float, Metrics]] = []

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, end: float, seconds: float, metrics: Metrics) -> None:
        """Note one call, which ended at `end` and was made `seconds` after the one before it."""
        self._calls.append((end, seconds, metrics))

    def join(self) -> None:
        """Make one call of all: none of them made a row."""
        if self._calls:
            end = self._calls[-1][0]
            seconds = sum(seconds for _, seconds, _ in self._calls)
            metrics = {name: value for _, _, said in self._calls for name, value in said.items()}
            self._calls = [(end, seconds, metrics)]

    def take(self, rows: int, now: float) -> Share:
        """Share the calls out among `rows` rows, in their order, and begin anew."""
        calls, self._calls = self._calls, []
        if not calls:
            return Share(np.full(rows, now), None, [{}] * rows)
        # Each row belongs to a call; where there are fewer rows, a call without one to the next that has one.
        places = ((np.arange(rows) + 1) * len(calls) - 1) // rows
        totals = np.concatenate([[0.0], np.cumsum([seconds for _, seconds, _ in calls])])
        before = np.concatenate([[0], places[:-1] + 1])
        own, first, count = np.unique(places, return_index=True, return_counts=True)
        spans = totals[own + 1] - totals[np.minimum(before[first], own)]
        metrics: list[Metrics] = [{}] * rows
        for place, start, stop in zip(first + count - 1, before[first], own + 1, strict=True):
            metrics[place] = {name: value for _, _, said in calls[start:stop] for name, value in said.items()}
        ends = np.array([end for end, _, _ in calls])[places]
        return Share(ends, np.repeat(spans / count, count), metrics)
