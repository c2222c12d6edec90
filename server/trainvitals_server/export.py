"""Export: a run's raw rows as CSV or JSON lines, sent while they are read.

NaN, Infinity and -Infinity are spelled so; a missing value is an empty cell, or a key that is not there.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
import numpy as np

from trainvitals_server.codec import spell_number
from trainvitals_server.store.database import Database
from trainvitals_server.store.export import Cells, ExportPlan, Table, read_table

STEP = "step"
CELLS_AT_ONCE = 1 << 16  # spelled at one time: some 10 MiB of texts before they are joined
Write = Callable[[ExportPlan, Iterator[Table]], Iterator[bytes]]


def tables(database: Database, plan: ExportPlan) -> Iterator[Table]:
    """Read the pieces of a plan one by one; no connection is held while a slow client takes one."""
    for piece in plan.pieces:
        yield database.read(partial(read_table, plan=plan, piece=piece))


def write_csv(plan: ExportPlan, rows: Iterator[Table]) -> Iterator[bytes]:
    """Yield the lines of a CSV file, its heading first."""
    yield _csv_lines([[STEP, *plan.headings]])
    for table in _portions(rows):
        columns = [[repr(step) for step in table.steps.tolist()], *(_texts(cells) for cells in table.cells)]
        yield _csv_lines(list(zip(*columns, strict=True)))


def write_jsonl(plan: ExportPlan, rows: Iterator[Table]) -> Iterator[bytes]:
    """Yield one JSON object a row."""
    encoder = msgspec.json.Encoder()
    for table in _portions(rows):
        cells = [_json_cells(cells) for cells in table.cells]
        lines = []
        for index, step in enumerate(table.steps.tolist()):
            row = {name: column[index] for name, column in zip(plan.headings, cells, strict=True)}
            lines.append({STEP: step} | {name: cell for name, cell in row.items() if cell is not None})
        yield encoder.encode_lines(lines)


def _portions(rows: Iterator[Table]) -> Iterator[Table]:
    for table in rows:
        size = max(1, CELLS_AT_ONCE // max(1, len(table.cells)))
        for start in range(0, len(table.steps), size):
            yield table.between(start, start + size)


def _csv_lines(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _texts(cells: Cells) -> list[str]:
    values, present = cells
    texts = [repr(value) for value in values.tolist()]
    for index in np.flatnonzero(~np.isfinite(values)).tolist():
        texts[index] = spell_number(float(values[index]))
    for index in np.flatnonzero(~present).tolist():
        texts[index] = ""
    return texts


def _json_cells(cells: Cells) -> list[float | str | None]:
    values, present = cells
    found: list[float | str | None] = list(values.tolist())
    for index in np.flatnonzero(~np.isfinite(values)).tolist():
        found[index] = spell_number(float(values[index]))
    for index in np.flatnonzero(~present).tolist():
        found[index] = None
    return found
