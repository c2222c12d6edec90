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
        pieces = [piece for branch in branches for piece in _pieces(connection, branch)]
    return ExportPlan(run_id, rank, tuple(columns), tuple(pieces))


def read_table(connection: sqlite3.Connection, plan: ExportPlan, piece: tuple[int, int]) -> Table:
    """Return the rows of one piece of a plan."""
    found = read_rows(connection, plan.run_id, plan.series, *piece, plan.rank)
    steps = _points(found[TIME]).steps
    return Table(steps, [_cells(found[name], layer, steps) for name, layer in plan.columns])


def _cells(data: SeriesData, layer: str | None, steps: IntArray) -> Cells:
    points = _points(data)
    values, present = points.values, points.present
    if layer is not None:
        if layer not in data.layers:
            return np.zeros(len(steps)), np.zeros(len(steps), dtype=bool)
        index = data.layers.index(layer)
        values, present = values[:, index], present[:, index]
    at = np.searchsorted(steps, points.steps)  # every row has the clock, so every step is there
    spread, flags = np.zeros(len(steps), dtype=values.dtype), np.zeros(len(steps), dtype=bool)
    spread[at], flags[at] = values, present
    return spread, flags


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


def _pieces(connection: sqlite3.Connection, branch: Branch) -> list[tuple[int, int]]:
    """Cut the branch's part of the main line where a block begins, and into stretches of its tail."""
    low, high = branch.main(0, NEVER)
    if low >= high:
        return []
    cuts = {low, high}
    cuts.update(cut for cut in _cuts(connection, branch) if low < cut < high)
    return list(pairwise(sorted(cuts)))


def _cuts(connection: sqlite3.Connection, branch: Branch) -> list[int]:
    blocks = connection.execute(
        "SELECT first_step FROM block WHERE run_id = ? AND rank = ? AND series = ? AND session_id = ?"
        " AND layout_id = ? AND level = 0",
        SeriesKey(branch.key, TIME).columns,
    )
    cuts = [first_step for (first_step,) in blocks]
    frames = connection.execute(
        "SELECT first_step, count FROM frame WHERE run_id = ? AND rank = ? AND session_id = ?"
        " AND kind = 'steps' ORDER BY first_step",
        branch.key,
    )
    rows = 0
    for first_step, count in frames:
        rows += count
        if rows > MAX_ROWS:
            cuts.append(first_step)
            rows = count
    return cuts
