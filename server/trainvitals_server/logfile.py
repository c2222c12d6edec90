"""Logfile: a training log as batches of rows, whatever its form, and what was odd about it. Judges nothing.

A restart in it begins another branch; rows out of order are sorted; of a step that came twice the later row
counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainvitals.wire import FloatArray, IntArray, Layer
from trainvitals_server.batch import Batch, Series
from trainvitals_server.detect.needs import coverage
from trainvitals_server.log_branches import bounds, split
from trainvitals_server.log_table import LogTable, Target
from trainvitals_server.log_units import Unit
from trainvitals_server.loss_parts import PREFIX, judged_of, note_on
from trainvitals_server.readers import CutOff, NothingToJudge, Place, Row, UnreadableLog, printable, read_rows
from trainvitals_server.readers.row import shown
from trainvitals_server.readers.source import Watch

JUDGED = "loss, grad_norm, loss_scale, ..."
_Cells = dict[Target, tuple[IntArray, FloatArray]]


@dataclass(slots=True)
class Log:
    """The branches of one log (more than one where steps fall back), and what was odd about it."""

    path: Path
    branches: list[Batch]
    notes: list[str] = field(default_factory=list)
    unit: Unit = "step"  # what a row is

    @property
    def rows(self) -> int:
        """How many rows there are in all."""
        return sum(len(branch) for branch in self.branches)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that the log has columns for."""
        return self.branches[0].layers

    @property
    def counts(self) -> dict[str, int]:
        """How many rows have a value of each series; those without any are left out."""
        counts: Counter[str] = Counter()
        for branch in self.branches:
            for columns in (branch.columns, branch.layer_columns):
                for name, series in columns.items():
                    counts[name] += int(series.present.reshape(len(branch), -1).any(axis=1).sum())
        known = {name: count for name, count in counts.items() if count and not name.startswith(PREFIX)}
        parts = [counts[PREFIX + part] for part in self.judged_parts]
        return {**known, "loss": max(parts)} if parts else known

    @property
    def series(self) -> set[str]:
        """The series that hold at least one value."""
        return set(self.counts)

    @property
    def judged_parts(self) -> list[str]:
        """The columns that are judged in place of a loss, each by itself."""
        return judged_of(_filled(self.branches))


def read_log(path: Path, watch: Watch = lambda _: None, parts: Sequence[Path] = ()) -> Log:
    """Read one log, or the `parts` of a run that lies in several; `watch` is told how many bytes were read.

    Raises:
        UnreadableLog: if it is no log, or a cell of a known column is no number.
    """
    table, notes = LogTable(path), []
    if len(parts) > 1:
        notes.append(f"one run in {len(parts)} files: {', '.join(_within(path, part) for part in parts)}")
    for part in parts or (path,):
        note = _read(table, part, watch, is_one_of_many=len(parts) > 1)
        notes += [note if len(parts) < 2 else f"{_within(path, part)}: {note}"] if note else []
    if not len(table):
        raise NothingToJudge(path, f"it has no rows with {JUDGED}")
    log = _assemble(path, table, notes)
    log.notes += [note] if (note := note_on(_filled(log.branches))) else []
    if not coverage(log.series)[0]:
        raise NothingToJudge(path, f"no column that can be judged holds a value: {JUDGED}")
    return log


def _read(table: LogTable, path: Path, watch: Watch, *, is_one_of_many: bool) -> str:
    """Put the rows of one file into the table; return what was odd."""
    rows_before = len(table)
    try:
        with closing(read_rows(path, watch)) as rows:
            for row in rows:
                _add(table, row)
    except CutOff as error:
        if len(table) == rows_before and not is_one_of_many:
            raise
        place = f", {_where(error.line)}" if error.line is not None else ""
        return f"it ends in the middle ({error.reason}{place}): what came before was judged"
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise UnreadableLog(path, reason) from error
    return ""


def _filled(branches: Sequence[Batch]) -> set[str]:
    return {name for one in branches for name, series in one.columns.items() if series.present.any()}


def _within(folder: Path, part: Path) -> str:
    return printable(str(part.relative_to(folder) if part.is_relative_to(folder) else part))


def _add(table: LogTable, row: Row) -> None:
    try:
        table.add(row)
    except UnreadableLog as error:
        if row.is_cut:
            raise CutOff(error.path, error.reason, error.line, error.column) from error
        raise


def _assemble(path: Path, table: LogTable, notes: list[str]) -> Log:
    steps, unit, note = table.steps()
    chosen, left = table.chosen()
    cells = {target: column.cells() for target, column in chosen.items()}
    parts = split({repr(target): (rows, steps[rows]) for target, (rows, _) in cells.items()})
    layers = tuple(dict.fromkeys(layer for _, layer in cells if layer is not None))
    made = [_branch(steps, cells, layers, *part) for part in bounds(parts.starts, len(steps))]
    notes += [note] if note else []
    if left:
        notes.append(f"left out, as other columns hold more of the same: {', '.join(map(shown, left))}")
    if parts.is_disordered:
        notes.append("the rows are not in the order of their steps: they were sorted")
    if repeated := sum(count for _, count in made):
        notes.append(f"{_times(repeated, 'step')} came twice: the later row counts")
    if falls := len(parts.starts) - 1:
        first = parts.starts[1]
        fall = f"first from {steps[first - 1]} to {steps[first]}, {_where(table.places[first])}"
        notes.append(
            f"the steps fall back {_times(falls, 'time')} ({fall}): each branch was judged by itself"
        )
    return Log(path, [branch for branch, _ in made], notes, unit)


def _branch(
    steps: IntArray, cells: _Cells, layers: Sequence[str], start: int, stop: int
) -> tuple[Batch, int]:
    """Return the rows `start` .. `stop` - 1 in order of step, and how many steps came twice."""
    unique, place_of = np.unique(steps[start:stop], return_inverse=True)
    found: dict[Target, Series] = {}
    repeated = 0
    for target, (rows, values) in cells.items():
        low, high = np.searchsorted(rows, (start, stop))
        places = place_of[rows[low:high] - start]
        spread, present = np.zeros(len(unique)), np.zeros(len(unique), dtype=bool)
        spread[places], present[places] = values[low:high], True  # of equal places the last one stays
        found[target] = Series(spread, present)
        repeated = max(repeated, len(places) - int(present.sum()))
    columns = {name: series for (name, layer), series in found.items() if layer is None}
    names = dict.fromkeys(name for name, layer in found if layer is not None)
    tables = {name: _stacked([found.get((name, layer)) for layer in layers], len(unique)) for name in names}
    return Batch(unique, columns, tables, tuple(Layer(name=layer) for layer in layers)), repeated


def _stacked(columns: Sequence[Series | None], rows: int) -> Series:
    absent = Series(np.zeros(rows), np.zeros(rows, dtype=bool))
    there = [column or absent for column in columns]
    return Series(
        np.stack([column.values for column in there], axis=1),
        np.stack([column.present for column in there], axis=1),
    )


def _times(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _where(place: Place) -> str:
    return f"line {place}" if isinstance(place, int) else place
