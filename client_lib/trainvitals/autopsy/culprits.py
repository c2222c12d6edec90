"""The samples of a report whose operation was found: rows of its output, proved by a replay, or halves."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from msgspec.structs import replace

from trainvitals.autopsy.batch import Batch
from trainvitals.autopsy.replay import Attempt, Replayer
from trainvitals.autopsy.report import MAX_SAMPLES, Report
from trainvitals.autopsy.samples import Budget, Culprits, bisect

_IN_PLACE = "the samples make it happen in their places of the batch, not alone in a smaller one"
_SPENT = "the search for samples ended early: there may be more"
_UNPROVED = "the samples are those of the bad rows: a ragged or sparse batch cannot be divided to prove it"
_TOGETHER = "no sample makes it happen alone: it takes these together"


class Search:
    """Looks for the samples that alone make the step fail at the same stage."""

    def __init__(self, replayer: Replayer, batch: Batch, attempt: Attempt) -> None:
        self._replayer = replayer
        self._batch = batch
        self._stage = attempt.stage
        self._mode = dataclasses.replace(attempt.mode, is_recorded=False)
        self._budget = Budget(time.perf_counter)

    def samples(self, report: Report, candidates: Sequence[tuple[int, ...]]) -> Report:
        """Return the report of an operation with its samples; `candidates` are tried before all others."""
        if report.found != "operation" or self._batch.size < 1 or not self._stage:
            return report
        if not self._batch.is_divisible:
            return _with(report, Culprits(candidates[0]), _UNPROVED) if candidates else report
        everyone = range(self._batch.size)
        for group in candidates:
            if len(group) == len(everyone):
                return _with(report, Culprits(tuple(everyone)))
            if self._budget.spend() and self._fails(group):
                return _with(report, Culprits(group))
            if self._budget.spend() and self._fails_in_place(group):
                return _with(report, Culprits(group), _IN_PLACE)
        if len(everyone) == 1:
            return _with(report, Culprits((0,)))
        found = bisect(len(everyone), self._fails, self._budget)
        return _with(report, found, *([_TOGETHER] if found.is_group else []))

    def _fails(self, samples: Sequence[int]) -> bool:
        return self._is_same(self._batch.only(samples))

    def _fails_in_place(self, samples: Sequence[int]) -> bool:
        return self._is_same(self._batch.overwritten(samples))

    def _is_same(self, data: object) -> bool:
        attempt = self._replayer.attempt(data, self._mode)
        return attempt.error is None and attempt.stage == self._stage


def _with(report: Report, culprits: Culprits, *notes: str) -> Report:
    if not culprits.is_whole:
        notes = (*notes, _SPENT)
    return replace(
        report,
        samples=culprits.samples[:MAX_SAMPLES],
        n_bad_samples=len(culprits.samples),
        notes=(*report.notes, *notes),
    )
