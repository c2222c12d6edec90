"""What the detectors read and keep: the frames that a fold has not seen, and its state.

A fold's `streams` says how far it is in each session; frames up to there may be compacted, later ones not.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from trainvitals.wire import Layer, Layout
from trainvitals_server.store.runs import StreamKey

FRAMES_AT_ONCE = 32  # a frame may have a MiB, and nobody else runs Python while many are folded
_UNSEEN = -1  # before frame 0, which is the session's Hello

Progress = dict[str, int]  # "rank/session_id" -> the last seq that was folded


class StoredFrame(NamedTuple):
    """A frame as it was stored; `kind` is hello, layout, steps, event, gap or bye."""

    rank: int
    session_id: str
    seq: int
    kind: str
    payload: bytes


def stream_name(rank: int, session_id: str) -> str:
    """Return the name of a session in a fold's `streams`."""
    return f"{rank}/{session_id}"


def unfolded_runs(connection: sqlite3.Connection) -> list[str]:
    """Return the runs of which frames are stored that no saved fold has seen."""
    rows = connection.execute(
        "SELECT run_id, rank, session_id, acked_seq, streams FROM session LEFT JOIN fold USING (run_id)"
    )
    found: dict[str, None] = {}
    for run_id, rank, session_id, acked_seq, streams in rows:
        progress = json.loads(streams) if streams else {}
        if progress.get(stream_name(rank, session_id), _UNSEEN) < acked_seq:
            found[run_id] = None
    return list(found)


def unfolded_frames(
    connection: sqlite3.Connection, run_id: str, progress: Mapping[str, int], limit: int = FRAMES_AT_ONCE
) -> list[StoredFrame]:
    """Return the next frames that a fold at `progress` has not seen: earlier sessions first, then by rank."""
    sessions = connection.execute(
        "SELECT rank, session_id FROM session WHERE run_id = ? ORDER BY ordinal, rank", (run_id,)
    ).fetchall()
    frames: list[StoredFrame] = []
    for rank, session_id in sessions:
        seen = progress.get(stream_name(rank, session_id), _UNSEEN)
        rows = connection.execute(
            "SELECT seq, kind, payload FROM frame WHERE (run_id, rank, session_id) = (?, ?, ?) AND seq > ?"
            " ORDER BY seq LIMIT ?",
            (run_id, rank, session_id, seen, limit - len(frames)),
        )
        frames.extend(StoredFrame(rank, session_id, *row) for row in rows)
        if len(frames) >= limit:
            break
    return frames


def opening_frames(connection: sqlite3.Connection, run_id: str) -> list[StoredFrame]:
    """Return the Hello and the layouts of every session of the run, which compaction keeps."""
    rows = connection.execute(
        "SELECT rank, session_id, seq, kind, payload FROM frame JOIN session USING (run_id, rank, session_id)"
        " WHERE run_id = ? AND kind IN ('hello', 'layout') ORDER BY ordinal, rank, seq",
        (run_id,),
    )
    return [StoredFrame(*row) for row in rows]


def load_layouts(connection: sqlite3.Connection, key: StreamKey) -> dict[int, tuple[Layer, ...]]:
    """Return the layers of each layout of a session."""
    rows = connection.execute(
        "SELECT payload FROM frame WHERE (run_id, rank, session_id) = (?, ?, ?) AND kind = 'layout'", key
    )
    layouts = [msgspec.msgpack.decode(payload, type=Layout) for (payload,) in rows]
    return {layout.layout_id: tuple(layout.layers) for layout in layouts}


def load_fold(connection: sqlite3.Connection, run_id: str) -> tuple[bytes, Progress] | None:
    """Return the state of the run's fold and how far it is, or None where none was saved."""
    row = connection.execute("SELECT state, streams FROM fold WHERE run_id = ?", (run_id,)).fetchone()
    return (row[0], json.loads(row[1])) if row else None


def save_fold(connection: sqlite3.Connection, run_id: str, state: bytes, progress: Mapping[str, int]) -> bool:
    """Keep the state of the run's fold, which is at `progress`; return False where the run was deleted."""
    cursor = connection.execute(
        "INSERT INTO fold (run_id, state, streams) SELECT run_id, ?, ? FROM run WHERE run_id = ?"
        " ON CONFLICT DO UPDATE SET state = excluded.state, streams = excluded.streams",
        (state, json.dumps(progress), run_id),
    )
    return cursor.rowcount > 0


def judged(connection: sqlite3.Connection, since: float) -> list[tuple[StreamKey, int]]:
    """Return how far the saved folds are in each session that was heard from after `since`."""
    rows = connection.execute(
        "SELECT run_id, rank, session_id, streams FROM session JOIN fold USING (run_id)"
        " WHERE last_seen_at >= ?",
        (since,),
    )
    return [
        (
            StreamKey(run_id, rank, session_id),
            json.loads(progress).get(stream_name(rank, session_id), _UNSEEN),
        )
        for run_id, rank, session_id, progress in rows
    ]


def has_folded(connection: sqlite3.Connection, key: StreamKey) -> bool:
    """Return whether the saved fold has seen everything of this session."""
    row = connection.execute(
        "SELECT acked_seq, streams FROM session JOIN fold USING (run_id)"
        " WHERE (run_id, rank, session_id) = (?, ?, ?)",
        key,
    ).fetchone()
    if row is None:
        return False
    seen: int = json.loads(row[1]).get(stream_name(key.rank, key.session_id), _UNSEEN)
    acked_seq: int = row[0]
    return seen >= acked_seq


def is_late(connection: sqlite3.Connection, key: StreamKey) -> bool:
    """Return whether an old spool is being uploaded into this session."""
    row = connection.execute(
        "SELECT late FROM session WHERE (run_id, rank, session_id) = (?, ?, ?)", key
    ).fetchone()
    return bool(row and row[0])
