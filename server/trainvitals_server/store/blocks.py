"""Compaction: `Steps` frames become raw blocks of one series each, and the levels of its pyramid.

A row of the table `block` covers a window of steps, aligned to step 0, and is keyed by where the window
begins: 4,096 steps of raw rows (level 0), 64 buckets of each level above; an eighth of that for a layer
series, whose rows are wide. The last window of a session is rewritten as it fills. Every level is made again
from the one below it, so that compacting is idempotent.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from trainvitals import wire
from trainvitals.wire import Layer
from trainvitals_server.series import (
    LEVEL_STEPS,
    NEVER,
    Buckets,
    Points,
    bucketize,
    coarsen,
    concat_buckets,
    concat_points,
)
from trainvitals_server.store.payload import decode_buckets, decode_points, encode_buckets, encode_points
from trainvitals_server.store.runs import StreamKey
from trainvitals_server.store.streams import load_layouts
from trainvitals_server.store.tail import NO_LAYOUT, Tail, TailFrame, decode_frame

BUCKETS_PER_BLOCK = 64
LAYER_BUCKETS_PER_BLOCK = 8  # at least the ratio of two levels
# Of frames, taken by one call: what bounds its hold on the writer, some 50 ms. A frame always fits.
MAX_BYTES = wire.MAX_FRAME_BYTES
# Raw blocks written by one call, for the same reason: rows far apart, as of somebody who reports every 10,000
# steps, need one each. A frame of our reporters always fits.
MAX_BLOCKS = 32_768
# What is worth a rewrite of the last windows. Fewer frames than this are decoded again by each reader.
MIN_FRAMES = 128


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """One series of one session in one layout; `layers` is 0, and `layout_id` too, where it has none."""

    stream: StreamKey
    name: str
    layout_id: int = NO_LAYOUT
    layers: int = 0

    @property
    def columns(self) -> tuple[str, int, str, str, int]:
        """The leading columns of the primary key."""
        return self.stream.run_id, self.stream.rank, self.name, self.stream.session_id, self.layout_id

    def window(self, level: int) -> int:
        """Return how many steps a block of `level` covers."""
        return LEVEL_STEPS[max(level, 1)] * (LAYER_BUCKETS_PER_BLOCK if self.layers else BUCKETS_PER_BLOCK)


def compact(
    connection: sqlite3.Connection,
    run_id: str,
    rank: int,
    session_id: str,
    up_to_seq: int,
    *,
    min_frames: int = MIN_FRAMES,
) -> int:
    """Turn frames with `seq <= up_to_seq` into blocks, delete them, and return how many there were.

    Takes a bounded number of bytes and blocks; call it again, in a transaction of its own, until it returns
    0. Nothing happens before there are `min_frames` frames, or enough bytes.
    """
    key = StreamKey(run_id, rank, session_id)
    if not _is_worth_it(connection, key, up_to_seq, min_frames):
        return 0
    taken = list(_take(connection, key, up_to_seq))
    tail = Tail(tuple(taken))
    for series in _series_of(key, tail, load_layouts(connection, key)):
        points = tail.points(series.name, series.layout_id, series.layers)
        if points is not None:
            _write(connection, series, points)
    connection.executemany(
        "DELETE FROM frame WHERE run_id = ? AND rank = ? AND session_id = ? AND seq = ?",
        [(*key, frame.frame.seq) for frame in taken],
    )
    return len(taken)


def _is_worth_it(connection: sqlite3.Connection, key: StreamKey, up_to_seq: int, min_frames: int) -> bool:
    frames, size = connection.execute(
        "SELECT count(*), sum(length(payload)) FROM frame"
        " WHERE run_id = ? AND rank = ? AND session_id = ? AND seq <= ? AND kind = 'steps'",
        (*key, up_to_seq),
    ).fetchone()
    return bool(frames) and (frames >= min_frames or size >= MAX_BYTES)


def _take(connection: sqlite3.Connection, key: StreamKey, up_to_seq: int) -> Iterator[TailFrame]:
    rows = connection.execute(
        "SELECT payload FROM frame"
        " WHERE run_id = ? AND rank = ? AND session_id = ? AND seq <= ? AND kind = 'steps' ORDER BY seq",
        (*key, up_to_seq),
    )
    size = blocks = 0
    for (payload,) in rows:
        size += len(payload)
        if size > MAX_BYTES:
            return
        frame = decode_frame(payload)
        count = _block_count(key, frame)
        if count > MAX_BLOCKS:
            continue  # it stays a frame, which the readers of its run decode
        blocks += count
        if blocks > MAX_BLOCKS:
            return
        yield frame


def _block_count(key: StreamKey, frame: TailFrame) -> int:
    """Return how many raw blocks the rows of a frame lie in."""
    plain, layered = SeriesKey(key, "").window(0), SeriesKey(key, "", layers=1).window(0)
    return len(frame.names) * _windows(frame, plain) + len(frame.frame.layer_columns) * _windows(
        frame, layered
    )


def _windows(frame: TailFrame, span: int) -> int:
    return 1 + int(np.count_nonzero(np.diff(frame.steps // span)))


def _series_of(key: StreamKey, tail: Tail, layouts: dict[int, tuple[Layer, ...]]) -> list[SeriesKey]:
    found: dict[SeriesKey, None] = {}
    for frame in tail.frames:
        found.update((SeriesKey(key, name), None) for name in frame.names)
        layout_id = frame.frame.layout_id
        layers = len(layouts.get(layout_id, ()))
        if layers:
            names = frame.frame.layer_columns
            found.update((SeriesKey(key, name, layout_id, layers), None) for name in names)
    return list(found)


def _write(connection: sqlite3.Connection, key: SeriesKey, points: Points) -> None:
    span = key.window(0)
    changed = []
    for start in (np.unique(points.steps // span) * span).tolist():
        added = points.between(start, start + span)
        whole = concat_points([*load_points(connection, key, start, start + span), added])
        _save(connection, key, 0, start, whole, encode_points(whole))
        changed.append(bucketize(whole, LEVEL_STEPS[1]))
    for level in range(1, len(LEVEL_STEPS)):
        changed = list(_write_level(connection, key, level, changed))


def _write_level(
    connection: sqlite3.Connection, key: SeriesKey, level: int, changed: Iterable[Buckets]
) -> Iterator[Buckets]:
    """Write buckets of `level`, and yield those of the next one that they change."""
    span = key.window(level)
    blocks: dict[int, list[Buckets]] = defaultdict(list)
    for buckets in changed:
        blocks[int(buckets.step[0]) // span * span].append(buckets)
    for start, parts in sorted(blocks.items()):
        new = concat_buckets(parts)
        old = load_buckets(connection, key, level, start, start + span)
        whole = _replace(old, new, LEVEL_STEPS[level])
        _save(connection, key, level, start, whole, encode_buckets(whole))
        if level + 1 < len(LEVEL_STEPS):
            coarse = LEVEL_STEPS[level + 1]
            low = int(new.step[0]) // coarse * coarse
            high = (int(new.step[-1]) // coarse + 1) * coarse
            yield coarsen(whole.between(low, high), coarse)


def _replace(old: list[Buckets], new: Buckets, size: int) -> Buckets:
    """Return the old buckets with the new ones in the place of those from the first to the last of them."""
    first, stop = int(new.step[0]) // size * size, (int(new.step[-1]) // size + 1) * size
    return concat_buckets(
        [*(part.between(0, first) for part in old), new, *(part.between(stop, NEVER) for part in old)]
    )


def _save(
    connection: sqlite3.Connection,
    key: SeriesKey,
    level: int,
    start: int,
    rows: Points | Buckets,
    payload: bytes,
) -> None:
    last_step = rows.steps[-1] if isinstance(rows, Points) else rows.last_step[-1]
    count = len(rows) if isinstance(rows, Points) else int(rows.count.sum())
    connection.execute(
        "INSERT OR REPLACE INTO block (run_id, rank, series, session_id, layout_id, level, first_step,"
        " last_step, count, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*key.columns, level, start, int(last_step), count, payload),
    )


def load_points(connection: sqlite3.Connection, key: SeriesKey, start: int, stop: int) -> list[Points]:
    """Return the compacted rows of the steps start .. stop - 1, in order, in parts."""
    payloads = _payloads(connection, key, 0, start, stop)
    return [decode_points(payload).between(start, stop) for payload in payloads]


def load_buckets(
    connection: sqlite3.Connection, key: SeriesKey, level: int, start: int, stop: int
) -> list[Buckets]:
    """Return the buckets of `level` that begin at start .. stop - 1, in order, in parts."""
    payloads = _payloads(connection, key, level, start, stop)
    return [decode_buckets(payload).between(start, stop) for payload in payloads]


def _payloads(
    connection: sqlite3.Connection, key: SeriesKey, level: int, start: int, stop: int
) -> Iterator[bytes]:
    begin = start // key.window(level) * key.window(level)
    rows = connection.execute(
        "SELECT payload FROM block WHERE run_id = ? AND rank = ? AND series = ? AND session_id = ?"
        " AND layout_id = ? AND level = ? AND first_step >= ? AND first_step < ? ORDER BY first_step",
        (*key.columns, level, begin, stop),
    )
    return (payload for (payload,) in rows.fetchall())
