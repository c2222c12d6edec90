"""Source: the part of one session that an answer shows, from its blocks and its tail."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from trainvitals.wire import Layer
from trainvitals_server.series import LEVEL_STEPS, Buckets, Points, as_buckets, bucketize, concat_points
from trainvitals_server.store.blocks import SeriesKey, load_buckets, load_points
from trainvitals_server.store.branches import Branch
from trainvitals_server.store.streams import load_layouts
from trainvitals_server.store.tail import Tail, load_tail


@dataclass(frozen=True, slots=True)
class Source:
    """The steps start .. stop - 1 of a branch; its tail is decoded once for all series."""

    branch: Branch
    start: int
    stop: int
    tail: Tail
    layouts: Mapping[int, tuple[Layer, ...]]

    def keys(self, name: str, per_layer: bool) -> list[SeriesKey]:
        """Return where a series is kept: once, or once for each layout."""
        if not per_layer:
            return [SeriesKey(self.branch.key, name)]
        layouts = self.layouts.items()
        return [SeriesKey(self.branch.key, name, number, len(layers)) for number, layers in layouts if layers]

    def layer_names(self, key: SeriesKey) -> tuple[str, ...]:
        """Return the layers that the second axis of a series means; none where it has no such axis."""
        return tuple(layer.name for layer in self.layouts[key.layout_id]) if key.layers else ()


def open_source(connection: sqlite3.Connection, branch: Branch, start: int, stop: int) -> Source:
    """Return the steps start .. stop - 1 of a branch as a source."""
    tail = load_tail(connection, branch.key) if branch.tail_from < stop else Tail(())
    return Source(branch, start, stop, tail, load_layouts(connection, branch.key))


def source_rows(
    connection: sqlite3.Connection, source: Source, key: SeriesKey, start: int, stop: int
) -> list[Points]:
    """Return the raw rows of start .. stop - 1 in parts; of one step the later part's row counts."""
    tail = source.tail.points(key.name, key.layout_id, key.layers)
    blocks = load_points(connection, key, start, stop)
    return blocks if tail is None else [*blocks, tail.between(start, stop)]


def source_buckets(
    connection: sqlite3.Connection, source: Source, key: SeriesKey, level: int
) -> list[Buckets]:
    """Return a series in buckets: from the pyramid below its tail, from raw rows where the tail begins."""
    cut = min(max(source.branch.tail_from, source.start), source.stop)
    found = _pyramid(connection, key, source.start, cut, level)
    rows = source_rows(connection, source, key, cut, source.stop) if cut < source.stop else []
    return [*found, bucketize(concat_points(rows), LEVEL_STEPS[level])] if rows else found


def _pyramid(
    connection: sqlite3.Connection, key: SeriesKey, start: int, stop: int, level: int
) -> list[Buckets]:
    """Return buckets that hold exactly the compacted rows of the steps start .. stop - 1.

    The whole buckets of `level` lie in the middle; what is left at both ends comes from finer levels.
    """
    if start >= stop:
        return []
    if level == 0:
        return [as_buckets(points) for points in load_points(connection, key, start, stop)]
    size = LEVEL_STEPS[level]
    low, high = -(-start // size) * size, stop // size * size
    if low >= high:
        return _pyramid(connection, key, start, stop, level - 1)
    left = _pyramid(connection, key, start, low, level - 1)
    middle = load_buckets(connection, key, level, low, high)
    return [*left, *middle, *_pyramid(connection, key, high, stop, level - 1)]
