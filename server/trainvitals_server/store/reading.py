"""Reading: a chart's series, from the level of the pyramid that fits it and the frames not compacted yet.

How long a read takes depends on the pixels and on the tail, never on the length of the run. Everything of one
answer is read in one transaction, so that a compaction in between can neither hide a row nor show it twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from trainvitals_server.series import (
    LEVEL_STEPS,
    NEVER,
    POINTS_PER_BUCKET,
    Buckets,
    Points,
    as_buckets,
    concat_buckets,
    concat_points,
    level_for,
    select,
)
from trainvitals_server.store.branches import Branch, load_branches
from trainvitals_server.store.gaps import LostSteps, load_gaps
from trainvitals_server.store.source import Source, open_source, source_buckets, source_rows
from trainvitals_server.store.tail import TIME

Rows = TypeVar("Rows", Points, Buckets)

DEFAULT_PIXELS = 1000
MAX_CELLS = 1 << 18  # of a table of layers: 2 MiB of numbers


@dataclass(frozen=True, slots=True)
class SeriesData:
    """One series of an answer: raw rows, or buckets. `layers` names the second axis of a layer series."""

    rows: Points | Buckets
    layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeriesAnswer:
    """What a chart of a stream gets: its rows, all within start .. stop - 1, which is empty without rows."""

    run_id: str
    rank: int
    start: int
    stop: int
    is_raw: bool
    series: dict[str, SeriesData]
    branches: list[Branch]
    gaps: list[LostSteps]


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Let every read inside see the same moment."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def read_series(
    connection: sqlite3.Connection,
    run_id: str,
    names: Sequence[str],
    start: int = 0,
    stop: int = NEVER,
    pixels: int = DEFAULT_PIXELS,
    rank: int = 0,
    session_id: str | None = None,
) -> SeriesAnswer:
    """Return the named series over the steps start .. stop - 1, raw where they are few, else bucketed.

    The rows are those of the main line; with a `session_id`, all of that session's, its ghost too. A name
    that the run does not have is left out.
    """
    with snapshot(connection):
        branches = load_branches(connection, run_id, rank)
        sources = _sources(connection, branches, start, stop, session_id)
        known = _known(connection, run_id, names)
        is_raw, series = _read(connection, sources, known, pixels)
        gaps = load_gaps(connection, run_id, rank, start, stop)
    start, stop = (sources[0].start, sources[-1].stop) if sources else (start, start)
    return SeriesAnswer(run_id, rank, start, stop, is_raw, series, branches, gaps)


def read_rows(
    connection: sqlite3.Connection, run_id: str, names: Sequence[str], start: int, stop: int, rank: int = 0
) -> dict[str, SeriesData]:
    """Return the raw rows of the main line, however many they are."""
    with snapshot(connection):
        sources = _sources(connection, load_branches(connection, run_id, rank), start, stop, None)
        known = _known(connection, run_id, names)
        return {name: _read_one(connection, sources, name, known[name], 0) for name in known}


def _known(connection: sqlite3.Connection, run_id: str, names: Sequence[str]) -> dict[str, bool]:
    """Return those of `names` that the run has, and whether each is a layer series."""
    rows = connection.execute("SELECT name, per_layer FROM series WHERE run_id = ?", (run_id,))
    found = {TIME: False} | {name: bool(per_layer) for name, per_layer in rows}
    return {name: found[name] for name in names if name in found}


def _sources(
    connection: sqlite3.Connection,
    branches: Sequence[Branch],
    start: int,
    stop: int,
    session_id: str | None,
) -> list[Source]:
    found = []
    for branch in branches:
        if session_id not in (None, branch.key.session_id):
            continue
        low, high = branch.main(start, stop) if session_id is None else branch.all(start, stop)
        if low < high:
            found.append(open_source(connection, branch, low, high))
    return found


def _read(
    connection: sqlite3.Connection, sources: Sequence[Source], known: dict[str, bool], pixels: int
) -> tuple[bool, dict[str, SeriesData]]:
    if not sources:
        return True, {}
    pixels = _affordable(sources, known, pixels)
    span = sources[-1].stop - sources[0].start
    few = POINTS_PER_BUCKET * pixels
    if span > few:
        level = level_for(span, pixels)
        series = {name: _read_one(connection, sources, name, known[name], level, pixels) for name in known}
        if any(_row_count(data) > few for data in series.values()):
            return False, series
    # Few steps, or few rows far apart.
    return True, {name: _read_one(connection, sources, name, known[name], 0) for name in known}


def _affordable(sources: Sequence[Source], known: dict[str, bool], pixels: int) -> int:
    """Return fewer pixels where a table of many layers would become too large."""
    layers = [len(layers) for source in sources for layers in source.layouts.values()]
    if not layers or not any(known.values()):
        return pixels
    return max(2, min(pixels, MAX_CELLS // (POINTS_PER_BUCKET * max(*layers, 1))))


def _row_count(data: SeriesData) -> int:
    return len(data.rows) if isinstance(data.rows, Points) else int(data.rows.count.sum())


def _read_one(
    connection: sqlite3.Connection,
    sources: Sequence[Source],
    name: str,
    per_layer: bool,
    level: int,
    pixels: int | None = None,
) -> SeriesData:
    """Return one series raw, or in buckets for `pixels`."""
    keys = [(source, key) for source in sources for key in source.keys(name, per_layer)]
    layers = _union([source.layer_names(key) for source, key in keys])
    if pixels is None:
        points = [
            _aligned(part, source.layer_names(key), layers)
            for source, key in keys
            for part in source_rows(connection, source, key, source.start, source.stop)
        ]
        return SeriesData(concat_points(points) if points else _no_rows(layers), layers)
    buckets = [
        _aligned(part, source.layer_names(key), layers)
        for source, key in keys
        for part in source_buckets(connection, source, key, level)
    ]
    joined = concat_buckets(buckets) if buckets else as_buckets(_no_rows(layers))
    return SeriesData(select(joined, pixels, LEVEL_STEPS[level]), layers)


def _union(layouts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the layers of all layouts, each name once; a single layout as it is."""
    if len(set(layouts)) <= 1:
        return layouts[0] if layouts else ()
    return tuple(dict.fromkeys(name for layout in layouts for name in layout))


def _aligned(part: Rows, names: tuple[str, ...], layers: tuple[str, ...]) -> Rows:
    if names == layers:
        return part
    return part.widen([layers.index(name) for name in names], len(layers))


def _no_rows(layers: Sequence[str]) -> Points:
    shape = (0, len(layers)) if layers else (0,)
    return Points(np.zeros(0, dtype=np.int64), np.zeros(shape), np.zeros(shape, dtype=bool))
