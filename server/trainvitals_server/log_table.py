"""Log table: takes the rows of a log as they come, and gives the columns that detectors read.

An empty cell is missing; NaN and the infinities are values.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainvitals.wire import FloatArray, IntArray
from trainvitals_server import column_names as names
from trainvitals_server.log_units import Unit
from trainvitals_server.loss_parts import PREFIX
from trainvitals_server.readers import Place, Row, UnreadableLog
from trainvitals_server.readers.row import shown

MISSING = frozenset({"", "null", "none", "na", "n/a", "-"})
TRUTH = {"true": 1.0, "false": 0.0}
MAX_STEP = 2**53  # beyond it neighbours are the same float

Target = tuple[str, str | None]  # a series, and the layer where it has one for each


@dataclass(slots=True)
class Column:
    """One column: in which rows it has a value, and which."""

    name: str
    target: Target
    rows: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def cells(self) -> tuple[IntArray, FloatArray]:
        """Return (rows, values) as numpy arrays."""
        return np.array(self.rows, dtype=np.int64), np.array(self.values, dtype=np.float64)


class LogTable:
    """The rows of one log, column by column."""

    def __init__(self, path: Path) -> None:
        self.places: list[Place] = []
        self._path = path
        self._steps = array("q")
        self._without_step = 0
        self._epochs = Column(names.EPOCH, (names.EPOCH, None))
        self._columns: dict[str, Column | int | None] = {
            names.EPOCH: self._epochs
        }  # an int: a column of steps

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, row: Row) -> None:
        """Take one row; one without a step and without a value we know is none.

        Raises:
            UnreadableLog: if a cell of a known column is no number.
        """
        step, fits, values = None, len(names.STEP_NAMES), []
        for name, cell in row.cells.items():
            column = self._column(name)
            if column is None or (number := self._number(row, name, cell, column)) is None:
                continue
            if isinstance(column, Column):
                values.append((column, number))
            elif column < fits:
                step, fits = self._step(row, name, number), column
        if step is None:
            if not values:
                return
            self._without_step += 1
            step = self._steps[-1] + 1 if self._steps else 0
        for column, number in values:
            column.rows.append(len(self._steps))
            column.values.append(number)
        self._steps.append(step)
        self.places.append(row.place)

    def steps(self) -> tuple[IntArray, Unit, str]:
        """Return the number of each row, what it counts, and a note where the log does not say the steps."""
        if self._without_step < len(self._steps):
            is_by_epoch = any(names.is_by_epoch(column.name) for column in self.chosen()[0].values())
            return np.array(self._steps, dtype=np.int64), "epoch" if is_by_epoch else "step", ""
        rows, epochs = self._epochs.cells()
        are_steps = len(rows) == len(self) and bool(np.all(epochs == np.round(epochs)))
        if are_steps and np.all(np.abs(epochs) < MAX_STEP) and np.all(np.diff(epochs) != 0):
            return epochs.astype(np.int64), "epoch", "no column of steps: the epochs count as steps"
        return np.array(self._steps, dtype=np.int64), "row", "no column of steps: the rows are counted from 0"

    def chosen(self) -> tuple[dict[Target, Column], list[str]]:
        """Return one column for each series, and the names of those left out in favour of it.

        Of two the one with more values counts: a summary in one row is no curve.
        """
        columns = [column for column in self._filled() if column is not self._epochs]
        is_other = names.is_by_epoch if _are_batches(columns) else names.is_by_batch
        columns = [column for column in columns if not is_other(column.name)]
        best: dict[Target, Column] = {}
        for column in sorted(columns, key=_worth):
            best.setdefault(column.target, column)
        return best, [column.name for column in columns if best[column.target] is not column]

    def _filled(self) -> Iterator[Column]:
        return (column for column in self._columns.values() if isinstance(column, Column) and column.rows)

    def _column(self, name: str) -> Column | int | None:
        if name not in self._columns:
            self._columns[name] = _new_column(name)
        return self._columns[name]

    def _number(self, row: Row, name: str, cell: object, column: Column | int) -> float | None:
        if isinstance(cell, float):
            return cell
        if cell is None:
            return None
        text = cell.strip().lower() if isinstance(cell, str) else cell
        if text in MISSING or text == []:
            return None
        try:
            if isinstance(text, int) or (
                isinstance(text, str) and "_" not in text
            ):  # 1_000 is no log's number
                return TRUTH[text] if text in TRUTH else float(text)
        except (ValueError, OverflowError):
            pass
        if isinstance(column, Column) and not names.is_surely_number(column.target[0]):
            return None
        raise UnreadableLog(self._path, f"{shown(cell)} is no number", row.place, name)

    def _step(self, row: Row, name: str, number: float) -> int:
        if not -MAX_STEP < number < MAX_STEP or number != int(number):
            raise UnreadableLog(self._path, f"{shown(row.cells[name])} is no step", row.place, name)
        return int(number)


def _are_batches(columns: Sequence[Column]) -> bool:
    """Whether the steps are batches, not epochs: what training says counts, else what validation says."""
    training = [column for column in columns if not column.target[0].startswith("val_")]
    return any(names.is_by_batch(column.name) for column in training) or (
        not any(names.is_by_epoch(column.name) for column in training)
        and any(names.is_by_batch(column.name) for column in columns)
    )


def _worth(column: Column) -> tuple[int, int]:
    return -len(column.rows), names.preference(column.name, column.target[0])


def _new_column(name: str) -> Column | int | None:
    key = names.normal(name)
    if key in names.STEP_NAMES:
        return names.STEP_NAMES.index(key)
    if (layer := names.layer_of(name)) is not None:
        return Column(name, layer)
    series = names.series_of(name)
    if series is None and (part := names.loss_part_of(name)) is not None:
        series = PREFIX + part
    return Column(name, (series, None)) if series is not None else None
