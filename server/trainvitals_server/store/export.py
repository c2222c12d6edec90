"""Export: the raw rows of a run's main line as tables, piece by piece, each small and read by itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trainvitals.wire import MAX_ROWS, BoolArray, IntArray
from trainvitals_server.series import NEVER, Points, Values
from trainvitals_server.store.blocks import SeriesKey
from trainvitals_server.store.branches import Branch, load_branches
from trainvitals_server.store.reading import SeriesData, read_rows, snapshot
from trainvitals_server.store.streams import load_layouts
from trainvitals_server.store.tail import TIME

LAYER_ROWS = 512  # of one piece where rows are as wide as a model has layers: one storage block

Cells = tuple[Values, BoolArray]


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What an export holds: columns, each a series or one layer of it, and stretches of steps to read."""

    run_id: str
    rank: int
    columns: tuple[tuple[str, str | None], ...]
    pieces: tuple[tuple[int, int], ...]

    @property
    def series(self) -> list[str]:
        """Names of the series, each once."""
        return list(dict.fromkeys(name for name, _ in self.columns))

    @property
    def headings(self) -> list[str]:
        """What the columns are called."""
        return [name if layer is None else f"{name}/{layer}" for name, layer in self.columns]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of an export: the steps, and the cells of each column of its plan."""

    steps: IntArray
    cells: list[Cells]

    def between(self, start: int, stop: int) -> Table:
        """Return the rows at start .. stop - 1."""
        return Table(
            self.steps[start:stop],
            [(values[start:stop], present[start:stop]) for values, present in self.cells],
        )


def plan_export(
    connection: sqlite3.Connection, run_id: str, names: Sequence[str] | None = None, rank: int = 0
) -> ExportPlan:
    """Return the plan for the named series, by default for all without layers; the clock comes first."""
    with snapshot(connection):
        branches = load_branches(connection, run_id, rank)
        per_layer = _per_layer(connection, run_id)
        chosen = [name for name in per_layer if not per_layer[name]] if names is None else names
        columns: dict[tuple[str, str | None], None] = {(TIME, None): None}
        for name in (name for name in chosen if name in per_layer):
            layers = _layers(connection, branches) if per_layer[name] else [None]
            columns.update(((name, layer), None) for layer in layers)
        has_layers = any(layer is not None for _, layer in columns)
        span = LAYER_ROWS if has_layers else MAX_ROWS
        pieces = [piece for branch in branches for piece in _pieces(connection, branch, span)]
    return ExportPlan(run_id, rank, tuple(columns), tuple(pieces))


def read_table(connection: sqlite3.Connection, plan: ExportPlan, piece: tuple[int, int]) -> Table:
    """Return the rows of one piece of a plan."""
    found = read_rows(connection, plan.run_id, plan.series, *piece, plan.rank)
    steps = _points(found[TIME]).steps
    spread = {name: _Spread(data, steps) for name, data in found.items()}
    return Table(steps, [spread[name].cells(layer) for name, layer in plan.columns])


class _Spread:
    """A series over the rows of a table; a row that it does not have is missing."""

    def __init__(self, data: SeriesData, steps: IntArray) -> None:
        points = _points(data)
        at = np.searchsorted(steps, points.steps)  # every row has the clock, so every step is there
        shape = (len(steps), *points.values.shape[1:])
        self._values, self._present = np.zeros(shape, points.values.dtype), np.zeros(shape, dtype=bool)
        self._values[at], self._present[at] = points.values, points.present
        self._places = {layer: place for place, layer in enumerate(data.layers)}

    def cells(self, layer: str | None) -> Cells:
        """Return the series, or one layer of it."""
        if layer is None:
            return self._values, self._present
        if layer not in self._places:
            return np.zeros(len(self._values)), np.zeros(len(self._values), dtype=bool)
        place = self._places[layer]
        return self._values[:, place], self._present[:, place]


def _points(data: SeriesData) -> Points:
    assert isinstance(data.rows, Points)
    return data.rows


def _per_layer(connection: sqlite3.Connection, run_id: str) -> dict[str, bool]:
    rows = connection.execute("SELECT name, per_layer FROM series WHERE run_id = ? ORDER BY name", (run_id,))
    return {name: bool(per_layer) for name, per_layer in rows}


def _layers(connection: sqlite3.Connection, branches: Sequence[Branch]) -> list[str | None]:
    layouts = [load_layouts(connection, branch.key) for branch in branches]
    names = (layer.name for layout in layouts for layers in layout.values() for layer in layers)
    return list(dict.fromkeys(names))


def _pieces(connection: sqlite3.Connection, branch: Branch, span: int) -> list[tuple[int, int]]:
    """Cut the branch's part of the main line into stretches of about `span` rows."""
    low, high = branch.main(0, NEVER)
    if low >= high:
        return []
    cuts = {low, high}
    cuts.update(cut for cut in _cuts(connection, branch, span) if low < cut < high)
    return list(pairwise(sorted(cuts)))


def _cuts(connection: sqlite3.Connection, branch: Branch, span: int) -> list[int]:
    blocks = connection.execute(
        "SELECT first_step, last_step FROM block WHERE run_id = ? AND rank = ? AND series = ?"
        " AND session_id = ? AND layout_id = ? AND level = 0",
        SeriesKey(branch.key, TIME).columns,
    )
    cuts = [cut for first, last in blocks for cut in (*range(first, last + 1, span), last + 1)]
    frames = connection.execute(
        "SELECT first_step, count FROM frame WHERE run_id = ? AND rank = ? AND session_id = ?"
        " AND kind = 'steps' ORDER BY first_step",
        branch.key,
    )
    rows = 0
    for first_step, count in frames:
        rows += count
        if rows > span:
            cuts.append(first_step)
            rows = count
    return cuts
