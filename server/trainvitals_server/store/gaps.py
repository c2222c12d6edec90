"""Gaps: what clients said they lost, as stretches of steps that a chart can shade."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from trainvitals.wire import Gap
from trainvitals_server.series import NEVER

MAX_GAPS = 500  # of one answer: more than a chart can show apart
_decoder = msgspec.msgpack.Decoder(Gap)


class LostSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Rows lost between two steps; both are None where only frames without rows were lost."""

    first_step: int | None
    last_step: int | None
    reason: str
    steps_lost: int


def load_gaps(
    connection: sqlite3.Connection, run_id: str, rank: int | None = None, start: int = 0, stop: int = NEVER
) -> list[LostSteps]:
    """Return what the clients of a run, or of one rank, lost within the steps start .. stop - 1."""
    rows = connection.execute(
        "SELECT frame.payload FROM session CROSS JOIN frame USING (run_id, rank, session_id)"
        " WHERE run_id = ? AND rank = coalesce(?, rank) AND frame.kind = 'gap'"
        " ORDER BY session.ordinal, rank, frame.seq",
        (run_id, rank),
    )
    gaps = (_decoder.decode(payload) for (payload,) in rows)
    return merge_gaps([_lost(gap) for gap in gaps if _overlaps(gap, start, stop)])


def merge_gaps(gaps: Sequence[LostSteps], limit: int = MAX_GAPS) -> list[LostSteps]:
    """Return at most about `limit` gaps: of more, those that lie close together become one."""
    if len(gaps) <= limit:
        return list(gaps)
    placed = sorted((gap for gap in gaps if gap.first_step is not None), key=_first)
    merged = [gap for gap in gaps if gap.first_step is None][:1]
    width = -(-(_last(placed[-1]) - _first(placed[0]) + 1) // limit) if placed else 1
    for gap in placed:
        if merged and merged[-1].first_step is not None and _first(gap) < _first(merged[-1]) + width:
            merged[-1] = _join(merged[-1], gap)
        else:
            merged.append(gap)
    return merged


def _join(one: LostSteps, other: LostSteps) -> LostSteps:
    return LostSteps(
        first_step=one.first_step,
        last_step=max(_last(one), _last(other)),
        reason=one.reason if other.reason in one.reason else f"{one.reason}, {other.reason}",
        steps_lost=one.steps_lost + other.steps_lost,
    )


def _lost(gap: Gap) -> LostSteps:
    last = gap.first_step if gap.last_step is None else gap.last_step
    return LostSteps(first_step=gap.first_step, last_step=last, reason=gap.reason, steps_lost=gap.steps_lost)


def _first(gap: LostSteps) -> int:
    return gap.first_step or 0


def _last(gap: LostSteps) -> int:
    return gap.last_step or 0


def _overlaps(gap: Gap, start: int, stop: int) -> bool:
    if gap.first_step is None:
        return True
    return gap.first_step < stop and (gap.last_step or gap.first_step) >= start
